"""The classifier: scikit-learn's own checks, its habits, its errors, and that it learns."""

import pickle
import sys
import warnings
from importlib.metadata import version

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from smadmm import Diverged
from smadmm.io.models import load_model, save_model
from smadmm.learn import (
    Auto,
    GraphGuidedClassifier,
    GraphGuidedClassifierCV,
    GraphGuidedRegressor,
    GraphGuidedRegressorCV,
    Published,
    Rows,
    answers,
    exact,
    signed_adjacency,
)

STOCHASTIC = Auto(exact=False)


@pytest.mark.slow
@parametrize_with_checks(
    [
        GraphGuidedClassifier(),
        GraphGuidedClassifier(loss="squared_hinge", graph="chain"),
        GraphGuidedRegressor(),
        GraphGuidedRegressor(loss="huber", graph="chain"),
        GraphGuidedClassifierCV(alphas=[0.1], cv=2, graph=None),
        GraphGuidedRegressorCV(alphas=[0.1, 0.01], cv=2),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(1500, 12, n_informative=6, random_state=0)
    return X[:1000], y[:1000], X[1000:], y[1000:]


def quick(**options):
    return GraphGuidedClassifier(**{"random_state": 0, "graph": "chain", **options})


def stochastic(**options):
    return quick(**{"solver": STOCHASTIC, "max_epochs": 10, **options})


@pytest.mark.parametrize("solver", [STOCHASTIC, "smadmm", "sadmm", "svrg", "saga", "spider", "asvrg"])
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
    model = quick(loss=loss, fit_intercept=intercept, calibrate=False, tol=1e-16)
    dense, sparse, single = (clone(model).fit(M, y) for M in (X, sp.csr_matrix(X), X.astype(np.float32)))
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(single.coef_, dense.coef_, rtol=0.05, atol=0.05)
    assert dense.score(X_test, y_test) > 0.8 and (dense.intercept_ != 0).all() == intercept


def test_convex_answer_equals_a_reference():
    """Logistic loss, plain l1, no intercept: scikit-learn's liblinear solves the same problem."""
    from sklearn.linear_model import LogisticRegression

    X, y = make_classification(600, 8, n_informative=5, random_state=1)
    ours = GraphGuidedClassifier(1e-2, graph=None, fit_intercept=False, standardize=False)
    new = tuple(map(int, version("scikit-learn").split(".")[:2])) >= (1, 8)
    l1 = {"l1_ratio": 1} if new else {"penalty": "l1"}
    reference = LogisticRegression(**l1, solver="liblinear", C=1 / (1e-2 * 600), fit_intercept=False, tol=1e-10)
    np.testing.assert_allclose(ours.fit(X, y).coef_, reference.fit(X, y).coef_, atol=1e-4)


def test_coefficients_are_tied_along_edges():
    """Exactly; and groups_ says so."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 7))
    y = X @ [1, 1, 1, -1, -1, -1, 0] + rng.standard_normal(2000) > 0
    model = quick(alpha=0.05, graph=[(0, 1), (1, 2), (3, 4)], standardize=False).fit(X, y)
    coef = model.coef_[0]
    assert coef[0] == coef[1] == coef[2] != 0 and coef[3] == coef[4] and coef[6] == 0 and model.n_nonzero_ == 6
    assert model.groups_.tolist() == [[1, 1, 1, 2, 2, 3, 0]]
    scaled = quick(alpha=0.05, graph=[(0, 1), (1, 2), (3, 4)]).fit(X * [1, 100, 1, 1, 1, 1, 1], y)
    assert len(set(scaled.coef_standardized_[0, :3])) == 1 and scaled.coef_[0, 0] > 50 * scaled.coef_[0, 1]


@pytest.mark.parametrize(("rows", "seed", "alpha"), [(6, 21, 0.01), (6, 30, 0.01), (6, 35, 0.1), (20, 2, 0.01)])
def test_ties_that_the_data_ask_for_anyway(rows, seed, alpha):
    """Columns that may change places: no multiplier is needed to tie them, and rounding alone would untie them."""
    X = np.random.default_rng(seed).integers(0, 5, (rows, 2)).astype(float)
    y = X.sum(1) > np.median(X.sum(1))
    model = quick(alpha=alpha, graph="chain", loss="squared_hinge", calibrate=False, standardize=False)
    coef = model.fit(np.concatenate([X, X[:, ::-1]]), np.tile(y, 2)).coef_[0]  # a warning is an error
    assert coef[0] == coef[1] != 0 and model.certificate_.total <= 1e-10


@pytest.mark.parametrize("graph", ["chain", "glasso", None])
@pytest.mark.parametrize("alpha", [0.1, 1e-3])
def test_the_answer_is_that_of_a_convex_solver(graph, alpha):
    """The objective to 1e-6, the same zeros and the same ties."""
    cp = pytest.importorskip("cvxpy")
    X, y = load_wine(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), np.where(y == 1, 1.0, -1.0)
    model = quick(alpha=alpha, graph=graph, standardize=False).fit(X, y)
    A, x, base = sp.vstack([model.graph_, sp.eye_array(13)]), cp.Variable(13), cp.Variable()
    loss = cp.sum(cp.logistic(-cp.multiply(y, X @ x + base))) / len(y)
    problem = cp.Problem(cp.Minimize(loss + alpha * cp.norm1(A @ x)))
    problem.solve(solver="CLARABEL")
    assert abs(model.history_["objective"][-1] - problem.value) < 1e-6
    assert np.array_equal(A @ model.coef_[0] == 0, np.abs(A @ x.value) < 1e-5)
    assert model.certificate_.total <= 1e-10


def test_many_features_have_the_same_exact_answer(monkeypatch):
    """By a working set, and by steps from face to face: as by Newton on all of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 40))
    y = X[:, :6].sum(1) + rng.standard_normal(300) > 0
    whole = quick(alpha=0.03).fit(X, y)
    for limit in ("AT_ONCE", "LARGEST"):
        monkeypatch.setattr(exact, limit, 30)
    part = quick(alpha=0.03).fit(X, y)
    assert np.array_equal(part.groups_, whole.groups_) and 0 < whole.n_nonzero_ < 30
    np.testing.assert_allclose(part.coef_, whole.coef_, atol=1e-6)
    monkeypatch.setattr(exact, "FEW_ROWS", 0)
    for start in (exact.LARGEST, 0):  # from zero, and from a stochastic fit
        monkeypatch.setattr(answers, "LARGEST", start)
        found = quick(alpha=0.03, tol=1e-14).fit(X, y)
        np.testing.assert_allclose(found.coef_, whole.coef_, atol=1e-6)
        assert np.array_equal(found.groups_, whole.groups_) and found.certificate_.total <= 1e-14


