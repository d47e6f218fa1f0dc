"""Compiled loops against NumPy and scikit-learn: one thread, interleaved, process CPU time, medians, ratios.

On data of the shape of a9a (16,280 rows, 123 binary features, 14 of them set), or on a9a itself if SMADMM_DATA names
its folder. An epoch of SGDClassifier is the marginal one, (11 epochs - 1 epoch) / 10, and a pass of ours beside it the
mean of ten in a row: the first one after another program also waits for its data and its code.
"""

import os
import time
import tracemalloc
import warnings

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier

from smadmm.learn import GraphGuidedClassifier
from smadmm.learn.published_loops import Published
from smadmm.learn.scaling import batch_size, column_sums
from smadmm.learn.tasks import Task
from smadmm.learn.twins import CompiledAuto, CompiledPublished
from smadmm.sampling import pass_batches
from smadmm.schedules import Power


def binary(n, d, nnz, seed=0):
    """Sparse rows with nnz ones each, and labels from a sparse plane."""
    rng = np.random.default_rng(seed)
    columns = np.sort(np.argpartition(rng.random((n, d)), nnz, axis=1)[:, :nnz], axis=1) if d < 1000 else None
    if columns is None:
        columns = np.sort(rng.integers(0, d, (n, nnz)), axis=1)
    X = sp.csr_matrix(
        (np.ones(n * nnz), columns.ravel().astype(np.int32), np.arange(0, n * nnz + 1, nnz)), shape=(n, d)
    )
    margins = X @ rng.standard_normal(d)
    return X, np.where(margins + rng.standard_normal(n) > np.quantile(margins, 0.7), 1.0, -1.0)


def a9a():
    if os.environ.get("SMADMM_DATA"):
        from smadmm.io.libsvm import half_split, load_libsvm

        data = load_libsvm("a9a")
        rows = half_split(len(data.y), 0)[0]
        return "a9a", data.X[rows], data.y[rows]
    return "data shaped like a9a", *binary(16_280, 123, 14)


def task(X, y, edges_per_feature=3, lam1=1e-5, seed=0):
    rng, d = np.random.default_rng(seed), X.shape[1]
    ends = np.sort(rng.integers(0, d, (edges_per_feature * d, 2)), axis=1)
    ends = ends[ends[:, 0] != ends[:, 1]]
    data, columns = np.tile([1.0, -1.0], len(ends)), ends.ravel()
    G = sp.csr_array((data, columns, np.arange(0, 2 * len(ends) + 1, 2)), shape=(len(ends), d))
    A = sp.csr_array(sp.vstack([G, sp.eye_array(d)], format="csr"))
    order = rng.permutation(len(y))
    return Task(X[order], y[order], np.ones(len(y)), A, lam1, "sigmoid", False, shuffled=True)


def cpu(work):
    begin = time.process_time()
    work()
    return time.process_time() - begin


def interleaved(works, repeats):
    """Seconds of every work, one row a round."""
    for work in works:
        work()  # compile, warm the caches
    return np.array([[cpu(work) for work in works] for _ in range(repeats)])


def smadmm_pass(t, batch, exact, passes=1):
    """A function that runs passes of SMADMM, two gradients a sample."""
    growth, eta = 1 / 3, 1.0 if exact else 60.0
    made = Published(
        "smadmm", batch, Power(eta, growth), Power(0.1, growth), Power(0.9, -2 / 3), first=batch, exact=exact
    )
    loop, limit = CompiledPublished(t, made), 0

    def go():
        nonlocal limit
        for _ in range(passes):
            limit += 2 * t.n
            loop.advance(limit)

    return go


