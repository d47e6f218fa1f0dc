"""The classifier: scikit-learn's own checks, its habits, its errors, and that it learns."""

import pickle
import sys
from importlib.metadata import version

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from smadmm import Diverged
from smadmm.learn import Auto, GraphGuidedClassifier, Published, Rows, signed_adjacency


@parametrize_with_checks([GraphGuidedClassifier(), GraphGuidedClassifier(loss="logistic", graph="chain")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(1500, 12, n_informative=6, random_state=0)
    return X[:1000], y[:1000], X[1000:], y[1000:]


def quick(**options):
    return GraphGuidedClassifier(**{"max_epochs": 10, "random_state": 0, "graph": "chain", **options})


@pytest.mark.parametrize("solver", ["auto", "smadmm", "sadmm", "svrg", "saga", "spider", "asvrg"])
def test_every_solver_learns(data, solver):
    X, y, X_test, y_test = data
    model = quick(solver=solver, max_epochs=20).fit(X, y)
    assert model.score(X_test, y_test) > 0.8
    assert model.history_["objective"][-1] < model.history_["objective"][0]
    assert 20 * 1000 <= model.sfo_ <= 21.1 * 1000 and model.n_iter_ == 20
    assert model.certificate_.total == pytest.approx(model.history_["certificate"][-1])


@pytest.mark.parametrize("loss", ["sigmoid", "logistic", "squared_hinge"])
@pytest.mark.parametrize("intercept", [True, False])
def test_losses_and_forms_of_data(data, loss, intercept):
    """Dense, sparse, float32: one answer."""
    X, y, X_test, y_test = data
    dense = quick(loss=loss, fit_intercept=intercept).fit(X, y)
    sparse = quick(loss=loss, fit_intercept=intercept).fit(sp.csr_matrix(X), y)
    single = quick(loss=loss, fit_intercept=intercept).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(single.coef_, dense.coef_, rtol=0.05, atol=0.05)
    assert dense.score(X_test, y_test) > 0.8 and (dense.intercept_ != 0).all() == intercept


def test_convex_answer_equals_a_reference():
    """Logistic loss, plain l1, no intercept: scikit-learn's liblinear solves the same problem."""
    from sklearn.linear_model import LogisticRegression

    X, y = make_classification(600, 8, n_informative=5, random_state=1)
    ours = GraphGuidedClassifier(1e-2, graph=None, loss="logistic", fit_intercept=False, max_epochs=200, tol=1e-12)
    new = tuple(map(int, version("scikit-learn").split(".")[:2])) >= (1, 8)
    l1 = {"l1_ratio": 1} if new else {"penalty": "l1"}
    reference = LogisticRegression(**l1, solver="liblinear", C=1 / (1e-2 * 600), fit_intercept=False, tol=1e-10)
    np.testing.assert_allclose(ours.set_params(random_state=0).fit(X, y).coef_, reference.fit(X, y).coef_, atol=2e-3)


def test_coefficients_are_tied_along_edges():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 6))
    y = X @ [1, 1, 1, -1, -1, -1] + rng.standard_normal(2000) > 0
    free, tied = (
        quick(alpha=0.05, loss="logistic", graph=g).fit(X, y).coef_[0] for g in (None, [(0, 1), (1, 2), (3, 4)])
    )
    assert np.ptp(tied[:3]) < 0.2 * np.ptp(free[:3]) and abs(tied[3] - tied[4]) < 0.2 * abs(free[3] - free[4])


def test_more_than_two_classes():
    X, y = make_classification(900, 10, n_informative=6, n_classes=3, random_state=0)
    names = np.array(["a", "b", "c"])[y]
    model = quick(loss="logistic").fit(X, names)
    assert model.coef_.shape == (3, 10) and model.decision_function(X).shape == (900, 3)
    assert model.score(X, names) > 0.6 and len(model.history_) == len(model.certificate_) == 3
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


def test_probabilities_only_where_the_loss_defines_them(data):
    X, y, *_ = data
    probabilities = quick(loss="logistic").fit(X, y).predict_proba(X)
    assert probabilities.shape == (1000, 2) and ((probabilities >= 0) & (probabilities <= 1)).all()
    assert not hasattr(quick(loss="sigmoid"), "predict_proba")


