"""The y-step with a positive definite H of the user's choice, beside H = r I - rho B'B.

    y+ = argmin_u h(u) - <d, u> + 1/2 |u - y|^2_M,   M = rho B'B + H,   d = B'(lam - rho (A x + B y - c))

Where M is a multiple r of I, as for H = r I - rho B'B, this is one prox, y+ = prox_{h/r}(y + d/r). Other subproblems
are solved by accelerated proximal gradients, restarted where they point uphill (O'Donoghue and Candes 2015). Either way
the answer is the pair z, r with y+ = prox_{h/r}(z), so that r (z - y+) lies in dh(y+).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smadmm.operators.linear import Operator
from smadmm.problem import Prox
from smadmm.xsteps import refuse_indefinite


class InMetric:
    """y, d, rho -> z, r with y+ = prox_{h/r}(z), for a given H; `tolerance` is relative, of the inner gradient map."""

    def __init__(self, H: Operator, B: Operator, tolerance: float = 1e-12, max_iterations: int = 2000):
        refuse_indefinite("H", H, B.in_shape)
        self.H, self.B, self.tolerance, self.max_iterations = H, B, tolerance, max_iterations
        self._multiple = math.sqrt(H.gram) if H.gram is not None else None  # H > 0 and H'H = g I: H = sqrt(g) I
        self._H_norm = self._multiple if self._multiple is not None else H.norm().upper
        self._B_square = B.gram if B.gram is not None else B.norm().upper ** 2

    def __call__(self, h: Prox, y: Tensor, d: Tensor, rho: float, scale: float) -> tuple[Tensor, float]:
        """z and r for M = rho B'B + scale H."""
        r = rho * self._B_square + scale * self._H_norm
        if self._multiple is not None and self.B.gram is not None:
            return torch.add(y, d, alpha=1 / r), r
        z = u = old = y
        momentum, size = 1.0, float(torch.linalg.vector_norm(d))
        tolerance = max(self.tolerance, 4 * torch.finfo(y.dtype).eps)
        for _ in range(self.max_iterations):
            step = u - y
            slope = scale * self.H(step) + rho * self.B.T(self.B(step)) - d
            z = torch.sub(u, slope, alpha=1 / r)
            new = h.prox(z, 1 / r)
            change = new - u
            length = float(torch.linalg.vector_norm(change))
            if r * length <= tolerance * max(size, r * float(torch.linalg.vector_norm(new)), 1e-300):
                break
            if float((change.conj() * (new - old)).real.sum()) < 0:
                momentum = 1.0  # uphill: start again from here
            following = 0.5 + math.sqrt(0.25 + momentum**2)
            u, old, momentum = new + ((momentum - 1) / following) * (new - old), new, following
        return z, r