def auto_pass(t, passes=1):
    loop = CompiledAuto(t, column_sums(t.X, t.weight), table=True)
    batch = batch_size(t.X, t.A)
    batches = t.batches(0, batch, 0, t.n // batch)
    loop.begin(batches[0])
    return lambda: [loop.advance(batches) for _ in range(passes)]


def numpy_dense(t, batch, steps):
    """The same iteration in NumPy on dense rows."""
    X, A, y_ = t.X.toarray(), t.A, t.target
    inverse = np.linalg.inv(np.eye(t.size) + 0.1 * (A.T @ A).toarray())
    batches = pass_batches(0, t.n, batch, 0, steps)

    def slopes(rows, b, x):
        s = 1 / (1 + np.exp(b * (rows @ x)))
        return -b * s * (1 - s)

    def go():
        x = old = np.zeros(t.size)
        v, lam = np.zeros(t.size), np.zeros(A.shape[0])
        for k in range(steps):
            w = A @ x - lam / 0.1
            y = np.sign(w) * np.maximum(np.abs(w) - t.lam1 / 0.1, 0)
            old, x = x, x - inverse @ (v + A.T @ (0.1 * (A @ x - y) - lam))
            lam = lam - 0.1 * (A @ x - y)
            rows, b = X[batches[k]], y_[batches[k]]
            v = rows.T @ (slopes(rows, b, x) - 0.5 * slopes(rows, b, old)) / batch + 0.5 * v

    return go


def sgd(t, epochs):
    return lambda: SGDClassifier(loss="log_loss", max_iter=epochs, tol=None, random_state=0).fit(t.X, t.target)


def speed(name, X, y):
    t, steps, passes = task(X, y), 100, 10
    iterations = -(-t.n // 100)
    loops = [smadmm_pass(t, 100, True, passes), smadmm_pass(t, 100, False, passes), auto_pass(t, passes)]
    rounds = interleaved([*loops, numpy_dense(t, 100, steps), sgd(t, 1), sgd(t, 11)], 25)
    ratios = np.median(rounds[:, :3] / passes / (rounds[:, 5:] - rounds[:, 4:5]) * 10, axis=0)  # each within its round
    *totals, dense, one, eleven = np.median(rounds, axis=0)
    ours, numpy_time, epoch = 1e6 * totals[0] / passes / iterations, 1e6 * dense / steps, (eleven - one) / 10
    print(f"{name}: SMADMM, b = 100: {ours:.1f} us an iteration, NumPy on dense rows {numpy_time:.1f} us;")
    print(f"  where NumPy takes 145 us that is {ours * 145 / numpy_time:.1f} us (aim: at most 20)")
    print(f"  epoch of SGDClassifier {1e3 * epoch:.2f} ms (fit of one epoch {1e3 * one:.2f} ms)")
    for label, total, ratio in zip(("exact x-step", "linearised", "auto"), totals, ratios, strict=True):
        print(f"  one pass, {label}: {1e3 * total / passes:.2f} ms, ratio {ratio:.2f} (aim: at most 0.7)")


def growth():
    """An iteration costs O(d + samples): beyond some thousand unknowns SMADMM takes the larger batches of auto, too."""
    print("cost of a pass of auto and of SMADMM (linearised; batches of 100, or as large as those of auto):")
    print("| n | d | nnz | auto ms | SMADMM ms |\n|---|---|---|---|---|")
    sizes = [(4000, 500, 20), (8000, 500, 20), (16_000, 500, 20), (8000, 500, 80), (8000, 2000, 20)]
    sizes += [(8000, 10_000, 20), (8000, 50_000, 20), (8000, 200_000, 20)]
    for n, d, nnz in sizes:
        t = task(*binary(n, d, nnz), edges_per_feature=1)
        batch = max(100, batch_size(t.X, t.A))
        auto, linear = np.median(interleaved([auto_pass(t), smadmm_pass(t, batch, False)], 5), axis=0)
        print(f"| {n} | {d} | {n * nnz} | {1e3 * auto:.1f} | {1e3 * linear:.1f} |")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2000))
    t = task(X, np.sign(X[:, 0] + 0.1), edges_per_feature=1)
    auto, linear = np.median(interleaved([auto_pass(t), smadmm_pass(t, 100, False)], 3), axis=0)
    print(f"| 2000 dense | 2000 | {X.size} | {1e3 * auto:.1f} | {1e3 * linear:.1f} |")


def memory():
    X, y = binary(200_000, 500, 40)
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    model = GraphGuidedClassifier(graph="chain", max_epochs=1, random_state=0)
    model.fit(X[:1000], y[:1000])
    tracemalloc.start()
    model.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"memory of a fit beside X ({size / 1e6:.0f} MB): {peak / size:.2f} copies of X at its peak (aim: below 3)")


def main():
    warnings.simplefilter("ignore")
    speed(*a9a())
    growth()
    memory()


if __name__ == "__main__":
    main()
