"""Measured figures have one home, docs/results, and reach README and the pages of docs by their keys.

In Markdown a figure stands as   <!--=demo.snr-->26.6<!--/--> dB   with a key of `KEYS`, whose value is computed from
the results. GitHub hides the comments; the site fills the values in while it is built; in the repository

    python docs/figures.py            says which are out of date (a test does, too)
    python docs/figures.py --write    writes them

Two keys have no home here: `paper` marks numbers that the paper prints, `setting` those that were chosen, not measured.
`loose` finds dB, %, times and ratios that stand without a key.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path

from smadmm.paper.rows import difference, some

DOCS = Path(__file__).parent.resolve()
MARK = re.compile(r"(?<!`)<!--=([^>]*?)-->(.*?)<!--/-->", re.DOTALL)
FREE = ("paper", "setting")
CODE = re.compile(r"^(```|:::).*?^\1|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
UNITS = r"dB|%|ms|s|sec|seconds?|minutes?|min|hours?|h|GB|MB|times|-fold"
WORDS = r"half|third|quarter|fifth|eighth|tenth|hundredth|thousandth"
LOOSE = re.compile(
    rf"\d\]?\s?(?:{UNITS})(?![\w-])|\b(?:twice|thrice|hundreds?|thousands?)\s(?:as\s|of\stimes)"
    rf"|\b(?:{WORDS})s?\s(?:of\s)?(?:the|its|their)\s(?:time|memory|cost|error)|\d\s?x\s(?:faster|slower|as\s)"
    r"|\d\s?(?:±|\+-)\s?\d|\d\s\[-?[\d.]+, -?[\d.]+\]"
)
STARTS = re.compile(r"^<!--=[^>]*-->.+", re.MULTILINE)
CONVENTIONS = re.compile(r"9[59]\s?%\s(?:confidence\s)?intervals?")


@cache
def stored(name, file="results.json"):
    return json.loads((DOCS / "results" / name / file).read_text(encoding="utf-8"))


@cache
def quoted(name, pattern):
    """What a table says, word for word: the group of a pattern that occurs once."""
    found = re.findall(pattern, (DOCS / "results" / name / "table.md").read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ValueError(f"{pattern!r} occurs {len(found)} times in docs/results/{name}/table.md; mend the key")
    return found[0]


def with_interval(gap, digits, sign=""):
    half = f" ± {gap.half:.{digits}f}" if gap.half == gap.half else ""
    return f"{gap.mean:{sign}.{digits}f}{half}"


def ct(methods, batch, digits, sign="", equal="iterations", decibel=50.0, views=180):
    """dB; slices of one seed are one unit."""
    rows = some(stored(f"ct-{views}")["rows"], decibel=decibel, batch=batch)
    rows = [row for row in rows if row["equal"] == equal or row["method"] == "sadmm"]  # whose SFO are the budget
    return with_interval(difference(rows, methods, "snr", ("slice", "seed"), "seed"), digits, sign)


def visual(methods, column="snr"):
    """dB on the slice of 512 x 512, batches of 20 views, after 60 iterations for which all were tuned."""
    rows = some(stored("ct-visual")["rows"], iterations=60, batch=20, equal="iterations")
    return f"{difference(rows, methods, column, ('slice', 'seed'), 'seed').mean:.1f}"


def phase(purpose, methods, column, digits, sign=""):
    rows = some(stored("phase")["rows"], purpose=purpose, batch=1)
    return with_interval(difference(rows, methods, column, ("image", "seed"), "seed"), digits, sign)


def own_step(equal, method):
    """dB above PnP-SADMM, each with a step of its own."""
    row = rf"\n\| {equal} \| {method} \|[^|]*\|[^|]*\| ([-+]\S+ \+- \S+) \(8 seeds\)"
    return quoted("phase", row).replace("+-", "±")


def denoiser(name):
    (row,) = (r for r in stored("denoisers")["rows"] if r["denoiser"] == name and r["sigma"] == 5)
    return row


def demo(key, digits):
    return f"{stored('demo', 'run.json')[key]:.{digits}f}"


def defect(case, column):
    """dB of a scan with a defect at 256 x 256."""
    rows = some(stored("robustness")["rows"], kind="defect", case=case, size=256)
    return f"{sum(row[column] for row in rows) / len(rows):.1f}"


def complexity(pattern):
    return quoted("complexity", pattern)


def cone(method):
    """dB, 64 x 64 x 64 voxels from 60 views of a cone beam."""
    return f"{some(stored('cone')['rows'], method=method)[0]['snr']:.1f}"


def slices(*keys):
    """A number of docs/results/scale/slices.json."""
    found = stored("scale", "slices.json")
    for key in keys:
        found = found[key]
    return found


def preview(percent, column):
    (row,) = (r for r in slices("previews") if r["views"] == 240 * percent // 100)
    return f"{row[column]:.1f}"


KEYS = {
    "cone.fdk": lambda: cone("FDK"),
    "cone.ours": lambda: cone("smadmm.reconstruct"),
    "demo.snr": lambda: demo("snr", 1),
    "demo.fbp": lambda: demo("snr_fbp", 1),
    "demo.seconds": lambda: demo("total_seconds", 0),
    "denoisers.ct": lambda: f"{denoiser('BM3D')['psnr_ct'] - denoiser('ridge-ct')['psnr_ct']:.2f}",
    "denoisers.ct-large": lambda: f"{denoiser('BM3D')['psnr_ct'] - denoiser('ridge-ct-large')['psnr_ct']:.2f}",
    "denoisers.large-over-small": lambda: f"{denoiser('ridge-ct-large')['ms'] / denoiser('ridge-ct')['ms']:.1f}",
    "denoisers.natural": lambda: f"{denoiser('ridge-natural')['psnr_set12']:.2f}",
    "denoisers.bm3d": lambda: f"{denoiser('BM3D')['psnr_set12']:.2f}",
    "denoisers.bm3d-over-natural": lambda: f"{denoiser('BM3D')['ms'] / denoiser('ridge-natural')['ms']:.0f}",
    "ct.momentum": lambda: ct(("smadmm", "sadmm"), 5, 2, "+"),
    "ct.momentum-noisy": lambda: ct(("smadmm", "sadmm"), 10, 2, decibel=35.0),
    "ct.momentum-sfo": lambda: ct(("smadmm", "sadmm"), 5, 2, equal="sfo"),
    "ct.momentum-120": lambda: ct(("smadmm", "sadmm"), 5, 2, "+", views=120),
    "ct.conditioning-120": lambda: ct(("default", "smadmm"), 5, 1, views=120),
    "ct.spider": lambda: ct(("spider", "sadmm"), 5, 2),
    "ct.asvrg": lambda: ct(("asvrg", "sadmm"), 5, 2),
    "ct.conditioning-5": lambda: ct(("default", "smadmm"), 5, 1),
    "ct.conditioning-40": lambda: ct(("default", "smadmm"), 40, 1),
    "ct.exponent": lambda: quoted("ct-ablation", r"\n\| 0\.5 \| ([-+]\S+ \+- \S+) \|").replace("+-", "±"),
    "ct.exponent-one": lambda: quoted("ct-ablation", r"\n\| 1 \| \+(\S+ \+- \S+) \|").replace("+-", "±"),
    "ct.exponent-two": lambda: quoted("ct-ablation", r"\n\| 2 \| \+(\S+ \+- \S+) \|").replace("+-", "±"),
    "ct.large-tuned": lambda: visual(("default", "smadmm")),
    "ct.large-untuned": lambda: visual(("default", "untuned")),
    "ct.all-views": lambda: quoted("ct-visual", r"does it: \+([\d.]+) \+-[^,]* against PnP-SMADMM"),
    "ct.all-views-seconds": lambda: quoted("ct-visual", r"iteration \S+ to \S+ on, after (\S+ to \S+) s of one core"),
    "phase.momentum": lambda: phase("unbiased", ("smadmm", "sadmm"), "snr", 1),
    "phase.decay": lambda: phase("unbiased", ("smadmm", "sadmm-decay"), "snr_equal_sfo", 2),
    "phase.own-step": lambda: own_step("iterations", "PnP-SMADMM"),
    "phase.own-step-sfo": lambda: own_step("SFO", "PnP-SMADMM"),
    "phase.own-step-spider": lambda: own_step("iterations", "SPIDER-ADMM"),
    **{
        f"defects.{key}": lambda key=key: defect(*key.rsplit(".", 1))
        for key in (
            "clean.default",
            "clean.tv",
            "gains 5.default",
            "scaled 1.default",
            "scaled 5.default",
            "offsets 1.5.default",
            "together.default",
            "together.hann",
            "together.tv",
            "negative.default",
            "negative.told",
            "photons 1e5.default",
            "photons 1e5.told",
            "photons 1e5.tv",
            "photons 1e4.default",
            "photons 1e4.told",
            "photons 1e4.tv",
        )
    },
    "scale.rows": lambda: f"{stored('scale', 'stream.json')['rows']:,}",
    "scale.memory": lambda: f"{stored('scale', 'stream.json')['memory']:.0f}",
    "scale.p": lambda: f"{slices('cost', 'p'):.2g}",
    "scale.q": lambda: f"{slices('cost', 'q'):.2g}",
    "scale.error": lambda: f"{100 * slices('cost', 'error'):.0f}",
    "scale.m": lambda: f"{slices('memory', 'm') / 1e6:.0f}",
    "scale.i": lambda: f"{slices('memory', 'i'):.0f}",
    "scale.s": lambda: f"{slices('memory', 's'):.0f}",
    "scale.memory-error": lambda: f"{100 * slices('memory', 'error'):.0f}",
    "scale.slices-wall": lambda: f"{slices('gain', 'wall', 'ratio'):.2f}",
    "scale.slices-count": lambda: f"{slices('gain', 'slices')}",
    **{
        f"scale.{case}": lambda case=case: f"{stored('scale', 'ranks.json')['cases'][case]['wall']:.2f}"
        for case in ("ct-all", "ct-180", "glm")
    },
    "scale.sum": lambda: f"{1000 * stored('scale', 'ranks.json')['cases']['glm']['sum']:.1f}",
    "scale.glm-ms": lambda: f"{1000 * stored('scale', 'ranks.json')['cases']['glm']['seconds']:.0f}",
    **{
        f"scale.{fault}": lambda fault=fault: "{passed} of {trials}".format(**stored("scale", f"faults-{fault}.json"))
        for fault in ("kill", "cable")
    },
    "scale.begin": lambda: f"{slices('begin'):.1f}",
    "scale.final": lambda: f"{slices('final'):.1f}",
    **{
        f"scale.{name}-{percent}": lambda column=column, percent=percent: preview(percent, column)
        for name, column in (("preview", "snr"), ("fbp", "fbp"))
        for percent in (25, 50, 75, 100)
    },
    "helped.cells": lambda: quoted("classification-helped", r"\nauto: [^;]*lower than both in (\d+ of \d+) cells"),
    "helped.worst": lambda: quoted("classification-helped", r"\nauto: [^;]*worst \+([\d.]+) %; after"),
    **{
        f"speed.{name}": lambda name=name: quoted(
            "classification-speed", rf"\n\| {name}, [^|]* \| SGDClassifier's end \|(?: \S+ \|){{3}} (\S+) \|"
        )
        for name in ("dense", "sparse")
    },
    "defects.slices": lambda: quoted("robustness", r"Slices: (\d+), of 256 x 256"),
    "defects.times": lambda: quoted("robustness", r"with clean data (\S+) at 256"),
    "defects.repairs": lambda: quoted("robustness", r"repairs: (\d+), in \d+ of \d+ sinograms"),
    "defects.sinograms": lambda: quoted("robustness", r"repairs: \d+, in \d+ of (\d+) sinograms"),
    "defects.within": lambda: quoted("robustness", r"of told\)\*\*: [^.]*\. in (\d+ of \d+) cases"),
    "complexity.table": lambda: "\n\n" + complexity(r"\n\n(\| method \| smooth: slope(?:.*\n)+?)\n") + "\n",
    "complexity.exponents": lambda: ", ".join(
        re.findall(r"exponent \S+: (\S+)", complexity(r"\*\*smooth: the order shows.*fixed constants: (.*)"))
    ),
    **{
        f"complexity.{problem}-{rival.lower()}": lambda problem=problem, rival=rival: complexity(
            rf"\*\*{problem}: SMADMM [^*]*{rival}[-ADM]*,[^*]*\*\*: [^:]*: slope [^,]*, [^,]*, dist² (.*?) times that"
        )
        for problem in ("smooth", "flat")
        for rival in ("SPIDER", "SADMM")
    },
    **{
        f"complexity.{problem}-slope": lambda problem=problem: complexity(
            rf"\*\*{problem}: SMADMM needs[^*]*\*\*: \S[^.]*\. The slope with fixed constants is (\S+ \[.*?\]);"
        )
        for problem in ("smooth", "flat")
    },
}


def pages():
    """README and every page that people write; tables in docs/results are written by commands."""
    written = (p for p in DOCS.rglob("*.md") if p.relative_to(DOCS).parts[0] not in ("results", "_build", "gallery"))
    return [DOCS.parent / "README.md", *sorted(written)]


def value(key, text):
    if key in FREE:
        return text
    if key not in KEYS:
        raise ValueError(f"no figure has the key {key!r}; docs/figures.py has {', '.join(KEYS)}")
    return KEYS[key]()


def filled(text):
    """With today's values, without the marks: for the site."""
    return MARK.sub(lambda m: value(m[1], m[2]), text)


