"""The default weight and graph: losses of rows left out, from one fit, against fits that leave them out."""

import numpy as np
import pytest
from scipy.sparse import block_diag, csr_array, eye_array, vstack

from smadmm.learn import GraphGuidedClassifier, GraphGuidedClassifierCV
from smadmm.learn.answers import Softmax
from smadmm.learn.exact import Model, newton, zero_point
from smadmm.learn.leaving_out import best_weight, clearly_less, margins_without
from smadmm.learn.pointwise import CLASSIFICATION, SQUARED

ROWS = 40


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((ROWS, 8))
    return X, X[:, :3].sum(1) + rng.standard_normal(ROWS)


def constraint(model, features):
    A = vstack([model.graph_, eye_array(features)], format="csr")
    return csr_array((A.data, A.indices, A.indptr), shape=(A.shape[0], features + 1))


def left_out(make, alpha, X, y, loss):
    """The mean loss of every row under the fit without it; the penalty keeps its weight against the sum of losses."""
    kept = [np.delete(np.arange(len(y)), i) for i in range(len(y))]
    models = [make(alpha * len(y) / (len(y) - 1)).fit(X[rows], y[rows]) for rows in kept]
    return np.mean([loss(model, X[[i]], y[i]) for i, model in enumerate(models)])


def left_out_loss(f, A, alpha, x, rows):
    return f.value(margins_without(f, A, alpha, x, rows))


@pytest.mark.parametrize(("alpha", "ridge"), [(0.1, 0.0), (0.02, 0.0), (0.02, 10.0)])
def test_two_classes(data, alpha, ridge):
    X, y = data[0], np.sign(data[1])

    def make(a):
        return GraphGuidedClassifier(a, graph="chain", ridge=ridge, standardize=False)

    model = make(alpha).fit(X, y)
    f = Model(X, y, np.ones(ROWS), CLASSIFICATION["logistic"], True, ridge=ridge * alpha)
    x = np.append(model.coef_[0], model.intercept_)
    reference = left_out(make, alpha, X, y, lambda m, row, b: np.logaddexp(0.0, -b * m.decision_function(row)[0]))
    found = left_out_loss(f, constraint(model, 8), alpha, x, ROWS)
    assert abs(found - reference) < 0.1 * (reference - f.value(f.margins(x)))  # of what leaving out adds


@pytest.mark.parametrize("ridge", [0.0, 10.0])
def test_three_classes(data, ridge):
    X, y = data[0], np.digitize(data[1], [-0.8, 0.8])

    def make(a):
        return GraphGuidedClassifier(a, graph=None, ridge=ridge, standardize=False)

    model = make(0.03).fit(X, y)
    f = Softmax(X, y.astype(float), np.ones(ROWS), CLASSIFICATION["logistic"], True, ridge=0.03 * ridge, classes=3)
    A = csr_array(block_diag([constraint(model, 8)] * 3, format="csr"))
    x = np.column_stack([model.coef_, model.intercept_]).ravel()
    reference = left_out(make, 0.03, X, y, lambda m, row, b: -m.predict_log_proba(row)[0, b])
    assert abs(left_out_loss(f, A, 0.03, x, ROWS) - reference) < 0.15 * (reference - f.value(f.margins(x)))


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_least_squares_with_a_ridge_alone_is_exact(data, ridge):
    X, y = data
    f = Model(X, y, np.ones(ROWS), SQUARED, True, ridge=ridge)
    A = csr_array((0, 9))
    U = np.column_stack([X, np.ones(ROWS)])
    hat = U @ np.linalg.solve(U.T @ U + ROWS * ridge * np.diag(np.arange(9) < 8), U.T)
    residual = (y - hat @ y) / (1 - np.diag(hat))
    x = newton(f, A, 0.0, zero_point(A), 1e-20).x
    assert np.allclose(U @ x, hat @ y)
    found = left_out_loss(f, A, 0.0, x, ROWS)
    assert found == pytest.approx(0.5 * np.mean(residual**2), rel=1e-5)