@pytest.mark.parametrize("loss", ["sigmoid", "squared_hinge"])
def test_wide_sparse_data_are_fitted_to_the_end(loss):
    """More features than Newton's systems take, more rows than a working set is tried with."""
    rng = np.random.default_rng(0)
    X = sp.random_array((6000, 2000), density=0.005, format="csr", rng=rng)
    y = X @ np.where(np.arange(2000) < 60, 9.0, 0.0) > rng.standard_normal(6000) + 1
    model = quick(alpha=1e-3, loss=loss, calibrate=False).fit(X, y)
    assert model.certificate_.total <= 1e-10 and 0 < model.n_nonzero_ < 2000


def test_an_answer_with_more_nonzeros_than_newton_takes(monkeypatch):
    """Of the regression, too; the gradient of the smooth part is alpha at each of them."""
    for limit in ("AT_ONCE", "LARGEST"):
        monkeypatch.setattr(exact, limit, 100)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 200))
    y = X @ np.ones(200) + rng.standard_normal(500)
    model = GraphGuidedRegressor(1e-4, graph=None, standardize=False, fit_intercept=False).fit(X, y)
    assert model.n_nonzero_ > exact.LARGEST and model.certificate_.total <= 1e-10
    gradient = X.T @ (X @ model.coef_ - y) / len(y)
    np.testing.assert_allclose(gradient, -1e-4 * np.sign(model.coef_), atol=1e-5)