def written(text):
    """With today's values between their marks: for the repository."""
    return MARK.sub(lambda m: f"<!--={m[1]}-->{value(m[1], m[2])}<!--/-->", text)


def loose(text):
    """Figures that look measured and have no key, and marks that would not be read as such."""
    starts = [f"{m[0].strip()} begins a line, where Markdown ends the paragraph" for m in STARTS.finditer(text)]
    bare = CONVENTIONS.sub("", CODE.sub("", MARK.sub("", text)))
    found = (bare[max(0, m.start() - 30) : m.end()] for m in LOOSE.finditer(bare))
    return starts + [f"without a key: {words}".replace("\n", " ") for words in found]


def main(write):
    late = 0
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = written(old)
        for mine, theirs in zip(MARK.findall(old), MARK.findall(new), strict=True):
            if mine != theirs:
                late += 1
                print(f"{page.relative_to(DOCS.parent)}: {mine[0]} is {mine[1]}, and measured {theirs[1]}")
        for text in loose(old):
            late += 1
            print(f"{page.relative_to(DOCS.parent)}: {text}")
        if write and new != old:
            page.write_text(new, encoding="utf-8")
    return late


if __name__ == "__main__":
    late = main("--write" in sys.argv)
    sys.exit(bool(late) and "--write" not in sys.argv)
