"""What is made of the rows of the CT experiments: tables beside the paper's, paired differences, curves, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from smadmm.paper.ct_runs import CT_METHODS, PUBLISHED, CTRun, unpack
from smadmm.paper.ct_tuning import COSTLY, Chosen, choose, ends, tuning_table
from smadmm.paper.experiment import Findings, JobResult, Row
from smadmm.paper.rows import (
    above,
    batch_table,
    by_batch,
    caption_of,
    difference,
    highest,
    mean,
    mean_curve,
    outcome,
    signed,
    some,
    values,
)
from smadmm.protocol import Interval
from smadmm.report import Column, Compare, Curves, Measured, Part, Series, Table, Verdict, png


def _printed(*pairs: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """(SNR, SSIM) at the paper's batch sizes."""
    return dict(zip((5, 10, 20, 40), pairs, strict=True))


PAPER = {  # Tables 3 and 4
    120: {
        "red-sd": _printed((32.27, 0.9679), (32.34, 0.9688), (32.36, 0.9691), (32.36, 0.9691)),
        "spider": _printed((32.80, 0.9676), (32.91, 0.9686), (33.07, 0.9701), (33.12, 0.9707)),
        "sadmm": _printed((33.05, 0.9697), (33.14, 0.9707), (33.18, 0.9711), (33.20, 0.9713)),
        "asvrg": _printed((32.96, 0.9697), (33.05, 0.9706), (33.07, 0.9709), (33.09, 0.9710)),
        "smadmm": _printed((33.17, 0.9710), (33.19, 0.9713), (33.20, 0.9714), (33.21, 0.9714)),
    },
    180: {
        "red-sd": _printed((33.05, 0.9726), (33.16, 0.9737), (33.21, 0.9742), (33.24, 0.9745)),
        "spider": _printed((33.71, 0.9722), (33.95, 0.9738), (34.14, 0.9754), (34.32, 0.9765)),
        "sadmm": _printed((34.17, 0.9753), (34.33, 0.9765), (34.40, 0.9771), (34.45, 0.9774)),
        "asvrg": _printed((34.21, 0.9758), (34.33, 0.9767), (34.40, 0.9772), (34.43, 0.9774)),
        "smadmm": _printed((34.38, 0.9770), (34.43, 0.9773), (34.46, 0.9775), (34.48, 0.9776)),
    },
}
PAPER_ABLATION: dict[float, dict[int, tuple[float, float]]] = {  # Table 5, by alpha
    0.1: _printed((34.19, 0.9733), (34.34, 0.9767), (34.41, 0.9771), (34.45, 0.9774)),
    0.5: _printed((34.32, 0.9744), (34.40, 0.9771), (34.44, 0.9774), (34.47, 0.9775)),
    2 / 3: _printed((34.38, 0.9770), (34.43, 0.9773), (34.46, 0.9775), (34.48, 0.9776)),
    1.0: {},  # in the source of the paper, not in its table
    2.0: _printed((23.55, 0.9162), (27.29, 0.9259), (30.61, 0.9552), (32.44, 0.9675)),
}
PAPER_VISUAL = {"red-sd": 34.15, "sadmm": 35.10, "smadmm": 35.36}


SCAN = ("slice", "size", "views", "decibel", "batch", "seed", "iterations")  # the same for rows that are compared


def ct_rows(jobs: Sequence[CTRun], results: Mapping[str, JobResult]) -> list[Row]:
    """Settings and figures of every job that is reported; what tuning saw stays in its table."""
    rows = []
    for job in (job for job in jobs if job.scan.images == "test"):
        scan, result = job.scan, results[job.name]
        row: Row = {"slice": scan.image, "size": scan.size, "views": scan.views, "decibel": scan.decibel}
        row |= {"method": job.method, "batch": job.batch, "seed": scan.seed, "iterations": job.iterations}
        row |= {"equal": "iterations" if job.sfo is None else "sfo", "kappa": job.kappa, "eta": job.eta}
        row |= {"alpha": job.alpha} | {name: result[name] for name in ("rho", "snr", "ssim", "snr_fbp", "ssim_fbp")}
        rows.append(row | {"sfo": result["sfo"][-1] if result["sfo"] else None, "seconds": result["seconds"]})
    return rows