def test_units_do_not_matter(data):
    """Columns of 1e-6 and offsets of 1e6: the same predictions, also from a stream."""
    X, y, X_test, _ = data
    factor, offset = 10.0 ** np.arange(-6, 6), np.where(np.arange(12) % 3 == 0, 1e6, 0.0) * 10.0 ** np.arange(-6, 6)
    plain, moved = quick().fit(X, y), quick().fit(X * factor + offset, y)
    np.testing.assert_allclose(
        moved.decision_function(X_test * factor + offset), plain.decision_function(X_test), atol=1e-4
    )
    np.testing.assert_array_equal(moved.groups_, plain.groups_)
    stream = quick().partial_fit(X * factor + offset, y, classes=[0, 1])
    assert stream.score(X_test * factor + offset, data[3]) > 0.8


def test_an_unfinished_fit_says_so(data):
    with pytest.warns(ConvergenceWarning, match="above tol"):
        quick(max_epochs=2).fit(data[0], data[1])


def test_more_than_two_classes():
    X, y = make_classification(900, 10, n_informative=6, n_classes=3, random_state=0)
    names = np.array(["a", "b", "c"])[y]
    model = quick(loss="logistic").fit(X, names)
    assert model.coef_.shape == (3, 10) and model.decision_function(X).shape == (900, 3)
    assert model.score(X, names) > 0.6 and model.certificate_.total <= 1e-10
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    rest = quick(multi_class="ovr").fit(X, names)
    assert rest.score(X, names) > 0.6 and len(rest.history_) == len(rest.certificate_) == 3
    joint = log_loss(names, model.predict_proba(X)), log_loss(names, rest.predict_proba(X))
    assert joint[0] < joint[1]


@pytest.mark.parametrize("loss", ["logistic", "sigmoid", "squared_hinge"])
def test_every_loss_has_probabilities(data, loss):
    """Calibrated: better than those of the bare scores, and never against the prediction."""
    X, y, X_test, y_test = data
    model = quick(loss=loss).fit(X, y)
    p = model.predict_proba(X_test)
    assert np.array_equal(p.argmax(1), model.predict(X_test))
    assert log_loss(y_test, p) < 0.45
    bare = quick(loss=loss, calibrate=False).fit(X, y)
    assert (bare.calibration_ == 1) and (model.calibration_ == 1) == (loss == "logistic")


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
    plain, balanced = (quick(class_weight=w).fit(X, y) for w in (None, "balanced"))
    assert balanced.predict(X).mean() > plain.predict(X).mean()
    by_hand = quick().fit(X, y, sample_weight=np.where(y == 1, 100 / (y == 1).sum(), 100 / (y == 0).sum()))
    np.testing.assert_allclose(by_hand.coef_, balanced.coef_, rtol=1e-6, atol=1e-9)