def test_partial_fit_learns_from_a_stream(data):
    X, y, X_test, y_test = data
    model = quick(graph="chain")
    for start in range(0, 1000, 77):
        model.partial_fit(X[start : start + 77], y[start : start + 77], classes=[0, 1])
    assert model.score(X_test, y_test) > 0.8 and model.sfo_ == 1000 and model.n_iter_ == 13
    fitted = quick().fit(X, y)
    assert fitted.partial_fit(X[:50], y[:50]).score(X_test, y_test) > 0.8


def test_partial_fit_takes_single_rows_rare_classes_and_sparse_chunks():
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.standard_normal((600, 5)) * (rng.random((600, 5)) < 0.5))
    y = (rng.random(600) < 0.1).astype(int)
    model = quick(graph=None)
    for i in range(50):
        model.partial_fit(X[i], y[i : i + 1], classes=[0, 1])
    model.partial_fit(X[50:], y[50:])
    assert np.isfinite(model.coef_).all() and model.sfo_ == 600


def test_weights():
    X, y = make_classification(200, 6, weights=[0.9], random_state=0)
    plain, balanced = (quick(class_weight=w, max_epochs=None).fit(X, y) for w in (None, "balanced"))
    assert balanced.predict(X).mean() > plain.predict(X).mean()
    by_hand = quick(max_epochs=None).fit(
        X, y, sample_weight=np.where(y == 1, 100 / (y == 1).sum(), 100 / (y == 0).sum())
    )
    np.testing.assert_allclose(by_hand.coef_, balanced.coef_, rtol=1e-6, atol=1e-9)


