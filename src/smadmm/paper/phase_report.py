"""What is made of the rows of the phase experiment: tables beside the paper's, paired differences, curves, verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from smadmm.paper.ct_report import mean
from smadmm.paper.phase_runs import NAMES, TEST, Job, at_sfo, reached
from smadmm.paper.results import Gap, with_interval
from smadmm.report import Column, Curves, Measured, Part, Picture, Series, Table, Verdict
from smadmm.report.figures import write_figure

Row = dict[str, Any]
# the paper's Table 6: SNR at B = 1, 2, 3
PAPER = {
    "on-red": (31.33, 32.06, 32.07),
    "spider": (31.37, 33.21, 33.03),
    "sadmm": (31.26, 33.03, 33.06),
    "asvrg": (31.52, 33.27, 33.20),
    "smadmm": (31.56, 33.76, 33.57),
}
CLOSE = 0.1  # dB below the converged SNR


def rows_of(jobs: Sequence[Job], results: Mapping[str, Any]) -> list[Row]:
    """Settings and figures of every job; where SADMM ran on the same scan, the SNR when its SFO were used up."""
    rows = []
    budgets = {_scan(vars(job)): results[job.name]["sfo"] for job in jobs if job.method == "sadmm"}
    for job in jobs:
        result = results[job.name]
        row = {name: value for name, value in vars(job).items() if name != "fingerprint"}
        row |= {"snr": result["snr"], "ssim": result["ssim"], "sfo": result["sfo"][-1] if result["sfo"] else None}
        row |= {"seconds": result["cpu"][-1] if result["cpu"] else None, "snr_equal_sfo": None}
        budget = budgets.get(_scan(row))
        if budget and result["curve"]:
            row["snr_equal_sfo"] = at_sfo(result, budget[-1])
        rows.append(row)
    _add_times(rows, [results[job.name] for job in jobs])
    return rows


def _scan(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What must be the same for two methods to be compared."""
    return tuple(row[name] for name in ("purpose", "images", "image", "size", "masks", "seed", "batch"))