def chosen_of(found: Findings) -> Chosen:
    """What tuning chose."""
    return choose([job for job in found.jobs if job.scan.images == "train"], found.results)


def gap(rows: Sequence[Row], first: Any, second: Any, key: str = "method") -> Interval:
    """SNR of first - second. The slices of a seed share its views and sampling, so seeds are the units."""
    named = [{**row, "method": row[key]} for row in rows]
    return difference(named, (first, second), "snr", SCAN, "seed")


def at_equal(rows: Sequence[Row], equal: str) -> list[Row]:
    """Rows of one budget; in their iterations PnP-SADMM and RED-SD compute the sample gradients of the other."""
    same = some(rows, equal="iterations")
    if equal == "iterations":
        return same
    return [row for row in same if row["method"] not in COSTLY] + some(rows, equal=equal)


def _setting(rows: Sequence[Row]) -> str:
    one = rows[0]
    slices, seeds = (_counted(len({r[name] for r in rows}), name) for name in ("slice", "seed"))
    fbp = f"{mean(rows, 'snr_fbp') or math.nan:.2f} dB, SSIM {mean(rows, 'ssim_fbp') or math.nan:.4f}"
    return (
        f"{slices} of the testing set, {one['size']} x {one['size']} pixels, {seeds} of noise and sampling, "
        f"K = {one['iterations']} iterations, prior ridge-ct, started from filtered back-projection ({fbp}). "
        "kappa and eta of every method were tuned by the same number of runs for the budget that is reported, on "
        "slices of other patients and with other seeds. Intervals are over seeds and speak of these slices alone. "
        "The paper's slices, network and number of iterations are others: compare differences, not levels."
    )


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' if number != 1 else ''}"


def table_chapter(found: Findings) -> list[Part]:
    """Tables 3 and 4, and what holds of them."""
    chosen, clean = chosen_of(found), some(found.rows, decibel=50.0)
    views, batches, labels = clean[0]["views"], values(clean, "batch"), _labels(clean)
    parts: list[Part] = [f"{views} views. " + _setting(clean)]
    for decibel in values(found.rows, "decibel")[::-1]:
        rows, paper = some(found.rows, decibel=decibel), PAPER[views] if decibel == 50 else {}
        title, same = f"{views} views, {decibel:g} dB: SNR and SSIM", at_equal(rows, "iterations")
        parts.append(batch_table(title, same, "method", labels, ("snr", "ssim"), paper, ends(chosen, decibel)))
        parts.append(_gaps(f"{views} views, {decibel:g} dB: SNR above PnP-SADMM (dB)", rows))
    gaps = [gap(some(at_equal(clean, "iterations"), batch=batch), "smadmm", "sadmm") for batch in batches]
    return [
        *parts,
        highest(
            "PnP-SMADMM has the highest SNR of the published methods at every batch size",
            at_equal(clean, "iterations"),
            {method: CT_METHODS[method] for method in PUBLISHED},
        ),
        Verdict(
            "PnP-SMADMM is better than PnP-SADMM",
            outcome(sum(map(above, gaps)), len(batches)),
            f"dB at equal iterations, {gaps[0].n} seeds: " + by_batch(batches, map(signed, gaps)),
        ),
        tuning_table(chosen),
    ]


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """The methods in these rows and how they are called."""
    return {method: label for method, label in CT_METHODS.items() if some(rows, method=method)}