def test_warm_start_and_random_state(data):
    X, y, *_ = data
    first, again, other = (quick(random_state=s).fit(X, y).coef_ for s in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    model = quick(max_epochs=5, warm_start=True).fit(X, y)
    before = model.history_["objective"][-1]
    assert model.fit(X, y).history_["objective"][0] == pytest.approx(before)


def test_it_lives_with_scikit_learn(data):
    X, y, *_ = data
    pipeline = make_pipeline(StandardScaler(), quick(max_epochs=3))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.75
    search = GridSearchCV(quick(max_epochs=3), {"alpha": [1e-5, 1e-2], "graph": ["chain", None]}, cv=2).fit(X, y)
    copy = pickle.loads(pickle.dumps(search.best_estimator_))
    assert np.array_equal(copy.predict(X), search.predict(X))
    assert clone(copy).get_params() == copy.get_params()
    stream = quick().partial_fit(X[:100], y[:100], classes=[0, 1])
    copies = [
        pickle.loads(pickle.dumps(stream)).partial_fit(X[100:], y[100:]).coef_,
        stream.partial_fit(X[100:], y[100:]).coef_,
    ]
    assert np.array_equal(*copies)


def test_a_published_method_with_settings_of_its_own(data):
    """Numbers are constant schedules; what is left out comes from the data, as it does by name."""
    X, y, *_ = data
    solver = Published("svrg", batch=16, eta=2.0, rho=0.02)
    model = quick(solver=solver, loss="logistic").fit(X, y)
    assert solver.eta(7) == 2.0 and model.score(X, y) > 0.8
    slow = quick(solver=Published("svrg", batch=16, eta=50.0, rho=0.02), loss="logistic").fit(X, y)
    assert slow.history_["objective"][-1] > model.history_["objective"][-1]
    with pytest.raises(ValueError, match="method is one of smadmm, .*got 'sgd'"):
        Published("sgd", batch=16, eta=2.0, rho=0.02)
    with pytest.raises(ValueError, match="eta must be positive, got 0"):
        Published("svrg", batch=16, eta=0.0, rho=0.02)


def test_the_adjacency_reading_of_the_paper(data):
    """Rows of the signed adjacency matrix as G: |sum of the neighbours' coefficients| is penalised."""
    X, y, *_ = data
    rows = signed_adjacency("chain", X)
    model = quick(graph=rows, alpha=0.1, loss="logistic", max_epochs=100).fit(X, y)
    expected = np.eye(12, k=1) + np.eye(12, k=-1)
    assert np.array_equal(model.graph_.toarray(), expected)
    free = quick(graph=None, alpha=0.1, loss="logistic", max_epochs=100).fit(X, y)
    assert np.abs(expected @ model.coef_[0]).sum() < 0.5 * np.abs(expected @ free.coef_[0]).sum()
    with pytest.raises(ValueError, match="rows of the graph have 3 columns, but X has 12 features"):
        quick(graph=Rows(np.eye(3))).fit(X, y)


def test_momentum_gives_a_stationary_last_iterate(data):
    X, y, *_ = data
    model = quick(solver=Auto(momentum=True), max_epochs=20).fit(X, y)
    assert model.score(X, y) > 0.8 and model.certificate_.total < 1e-3


def test_extreme_data_do_no_harm():
    """Constant and empty columns, wild scales, an outlier: finite coefficients, a loss below that of zero."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 6)) * [1e-6, 1e6, 0, 1, 1, 1]
    X[:, 3], X[0, 4] = 7.0, 1e4
    y = (X[:, 5] + 0.1 * rng.standard_normal(500) > 0).astype(int)
    for solver in ("auto", "saga"):
        model = quick(solver=solver).fit(X, y)
        assert np.isfinite(model.coef_).all()
    assert quick().fit(X, y).history_["objective"][-1] < 0.5
    zero = quick().fit(np.zeros((300, 3)), np.arange(300) % 2)
    assert np.isfinite(zero.coef_).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "loss is one of sigmoid, logistic, squared_hinge, got 'hinge'"),
        ({"solver": "sgd"}, r"solver must be one of auto, .* or Published\(...\), got 'sgd'"),
        ({"alpha": -1}, "alpha must not be negative, got -1"),
        ({"max_epochs": 0}, "max_epochs must be at least 1, got 0"),
        ({"graph": [(0, 99)]}, "99"),
    ],
)
def test_bad_parameters(data, options, message):
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(data[0], data[1])


def test_bad_data(data):
    X, y, *_ = data
    with pytest.raises(ValueError, match="one class"):
        quick().fit(X, np.zeros(1000))
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(np.where(X > 2, np.nan, X), y)
    with pytest.raises(ValueError, match="12 features"):
        quick().fit(X, y).predict(X[:, :5])
    with pytest.raises(ValueError, match="needs classes"):
        quick().partial_fit(X, y)
    with pytest.raises(ValueError, match="label 1 is not among the classes"):
        quick().partial_fit(X, y, classes=[0, 5])
    for solver in ("saga", Auto(momentum=True)):
        with pytest.raises(ValueError, match="goes with solver='auto'"):
            quick(solver=solver).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="balanced"):
        quick(class_weight="balanced").partial_fit(X, y, classes=[0, 1])


def test_a_step_too_long_is_named(data):
    X, y, *_ = data
    solver = Published("sadmm", batch=32, eta=1e-6, rho=1e-7)
    with pytest.raises(Diverged, match=r"sadmm: .* after iteration \d+; .*raise eta.* use solver='auto'") as caught:
        quick(solver=solver, loss="squared_hinge", max_epochs=20).fit(X, y)
    assert caught.value.state.x.isfinite().all() and caught.value.history.rows >= 1


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_data_of_any_scale_are_no_divergence(data, scale):
    X, y, *_ = data
    model = quick(solver="saga", alpha=0.0, fit_intercept=False, tol=0)
    plain, scaled = (model.fit(X * s, y).coef_ for s in (1.0, scale))
    np.testing.assert_allclose(scaled * scale, plain, rtol=1e-6)


def test_a_warm_start_of_another_size_is_a_cold_one(data):
    X, y, *_ = data
    model = quick(warm_start=True, max_epochs=2).fit(X, y)
    cold = quick(max_epochs=2, graph=None).fit(X[:, :5], y)
    assert np.array_equal(model.set_params(graph=None).fit(X[:, :5], y).coef_, cold.coef_)


def test_without_numba_the_answer_is_the_same(data, monkeypatch):
    X, y, *_ = data
    compiled = quick(max_epochs=2).fit(X[:300], y[:300])
    monkeypatch.setitem(sys.modules, "numba", None)
    generic = quick(max_epochs=2).fit(X[:300], y[:300])
    np.testing.assert_allclose(generic.coef_, compiled.coef_, rtol=1e-6, atol=1e-8)
    for name, column in compiled.history_.items():
        if name != "seconds":
            np.testing.assert_allclose(generic.history_[name], column, rtol=1e-6, atol=1e-12)
