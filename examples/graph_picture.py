"""A picture in under a minute: coefficients tied along the edges of a graph, learned from noisy labels.

The 576 pixels of an image are the coefficients of a classifier; a sample is a random image with a noisy label. Pixels
side by side are edges of a graph, and   min 1/n sum_i 1/(1 + exp(b_i a_i'x)) + weight |G x|_1   ties them together.
Plain stochastic ADMM (SADMM) and SMADMM solve it with the same parameters and the same number of sample gradients.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from smadmm import ADMM, SGD, Problem, Stop, auto, run
from smadmm.losses import Sigmoid
from smadmm.operators import EdgeDifferences
from smadmm.proxes import L1, Zero

SIDE, SAMPLES, BUDGET = 24, 4000, 120_000
OUT = Path("out")


def picture() -> torch.Tensor:
    """A ring and a bar: the coefficients to be found."""
    i, j = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    radius = ((i - 9.0) ** 2 + (j - 8.0) ** 2).sqrt()
    ring, bar = (radius > 3) & (radius < 7), (i > 15) & (i < 21) & (j > 11)
    return ring.double() - bar.double()


def neighbours() -> EdgeDifferences:
    number = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    down = torch.stack([number[:-1].flatten(), number[1:].flatten()], 1)
    right = torch.stack([number[:, :-1].flatten(), number[:, 1:].flatten()], 1)
    return EdgeDifferences(torch.cat([down, right]), SIDE * SIDE)


def likeness(x: torch.Tensor, truth: torch.Tensor) -> float:
    """The cosine of the angle between two coefficient vectors."""
    return float(torch.nn.functional.cosine_similarity(x, truth, dim=0))


def main() -> None:
    g = torch.Generator().manual_seed(0)
    truth = picture().flatten()
    X = torch.randn(SAMPLES, truth.numel(), generator=g, dtype=torch.float64)
    labels = torch.sign(X @ truth + 5 * torch.randn(SAMPLES, generator=g, dtype=torch.float64))
    f, start = Sigmoid(X, labels), torch.zeros_like(truth)
    guided = auto(Problem(f, L1(3e-4), neighbours()), BUDGET)
    print(guided)
    smadmm = guided.solver()
    rivals = {
        "SMADMM, no graph": auto(Problem(f, Zero()), BUDGET).solver(),
        "SADMM, graph": replace_estimator(smadmm, SGD(guided.batch)),
        "SMADMM, graph": smadmm,
    }
    results = {name: run(s, start, Stop(sfo=BUDGET), every=200, certify=True) for name, s in rivals.items()}
    for name, result in results.items():
        h = result.history
        print(f"{name:17s} likeness {likeness(result.x, truth):.3f}  objective {h['objective'][-1]:.4f}  ", end="")
        print(f"dist^2 {h['certificate'][-1]:.1e}  {h['seconds'][-1]:.1f} s")
    OUT.mkdir(exist_ok=True)
    draw(truth, results).savefig(OUT / "graph_picture.png", dpi=130)
    print(f"the picture is {OUT / 'graph_picture.png'}")


def replace_estimator(solver, estimator):
    """The same solver with another estimator: that is all it takes to run a rival."""
    return ADMM(solver.problem, estimator, solver.rho, solver.eta, x_step=solver.x_step, seed=solver.seed)


def draw(truth, results) -> Figure:
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.1, 1])
    images = {"truth": truth} | {name: result.x for name, result in results.items()}
    for axes, (name, x) in zip(top.subplots(1, 4), images.items(), strict=True):
        axes.imshow((x / x.abs().max()).reshape(SIDE, SIDE), cmap="RdBu_r", vmin=-1, vmax=1)
        axes.set_title(name if name == "truth" else f"{name}: {likeness(x, truth):.3f}", fontsize=10)
        axes.set_axis_off()
    for axes, column in zip(bottom.subplots(1, 2), ("objective", "certificate"), strict=True):
        for name in ("SADMM, graph", "SMADMM, graph"):
            results[name].history.plot(column, "sfo", axes, label=name)
        axes.set(xlabel="sample gradients", ylabel="dist$^2$(0, $\\partial L$)" if column == "certificate" else column)
        axes.legend()
    figure.axes[-1].set_yscale("log")
    return figure


if __name__ == "__main__":
    main()