def _gaps(title: str, rows: Sequence[Row]) -> Table:
    lines = []
    batches = values(rows, "batch")
    for method, label in _labels(rows).items():
        for equal in ("iterations", "sfo"):
            if method != "sadmm" and some(rows, method=method, equal=equal):
                cells = [gap(at_equal(some(rows, batch=batch), equal), method, "sadmm") for batch in batches]
                lines.append([label, "SFO" if equal == "sfo" else equal, *map(signed, cells)])
    columns = ["method", "at equal", *(f"B={batch}" for batch in batches)]
    note = f"Paired; {caption_of(rows)}. SFO counts two gradients for smadmm, though its fused gradient costs one."
    return Table(title, columns, lines, note)


def ablation_chapter(found: Findings) -> list[Part]:
    """Table 5."""
    rows, labels = found.rows, {alpha: f"{alpha:.3g}" for alpha in PAPER_ABLATION}
    batches, chosen = values(rows, "batch"), chosen_of(found)

    def gaps(alpha: float) -> list[Interval]:
        return [gap(some(rows, batch=batch), 2 / 3, alpha, "alpha") for batch in batches]

    others = [alpha for alpha in labels if alpha != 2 / 3]
    lines = [[labels[alpha], *map(signed, gaps(alpha))] for alpha in others]
    clear = sum(all(above(gaps(alpha)[i]) for alpha in others) for i in range(len(batches)))
    columns = ["2/3 minus alpha =", *(f"B={batch}" for batch in batches)]
    title = "a_k = k^-alpha, 180 views, 50 dB"
    return [
        _setting(rows) + " The source of the paper also holds a row alpha = 1 that its table leaves out.",
        batch_table(title, rows, "alpha", labels, ("snr", "ssim"), PAPER_ABLATION, ends(chosen, 50.0)),
        Table("SNR of alpha = 2/3 above the others (dB)", columns, lines, f"Paired; {caption_of(rows)}."),
        Verdict(
            "alpha = 2/3 is the best momentum",
            outcome(clear, len(batches)),
            f"its SNR is above that of every other alpha, by the whole interval, at {clear} of {len(batches)} batches",
        ),
        Verdict(
            "alpha = 2 collapses",
            outcome(sum(g.mean > 0.5 for g in gaps(2.0)), len(batches)),
            "SNR lost against 2/3, each with a step of its own: " + by_batch(batches, map(signed, gaps(2.0)), " "),
        ),
        tuning_table(chosen),
    ]


def iterations_chapter(found: Findings) -> list[Part]:
    """Figure 3."""
    rows, views = found.rows, values(found.rows, "views")
    lines = [
        [label, *(mean(some(rows, views=v, method=method), "snr") for v in views)]
        for method, label in _labels(rows).items()
    ]
    columns: list[str | Column] = ["method", *(Column(f"{v} views", ".2f", "higher") for v in views)]
    gaps = [gap(some(rows, views=v), "smadmm", "sadmm") for v in views]
    told = ", ".join(f"{v} views {signed(g)} dB" for v, g in zip(views, gaps, strict=True))
    return [
        _setting(rows),
        Table(f"SNR after {rows[0]['iterations']} iterations", columns, lines, f"Means. {caption_of(rows)}."),
        *(Curves(f"{v} views, B = 5", _mean_curves(found, v), "iteration", "SNR (dB)") for v in views),
        Verdict(
            "PnP-SMADMM is above PnP-SADMM over the iterations, B = 5",
            outcome(sum(map(above, gaps)), len(views)),
            f"at the last iteration, for which both were tuned, {gaps[0].n} seeds: {told}",
        ),
        tuning_table(chosen_of(found)),
    ]


def _mean_curves(found: Findings, views: int) -> list[Series]:
    """The mean of the curves of every method, without those that diverged."""
    series = []
    for method in ("sadmm", "smadmm", "default"):
        wanted = ("test", views, method)
        jobs = [job for job in found.jobs if (job.scan.images, job.scan.views, job.method) == wanted]
        y = mean_curve(found.results[job.name] for job in jobs)
        series += [Series(CT_METHODS[method], list(range(len(y))), y)] if y else []
    return series


