"""The minimiser itself, with its exact zeros and ties.

    min_x  F(x) + alpha |A x|_1,    F(x) = 1/N sum_i w_i l(a_i'x + o_i, b_i) + ridge |x|^2 / 2

Newton: F is modelled by 1/2 x'Hx - c'x. ADMM on the model, min 1/2 x'Hx - c'x + alpha |y|_1 with A x = y,

    x = (H + rho A'A)^-1 (c + A'(rho y - mu)),   v = mu + rho A x,   mu = clip(v, -alpha, alpha),   y = (v - mu)/rho,

says by the exact zeros of y on which face the answer lies: coefficients that vanish or are tied. There x = Z u with a
signed membership matrix Z, |A x|_1 is linear, and one linear system gives the minimiser of the model. A line search on
the objective follows. mu certifies the point: dist^2(0, dL) = |grad F + A'mu|^2 + dist^2(mu, alpha d|Ax|_1).

Many features: the problem is solved on a working set W without the edges that leave W. The answer is that of the whole
problem when the multipliers balance grad F outside W, too, and every neighbour of a non-zero coefficient is in W.

Many features and rows, or a large W: steps from face to face. With the best multipliers mu of x, grad F + A'mu is the
steepest descent direction; rows of A x that are zero, and whose mu is at its bound, are let go in the direction of mu.
On that face the penalty is linear, and conjugate gradients, preconditioned by the diagonal, solve Newton's system
without a matrix. Rows that change their sign on the way are set to zero. H is made of some of the rows, until these
bring x no closer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.lapack import dpotri
from scipy.sparse import coo_array, csr_array, issparse
from scipy.sparse.csgraph import connected_components

from smadmm.learn.pointwise import Array, PointLoss

AT_ONCE, LARGEST = 300, 1500  # unknowns of a Newton system: above the first number a working set is tried
HESSIAN_ROWS, FACE_ROWS = 20_000, 50_000  # rows that make up a Hessian at the least; for conjugate gradients
FEW_ROWS = 5000  # up to which many unknowns are left to a working set
OUTER, INNER, BALANCING, CHECKED = 100, 400, 200, 20  # Newton steps; iterations on model and mu; checked so often
RELAXED = 1.6
SHARPENING, ROUGH = 3, 1e-2  # steps; not where |grad F + A'mu| may be larger than this, in units of alpha
DENSE = 20_000  # entries of A
CONJUGATE, NEARLY = 20, 1e-2  # iterations of conjugate gradients; share of the squared residual that ends them
FREED = 50  # rows of A x that leave zero together, at the least
ROUNDING, UNTIES = 1e-15, 1e-13  # of an objective; of a model's, by which a point off its face is lower


@dataclass(frozen=True)
class Model:
    """F of the data rows; with an intercept x has one more entry."""

    X: Any
    target: Array
    weight: Array  # of mean 1
    loss: PointLoss
    intercept: bool
    offset: Any = 0.0
    ridge: float = 0.0  # weight of |x|^2 / 2 without the intercept, a part of F

    @property
    def n(self) -> int:
        return len(self.target)

    @property
    def ridges(self) -> Array:
        """The curvature of the ridge, by unknown."""
        return np.append(np.full(self.X.shape[1], self.ridge), np.zeros(int(self.intercept)))

    def objective(self, A: Any, alpha: float, x: Array, margins: Array) -> float:
        """F + alpha |A x|_1 at x, which has these margins."""
        return self.value(margins) + 0.5 * float(self.ridges @ x**2) + alpha * float(np.abs(A @ x).sum())

    def margins(self, x: Array) -> Array:
        d = self.X.shape[1]
        return np.asarray(self.X @ x[:d] + x[d:].sum() + self.offset)

    def terms(self, margins: Array) -> Array:
        """What each row adds to the mean loss."""
        return np.asarray(self.weight * self.loss.value(margins, self.target) / self.n)

    def value(self, margins: Array) -> float:
        """The mean loss."""
        return float(self.terms(margins).sum())

    def gradient(self, x: Array, margins: Array) -> Array:
        c = self.weight * self.loss.slope(margins, self.target) / self.n
        g = np.append(self.X.T @ c, c.sum()) if self.intercept else np.asarray(self.X.T @ c)
        return np.asarray(g + self.ridges * x)

    def hessian(self, margins: Array) -> tuple[Array, int]:
        """H, and from how many rows."""
        H, rows = self.weighted_gram(self.loss.curvature(margins, self.target))
        H[np.diag_indices_from(H)] += self.ridges
        return H, rows

    def weighted_gram(self, curvature: Array) -> tuple[Array, int]:
        """1/N sum_i w_i c_i a_i a_i' from evenly spaced rows, and how many they were."""
        d = self.X.shape[1]
        rows = slice(None, None, max(1, self.n // (HESSIAN_ROWS + 20 * d)))
        X, h = self.X[rows], self.weight[rows] * curvature[rows]
        h = h / len(h)
        weighted = csr_array(X.multiply(h[:, None])) if issparse(X) else X * h[:, None]
        H = np.empty((d + self.intercept, d + self.intercept))
        H[:d, :d] = (X.T @ weighted).toarray() if issparse(X) else X.T @ weighted
        if self.intercept:
            H[d, :d] = H[:d, d] = np.asarray(weighted.sum(axis=0)).ravel()
            H[d, d] = h.sum()
        return H, len(h)


@dataclass
class Point:
    """An answer: x, multipliers mu of A x with grad F + A'mu = 0, and what is known of it; rho is kept for the next."""

    x: Array
    mu: Array
    rho: float = 0.0
    objective: float = np.inf
    gradient: float = np.inf  # |grad F + A'mu|^2
    subdifferential: float = np.inf
    steps: int = 0
    sfo: int = 0

    @property
    def certificate(self) -> float:
        return self.gradient + self.subdifferential


def zero_point(A: Any) -> Point:
    return Point(np.zeros(A.shape[1]), np.zeros(A.shape[0]))


def faces(A: Any, zero: Any) -> Any:
    """Z of the face where these rows of A x vanish: rows with one entry, or two of equal size.

    Node i stands for x_i, node d + i for -x_i; what must be equal is joined, and x_i = 0 where both are.
    """
    d, rows = A.shape[1], A.indptr[:-1]
    length = np.diff(A.indptr)
    single = A.indices[rows[zero & (length == 1)]]
    first = rows[zero & (length == 2)]
    first = first[np.abs(A.data[first]) == np.abs(A.data[first + 1])]
    i, j = A.indices[first], A.indices[first + 1]
    opposite = A.data[first] * A.data[first + 1] > 0
    heads = np.concatenate([single, i, i + d])
    tails = np.concatenate([single + d, j + d * opposite, j + d * ~opposite])
    joined = coo_array((np.ones(len(heads)), (heads, tails)), shape=(2 * d, 2 * d))
    label = connected_components(joined, directed=False)[1]
    plus, minus = label[:d], label[d:]
    free = np.flatnonzero(plus != minus)
    groups, column = np.unique(np.minimum(plus, minus)[free], return_inverse=True)
    signs = np.where(plus < minus, 1.0, -1.0)[free]
    return csr_array((signs, (free, column)), shape=(d, len(groups)))


def inverse(H: Array) -> Array:
    """Of a positive definite matrix."""
    half = np.triu(dpotri(cholesky(H))[0])
    return np.asarray(half + np.triu(half, 1).T)


def _inverse(H: Array, gram: Array, rho: float) -> Array:
    damped = H + rho * gram
    size = np.trace(damped) / len(damped)
    for damping in (1e-13, 1e-11, 1e-9, 1e-6):  # intercepts of a softmax may all move together
        damped[np.diag_indices_from(damped)] += damping * size
        try:
            return inverse(damped)
        except np.linalg.LinAlgError:
            continue
    raise ValueError("the Hessian is not positive semidefinite; look for values of X beyond 1e100")


Seen = Callable[[Point], None]


def _quick(A: Any, AT: Any) -> tuple[Any, Any]:
    """A and A', dense if they are so small that calls cost more than products."""
    small = A.shape[0] * A.shape[1] <= DENSE
    return (A.toarray(), AT.toarray()) if small else (A, AT)


class _Quadratic:
    """1/2 x'Hx - c'x + alpha |A x|_1."""

    def __init__(self, H: Array, c: Array, A: Any, alpha: float):
        self.H, self.c, self.A, self.alpha = H, c, A, alpha
        self.gram, self.AT = (A.T @ A).toarray(), A.T.tocsr()

    def value(self, x: Array) -> float:
        return float(0.5 * x @ self.H @ x - self.c @ x + self.alpha * np.abs(self.A @ x).sum())

    def admm(self, x: Array, mu: Array, rho: float, accuracy: float) -> tuple[Array, Array, Array, float]:
        """x, y, mu and a rho that balances the residuals; ends when both residuals are below the accuracy."""
        (A, AT), alpha = _quick(self.A, self.AT), self.alpha
        y = A @ x
        rho = rho or float(np.sqrt(np.diag(self.H).mean() * (alpha or 1.0) / max(np.abs(y).max(initial=0.0), 1e-2)))
        M = _inverse(self.H, self.gram, rho)
        for iteration in range(1, INNER + 1):
            x = M @ (self.c + AT @ (rho * y - mu))
            Ax = A @ x
            v = mu + rho * (RELAXED * Ax + (1 - RELAXED) * y)
            mu = np.clip(v, -alpha, alpha)
            old, y = y, (v - mu) / rho
            if iteration % CHECKED == 0:
                primal, dual = np.linalg.norm(Ax - y), np.linalg.norm(rho * (AT @ (y - old)))
                if max(primal * rho, dual) <= accuracy:
                    break
                size = np.linalg.norm(y) / max(np.linalg.norm(AT @ mu), 1e-300)
                ratio = np.sqrt(primal / max(dual * size, 1e-300)) if size > 0 else 1.0
                if not 0.2 < ratio < 5 and iteration < INNER:
                    rho *= float(np.clip(ratio, 1e-2, 1e2))
                    M = _inverse(self.H, self.gram, rho)
        return x, y, mu, rho

    def on_face(self, y: Array, x: Array) -> Array:
        """The model's minimiser on the face of y, or as far towards it from x as the signs of A x stay.

        Or x itself, if that is lower by more than rounding, which would untie what is tied.
        """
        Z = faces(self.A, y == 0)
        slope = self.alpha * (Z.T @ (self.AT @ np.sign(y)))
        H = Z.T @ (Z.T @ self.H).T
        H[np.diag_indices_from(H)] += 1e-12 * np.trace(H) / max(len(H), 1) + 1e-300
        u = np.linalg.solve(H, Z.T @ self.c - slope)
        start = (Z.T @ x) / np.asarray(np.abs(Z).sum(axis=0))
        begin, end = self.A @ (Z @ start), self.A @ (Z @ u)
        crossing = (begin * end < 0) | ((begin == 0) & (end * y < 0))
        most = float(np.min(begin[crossing] / (begin - end)[crossing], initial=1.0))
        on_it = min([Z @ u, Z @ (start + most * (u - start)), Z @ start], key=self.value)
        least = self.value(on_it)
        return x if self.value(x) < least - UNTIES * abs(least) else on_it


def _search(model: Model, A: Any, alpha: float, point: Point, margins: Array, x: Array) -> tuple[Array, Array, float]:
    """x and its margins, or a point on the way to it that is lower than `point`."""
    target, new = model.margins(x), x
    t = 1.0
    while True:
        z = margins + t * (target - margins)
        objective = model.objective(A, alpha, new, z)
        if objective < point.objective:
            return new, z, objective
        t /= 4
        if t < 1e-6:
            return point.x, margins, point.objective
        new = point.x + t * (x - point.x)


def _certify(A: Any, alpha: float, point: Point, g: Array, aim: float, most: int = CHECKED) -> Array:
    """Set mu to the best multipliers of x, measure the certificate, and return grad F + A'mu.

    Where A x is not zero, it says what mu is. Elsewhere |grad F + A'mu|^2 falls by accelerated projected steps.
    """
    Ax = A @ point.x
    size = abs(A)
    fixed = Ax != 0
    mu = np.where(fixed, alpha * np.sign(Ax), np.clip(point.mu, -alpha, alpha))
    step = np.where(fixed, 0.0, 1 / np.maximum(size @ (size.T @ np.ones(len(mu))), 1e-300))
    A, AT = _quick(A, A.T.tocsr())
    ahead, momentum, old = mu, 1.0, np.empty(0)
    for iteration in range(most + 1):
        if iteration % 10 == 0:
            residual = g + AT @ mu
            if residual @ residual <= aim or np.array_equal(mu, old):
                break
        old, mu = mu, np.clip(ahead - step * (A @ (g + AT @ ahead)), -alpha, alpha)
        before, momentum = momentum, 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        ahead = mu + (before - 1) / momentum * (mu - old)
    point.mu, point.gradient, point.subdifferential = mu, float(residual @ residual), 0.0
    return np.asarray(residual)


def strict(tol: float, alpha: float) -> float:
    """`tol`, or less where it would not tell alpha from zero."""
    return min(tol, (1e-3 * alpha) ** 2) if alpha else tol


def newton(
    model: Model, A: Any, alpha: float, start: Point, tol: float, steps: int = OUTER, seen: Seen = lambda point: None
) -> Point:
    """From `start` until the certificate is at most `tol`, or nothing falls any more; `seen` is shown every point."""
    point = replace(start, x=start.x.copy(), steps=0, sfo=model.n)
    margins = model.margins(point.x)
    point.objective = model.objective(A, alpha, point.x, margins)
    g = model.gradient(point.x, margins)
    _certify(A, alpha, point, g, tol)
    seen(point)
    stuck = 0
    while point.certificate > tol and point.steps < steps and stuck < 3:
        H, rows = model.hessian(margins)
        quadratic = _Quadratic(H, H @ point.x - g, A, alpha)
        accuracy = 0.1 * max(np.sqrt(tol), 0.1 * np.sqrt(point.certificate))
        x, y, point.mu, point.rho = quadratic.admm(point.x, point.mu, point.rho, accuracy * 0.1**stuck)
        before = point.objective
        x = quadratic.on_face(y, x)
        point.x, margins, point.objective = _search(model, A, alpha, point, margins, x)
        stuck = stuck + 1 if point.objective >= before else 0
        g = model.gradient(point.x, margins)
        point.steps, point.sfo = point.steps + 1, point.sfo + model.n + rows
        _certify(A, alpha, point, g, tol)
        seen(point)
    if tol <= (ROUGH * alpha) ** 2:
        _sharpen(model, A, alpha, point, margins)
    return point


def _sharpen(model: Model, A: Any, alpha: float, point: Point, margins: Array) -> None:
    """Newton steps on the face of x, as long as the gradient there falls: the last digits, for few of the costs."""
    Ax = A @ point.x
    Z, mu = faces(A, Ax == 0), alpha * np.sign(Ax)
    best = Z.T @ (model.gradient(point.x, margins) + A.T @ mu)
    for _ in range(SHARPENING):
        H = model.hessian(margins)[0]
        on_face = Z.T @ (Z.T @ H).T
        on_face[np.diag_indices_from(on_face)] += 1e-12 * np.trace(on_face) / max(len(on_face), 1) + 1e-300
        x = point.x - Z @ np.linalg.solve(on_face, best)
        z = model.margins(x)
        g = model.gradient(x, z)
        rest = Z.T @ (g + A.T @ mu)
        if not np.linalg.norm(rest) < 0.5 * np.linalg.norm(best) or (np.sign(A @ x) != np.sign(Ax)).any():
            break
        point.x, margins, best, point.sfo = x, z, rest, point.sfo + 2 * model.n
        point.objective = model.objective(A, alpha, x, z)
        point.mu = np.where(Ax != 0, mu, point.mu)
        point.gradient = float(np.sum((g + A.T @ point.mu) ** 2))


def solve(
    model: Model, A: Any, alpha: float, start: Point, tol: float, steps: int = OUTER, seen: Seen = lambda point: None
) -> Point:
    """The minimiser. With more than LARGEST unknowns it may end before; the certificate tells."""
    if A.shape[1] <= AT_ONCE:
        return newton(model, A, alpha, start, tol, steps=steps, seen=seen)
    few = A.shape[1] <= LARGEST
    point = Point(start.x, start.mu, start.rho)  # nothing is known of it with this alpha
    if few or model.n <= FEW_ROWS:
        point = _by_working_set(model, A, alpha, point, tol, steps, seen)
    if point.certificate > tol and point.steps < steps:
        before, spent = point.steps, point.sfo
        last = newton if few else _from_face_to_face
        point = last(model, A, alpha, point, tol, steps - before, seen)
        point.steps, point.sfo = before + point.steps, spent + point.sfo
    return point


def _by_working_set(model: Model, A: Any, alpha: float, start: Point, tol: float, steps: int, seen: Seen) -> Point:
    """The minimiser, unless it needs a working set of more than LARGEST unknowns."""
    d = model.X.shape[1]
    neighbours = csr_array(abs(A[:, :d]).T @ abs(A[:, :d]))
    point, chosen, spent = replace(start), np.zeros(d, dtype=bool), 0
    while True:
        margins = model.margins(point.x)
        left = np.abs(_certify(A, alpha, point, model.gradient(point.x, margins), tol, BALANCING)[:d])
        spent += model.n
        wanted = chosen | (neighbours @ (point.x[:d] != 0).astype(float) > 0)
        violated = np.flatnonzero(~wanted & (left > 1e-3 * alpha))
        wanted[violated[np.argsort(-left[violated])[: max(50, int(chosen.sum()))]]] = True
        if A.shape[1] <= LARGEST and wanted.sum() > d / 3:
            break
        found = point.certificate <= tol or point.steps >= steps or (point.steps > 0 and (wanted == chosen).all())
        point.objective, point.sfo = model.objective(A, alpha, point.x, margins), spent
        seen(point)
        if found or wanted.sum() > LARGEST:
            break
        chosen = wanted
        point = _on_working_set(model, A, alpha, point, tol, chosen)
        spent += point.sfo
    return point


def _on_working_set(model: Model, A: Any, alpha: float, start: Point, tol: float, chosen: Any) -> Point:
    """The minimiser over the chosen features without the edges that leave them."""
    d = model.X.shape[1]
    columns = np.append(np.flatnonzero(chosen), np.arange(d, A.shape[1]))
    outside = np.append(~chosen, np.zeros(A.shape[1] - d, dtype=bool))
    rows = np.flatnonzero(abs(A) @ outside.astype(float) == 0)
    part = csr_array(A[rows][:, columns])
    features = replace(model, X=model.X[:, columns[: chosen.sum()]])
    inner = newton(features, part, alpha, Point(start.x[columns], start.mu[rows], start.rho), tol)
    point = replace(inner, x=np.zeros(A.shape[1]), mu=np.zeros(A.shape[0]), steps=start.steps + inner.steps)
    point.x[columns], point.mu[rows] = inner.x, inner.mu
    return point


def project(Z: Any, x: Array) -> Array:
    """The nearest point of a face."""
    return np.asarray(Z @ ((Z.T @ x) / np.asarray(abs(Z).sum(axis=0)).ravel()))


def _from_face_to_face(model: Model, A: Any, alpha: float, start: Point, tol: float, steps: int, seen: Seen) -> Point:
    point = replace(start, x=start.x.copy(), steps=0, sfo=model.n)
    margins, every, stuck = model.margins(point.x), max(1, model.n // FACE_ROWS), 0
    point.objective = model.objective(A, alpha, point.x, margins)
    part = _Curvature(model, every)
    while True:
        g, before = model.gradient(point.x, margins), point.certificate
        left = _certify(A, alpha, point, g, tol, BALANCING)
        seen(point)
        if point.certificate <= tol or point.steps >= steps or stuck == 3:
            return point
        if every > 1 and point.certificate > 0.1 * before:
            every //= 4
            part = _Curvature(model, max(1, every))
        sign = np.sign(A @ point.x)
        held = np.flatnonzero((sign == 0) & (np.abs(point.mu) >= alpha))
        pull = np.abs((A @ left)[held])
        most = max(FREED, model.n // 10, np.count_nonzero(point.x))
        freed = held[np.argsort(-pull)[:most]]
        sign[freed] = np.sign(point.mu[freed])
        Z = faces(A, sign == 0)
        towards = Z @ part.newton_step(margins, Z, -(Z.T @ (g + alpha * (A.T @ sign))))
        old = point.objective
        point.x, margins, point.objective = _search_on_face(model, A, alpha, point, margins, towards, sign)
        stuck = stuck + 1 if point.objective >= old else 0
        point.steps, point.sfo = point.steps + 1, point.sfo + model.n + part.n


def _search_on_face(
    model: Model, A: Any, alpha: float, point: Point, margins: Array, towards: Array, sign: Array
) -> tuple[Array, Array, float]:
    """The first point on the way that is not higher than `point`, with zeros for rows that change their sign."""
    t = 1.0
    while t > 1e-6:
        x = point.x + t * towards
        x = project(faces(A, (sign == 0) | (sign * (A @ x) < 0)), x)
        z = model.margins(x)
        objective = model.objective(A, alpha, x, z)
        if objective <= point.objective + ROUNDING * abs(point.objective):
            return x, z, objective
        t /= 4
    return point.x, margins, point.objective


class _Curvature:
    """H of every so many rows, without a matrix."""

    def __init__(self, model: Model, every: int):
        self.X, self.rows, self.model = model.X[::every], slice(None, None, every), model
        self.n = self.X.shape[0]
        X, d = self.X, self.X.shape[1]
        squares = np.bincount(X.indices, X.data**2, minlength=d) if issparse(X) else np.einsum("ij,ij->j", X, X)
        self.squares = self._with_intercept(squares / self.n, 1.0)

    def _with_intercept(self, x: Any, last: float) -> Array:
        return np.append(x, last) if self.model.intercept else np.asarray(x)

    def newton_step(self, margins: Array, Z: Any, b: Array) -> Array:
        """u with Z'H Z u = b by conjugate gradients."""
        model, d = self.model, self.X.shape[1]
        h = model.loss.curvature(margins, model.target)[self.rows] * model.weight[self.rows] / self.n
        ridges = model.ridges
        diagonal = abs(Z).T @ (h.sum() * self.squares + ridges)
        diagonal += 1e-6 * diagonal.max(initial=1e-300)

        def product(u: Array) -> Array:
            x = Z @ u
            c = h * (self.X @ x[:d] + x[d:].sum())
            return np.asarray(Z.T @ (self._with_intercept(self.X.T @ c, c.sum()) + ridges * x) + 1e-9 * diagonal * u)

        u, rest = np.zeros_like(b), b
        p = scaled = rest / diagonal
        size = first = float(rest @ scaled)
        for _ in range(CONJUGATE):
            if size <= NEARLY * first:
                break
            Hp = product(p)
            t = size / float(p @ Hp)
            u, rest = u + t * p, rest - t * Hp
            scaled = rest / diagonal
            before, size = size, float(rest @ scaled)
            p = scaled + size / before * p
        return u
