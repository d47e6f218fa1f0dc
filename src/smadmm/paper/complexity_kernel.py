"""The loop of the complexity experiment, compiled: the twin of the engine (smadmm.solver) on three population problems.

    min_x  E f(x; xi) + w |A x|_1,   A = I + c superdiagonal,   rho_k = eta_k,   the exact x-step

SMOOTH  f = sum_j alpha_j (1 + e_j/2) r(x_j) + <n, x>,  r(t) = t^2/(1 + t^2),  e_j = +-1,  n ~ N(0, I/d);
        w = 1e-2, c = 1/2
FLAT    the same with r(t) = s^4/(1 + s^4), s = t - 1: a plateau far away, no strong convexity at the minimum; n = tau u
        with tau of Student's distribution with 3 degrees of freedom (scaled to variance 1) and u_j = +-1/sqrt(d);
        w = 1e-4, c = 1/2
CHAIN   F(x) = -Psi(1) Phi(x_1) + sum_i Psi(-x_{i-1}) Phi(-x_i) - Psi(x_{i-1}) Phi(x_i), of Carmon, Duchi, Hinder and
        Sidford, with the oracle of Arjevani, Carmon, Duchi, Foster, Srebro and Woodworth (Lower bounds for non-convex
        stochastic optimization, 2023): entry i of a sample gradient is dF/dx_i (1 + Theta_i(x) (z/p - 1)), z = 1 with
        probability p, else 0, and Theta_i is 1 where x_i, x_{i+1}, ... are still near zero: the next link shows itself
        in one of 1/p samples. The smooth step in Theta is a polynomial here. w = 0, c = 0

A batch of b samples enters through its means, drawn exactly. dist^2(0, dL) is taken at (x, y, lam), for ASVRG at the
iterate of its ADMM steps, which y belongs to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smadmm.compilation import compiled, inlined

Array = NDArray[np.float64]
SMOOTH, FLAT, CHAIN = range(3)
SGD, STORM, SPIDER, ASVRG = range(4)
RULES = {"contract", "reassoc", "nsz", "arcp"}  # not those that assume finite numbers: runs may diverge
P = 0.002  # of the chain: how often the next link shows itself
ROOT_E = math.sqrt(math.e)
DIVERGED = 1e12  # dist^2


class Setting(NamedTuple):
    """A method with its parameters: eta_k = rho_k = eta k^eta_power, a_k = min(1, a k^-a_power).

    `first` is the size of the first batch and of restarts, `every` their distance. ASVRG has theta; with `falling` it
    follows Nesterov's rule from one period to the next.
    """

    method: int
    batch: int
    first: int
    every: int
    eta: float
    eta_power: float
    a: float
    a_power: float
    theta: float
    falling: bool


class Population(NamedTuple):
    """A problem: its kind, c of A, the weight of the penalty, and M = (I + A'A)^-1."""

    kind: int
    c: float
    weight: float
    M: Array


class Arrays(NamedTuple):
    """What a run holds: v estimates the gradient at `at`; e and n are means over a batch; theta has one entry."""

    x: Array
    y: Array
    lam: Array
    v: Array
    at: Array
    anchor: Array
    full: Array
    total: Array
    e: Array
    n: Array
    d: Array
    theta: Array


@inlined(RULES)
def uniform(rng):
    """splitmix64: 53 random bits as a number in [0, 1)."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@inlined(RULES)
def normal(rng):
    return math.sqrt(-2 * math.log(1.0 - uniform(rng))) * math.cos(2 * math.pi * uniform(rng))


@inlined(RULES)
def add_signs(rng, weight, total):
    """total_j += +-weight, at random: one bit of a random number for each of at most 52 entries."""
    bits = int(uniform(rng) * 4503599627370496.0)
    for j in range(total.size):
        total[j] += weight if (bits >> j) & 1 else -weight


@inlined(RULES)
def draw(problem, rng, b, e, n):
    """The means over b samples of e and n; for the chain e_0 = mean z / p - 1."""
    for j in range(e.size):
        e[j] = n[j] = 0.0
    if problem == CHAIN:
        for _ in range(b):
            if uniform(rng) < P:
                e[0] += 1.0
        e[0] = e[0] / (b * P) - 1.0
        return
    for _ in range(b):
        add_signs(rng, 1.0 / b, e)
    if problem == SMOOTH:
        for j in range(n.size):
            n[j] = normal(rng) / math.sqrt(b * n.size)
        return
    for _ in range(b):
        chi = normal(rng) ** 2 + normal(rng) ** 2 + normal(rng) ** 2
        add_signs(rng, normal(rng) / math.sqrt(chi * n.size) / b, n)


@inlined(RULES)
def psi(t):
    return math.exp(1.0 - 1.0 / (2.0 * t - 1.0) ** 2) if t > 0.5 else 0.0


@inlined(RULES)
def slope_of_psi(t):
    return 4.0 * psi(t) / (2.0 * t - 1.0) ** 3 if t > 0.5 else 0.0


@inlined(RULES)
def phi(t):
    return ROOT_E * math.sqrt(math.pi / 2.0) * math.erfc(-t / math.sqrt(2.0))


@inlined(RULES)
def step(t):
    """A smooth step from 0 at t = 1/4 to 1 at t = 1/2."""
    s = min(max(4.0 * t - 1.0, 0.0), 1.0)
    return s * s * s * (10.0 + s * (6.0 * s - 15.0))


@inlined(RULES)
def chain_slope(x, i):
    """dF/dx_i."""
    g = 0.0
    before = x[i - 1] if i else 1.0
    if before > 0.5:
        g -= psi(before) * ROOT_E * math.exp(-0.5 * x[i] * x[i])
    elif before < -0.5:
        g -= psi(-before) * ROOT_E * math.exp(-0.5 * x[i] * x[i])
    if i + 1 < x.size:
        if x[i] > 0.5:
            g -= slope_of_psi(x[i]) * phi(x[i + 1])
        elif x[i] < -0.5:
            g -= slope_of_psi(-x[i]) * phi(-x[i + 1])
    return g


@inlined(RULES)
def add_gradient(problem, x, weight, e, n, g):
    """g += weight * the mean gradient over a batch; e = n = 0 is the exact one."""
    if problem == CHAIN:
        near = 0.0  # sum over k >= i of step(|x_k|)^2
        for i in range(x.size - 1, -1, -1):
            near += step(abs(x[i])) ** 2
            g[i] += weight * chain_slope(x, i) * (1.0 + step(1.0 - math.sqrt(near)) * e[0])
        return
    for j in range(x.size):
        alpha = 0.5 + 0.5 * j / (x.size - 1)
        if problem == SMOOTH:
            slope = 2.0 * x[j] / (1.0 + x[j] * x[j]) ** 2
        else:
            s = x[j] - 1.0
            slope = 4.0 * s * s * s / (1.0 + s * s * s * s) ** 2
        g[j] += weight * (alpha * (1.0 + 0.5 * e[j]) * slope + n[j])


@inlined(RULES)
def clear(x):
    for j in range(x.size):
        x[j] = 0.0


@inlined(RULES)
def copy(x, to):
    for j in range(x.size):
        to[j] = x[j]


@inlined(RULES)
def row_of_a(c, x, j):
    """(A x)_j."""
    return x[j] + c * x[j + 1] if j + 1 < x.size else x[j]


@inlined(RULES)
def row_of_adjoint(c, w, j):
    """(A' w)_j."""
    return w[j] + c * w[j - 1] if j else w[j]


@inlined(RULES)
def distance(p, z):
    """dist^2(0, dL)."""
    clear(z.e)
    clear(z.n)
    clear(z.d)
    add_gradient(p.kind, z.x, 1.0, z.e, z.n, z.d)
    total = 0.0
    for j in range(z.x.size):
        total += (z.d[j] - row_of_adjoint(p.c, z.lam, j)) ** 2
        if z.y[j] == 0.0:
            total += max(abs(z.lam[j]) - p.weight, 0.0) ** 2
        else:
            total += (z.lam[j] + math.copysign(p.weight, z.y[j])) ** 2
        total += (row_of_a(p.c, z.x, j) - z.y[j]) ** 2
    return total


@inlined(RULES)
def admm_step(p, z, eta):
    """Lines 3 to 5 of Algorithm 1 with rho = eta."""
    size = z.x.size
    for j in range(size):
        Ax = row_of_a(p.c, z.x, j)
        u = Ax - z.lam[j] / eta
        z.y[j] = max(u - p.weight / eta, 0.0) - max(-u - p.weight / eta, 0.0)
        z.lam[j] -= eta * (Ax - z.y[j])
    for j in range(size):
        z.d[j] = z.v[j] - row_of_adjoint(p.c, z.lam, j)
    for i in range(size):
        moved = 0.0
        for j in range(size):
            moved += p.M[i, j] * z.d[j]
        z.x[i] -= moved / eta
        z.lam[i] += moved  # lam - rho A (x+ - x), entry by entry of x
        if i:
            z.lam[i - 1] += p.c * moved


@inlined(RULES)
def couple(z):
    for j in range(z.x.size):
        z.at[j] = z.theta[0] * z.x[j] + (1.0 - z.theta[0]) * z.anchor[j]


@inlined(RULES)
def new_period(p, s, z, rng):
    """ASVRG: the anchor is the mean of the coupled points, its gradient that of `first` samples."""
    for j in range(z.x.size):
        z.anchor[j] = z.total[j] / s.every
        z.total[j] = z.full[j] = 0.0
    draw(p.kind, rng, s.first, z.e, z.n)
    add_gradient(p.kind, z.anchor, 1.0, z.e, z.n, z.full)
    theta = z.theta[0]
    if s.falling:
        z.theta[0] = 0.5 * (math.sqrt(theta**4 + 4.0 * theta**2) - theta**2)
        return
    copy(z.anchor, z.x)  # the rule for strongly convex f starts every period at the anchor, with A'lam = its gradient
    for j in range(z.x.size):
        z.lam[j] = z.full[j] - (p.c * z.lam[j - 1] if j else 0.0)


@inlined(RULES)
def asvrg(p, s, z, rng, k):
    """v at the coupled point; its price."""
    couple(z)
    for j in range(z.x.size):
        z.total[j] += z.at[j]
    price = 2 * s.batch
    if k % s.every == 0:
        new_period(p, s, z, rng)
        couple(z)
        price += s.first
    draw(p.kind, rng, s.batch, z.e, z.n)
    copy(z.full, z.v)
    add_gradient(p.kind, z.at, 1.0, z.e, z.n, z.v)
    add_gradient(p.kind, z.anchor, -1.0, z.e, z.n, z.v)
    return price


@inlined(RULES)
def update(p, s, z, rng, k):
    """Line 6: v at the new x; its price in sample gradients."""
    if s.method == ASVRG:
        return asvrg(p, s, z, rng, k)
    keep = 0.0  # share of the old v
    if s.method == STORM:
        keep = 1.0 - min(1.0, s.a * k ** (-s.a_power))
    elif s.method == SPIDER and k % s.every:
        keep = 1.0
    size = s.first if s.method == SPIDER and keep == 0.0 else s.batch
    draw(p.kind, rng, size, z.e, z.n)
    for j in range(z.v.size):
        z.v[j] *= keep
    if keep > 0.0:
        add_gradient(p.kind, z.at, -keep, z.e, z.n, z.v)
    add_gradient(p.kind, z.x, 1.0, z.e, z.n, z.v)
    copy(z.x, z.at)
    return 2 * size if keep > 0.0 else size


@compiled(RULES)
def simulate(p, s, z, budget, rng):
    """Mean dist^2 over the second half of the budget, and the iterations; infinite if it diverged. z.x is the start."""
    draw(p.kind, rng, s.first, z.e, z.n)
    add_gradient(p.kind, z.x, 1.0, z.e, z.n, z.v)
    copy(z.x, z.at)
    copy(z.x, z.anchor)
    copy(z.v, z.full)
    for j in range(z.x.size):
        z.y[j] = row_of_a(p.c, z.x, j)
    z.theta[0] = s.theta
    sfo, k, total, looks = s.first, 0, 0.0, 0
    while sfo < budget:
        k += 1
        admm_step(p, z, s.eta * (z.theta[0] if s.method == ASVRG else k**s.eta_power))
        sfo += update(p, s, z, rng, k)
        if k % max(1, k // 500) == 0 and 2 * sfo > budget and sfo <= budget:
            value = distance(p, z)
            if not value < DIVERGED:
                return math.inf, k
            total += value
            looks += 1
    return (total / looks if looks else math.inf), k