def test_warm_start_and_random_state(data):
    X, y, *_ = data
    first, again, other = (stochastic(random_state=s).fit(X, y).coef_ for s in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    for model in (stochastic(max_epochs=5, warm_start=True), quick(warm_start=True)):
        before = model.fit(X, y).history_["objective"][-1]
        assert model.fit(X, y).history_["objective"][0] == pytest.approx(before)


def test_it_lives_with_scikit_learn(data):
    X, y, *_ = data
    pipeline = make_pipeline(StandardScaler(), quick())
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.75
    search = GridSearchCV(quick(), {"alpha": [1e-5, 1e-2], "graph": ["chain", None]}, cv=2).fit(X, y)
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


@pytest.mark.slow
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
    model = stochastic(solver=Auto(momentum=True, exact=False), loss="sigmoid", alpha=1e-5, max_epochs=20).fit(X, y)
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
        ({"loss": "hinge"}, "loss is one of logistic, squared_hinge, sigmoid, got 'hinge'"),
        ({"solver": "sgd"}, r"solver must be one of auto, .* or Published\(...\), got 'sgd'"),
        ({"alpha": -1}, "alpha must be a number that is not negative, got -1"),
        ({"max_epochs": 0}, "max_epochs must be a whole number of at least 1, got 0"),
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
    for solver in ("saga", Auto(momentum=True, exact=False)):
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
    model = quick(warm_start=True).fit(X, y)
    cold = quick(graph=None).fit(X[:, :5], y)
    assert np.array_equal(model.set_params(graph=None).fit(X[:, :5], y).coef_, cold.coef_)


def test_without_numba_the_answer_is_the_same(data, monkeypatch):
    X, y, *_ = data
    compiled = stochastic(max_epochs=2).fit(X[:300], y[:300])
    monkeypatch.setitem(sys.modules, "numba", None)
    generic = stochastic(max_epochs=2).fit(X[:300], y[:300])
    np.testing.assert_allclose(generic.coef_, compiled.coef_, rtol=1e-6, atol=1e-8)
    for name, column in compiled.history_.items():
        if name != "seconds":
            np.testing.assert_allclose(generic.history_[name], column, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("loss", ["squared", "huber", "student"])
def test_regression(loss):
    """Least squares as scikit-learn's Lasso; the robust losses do not see wrong targets."""
    X, y = load_diabetes(return_X_y=True)
    model = GraphGuidedRegressor(0.05, graph=None, loss=loss).fit(X, y)
    if loss == "squared":
        reference = Lasso(0.05 * y.std(), tol=1e-12).fit(X / X.std(0), y)
        np.testing.assert_allclose(model.coef_ * X.std(0), reference.coef_, atol=1e-6)
        assert model.n_nonzero_ == np.count_nonzero(reference.coef_)
    wrong = np.where(np.arange(len(y)) % 10 == 0, 1e5, y)
    moved = GraphGuidedRegressor(0.05, graph=None, loss=loss).fit(X, wrong)
    assert (moved.score(X, y) > model.score(X, y) - 0.03) == (loss != "squared")


@pytest.mark.slow
def test_the_weight_of_the_penalty_by_cross_validation():
    """The path begins at zero, its ends come from the data; the one-error rule takes no smaller weight."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 30))
    z = X[:, :3] @ [2.0, 2.0, -2.0] + rng.standard_normal(200)
    for model, y in ((GraphGuidedClassifierCV, z > 0), (GraphGuidedRegressorCV, z)):
        best, sparse = (model(graph=None, random_state=0, one_standard_error=e).fit(X, y) for e in (False, True))
        path = best.path_
        assert not path.unknowns[0, :, :30].any() and path.unknowns[1, :, :30].any()
        assert path.alphas[0] > best.alpha_ > path.alphas[-1] and best.alpha_ == path.alphas[path.mean.argmin()]
        assert sparse.alpha_ >= best.alpha_ and sparse.n_nonzero_ <= best.n_nonzero_
        assert set(np.argsort(-np.abs(best.coef_.ravel()))[:3]) == {0, 1, 2}
        assert len(best.path_plot().axes) == 2


def test_names_of_features():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((100, 3)), columns=["a", "b", "c"])
    model = quick(graph=[("a", "c")]).fit(X, X["a"] > 0)
    assert model.graph_.toarray().tolist() == [[1, 0, -1]]
    with pytest.raises(ValueError, match="'d' is not the name of a feature"):
        quick(graph=[("a", "d")]).fit(X, X["a"] > 0)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_stored_stream_holds_no_rows(data, form):
    """And goes on as if it had not been stored."""
    X, y, *_ = data
    wide = np.tile(X, (1, 3))
    model = quick(graph=None).partial_fit(form(wide), y, classes=[0, 1])
    stored = pickle.dumps(model)
    assert len(stored) < 0.2 * wide.nbytes and not any(row[:1].tobytes() in stored for row in wide)
    again = pickle.loads(stored).partial_fit(form(wide[:100]), y[:100])
    np.testing.assert_array_equal(again.coef_, model.partial_fit(form(wide[:100]), y[:100]).coef_)


def test_a_stream_sorted_by_class_is_noticed(data):
    X, y, *_ = data
    order = np.argsort(y, kind="stable")
    model = quick().partial_fit(X[order[:400]], y[order[:400]], classes=[0, 1])
    with pytest.warns(UserWarning, match="labels changed 1 times in 1000 rows, .* shuffle them"):
        model.partial_fit(X[order[400:]], y[order[400:]])
    model.partial_fit(X[order], y[order])  # once is enough
    for rows in np.array_split(np.arange(1000), 50):
        model = (quick() if rows[0] == 0 else model).partial_fit(X[rows], y[rows], classes=[0, 1])


@pytest.mark.parametrize(
    "options", [{}, {"fit_intercept": False, "standardize": False}, {"multi_class": "ovr", "tol": 1e-8}]
)
def test_an_own_file_gives_an_equal_estimator(data, options, tmp_path):
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(data[0], columns=[f"gene {j}" for j in range(12)])
    y = np.array(["ill", "well", "unknown"])[np.digitize(data[0][:, 1], [-1, 1])]
    model = quick(**options).fit(X, y)
    save_model(tmp_path / "model.npz", model)
    again = load_model(tmp_path / "model.npz")
    for name in ("coef_", "intercept_", "coef_standardized_", "groups_", "classes_", "alpha_", "feature_names_in_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.ridge == model.ridge_
    same = set(model.get_params()) - {"alpha", "ridge", "graph"}
    assert all(again.get_params()[name] == model.get_params()[name] for name in same)
    assert again.alpha == model.alpha_ and np.array_equal(again.fit(X, y).groups_, model.groups_)


def test_stored_with_few_types_to_trust(data):
    skops = pytest.importorskip("skops.io")
    X, y, *_ = data
    stream = quick().partial_fit(X, y, classes=np.unique(y))
    for model in (quick().fit(X, y), GraphGuidedRegressorCV(graph="chain", alphas=[0.1, 0.01]).fit(X, y), stream):
        stored = skops.dumps(model)
        types = skops.get_untrusted_types(data=stored)
        assert len(types) <= 5
        again = skops.loads(stored, trusted=types)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.partial_fit(X, y).coef_, stream.partial_fit(X, y).coef_)


def test_a_pickled_stream_goes_on_as_if_it_had_not_been(data):
    X, y, *_ = data
    stream = quick().partial_fit(X, y, classes=np.unique(y))
    again = pickle.loads(pickle.dumps(stream))
    np.testing.assert_array_equal(again.partial_fit(X, y).coef_, stream.partial_fit(X, y).coef_)


@pytest.mark.parametrize("rows", [255, 257, 1000])
def test_passes_have_a_budget_of_work(data, rows):
    """A few rows more or less make no worse answer."""
    X, y = data[0][:rows], data[1][:rows]
    best = quick(alpha=1e-5).fit(X, y).history_["objective"][-1]
    assert stochastic(alpha=1e-5, max_epochs=None).fit(X, y).history_["objective"][-1] < best * (1 + 1e-4)


def test_the_objective_is_never_above_that_of_zero():
    """A stochastic fit that is so far from done says so."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 40)) * 10.0 ** rng.uniform(-3, 3, 40), rng.integers(0, 2, 60)
    for loss, at_zero in {"logistic": np.log(2), "sigmoid": 0.5, "squared_hinge": 1.0}.items():
        for alpha in (1e-4, 0.1, 10.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = quick(alpha=alpha, standardize=False, loss=loss).fit(X, y)
            assert model.history_["objective"][-1] <= at_zero + 1e-12
    with pytest.warns(ConvergenceWarning, match=r"the objective is .*, above .* of zero coefficients; raise"):
        stochastic(alpha=0.1, standardize=False, max_epochs=1).fit(X, y)


def test_pictures(data):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    X, y, *_ = data
    table = pd.DataFrame(X, columns=[f"gene {j}" for j in range(12)])
    model = quick(alpha=0.02).fit(table, y)
    graph = model.plot()
    tied = [text.get_text() for text in graph.axes[0].get_legend().get_texts()]
    first = np.flatnonzero(model.groups_[0] == np.bincount(model.groups_[0])[1:].argmax() + 1)
    assert tied[0].startswith(f"gene {first[0]}, gene {first[1]}") and len(first) > 1
    assert any(text.get_text().startswith("gene") for text in graph.axes[0].texts)
    calibration = model.calibration_plot(table, y)
    assert calibration.axes[1].get_xlabel() == "probability of 1"
    bars = [bar.get_height() for bar in calibration.axes[1].patches]
    assert sum(bars) == len(y)
    objective = model.objective_plot().axes[0].lines[0].get_ydata()
    assert len(objective) > 2 and objective[0] == model.history_["objective"][0] - min(model.history_["objective"])
    three = quick(alpha=0.01, multi_class="ovr").fit(table, np.digitize(X[:, 0], [-1, 1]))
    assert len(three.objective_plot().axes[0].lines) == 3 and three.plot(2).axes and three.calibration_plot(table, y)
    with pytest.raises(ValueError, match=r"label 7 is not a class with coefficients; there are \[0, 1, 2\]"):
        three.plot(7)
    assert GraphGuidedRegressor(graph="chain").fit(table, X[:, 0]).plot().axes
    stream = quick().partial_fit(table, y, classes=[0, 1])
    assert stream.plot().axes
    with pytest.raises(ValueError, match="there is no history to draw; call fit"):
        stream.objective_plot()


@pytest.mark.parametrize("loss", ["squared", "huber", "student"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_stream_of_numbers_comes_near_the_fit_of_all_rows(loss, sparse):
    """Columns and targets of other units; a fifth of wrong targets for the robust losses; a copy goes on alike."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 6)) * (rng.random((6000, 6)) < 0.5) * 10.0 ** np.arange(-3, 3)
    clean = 1000 * (X[:, 0] * 2e3 - X[:, 1] * 100 + 7)
    wrong = (rng.random(6000) < 0.2) * 1e5 * (loss != "squared")
    y = clean + 300 * rng.standard_normal(6000) + wrong
    X = sp.csr_array(X) if sparse else X
    stream, whole = (GraphGuidedRegressor(graph=None, loss=loss) for _ in range(2))
    for i in range(0, 6000, 500):
        if i == 3000:
            stream = pickle.loads(pickle.dumps(stream))
        stream.partial_fit(X[i : i + 500], y[i : i + 500])
    whole.fit(X, y)
    assert np.std(stream.predict(X) - clean) < np.std(whole.predict(X) - clean) + 60 and stream.n_iter_ == 12
    assert not hasattr(stream, "history_") and stream.score(X, clean) > 0.9


def test_wide_data_do_not_lead_hubers_scale_to_zero():
    """Noise with four features per row: the residuals that are left say nothing until the fitted unknowns count."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((100, 400)), rng.standard_normal(100)
    for loss in ("huber", "student"):
        model = GraphGuidedRegressor(loss=loss, random_state=0).fit(X, y)
        assert model.n_nonzero_ < 40 and 0.6 < model.scale_ < 1.5


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e150, 1e300])
def test_units_of_any_size(size):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    y = X[:, 0] + 0.5 * rng.standard_normal(80)
    usual, other = (GraphGuidedClassifier().fit(Z, y > 0) for Z in (X, X * size))
    np.testing.assert_allclose(other.coef_standardized_, usual.coef_standardized_, rtol=1e-6)
    usual, other = (GraphGuidedRegressor().fit(X, z) for z in (y, y * size))
    np.testing.assert_allclose(other.coef_standardized_, usual.coef_standardized_, rtol=1e-6, atol=1e-9)


def test_a_column_without_numbers_is_named():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [1.0, 2, 3, 4], "town": list("abab"), "since": pd.date_range("2024", periods=4)})
    for gone, named in (("since", "town"), ("town", "since")):
        with pytest.raises(ValueError, match=f"the column '{named}' does not hold numbers; encode it first"):
            GraphGuidedClassifier().fit(frame.drop(columns=gone), [0, 1, 0, 1])


def test_a_softmax_fit_takes_newtons_few_steps():
    """The intercepts may all move together; a step must not depend on how far."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((600, 8))
    X = np.repeat(z, 4, axis=1) + 0.4 * rng.standard_normal((600, 32))
    y = (z[:, :4] + 0.7 * rng.standard_normal((600, 4))).argmax(1)
    for graph in (None, "glasso"):
        model = GraphGuidedClassifier(0.002, graph=graph).fit(X, y)
        assert model.n_iter_ <= 7 and model.certificate_.total <= 1e-10
