"""Default classifiers side by side: accuracy, AUC, log-loss, non-zeros and seconds, 5 splits, every loss shown.

Sets: scikit-learn's, LIBSVM's if SMADMM_DATA names their folder, generated ones with known structure; 3/4 of the rows
are for training, the same ones for every method. Every rival runs twice: on raw columns, and after StandardScaler
(scale only for sparse data); ours standardise inside. All settings are the defaults, but that solvers may run to their
end (max_iter 1000 for logistic regression, 10,000 for LinearSVC) and SGDClassifier has the logistic loss, for
probabilities.
A method is better or worse than another on a set where the mean paired difference over the splits exceeds its
standard error. Run: python benchmarks/tabular.py > table.md
"""

import os
import subprocess
import sys
import time
import warnings

import numpy as np
from scipy.sparse import issparse
from scipy.stats import rankdata
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from smadmm.learn import GraphGuidedClassifier, GraphGuidedClassifierCV

SPLITS = 5
MEASURES = ("accuracy", "AUC", "log-loss", "non-zeros", "seconds")


def grouped(n, d, groups, seed, rare=0.5):
    """Groups of correlated features; two of the groups decide."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((n, groups))
    X = common[:, np.arange(d) * groups // d] + 0.8 * rng.standard_normal((n, d))
    score = common[:, 0] - common[:, 1] + 0.7 * rng.standard_normal(n)
    return X, (score > np.quantile(score, 1 - rare)).astype(int)


def chained(n, d, seed):
    """A run of neighbouring features decides."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, (X[:, d // 5 : 2 * d // 5].sum(1) / 4 + rng.standard_normal(n) > 0).astype(int)


def flipped(share, seed):
    X, y = make_classification(600, 30, n_informative=10, class_sep=2, random_state=seed)
    return X, np.where(np.random.default_rng(seed).random(600) < share, 1 - y, y)


def threes_and_eights():
    X, y = load_digits(return_X_y=True)
    kept = (y == 3) | (y == 8)
    return X[kept], y[kept]


def libsvm(name, rows):
    from smadmm.io.libsvm import load_libsvm

    data = load_libsvm(name)
    order = np.random.default_rng(0).permutation(len(data.y))[:rows]
    return data.X[order], data.y[order]


def sets():
    units = 10.0 ** np.random.default_rng(1).uniform(-4, 4, 20)
    every = {
        "iris": lambda: load_iris(return_X_y=True),
        "wine": lambda: load_wine(return_X_y=True),
        "breast cancer": lambda: load_breast_cancer(return_X_y=True),
        "digits": lambda: load_digits(return_X_y=True),
        "digits 3, 8": threes_and_eights,
        "generated": lambda: make_classification(1000, 20, n_informative=8, random_state=20),
        "5 classes": lambda: make_classification(1500, 20, n_informative=10, n_classes=5, random_state=21),
        "rare class": lambda: make_classification(2000, 20, n_informative=5, weights=[0.97], random_state=22),
        "odd units": lambda: (lambda X, y: (X * units, y))(*make_classification(800, 20, random_state=23)),
        "groups": lambda: grouped(300, 48, 6, 24),
        "groups, wide": lambda: grouped(150, 300, 10, 25),
        "groups, rare": lambda: grouped(1500, 48, 6, 26, rare=0.04),
        "chain": lambda: chained(300, 100, 27),
        "20 % flipped": lambda: flipped(0.2, 28),
    }
    if os.environ.get("SMADMM_DATA"):
        every["splice"] = lambda: libsvm("splice_scale", 1000)
        every["a9a, 3000 rows"] = lambda: libsvm("a9a", 3000)
        every["ijcnn1, 4000 rows"] = lambda: libsvm("ijcnn1", 4000)
    return every


def methods(sparse):
    rivals = {
        "LogisticRegression": lambda: LogisticRegression(max_iter=1000),
        "LogisticRegressionCV": lambda: LogisticRegressionCV(max_iter=1000, **modern()),
        "LinearSVC": lambda: LinearSVC(max_iter=10_000),
        "SGDClassifier": lambda: SGDClassifier(loss="log_loss", random_state=0),
    }
    made = {"ours": GraphGuidedClassifier(random_state=0), "ours, CV": GraphGuidedClassifierCV(random_state=0)}
    for name, rival in rivals.items():
        made[f"{name}, scaled"] = make_pipeline(StandardScaler(with_mean=not sparse), rival())
        made[f"{name}, raw"] = rival()
    return made


def modern():
    """Arguments that stand for the defaults of scikit-learn 1.10, without a warning where they are known."""
    known = LogisticRegressionCV().get_params()
    return {"use_legacy_attributes": False, "l1_ratios": (0.0,)} if "use_legacy_attributes" in known else {}


