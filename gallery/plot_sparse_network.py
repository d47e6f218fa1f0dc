"""
Structured-sparse training of a neural network
==============================================

Train a torch module with a penalty that switches off input pixels; race SMADMM against proximal SGD with equal tuning.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, Sequential, Tanh, functional

from smadmm import ADMM, SGD, Power, Problem, Storm, compare, solve, tune
from smadmm.losses import Autograd
from smadmm.operators import Slot
from smadmm.proxes import GroupL2
from smadmm.sampling import Rng

X, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
X, net = X.float() / 16, Sequential(Linear(64, 32), Tanh(), Linear(32, 10))
start = 0.1 * torch.randn(sum(p.numel() for p in net.parameters()), generator=torch.Generator().manual_seed(0))


def scores(x, images):  # the parameters are one long vector x
    parts = zip(net.named_parameters(), x.split([p.numel() for p in net.parameters()]), strict=True)
    return torch.func.functional_call(net, {name: part.view_as(p) for (name, p), part in parts}, images)


class ProximalSGD(ADMM):  # x+ = x - v / eta, then the prox of h / eta on the weights of the first layer
    def step(self, s):
        k, x, rng = s.k + 1, s.x - s.est.v / self.eta(s.k + 1), Rng(self.seed, s.k + 1, s.drawn)
        x[: 64 * 32] = w = self.problem.h.prox(x[: 64 * 32], 1 / self.eta(k))
        est = self.estimator.update(self.problem.f, s.est, x, k, rng)
        return replace(s, k=k, x=x, ys=(w,), est=est, Ax=w, Bys=(-w,), drawn=rng.drawn)


loss = Autograd(lambda x, batch: functional.cross_entropy(scores(x, X[batch]), y[batch]), n=1200)  # others: test
groups = GroupL2(0.01, labels=torch.arange(64).repeat(32))  # the weights that leave a pixel are one group
problem = Problem(loss, groups, Slot(64 * 32, 0, len(start)).T)  # A x: the weights of the first layer
methods = {
    "SMADMM": lambda p, seed, eta: ADMM(p, Storm(20, Power(2.0, -2 / 3)), 0.3 * eta, Power(eta, 0.2), seed=seed),
    "proximal SGD": lambda p, seed, eta: ProximalSGD(p, SGD(20), 0.3 * eta, Power(eta, 0.2), seed=seed),
}
results, panels = {}, plt.figure(figsize=(13, 3.4), layout="constrained").subplots(1, 4)
plt.suptitle("Training with equal tuning, over gradients and seconds, and the pixels that the networks use")
for ax, (name, method) in zip(panels[2:], methods.items(), strict=True):
    tuned = tune(method, {"eta": (0.5, 1.0, 2.0, 4.0)}, problem, 20_000, seeds=[1000], reported=range(3), x=start)
    results[name] = [solve(method(problem, s, **tuned.best), 20_000, x=start, certify=False) for s in range(3)]
    w, x = results[name][0].state.y, results[name][0].x  # y has exact zeros
    right = (scores(torch.cat([w, x[64 * 32 :]]), X[1200:]).argmax(1) == y[1200:]).float().mean()
    strength = w.view(32, 8, 8).norm(dim=0)
    ax.imshow(strength.numpy(), cmap="magma", vmin=0, vmax=2)
    ax.set_title(f"{name}: {int((strength > 0).sum())} of 64 pixels,\ntest accuracy {right:.3f}")
    print(ax.get_title(), tuned, sep="\n")
plt.setp(compare(results, "objective", panels[:2]), ylim=(0.25, 1.5))
plt.show()