def kept_images(found: Findings) -> dict[str, bytes]:
    """The slices that were kept, and where they started from."""
    files = {}
    for job in found.jobs:
        if job.keep:
            for file, key in ((f"{job.method}.png", "image"), ("fbp.png", "start")):
                files[file] = png(unpack(found.results[job.name][key], job.scan.size).clamp(0, 1))
    return files


def visual_chapter(found: Findings) -> list[Part]:
    """Figure 2, and the default against the published algorithm."""
    shown = some(found.rows, batch=5, equal="iterations")
    snr = {row["method"]: row["snr"] for row in shown}
    names = {f"{CT_METHODS[method]} ({value:.2f} dB)": f"{method}.png" for method, value in snr.items()}
    (first, file), *others = names.items()
    table = Table(
        "180 views, B = 5, 50 dB: SNR of one slice",
        ["method", Column("SNR", ".2f", "higher"), Column("SSIM", ".4f", "higher")],
        [[CT_METHODS[r["method"]], Measured(r["snr"], PAPER_VISUAL.get(r["method"])), r["ssim"]] for r in shown],
        f"One slice; {caption_of(shown)}.",
    )
    verdict = Verdict(
        "PnP-SMADMM is better than PnP-SADMM, which is better than RED-SD, on this slice",
        outcome((snr["red-sd"] < snr["sadmm"]) + (snr["sadmm"] < snr["smadmm"]), 2),
        ", ".join(f"{CT_METHODS[method]} {value:.2f} dB" for method, value in snr.items())
        + ": one slice and one seed, as in the paper, an example without an interval",
    )
    compare = Compare("One slice", {first: file, "FBP": "fbp.png", **dict(others)})
    return [_setting(shown), compare, table, verdict, *_default_against_published(found)]


def _default_against_published(found: Findings) -> list[Part]:
    rows = [row for row in found.rows if row["batch"] != 5]
    same = [{**row, "batch": 20} for row in at_equal(rows, "iterations")]  # all-views has no batches
    n = len(values(rows, "seed"))
    text = (
        f"Ours against PnP-SMADMM as published, B = 20, K = {rows[0]['iterations']}, {_counted(n, 'seed')}: "
        f"{signed(gap(same, 'default', 'smadmm'))} dB where its step and rho are tuned, "
        f"{signed(gap(same, 'default', 'untuned'))} dB with step 1 and our rho."
    )
    table = _gaps("B = 20: SNR above PnP-SADMM (dB)", [row for row in rows if row["batch"] == 20])
    return [table, text, _all_views(found, same), tuning_table(chosen_of(found))]


def _all_views(found: Findings, rows: Sequence[Row]) -> str:
    """The default of `smadmm reconstruct` against the published algorithm, and how soon it is there."""
    results = [found.results[job.name] for job in found.jobs if job.method == "all-views"]
    near = [1 + max((k for k, v in enumerate(r["curve"]) if v < r["curve"][-1] - 0.3), default=-1) for r in results]
    seconds = [k * r["seconds"] for k, r in zip(near, results, strict=True)]
    published, iterations = mean(some(rows, method="smadmm"), "seconds") or math.nan, rows[0]["iterations"]
    return (
        f"With all views per iteration and the nearly exact x-step, as `smadmm reconstruct` does it: "
        f"{signed(gap(rows, 'all-views', 'smadmm'))} dB against PnP-SMADMM (B = 20, tuned), both after {iterations} "
        f"iterations. It stays within 0.3 dB of its end from iteration {min(near)} to {max(near)} on, after "
        f"{min(seconds):.1f} to {max(seconds):.1f} s of one core; {iterations} iterations of PnP-SMADMM take "
        f"{iterations * published:.1f} s. Its SFO contain the products of conjugate gradients."
    )