def test_a_row_of_weight_three_counts_as_three(data):
    """Also where it alone has a feature."""
    X, y = np.column_stack([data[0], np.eye(ROWS)[:, :2] * 5]), np.sign(data[1])
    weight = np.where(np.arange(ROWS) % 4 == 0, 3.0, 1.0)
    model = GraphGuidedClassifier(0.01, graph=None, standardize=False).fit(X, y, weight)
    x, A = np.append(model.coef_[0], model.intercept_), constraint(model, 10)
    assert model.coef_[0, 8:].any()
    again = np.repeat(np.arange(ROWS), weight.astype(int))
    once = Model(X, y, weight / weight.mean(), CLASSIFICATION["logistic"], True)
    thrice = Model(X[again], y[again], np.ones(len(again)), CLASSIFICATION["logistic"], True)
    assert left_out_loss(once, A, 0.01, x, 60) == pytest.approx(left_out_loss(thrice, A, 0.01, x, 60), rel=1e-9)


def test_a_feature_of_one_row_is_not_trusted_without_it():
    """Without the row that alone has a feature the coefficient is zero; a Newton step alone would overshoot."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal((ROWS, 2)), 6 * np.eye(ROWS)[:, 0]])
    y = np.sign(X[:, 0] + 0.5 * rng.standard_normal(ROWS))
    y[0] = -np.sign(X[0, 0])

    def make(a):
        return GraphGuidedClassifier(a, graph=None, standardize=False)

    model = make(0.02).fit(X, y)
    assert model.coef_[0, 2] != 0
    f = Model(X, y, np.ones(ROWS), CLASSIFICATION["logistic"], True)
    x = np.append(model.coef_[0], model.intercept_)
    reference = left_out(make, 0.02, X, y, lambda m, row, b: np.logaddexp(0.0, -b * m.decision_function(row)[0]))
    assert left_out_loss(f, constraint(model, 3), 0.02, x, ROWS) == pytest.approx(reference, rel=0.05)


def test_the_smallest_loss_wins_and_the_search_ends_after_it():
    asked = []

    def measure(alpha):
        asked.append(alpha)
        return np.array([(np.log10(alpha) + 1) ** 2, 1.0])

    alphas = 10.0 ** np.arange(1, -6, -1)
    losses, best = best_weight(alphas, measure)
    assert losses.tolist() == [0.0, 1.0] and best == 0.1 and min(asked) == 1e-3
    assert best_weight(alphas, lambda alpha: np.array([-alpha]))[1] == 10.0


def test_a_ridge_is_taken_for_more_than_chance():
    before = np.random.default_rng(0).exponential(1.0, 100)
    assert clearly_less(before - 0.01, before) and not clearly_less(before, before)
    luck = np.zeros(100)
    luck[3:5] = 0.5, -0.2  # of two rows alone
    assert (before - luck).sum() < before.sum() and not clearly_less(before - luck, before)


def test_noise_gets_a_strong_penalty_and_a_graph_that_hurts_goes():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 60))
    for j in range(1, 60):  # neighbours are alike, but what decides is not
        X[:, j] += 0.9 * X[:, j - 1]
    y = X[:, ::7] @ (-1.0) ** np.arange(9) + rng.standard_normal(150) > 0
    noise = GraphGuidedClassifier(random_state=0).fit(X, rng.permutation(y))
    model = GraphGuidedClassifier(random_state=0).fit(X, y)
    assert noise.alpha_ > 3 * model.alpha_
    learned = GraphGuidedClassifier(graph="glasso", random_state=0).fit(X, y)
    assert learned.graph_.shape[0] > 40 and model.graph_.shape == (0, 60)
    assert GraphGuidedClassifierCV(random_state=0, cv=2).fit(X, y).graph_.shape == (0, 60)
    groups = rng.standard_normal((150, 6))
    X = np.repeat(groups, 8, axis=1) + rng.standard_normal((150, 48))
    helpful = GraphGuidedClassifier(random_state=0).fit(X, groups[:, 0] > groups[:, 1])
    assert helpful.graph_.shape[0] > 100
