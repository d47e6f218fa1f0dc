"""
Learning from a stream
======================

Solve a problem whose samples pass by once and are never stored, know how far you are from a solution without ever
seeing a full gradient, and go on after a kill at the very sample where the run stood.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cosine_similarity, softplus

from smadmm import ADMM, SGD, Power, Problem, Stop, Storm, run
from smadmm.losses import Stream
from smadmm.operators import EdgeDifferences
from smadmm.proxes import L1

truth = torch.zeros(60)
truth[10:25], truth[35:50] = 1.0, -0.5


class Readings:
    """An endless source that can begin anywhere: `start(sample)` gives chunks of 100 readings with noisy labels."""

    def start(self, sample):
        for chunk in range(sample // 100, 10**9):
            rng, first = torch.Generator().manual_seed(chunk), max(0, sample - 100 * chunk)
            X = torch.randn(100, 60, generator=rng)
            yield X[first:], torch.sign(X @ truth + torch.randn(100, generator=rng))[first:]


def learn(estimator, iterations, **options):
    stream = Stream(lambda x, batch: softplus(-batch[1] * (batch[0] @ x)).mean(), Readings())
    problem = Problem(stream, L1(1e-3), EdgeDifferences([(i, i + 1) for i in range(59)], 60))
    options |= {"metrics": {"error": lambda s: 1 - float(cosine_similarity(s.x, truth, dim=0))}, "every": 50}
    solver = ADMM(problem, estimator, rho=0.5, eta=Power(2.0, 1 / 3))
    return run(solver, torch.zeros(60), Stop(iterations=iterations), certify=True, certify_sample=6400, **options)


momentum, file = Storm(20, Power(2.0, -2 / 3)), Path(mkdtemp()) / "stream.checkpoint"
results = {"SADMM": learn(SGD(20), 3000), "SMADMM": learn(momentum, 1500)}  # the same number of sample gradients
learn(momentum, 700, checkpoint=file)  # stopped here, or killed
resumed = learn(momentum, 1500, checkpoint=file, resume=True)
same = "the same bits" if torch.equal(resumed.x, results["SMADMM"].x) else "other bits"
fig, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
fig.suptitle(f"60,000 gradients on samples that are seen once; stopped after 700 iterations and resumed: {same}")
axes[2].plot(truth, "k--", linewidth=1, label="truth")
for name, result in results.items():
    for ax, column in zip(axes, ("certificate", "error"), strict=False):
        result.history.plot(column, "sfo", ax).set(yscale="log", xlabel="sample gradients")
    axes[2].plot(result.x / result.x.abs().max(), label=name)
axes[2].set(xlabel="coefficient", title="largest scaled to 1")
axes[2].legend()
plt.show()
