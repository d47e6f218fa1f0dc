"""Time against SGDClassifier at equal objective: python benchmarks/sgd.py [OUT [full]]

Logistic loss and l1 penalty of the same weight, columns as they are, no graph, intercept not penalised. Two generated
sets: dense normal columns, and sparse rows as of texts (fifty words a row by Zipf's law, tf-idf, rows of length 1).
SGDClassifier ends by its default `tol`; ours is run with 1, 2, 3, ... Newton steps until its objective is as low, and
both are timed three times in turn (medians). Our default fit ends at the minimiser with its zeros; SGDClassifier gets
10 and then 30 epochs to come as low, but for a hundredth of the distance between the two ends. Seconds are those of
the processor. One set of each kind, one weight: no clean test, as our steps were developed on smaller sets of the same
sparse kind, and made faster after a first run on this one. How many steps suffice is known only afterwards.
"""

import sys
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
from scipy.sparse import csr_matrix, diags
from sklearn.linear_model import SGDClassifier

from smadmm.learn import GraphGuidedClassifier

SMALL = {"dense": (100_000, 100, 1e-4), "sparse": (50_000, 20_000, 5e-5)}
FULL = {"dense": (1_000_000, 100, 1e-4), "sparse": (500_000, 100_000, 1e-5)}
REPEATS, EPOCHS, NEAR = 3, (10, 30), 1e-2  # NEAR: share of the distance that may be left


def dense(n, d):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X[:, : d // 10].sum(1) + 3 * rng.standard_normal(n) > 0


def sparse(n, d, words=50):
    rng = np.random.default_rng(0)
    columns = np.minimum((d + 1) ** rng.random((n, words)) - 1, d - 1).astype(np.int32)
    X = csr_matrix((np.ones(n * words), columns.ravel(), np.arange(0, n * words + 1, words)), shape=(n, d))
    X.sum_duplicates()
    X.data = (1 + np.log(X.data)) * (1 + np.log((1 + n) / (1 + np.bincount(X.indices, minlength=d))))[X.indices]
    X = csr_matrix(diags(1 / np.sqrt(np.asarray(X.multiply(X).sum(1)).ravel())) @ X)
    truth = np.where(rng.random(d) < 0.05, 12 * rng.standard_normal(d), 0.0)
    return X, rng.random(n) < 1 / (1 + np.exp(-(X @ truth)))


class Contest:
    """Both solvers on one set."""

    def __init__(self, X, y, alpha):
        self.X, self.y, self.alpha = X, y, alpha

    def ours(self, steps=None):
        return GraphGuidedClassifier(self.alpha, graph=None, standardize=False, max_epochs=steps, random_state=0)

    def rival(self, epochs=None):
        ends = {} if epochs is None else {"max_iter": epochs, "tol": None}
        return SGDClassifier(penalty="l1", loss="log_loss", alpha=self.alpha, random_state=0, **ends)

    def fitted(self, model):
        """Seconds, objective, non-zeros."""
        begin = time.process_time()
        model.fit(self.X, self.y)
        seconds = time.process_time() - begin
        margins = np.where(self.y, 1, -1) * model.decision_function(self.X)
        objective = np.logaddexp(0, -margins).mean() + self.alpha * np.abs(model.coef_).sum()
        return seconds, float(objective), int(np.count_nonzero(model.coef_))

    def reaching(self, make, objective, counts):
        """The first count with which the objective is reached, else the last one; seconds; objective; non-zeros."""
        for count in counts:
            found = self.fitted(make(count))
            if found[1] <= objective:
                break
        return count, *found

    def seconds(self, *models):
        """Medians of interleaved fits."""
        runs = [[self.fitted(model)[0] for model in models] for _ in range(REPEATS)]
        return [median(times) for times in zip(*runs, strict=True)]


def rows(name, n, d, alpha):
    contest = Contest(*{"dense": dense, "sparse": sparse}[name](n, d), alpha)
    end, exact = contest.fitted(contest.rival()), contest.fitted(contest.ours())
    steps = contest.reaching(contest.ours, end[1], range(1, 100))[0]
    theirs, sooner = contest.seconds(contest.rival(), contest.ours(steps))
    size = f"{name}, {n:,} x {d:,}"
    yield [size, "SGDClassifier's end", end[1], theirs, sooner, theirs / sooner, f"after {steps} Newton steps"]
    epochs, theirs, objective, left = contest.reaching(contest.rival, exact[1] + NEAR * (end[1] - exact[1]), EPOCHS)
    note = f"SGDClassifier {objective - exact[1]:.1e} above after {epochs} epochs; not zero: {exact[2]} (ours), {left}"
    yield [size, "our end", exact[1], theirs, exact[0], theirs / exact[0], note]


def main(out=None, form="small"):
    head = ["set", "objective of", "objective", "SGDClassifier, s", "ours, s", "times faster", "note"]
    lines = [head, ["---"] * len(head)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contest = Contest(*sparse(6000, 2000), 1e-3)
        contest.fitted(contest.ours())  # imports
        for name, (n, d, alpha) in (FULL if form == "full" else SMALL).items():
            for row in rows(name, n, d, alpha):
                lines.append([f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row])
                print(*lines[-1], sep=" | ", flush=True)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    text = f"# Time against SGDClassifier at equal objective\n\n{__doc__.split(chr(10), 2)[2].strip()}\n\n{table}\n"
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / "table.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