def _add_times(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> None:
    """For many masks: what it took until the SNR stayed within CLOSE of the converged one (full gradients)."""
    many = [(row, result) for row, result in zip(rows, results, strict=True) if row["purpose"] == "many masks"]
    converged = {(row["masks"], row["image"]): row["snr"] for row, _ in many if row["batch"] == row["masks"]}
    for row, result in many:
        row["converged"] = converged[row["masks"], row["image"]]
        row |= reached(dict(result), row["converged"] - CLOSE)


def some(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def paired(rows: Sequence[Row], first: str, second: str, name: str = "snr") -> Gap:
    """Mean of first - second over seeds, half of its 95 % interval, and the number of seeds.

    Images of one seed see their masks in the same order, so their differences are no independent ones: they are
    averaged first, and one seed alone gives no interval.
    """
    other = {_scan(row): row[name] for row in rows if row["method"] == second}
    pairs = [(row, other.get(_scan(row))) for row in rows if row["method"] == first]
    gaps: dict[int, list[float]] = {}
    for row, value in pairs:
        if row[name] is not None and value is not None:
            gaps.setdefault(row["seed"], []).append(row[name] - value)
    return with_interval([fmean(values) for values in gaps.values()])


def signed(gap: Gap) -> str:
    """+0.12 +- 0.03 (5 seeds)."""
    if not gap[2]:
        return "-"
    interval = f" +- {gap[1]:.2f}" if math.isfinite(gap[1]) else ""
    return f"{gap[0]:+.2f}{interval} ({gap[2]} seed{'s' if gap[2] > 1 else ''})"


def chapter(folder: Path, jobs: Sequence[Job], results: Mapping[str, Any], rows: Sequence[Row]) -> list[Part]:
    """The story of the experiment; its figure goes to the folder."""
    table = [row for row in rows if row["purpose"] in ("sum", "unbiased", "own step")]
    first_seed = min(row["seed"] for row in table)
    images = sorted({row["image"] for row in table if row["batch"] != min(r["batch"] for r in table)})
    named = [row for row in table if row["seed"] == first_seed and row["image"] in images]
    summed = [name for name in NAMES if name != "sadmm-decay"]
    who = ", ".join(TEST[i] for i in images)
    write_figure(folder / "phase.png", lambda: _figure(jobs, results), dpi=110)
    return [
        _setting(table, who),
        _table(f"Table 6, On-RED's constants (sum): mean SNR of {who}", some(named, purpose="sum"), summed, PAPER),
        _table(f"The mean over the masks (unbiased): mean SNR of {who}", some(named, purpose="unbiased"), NAMES, {}),
        _gaps(table),
        *_six(table, first_seed),
        *_own(named),
        _many_table(rows),
        *_tuning(rows),
        *_curves(jobs, results),
        Picture("phase.png", "SNR over the number of sample gradients, for each convention and number of masks"),
        *_verdicts(rows, table, named),
    ]


def _setting(rows: Sequence[Row], who: str) -> str:
    one = rows[0]
    return (
        f"{one['masks']} masks on the unit circle, {one['decibel']:g} dB, {one['size']} x {one['size']} pixels, "
        f"K = {one['iterations']}, prior ridge-natural, started from 0.01 everywhere, SNR after the better sign. The "
        f"paper does not name its three images; ours are {who}. In the sum convention the mean of a batch has the "
        "weight rho = tau/B and the step B/(6 + 2 tau): with B the problem changes, too, not only the noise. "
        "The strength of the denoiser was tuned on training images with full gradients, for all methods at once. The "
        "paper's denoiser and images are others: compare differences, not levels."
    )


def _table(title: str, rows: Sequence[Row], methods: Iterable[str], paper: Mapping[str, Sequence[float]]) -> Table:
    batches = sorted({row["batch"] for row in rows})
    lines: list[list[Any]] = []
    for method in methods:
        cells: list[Any] = [NAMES[method]]
        for batch in batches:
            theirs = paper[method][batch - 1] if method in paper and batch <= 3 else None
            cells.append(Measured(mean(some(rows, method=method, batch=batch), "snr"), theirs))
        lines.append(cells)
    return Table(title, ["method", *(Column(f"B={batch}", ".2f", "higher") for batch in batches)], lines)


def _gaps(rows: Sequence[Row]) -> Table:
    lines = []
    batches = sorted({row["batch"] for row in rows})
    for purpose in ("sum", "unbiased"):
        for method in NAMES:
            for name, label in (("snr", "iterations"), ("snr_equal_sfo", "SFO")):
                found = [paired(some(rows, purpose=purpose, batch=b), "smadmm", method, name) for b in batches]
                if method != "smadmm" and any(gap[2] for gap in found):
                    lines.append([purpose, NAMES[method], label, *map(signed, found)])
    columns = ["convention", "PnP-SMADMM minus", "at equal", *(f"B={b}" for b in batches)]
    note = (
        "dB, pairs of one image, its masks and noise, averaged over images; 95 % interval over seeds where there are "
    )
    note += "several. "
    note += "Equal SFO: all stop when PnP-SADMM has done its iterations; PnP-SMADMM then has done half as many."
    return Table("Paired differences", columns, lines, note)


def _six(rows: Sequence[Row], seed: int) -> list[Part]:
    few = some(rows, seed=seed, batch=min(row["batch"] for row in rows))
    images = sorted({row["image"] for row in few})
    if len(images) <= 3:
        return []
    lines = []
    for purpose in ("sum", "unbiased"):
        for method in NAMES:
            chosen = some(few, purpose=purpose, method=method)
            if chosen:
                each = [mean(some(chosen, image=image), "snr") for image in images]
                lines.append([purpose, NAMES[method], *each, mean(chosen, "snr")])
    columns: list[str | Column] = [
        "convention",
        "method",
        *(Column(TEST[i], ".2f", "higher") for i in images),
        Column("mean", ".2f"),
    ]
    return [Table("B = 1, every image: SNR", columns, lines)]


def _own(rows: Sequence[Row]) -> list[Part]:
    lines = []
    for method in NAMES:
        own, same = (some(rows, purpose=p, method=method, batch=1) for p in ("own step", "unbiased"))
        if own:
            lines.append(
                [NAMES[method], own[0]["step"], mean(own, "snr"), mean(same, "snr"), mean(own, "snr_equal_sfo")]
            )
    columns: list[str | Column] = ["method", Column("step", ".3f"), Column("SNR", ".2f", "higher")]
    columns += [Column("SNR with the common step", ".2f"), Column("SNR at equal SFO", ".2f", "higher")]
    title = "B = 1, every method with the step that was best for it on training images (five tried)"
    return [Table(title, columns, lines)] if lines else []


def _many_means(rows: Sequence[Row]) -> list[Row]:
    """Many masks: the means over the images; none of what not all of them reached."""
    many = some(rows, purpose="many masks")
    means = []
    for masks, method, batch in dict.fromkeys((row["masks"], row["method"], row["batch"]) for row in many):
        images = some(many, masks=masks, method=method, batch=batch)
        means.append({"masks": masks, "method": method, "batch": batch, "images": len(images)})
        for name in ("iterations_to", "sfo_to", "seconds_to", "snr", "converged"):
            values = [row[name] for row in images]
            means[-1][name] = None if None in values else fmean(values)
    return means


def _many_table(rows: Sequence[Row]) -> Table:
    lines, images = [], 0
    for row in _many_means(rows):
        label = NAMES[row["method"]] if row["batch"] != row["masks"] else "full gradients"
        reach = [row["iterations_to"], row["sfo_to"], row["seconds_to"]]
        lines.append([row["masks"], label, row["batch"], *reach, row["snr"], row["converged"]])
        images = row["images"]
    columns: list[str | Column] = ["masks", "method", "B", Column("iterations", ".0f"), Column("SFO", ".0f")]
    columns += [Column("seconds", ".1f", "lower"), Column("last SNR", ".2f"), Column("converged", ".2f")]
    title = f"Many masks: until the SNR stays within {CLOSE} dB of the converged one (- : not in the iterations done)"
    return Table(title, columns, lines, f"Seconds of one processor, denoiser included; means of {images} images.")


def _tuning(rows: Sequence[Row]) -> list[Part]:
    tuning = some(rows, purpose="tuning")
    full = [row for row in tuning if row["batch"] == row["masks"]]
    lines: list[list[Any]] = []
    for rho in sorted({row["rho"] for row in full}, reverse=True):
        for strength in sorted({row["strength"] for row in some(full, rho=rho)}):
            lines.append([rho, strength, mean(some(full, rho=rho, strength=strength), "snr")])
    parts: list[Part] = []
    if lines:
        columns = [Column("rho", ".3f"), Column("strength", "g"), Column("SNR", ".2f")]
        parts.append(Table("Tuning: strength of the denoiser, full gradients, training images", columns, lines))
    own = [row for row in tuning if row["batch"] != row["masks"]]
    steps = sorted({row["step"] for row in own}, reverse=True)
    lines = [
        [NAMES[m], *(mean(some(own, method=m, step=s), "snr") for s in steps)] for m in NAMES if some(own, method=m)
    ]
    if lines:
        names: list[str | Column] = ["method", *(Column(f"step {s:.3f}", ".2f") for s in steps)]
        parts.append(Table("Tuning: step of each method, B = 1, training images", names, lines))
    return parts


def _mean_curve(found: Sequence[Mapping[str, Any]], x: str) -> tuple[list[Any], list[float]]:
    kept = [result for result in found if result["curve"]]
    if not kept:
        return [], []
    y = [fmean(values) for values in zip(*(result["curve"] for result in kept), strict=True)]
    return (list(range(len(y))) if x == "k" else list(kept[0][x])), y


def _series(jobs: Sequence[Job], results: Mapping[str, Any], x: str, **wanted: Any) -> list[Series]:
    chosen = [job for job in jobs if all(getattr(job, name) == value for name, value in wanted.items())]
    series = []
    for method, batch in dict.fromkeys((job.method, job.batch) for job in chosen):
        found = [results[job.name] for job in chosen if (job.method, job.batch) == (method, batch)]
        full = batch == chosen[0].masks
        name = "full gradients" if full else f"{NAMES[method]}, B = {batch}"
        series.append(Series(name, *_mean_curve(found, x), dashed=full))
    return series


def _curves(jobs: Sequence[Job], results: Mapping[str, Any]) -> list[Part]:
    seed = min(job.seed for job in jobs)
    parts: list[Part] = []
    for purpose in ("sum", "unbiased"):
        series = _series(jobs, results, "sfo", purpose=purpose, batch=1, seed=seed)
        parts.append(Curves(f"6 masks, B = 1, {purpose}", series, "sample gradients", "SNR (dB)", log_x=True))
    for masks in sorted({job.masks for job in jobs if job.purpose == "many masks"}):
        series = _series(jobs, results, "sfo", purpose="many masks", masks=masks)
        parts.append(Curves(f"{masks} masks", series, "sample gradients", "SNR (dB)", log_x=True))
    return parts


def _figure(jobs: Sequence[Job], results: Mapping[str, Any]) -> Any:
    """SNR over sample gradients."""
    from matplotlib.figure import Figure

    shown = [part for part in _curves(jobs, results) if isinstance(part, Curves)]
    figure = Figure(figsize=(4.2 * len(shown), 3.6), layout="constrained", facecolor="white")
    for axis, part in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for series in part.series:
            axis.semilogx(series.x, series.y, linestyle="--" if series.dashed else "-", label=series.name, linewidth=1)
        top = max((max(series.y) for series in part.series if series.y), default=30)
        axis.set(title=part.title, xlabel=part.x_label, ylabel=part.y_label, ylim=(top - 8, top + 0.5))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    return figure


def _verdicts(rows: Sequence[Row], table: Sequence[Row], named: Sequence[Row]) -> list[Part]:
    summed, unbiased = some(named, purpose="sum"), some(table, purpose="unbiased")
    batches = sorted({row["batch"] for row in summed})
    best = []
    for batch in batches:
        means = {m: mean(some(summed, method=m, batch=batch), "snr") for m in PAPER}
        best.append(max(means, key=lambda m: -math.inf if means[m] is None else means[m] or 0.0))
    wins = best.count("smadmm")
    constant = paired(some(unbiased, batch=1), "smadmm", "sadmm")
    decay = paired(some(unbiased, batch=1), "smadmm", "sadmm-decay", "snr_equal_sfo")
    own = paired(some(table, purpose="own step"), "smadmm", "sadmm", "snr_equal_sfo")
    names = ", ".join(f"B={b} {NAMES[m]}" for b, m in zip(batches, best, strict=True))
    parts: list[Part] = [
        Verdict(
            "PnP-SMADMM has the highest SNR of Table 6 at every batch size",
            _outcome(wins, len(batches)),
            f"at equal iterations it does at {wins} of {len(batches)}; the best: {names}",
        ),
        Verdict(
            "Momentum removes the noise that a constant step leaves: at least 2 dB above PnP-SADMM, B = 1, unbiased",
            _at_least(constant, 2.0),
            f"PnP-SMADMM minus PnP-SADMM with the same step at equal iterations: {signed(constant)} dB",
        ),
        Verdict(
            "PnP-SMADMM is not below PnP-SADMM with a step k^(-1/3) at equal SFO, B = 1",
            _at_least(decay, 0.0),
            f"the difference is {signed(decay)} dB",
        ),
    ]
    if own[2]:
        parts.append(f"Each with a step of its own, PnP-SMADMM minus PnP-SADMM at equal SFO is {signed(own)} dB.")
    return parts + _many_verdict(rows)


def _at_least(gap: Gap, level: float) -> Any:
    """Holds if the whole interval is above the level, in part if its mean is."""
    half = gap[1] if math.isfinite(gap[1]) else math.inf
    return "holds" if gap[0] - half >= level else "holds in part" if gap[0] >= level else "does not hold here"


def _many_verdict(rows: Sequence[Row]) -> list[Part]:
    """SMADMM against SPIDER, each with the better of the batches tried, in sample gradients and in seconds."""
    many = _many_means(rows)
    texts, ahead = [], []
    for masks in sorted({row["masks"] for row in many}):
        least: dict[str, tuple[float, float]] = {}
        for method in ("smadmm", "spider"):
            done = [
                r for r in some(many, masks=masks, method=method) if r["batch"] != masks and r["sfo_to"] is not None
            ]
            if done:
                least[method] = (min(r["sfo_to"] for r in done), min(r["seconds_to"] for r in done))
            told = f"{least[method][0]:.0f} SFO and {least[method][1]:.1f} s" if done else "not reached"
            texts.append(f"N = {masks} {NAMES[method]} {told}")
        ours, theirs = (least.get(m, (math.inf, math.inf)) for m in ("smadmm", "spider"))
        ahead += [a < b for a, b in zip(ours, theirs, strict=True)]
    if not texts:
        return []
    claim = "With many masks PnP-SMADMM needs less than SPIDER-ADMM with its full gradients"
    because = f"to within {CLOSE} dB, means of {many[0]['images']} images: " + "; ".join(texts)
    return [Verdict(claim, _outcome(sum(ahead), len(ahead)), because)]


def _outcome(wins: int, of: int) -> Any:
    return "holds" if wins == of > 0 else "holds in part" if wins else "does not hold here"
