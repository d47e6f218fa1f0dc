"""Algorithms 1 and 2 of the paper written naively with NumPy matrices: what the loop is compared with."""

import numpy as np


def algorithm_1(grad, prox, A, B, c, x, y, lam, v, schedules, samples, exact=False):
    """grad(x, sample); prox(v, t); schedules(k) = (rho, eta, r, a); samples[k-1] is the batch of iteration k."""
    for k, sample in enumerate(samples, start=1):
        rho, eta, r, a = schedules(k)
        y = prox(y - B.T @ (rho * (A @ x + B @ y - c) - lam) / r, 1 / r)
        direction = v + A.T @ (rho * (A @ x + B @ y - c) - lam)
        matrix = eta * np.eye(len(x)) + rho * A.T @ A if exact else eta * np.eye(len(x))
        x_new = x - np.linalg.solve(matrix, direction)
        lam = lam - rho * (A @ x_new + B @ y - c)
        v = grad(x_new, sample) + (1 - a) * (v - grad(x, sample))
        x = x_new
    return x, y, lam, v


def algorithm_1_two_blocks(grad, proxes, A, Bs, c, x, ys, lam, v, schedules, samples):
    """The same with blocks y_1, y_2 updated one after the other."""
    ys = list(ys)
    for k, sample in enumerate(samples, start=1):
        rho, eta, r, a = schedules(k)
        for j, prox in enumerate(proxes):
            gap = A @ x + sum(B @ y for B, y in zip(Bs, ys)) - c
            ys[j] = prox(ys[j] - Bs[j].T @ (rho * gap - lam) / r, 1 / r)
        gap = A @ x + sum(B @ y for B, y in zip(Bs, ys)) - c
        x_new = x - (v + A.T @ (rho * gap - lam)) / eta
        lam = lam - rho * (A @ x_new + sum(B @ y for B, y in zip(Bs, ys)) - c)
        v = grad(x_new, sample) + (1 - a) * (v - grad(x, sample))
        x = x_new
    return x, ys, lam, v


def algorithm_2(grad, denoiser, x, lam, v, rho, eta, a, samples):
    """PnP-SMADMM as printed."""
    for k, sample in enumerate(samples, start=1):
        y = denoiser(x - lam / rho)
        x_new = x - (v + rho * (x - y - lam / rho)) / eta
        lam = lam - rho * (x_new - y)
        v = grad(x_new, sample) + (1 - a(k)) * (v - grad(x, sample))
        x = x_new
    return x, y, lam, v
