"""One classifier on one table as a job: accuracy, AUC, log-loss, non-zeros and seconds by split.

3/4 of the rows are for training, the same ones for every method. All settings are the defaults, but that solvers may
run to their end, SGDClassifier has the logistic loss, for probabilities, and skglm the weight 1/rows, which is what
C = 1 means in scikit-learn: its default of 1 leaves no coefficient. Seconds are those of the processor (other work on
the machine does not count) for a fit in a warm process, or, where a job is cold, in a fresh process from the import of
the estimator to the end of its first fit.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

Data = tuple[Any, NDArray[Any]]

COLD, COLD_STARTS = "cold start", 3
LIBSVM = {"splice": ("splice.t", 2000), "a9a": ("a9a.t", 3000), "ijcnn1": ("ijcnn1.t", 4000)}  # rows at the most
OURS, OURS_CV = "ours", "ours, CV"
LINEAR = "sklearn.linear_model"
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {  # module, class, arguments
    OURS: ("smadmm.learn", "GraphGuidedClassifier", {"random_state": 0}),
    OURS_CV: ("smadmm.learn", "GraphGuidedClassifierCV", {"random_state": 0}),
    "LogisticRegression": (LINEAR, "LogisticRegression", {"max_iter": 1000}),
    "LogisticRegression, raw": (LINEAR, "LogisticRegression", {"max_iter": 1000}),
    "LogisticRegressionCV": (LINEAR, "LogisticRegressionCV", {"max_iter": 1000}),
    "LogisticRegressionCV, raw": (LINEAR, "LogisticRegressionCV", {"max_iter": 1000}),
    "LinearSVC": ("sklearn.svm", "LinearSVC", {"max_iter": 10_000}),
    "SGDClassifier": (LINEAR, "SGDClassifier", {"loss": "log_loss", "random_state": 0}),
    "skglm": ("skglm", "SparseLogisticRegression", {}),
}


@dataclass(frozen=True)
class TabularRun:
    """One method on the splits of one set; or its cold start."""

    table: str
    method: str
    splits: int
    seed: int
    fingerprint: str = ""  # of the set

    @property
    def name(self) -> str:
        return f"{self.table}-{self.method}"


def installed() -> list[str]:
    """The methods that can run here."""
    return [method for method in METHODS if method != "skglm" or find_spec("skglm")]


def grouped(rows: int, features: int, groups: int, seed: int, rare: float = 0.5) -> Data:
    """Groups of correlated features; two of the groups decide."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((rows, groups))
    X = common[:, np.arange(features) * groups // features] + 0.8 * rng.standard_normal((rows, features))
    score = common[:, 0] - common[:, 1] + 0.7 * rng.standard_normal(rows)
    return X, (score > np.quantile(score, 1 - rare)).astype(int)


def chained(rows: int, features: int, seed: int) -> Data:
    """A run of neighbouring features decides."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, features))
    score = X[:, features // 5 : 2 * features // 5].sum(1) / 4 + rng.standard_normal(rows)
    return X, (score > 0).astype(int)


def heavy_tailed(rows: int, features: int, seed: int) -> Data:
    """Columns with outliers in units that differ by decades; five of them decide."""
    rng = np.random.default_rng(seed)
    X = rng.standard_t(2.5, (rows, features))
    y = (np.arcsinh(X[:, :5]).sum(1) + rng.standard_normal(rows) > 0).astype(int)
    return X * 10.0 ** rng.uniform(-4, 4, features), y


def counted(rows: int, features: int, seed: int) -> Data:
    """Sparse counts as of words; twenty of them are more frequent in one class."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    rate = np.tile(0.5 / (1 + np.arange(features) / 10), (rows, 1))
    rate[y == 1, 10:30] *= 2.5
    return csr_matrix(rng.poisson(rate).astype(float)), y


def flipped(seed: int) -> Data:
    """A fifth of the labels are wrong."""
    from sklearn.datasets import make_classification

    X, y = make_classification(600, 30, n_informative=10, class_sep=2, random_state=seed)
    return X, np.where(np.random.default_rng(seed).random(600) < 0.2, 1 - y, y)


def bundled(name: str) -> Data:
    """A set that ships with scikit-learn; of the digits every third."""
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return (X[::3], y[::3]) if name == "digits" else (X, y)


def generated(seed: int, rows: int, **options: Any) -> Data:
    from sklearn.datasets import make_classification

    X, y = make_classification(rows, random_state=seed, **options)
    return X, y


def libsvm(name: str, data: str | None, seed: int) -> Data:
    """Rows of the test file of a LIBSVM set, drawn at random."""
    from smadmm.io.libsvm import load_libsvm

    file, rows = LIBSVM[name]
    found = load_libsvm(file, data)
    order = np.random.default_rng(seed).permutation(len(found.y))[:rows]
    return found.X[order], found.y[order]


BUNDLED = {"iris": "iris", "wine": "wine", "breast cancer": "breast_cancer", "digits": "digits"}
GENERATED: dict[str, Callable[[int], Data]] = {
    "generated": lambda seed: generated(seed, 1000, n_features=20, n_informative=8),
    "5 classes": lambda seed: generated(seed, 1500, n_features=20, n_informative=10, n_classes=5),
    "rare class": lambda seed: generated(seed, 2000, n_features=20, n_informative=5, weights=[0.97]),
    "mostly noise": lambda seed: generated(seed, 300, n_features=200, n_informative=5, n_redundant=0),
    "groups": lambda seed: grouped(300, 48, 6, seed),
    "groups, wide": lambda seed: grouped(150, 300, 10, seed),
    "groups, rare": lambda seed: grouped(1500, 48, 6, seed, rare=0.04),
    "chain": lambda seed: chained(300, 100, seed),
    "20 % flipped": flipped,
    "heavy tails": lambda seed: heavy_tailed(600, 30, seed),
    "counts": lambda seed: counted(500, 400, seed),
}


def read_table(name: str, data: str | None, seed: int) -> Data:
    """The set of this name."""
    if name in BUNDLED:
        return bundled(BUNDLED[name])
    if name in LIBSVM:
        return libsvm(name, data, seed)
    return GENERATED[name](1000 + 20 * seed + list(GENERATED).index(name))


def classifier(method: str, rows: int, sparse: bool) -> Any:
    """The estimator, scikit-learn's and skglm's after a StandardScaler unless the name says raw."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    module, name, arguments = METHODS[method]
    weight = {"alpha": 1 / rows} if method == "skglm" else {}
    made = getattr(import_module(module), name)(**arguments, **weight)
    if method in (OURS, OURS_CV) or method.endswith("raw"):
        return made
    return make_pipeline(StandardScaler(with_mean=not sparse), made)


def run_tabular(job: TabularRun, data: str | None) -> dict[str, Any]:
    """Lists with a value per split."""
    if job.table == COLD:
        return {"seconds": cold_start(job.method)}
    from scipy.sparse import issparse
    from sklearn.model_selection import StratifiedShuffleSplit

    import smadmm.learn  # noqa: F401  # what the results depend on

    X, y = read_table(job.table, data, job.seed)
    splits = StratifiedShuffleSplit(job.splits, test_size=0.25, random_state=job.seed).split(np.zeros(len(y)), y)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for train, test in splits:
            found.append(measured(classifier(job.method, len(train), issparse(X)), X, y, train, test))
    return {name: [row[name] for row in found] for name in found[0]}


def measured(model: Any, X: Any, y: Any, train: Any, test: Any) -> dict[str, float | None]:
    """What one split says; None where a method has no such measure."""
    from sklearn.metrics import log_loss, roc_auc_score

    begin = time.process_time()
    model.fit(X[train], y[train])
    seconds = time.process_time() - begin
    last = model[-1] if hasattr(model, "steps") else model
    row: dict[str, float | None] = {"accuracy": float(model.score(X[test], y[test])), "auc": None, "log_loss": None}
    row |= {"nonzeros": int(np.count_nonzero(last.coef_)), "seconds": seconds}
    if hasattr(last, "predict_proba"):
        p = model.predict_proba(X[test])
        p = np.where(np.isfinite(p), p, 1 / p.shape[1])  # one against the rest, and no class wants the row
        row["auc"] = float(roc_auc_score(y[test], p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr"))
        row["log_loss"] = float(log_loss(y[test], p, labels=last.classes_))
    elif len(last.classes_) == 2:
        row["auc"] = float(roc_auc_score(y[test], model.decision_function(X[test])))
    return row


def cold_start(method: str) -> float:
    """Seconds of a fresh process from the import of the estimator to the end of its first fit, the median of three."""
    module, name, arguments = METHODS[method]
    weight = "alpha=1 / len(y)" if method == "skglm" else ""
    text = (
        "import time, warnings; warnings.simplefilter('ignore'); from sklearn.datasets import load_breast_cancer; "
        "X, y = load_breast_cancer(return_X_y=True); X = (X - X.mean(0)) / X.std(0); t = time.process_time(); "
        f"from {module} import {name}; {name}(**{arguments}, {weight}).fit(X, y); print(time.process_time() - t)"
    )
    return median(float(subprocess.check_output([sys.executable, "-c", text])) for _ in range(COLD_STARTS))
