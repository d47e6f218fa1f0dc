"""Rivals with the help that `auto` gives itself: python benchmarks/helped_rivals.py DATA [OUT [SET ...]]

In `smadmm reproduce classification` the published methods run on the columns as they are and answer with the last
iterate, as published. Here SADMM and SAGA-ADMM get what `auto` has: columns divided by the square roots of its metric,
averages of iterates (after the start, with weights that grow linearly; or the last iterate, if that is better), and a
start with the logistic loss (none, that of `auto`, or a whole pass). Step, rho, batch, start and answer are tuned per
problem and mark by the objective with one seed; shown are means over four others. `auto` is not tuned; with "pass" it
starts with a whole pass of the logistic loss, as `GraphGuidedClassifier(loss="sigmoid")` does.
"""

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, diags_array

from smadmm.learn.fitting import fit_auto
from smadmm.learn.published_loops import Published, smoothness
from smadmm.learn.scaling import column_sums, convex_start, metric
from smadmm.learn.twins import CompiledPublished, _samples
from smadmm.operators.linear import Matrix
from smadmm.paper.classification import QUICK
from smadmm.paper.classification_methods import Setting
from smadmm.paper.classification_runs import ClassificationRun
from smadmm.schedules import Power

MARKS = (1, 2, 5, 10, 20)
STEPS, RHOS, BATCHES = (3.16, 10.0, 31.6, 100.0, 316.0), (0.3, 3.0, 30.0), (8, 32)
TUNING, SHOWN = 5001, (1, 2, 3, 4)
LOOKS = 50  # iterates of an epoch that enter the average


def scaled(task):
    """The task in z = sqrt(q) x, and sqrt(q)."""
    root = np.sqrt(metric(column_sums(task.X, task.weight), task.intercept)[0])
    d = task.X.shape[1]
    root[d:] = 1.0
    X = csr_array(task.X @ diags_array(1 / root[:d])) if hasattr(task.X, "tocsr") else task.X / root[:d]
    return replace(task, X=X, A=csr_array(task.A @ diags_array(1 / root))), root


def answers(setting, task, root, made, start, seed):
    """Objectives of the average and of the last iterate at every mark."""
    first = replace(task, loss="logistic") if start else task
    loop, n = CompiledPublished(first, made, seed), task.n
    average, weight, found = np.zeros(task.size), 0, []
    for look in range(1, MARKS[-1] * LOOKS + 1):
        if start and look * n / LOOKS > start:
            loop.samples, start = _samples(task), 0
        loop.advance(look * n // LOOKS)
        x = loop.last[0]
        if not start:
            weight += 1
            average += (x - average) * 2 / (weight + 1)
        if look % LOOKS == 0 and look // LOOKS in MARKS:
            pair = [setting.oracle.objective((average if weight else x) / root), setting.oracle.objective(x / root)]
            found.append(np.where(np.isfinite(pair), pair, np.inf))
    return np.array(found)


def helped(setting, method):
    """The mean objective at every mark, tuned for that mark."""
    task, root = scaled(setting.train)
    L, square = smoothness(task), Matrix(task.A).norm().upper ** 2
    starts = sorted({0, convex_start(task.target), task.n})

    def made(c, r, b):
        return Published(method, b, Power(L / c, 0.0), Power(r * L / c / square, 0.0))

    grid = list(product(STEPS, RHOS, BATCHES, starts))
    tried = np.array([answers(setting, task, root, made(*point[:3]), point[3], TUNING) for point in grid])
    shown = []
    for k in range(len(MARKS)):
        i, which = np.unravel_index(np.argmin(tried[:, k]), tried[:, k].shape)
        c, r, b, start = grid[i]
        runs = [answers(setting, task, root, made(c, r, b), start, seed)[k, which] for seed in SHOWN]
        shown.append(float(np.mean(runs)))
    return shown


def own(setting, convex_pass):
    columns = column_sums(setting.train.X, setting.train.weight)
    runs = [[fit_auto(setting.train, columns, mark, 0.0, seed, convex_pass=convex_pass) for mark in MARKS]
            for seed in SHOWN]  # fmt: skip
    return np.mean([[setting.oracle.objective(fit.x) for fit in fits] for fits in runs], axis=0).tolist()


def main(data, out=None, *sets):
    sets = sets or ("splice_scale", "a8a", "a9a", "ijcnn1")
    lines, excess = [], {"auto": [], "auto, pass": []}
    for lam1, name, intercept in product((1e-5,), sets, (False, True)):
        job = ClassificationRun(name, intercept, lam1, "untuned", 0, MARKS, QUICK.grid, 1, len(SHOWN), "")
        with np.errstate(all="ignore"):
            setting = Setting(job, data)
            found = {"auto": own(setting, False), "auto, pass": own(setting, True)}
            found |= {method: helped(setting, method) for method in ("sadmm", "saga")}
        best = np.minimum(found["sadmm"], found["saga"])
        for ours in excess:
            excess[ours].append(100 * (np.array(found[ours]) / best - 1))
        for method, values in found.items():
            lines.append([name, "yes" if intercept else "no", method, *(f"{v:.4f}" for v in values)])
            print(*lines[-1], flush=True)
    told = []
    for ours, parts in excess.items():
        later = np.array(parts)[:, 1:]
        told.append(
            f"{ours}: from 2 epochs on lower than both in {int((later < 0).sum())} of {later.size} cells, more than "
            f"1 % above the better one in {int((later > 1).sum())}, worst {later.max():+.1f} %; after {MARKS[-1]} "
            f"epochs lower in {int((later[:, -1] < 0).sum())} of {len(later)}, worst {later[:, -1].max():+.1f} %."
        )
    head = ["set", "intercept", "method", *(f"{mark} epochs" for mark in MARKS)]
    table = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *lines)]
    title = "# Rivals with the help that `auto` gives itself (lam1 = 1e-5)"
    text = "\n\n".join([title, __doc__.split("\n\n", 1)[1].strip(), *told, "\n".join(table)])
    print(text)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / "table.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