def measured(model, X, y, train, test):
    begin = time.perf_counter()
    model.fit(X[train], y[train])
    seconds = time.perf_counter() - begin
    last = model[-1] if hasattr(model, "steps") else model
    accuracy = model.score(X[test], y[test])
    if not hasattr(last, "predict_proba"):
        scores = model.decision_function(X[test])
        auc = roc_auc_score(y[test], scores) if scores.ndim == 1 else np.nan
        return accuracy, auc, np.nan, np.count_nonzero(last.coef_), seconds
    p = model.predict_proba(X[test])
    auc = roc_auc_score(y[test], p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr")
    return accuracy, auc, log_loss(y[test], p, labels=last.classes_), np.count_nonzero(last.coef_), seconds


def run():
    """results[set][method] = an array (splits, measures)."""
    results = {}
    for name, load in sets().items():
        X, y = load()
        splits = list(StratifiedShuffleSplit(SPLITS, test_size=0.25, random_state=0).split(np.zeros(len(y)), y))
        made = methods(issparse(X))
        results[name] = {m: np.array([measured(model, X, y, *split) for split in splits]) for m, model in made.items()}
        print(name, *(f"{m} {r.mean(axis=0).round(3)}" for m, r in results[name].items()), sep="\n  ", file=sys.stderr)
    return results


def compared(results, ours, rival, measure, sign):
    """On how many sets ours is better, equal, worse, and the mean difference."""
    k, counts, means = MEASURES.index(measure), [0, 0, 0], []
    for of_set in results.values():
        difference = sign * (of_set[ours][:, k] - of_set[rival][:, k])
        if np.isnan(difference).any():
            continue
        mean, error = difference.mean(), difference.std(ddof=1) / np.sqrt(SPLITS)
        counts[0 if mean > error else 2 if mean < -error else 1] += 1
        means.append(mean)
    return counts, float(np.mean(means))


def cold(code):
    """Seconds of a fresh process from the import of the estimator to the end of its first fit."""
    clock = "time.perf_counter()"
    text = f"import time; from sklearn.datasets import load_breast_cancer; t = {clock}; {code}; print({clock} - t)"
    return float(np.median([float(subprocess.check_output([sys.executable, "-c", text])) for _ in range(3)]))


def chapter(results):
    names = list(next(iter(results.values())))
    yield "# Default classifiers on small tables\n"
    yield "Made by `python benchmarks/tabular.py`; its docstring says what is compared. Means of 5 splits."
    yield "skglm is not among the rivals."
    yield "The rule for the default weight of our penalty was chosen with splits of scikit-learn's and the LIBSVM sets,"
    yield "so that their rows are no clean test of it; the generated sets are new, drawn with other seeds.\n"
    for measure, best in (("accuracy", max), ("AUC", max), ("log-loss", min), ("non-zeros", min), ("seconds", min)):
        k = MEASURES.index(measure)
        digits = {"accuracy": 3, "AUC": 4, "log-loss": 3, "non-zeros": 0, "seconds": 3}[measure]
        yield f"## {measure}\n\n| set | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}"
        for name, of_set in results.items():
            values = [of_set[m][:, k].mean() for m in names]
            top = best(v for v in values if not np.isnan(v))
            shown = ["" if np.isnan(v) else f"**{v:.{digits}f}**" if v == top else f"{v:.{digits}f}" for v in values]
            yield f"| {name} | {' | '.join(shown)} |"
        if measure not in ("non-zeros", "seconds"):
            sign = -1 if best is max else 1
            means = np.array([[sign * r[m][:, k].mean() for m in names] for r in results.values()])
            complete = ~np.isnan(means).any(axis=0)  # ranks are among the methods that have the measure on every set
            ranks = np.full(len(names), np.nan)
            ranks[complete] = np.mean([rankdata(row) for row in means[:, complete]], axis=0)
            yield f"| mean rank | {' | '.join('' if np.isnan(rank) else f'{rank:.1f}' for rank in ranks)} |"
        yield ""
    yield "## Sets better / equal / worse, and the mean difference\n"
    yield "| ours | against | accuracy | points | AUC | mean | log-loss | mean |\n|---|---|---|---|---|---|---|---|"
    for ours in names[:2]:
        for rival in names[2:]:
            cells = []
            for measure, sign in (("accuracy", 1), ("AUC", 1), ("log-loss", -1)):
                if measure == "log-loss" and rival.startswith("LinearSVC"):
                    cells += ["", ""]
                    continue
                counts, mean = compared(results, ours, rival, measure, sign)
                shown = f"{100 * mean:+.1f}" if measure == "accuracy" else f"{mean:+.3f}"
                cells += [" / ".join(map(str, counts)), shown]
            yield f"| {ours} | {rival} | {' | '.join(cells)} |"
    behind = {n: max(r[m][:, 0].mean() for m in names) - r[names[0]][:, 0].mean() for n, r in results.items()}
    behind_cv = {n: max(r[m][:, 0].mean() for m in names) - r[names[1]][:, 0].mean() for n, r in results.items()}
    for label, gaps in (("ours", behind), ("ours, CV", behind_cv)):
        lines = ", ".join(f"{n} {100 * gap:.1f}" for n, gap in gaps.items() if gap > 0.01)
        yield f"\nMore than one point of accuracy behind the best of the ten columns, {label}: {lines or 'nowhere'}."
    fit = "fit(*load_breast_cancer(return_X_y=True))"
    ours = cold(f"from smadmm.learn import GraphGuidedClassifier; GraphGuidedClassifier().{fit}")
    rival = cold(f"from sklearn.linear_model import LogisticRegression; LogisticRegression(max_iter=10000).{fit}")
    cold_start = f"ours {ours:.1f} s, LogisticRegression {rival:.1f} s"
    yield f"\nA fresh process, import and first fit of breast cancer: {cold_start}."


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n".join(chapter(run())))
