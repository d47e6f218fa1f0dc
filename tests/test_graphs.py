"""Graphs over features: every way to give one, the two that are learnt from data, and their speed."""

import time
import warnings

import networkx
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from smadmm.learn import GraphGuidedClassifier, GraphGuidedClassifierCV, correlations, graphs
from smadmm.learn.graphs import Rows, feature_graph, signed_adjacency


def edges(G):
    """{(i, j): s} of the rows e_i - s e_j."""
    G = G.tocsr()
    assert (np.diff(G.indptr) == 2).all()
    found = {}
    for row in G.toarray() if G.shape[0] < 500 else (r.toarray()[0] for r in G):
        i, j = np.flatnonzero(row)
        assert row[i] == 1 and abs(row[j]) == 1
        found[int(i), int(j)] = int(-row[j])
    assert len(found) == G.shape[0]
    return found


def gaussian(precision, n, seed=0):
    L = np.linalg.cholesky(np.linalg.inv(precision))
    return np.random.default_rng(seed).standard_normal((n, len(precision))) @ L.T


def chain_precision(d, p):
    """Partial correlations p[i] between i and i + 1."""
    return np.eye(d) - np.diag(p, 1) - np.diag(p, -1)


X4 = np.zeros((5, 4))
EXPECTED = {(0, 1): 1, (1, 3): -1}
SIGNED = np.array([[0, 2, 0, 0], [2, 0, 0, -1], [0, 0, 0, 0], [0, -1, 0, 0]])
PRECISION = 3 * np.eye(4) - SIGNED
WEIGHTED = networkx.Graph()
WEIGHTED.add_nodes_from(range(4))
WEIGHTED.add_weighted_edges_from([(1, 0, 0.5), (3, 1, -2.0)])


@pytest.mark.parametrize(
    "graph",
    [
        SIGNED,
        SIGNED.astype(float),
        SIGNED.tolist(),
        np.triu(SIGNED),
        sp.csr_matrix(SIGNED),
        sp.coo_array(SIGNED),
        SIGNED + np.diag([1, 0, 0, 0]),  # loops are no edges
        SIGNED + 2 * np.eye(4),  # not positive definite: loops, not a precision matrix
        PRECISION,
        sp.csc_matrix(PRECISION),
        WEIGHTED,
    ],
)
def test_signed_graphs_in_every_form(graph):
    assert edges(feature_graph(graph, X4)) == EXPECTED
    rows = signed_adjacency(graph, X4)
    assert np.array_equal(rows.matrix.toarray(), np.sign(SIGNED))
    assert np.array_equal(feature_graph(rows, X4).toarray(), np.sign(SIGNED)[[0, 1, 3]])  # without the empty row


@pytest.mark.parametrize(
    "graph",
    [
        [(0, 1), (3, 1)],
        ((1, 0), (1, 3), (0, 1)),
        np.array([[0, 1], [1, 3]], dtype=np.uint8),
        networkx.Graph([(0, 1), (3, 1)]),
    ],
)
def test_edges_without_signs_tie_to_be_equal(graph):
    G = feature_graph(graph, sp.csr_matrix(X4))
    assert G.format == "csr" and G.dtype == np.float64 and G.toarray().tolist() == [[1, -1, 0, 0], [0, 1, 0, -1]]


def test_two_features_an_array_is_a_matrix_and_a_list_is_pairs():
    X = np.zeros((3, 2))
    assert (
        edges(feature_graph([[0, 1], [1, 0]], X)) == edges(feature_graph(np.array([[0, 1], [1, 0]]), X)) == {(0, 1): 1}
    )
    assert edges(feature_graph([[1, 0], [0, 1]], X)) == {(0, 1): 1}
    assert feature_graph(np.eye(2), X).shape == (0, 2)


@pytest.mark.parametrize(
    "graph", [None, [], (), np.empty((0, 2), int), sp.csr_matrix((4, 4)), np.eye(4), networkx.Graph()]
)
def test_no_edges_is_plain_l1(graph):
    for given in (graph, signed_adjacency(graph, X4)):
        G = feature_graph(given, X4)
        assert G.shape == (0, 4) and G.format == "csr"


@pytest.mark.parametrize(
    "edges", [[(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (1, 3), (2, 3)], [(0, 1), (1, 2), (0, 3), (2, 3), (1, 3)]]
)
def test_a_learned_graph_is_given_back(edges):
    """Also one with as many edges as features; adjacency matrices stay what they are."""
    X = np.zeros((5, 4))
    for signs in (np.ones(len(edges)), -np.ones(len(edges))):
        W = np.zeros((4, 4))
        W[tuple(np.transpose(edges))] = signs
        G = feature_graph(sp.csr_matrix(W + W.T), X)
        np.testing.assert_array_equal(feature_graph(G, X).toarray(), G.toarray())
        assert G.shape == (len(edges), 4)


def test_auto_learns_a_graph_of_few_features(monkeypatch):
    X = np.repeat(np.random.default_rng(0).standard_normal((50, 3)), 2, axis=1)
    np.testing.assert_array_equal(feature_graph("auto", X).toarray(), feature_graph("glasso", X).toarray())
    monkeypatch.setattr(graphs, "FEATURES", 5)
    assert feature_graph("auto", X).shape == (0, 6) and feature_graph("glasso", X).shape[0] == 3


def test_chain():
    assert edges(feature_graph("chain", X4)) == {(0, 1): 1, (1, 2): 1, (2, 3): 1}
    assert feature_graph("chain", np.zeros((5, 1))).shape == (0, 1)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("lasso", "graph must be 'auto', 'glasso', .*got 'lasso'"),
        ([(0, 4)], r"edge end 4 is outside 0\.\.3; number the features from 0"),
        ([(-1, 2)], r"edge end -1 is outside 0\.\.3"),
        ([(2, 2)], r"edge \(2, 2\) joins a feature to itself"),
        ([(0, 1, 2)], r"shape \(1, 3\)"),
        ([(0, 1), (2,)], "rows of unequal length"),
        ([(0.0, 1.5)], "whole numbers .*float64"),
        ([("a", "b")], "whole numbers"),
        (np.zeros((3, 3)), r"\(4, 4\), got the shape \(3, 3\)"),
        (sp.csr_matrix((3, 3)), r"shape \(3, 3\), but X has 4 features"),
        (np.diag([1.0, np.nan], 2), "NaN or infinite"),
        (np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0] * 4, [0] * 4]), r"both signs to the edge \(0, 1\)"),
        (networkx.Graph([("age", "income")]), "node 'age' .*convert_node_labels_to_integers"),
        (networkx.Graph([(1, 4)]), r"node 4 of the graph is not one of the features 0\.\.3"),
        (7, "pairs of features"),
        (Rows(np.eye(3)), "rows of the graph have 3 columns, but X has 4 features"),
        (Rows([[np.nan, 0, 0, 0]]), "NaN or infinite"),
    ],
)
def test_wrong_graphs_are_named(graph, words):
    with pytest.raises(ValueError, match=words):
        feature_graph(graph, X4)


def test_wrong_data_are_named():
    with pytest.raises(ValueError, match=r"matrix of samples and features, got the shape \(3,\)"):
        feature_graph("chain", np.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        feature_graph("glasso", np.array([[1.0, np.nan], [0, 1]]))


@pytest.mark.parametrize("form", [np.asarray, np.float32, sp.csr_matrix, sp.csc_array])
@pytest.mark.parametrize("dense_below", [2000, 0])
def test_glasso_recovers_a_chain_and_its_signs(form, dense_below, monkeypatch):
    monkeypatch.setattr(correlations, "DENSE_BELOW", dense_below)
    signs = np.resize([1, 1, -1], 19)
    X = gaussian(chain_precision(20, 0.25 * signs), 2000) * np.geomspace(1e-3, 1e3, 20) + 1.0
    assert edges(feature_graph("glasso", form(X))) == {(i, i + 1): s for i, s in enumerate(signs)}


def test_glasso_explains_most_indirect_correlations():
    """All edges of the chain, and few of the pairs that are correlated only through others (shrinkage keeps some)."""
    indirect, kept = 0, 0
    for seed in range(4):
        X = gaussian(chain_precision(12, np.full(11, 0.4)), 2000, seed)
        R = np.abs(np.corrcoef(X.T))
        pairs = {(i, j) for i in range(12) for j in range(i + 2, 12) if R[i, j] > 2 * np.sqrt(np.log(12) / 2000)}
        found = set(edges(feature_graph("glasso", X)))
        assert {(i, i + 1) for i in range(11)} <= found
        indirect, kept = indirect + len(pairs), kept + len(pairs & found)
    assert indirect > 40 and kept < indirect / 3


def test_glasso_of_noise_is_empty():
    counts = [feature_graph("glasso", np.random.default_rng(s).standard_normal((500, 50))).shape[0] for s in range(20)]
    assert np.mean(counts) < 0.5


def test_screening_changes_nothing(monkeypatch):
    """Solved by components, and all at once: the same edges."""
    from scipy.linalg import block_diag
    from sklearn.covariance import graphical_lasso

    X = gaussian(block_diag(*(chain_precision(d, np.full(d - 1, 0.4)) for d in (6, 3, 2, 5))), 1000)
    _, P = graphical_lasso(np.corrcoef(X.T), 2 * np.sqrt(np.log(16) / 1000), tol=1e-6, enet_tol=1e-9, max_iter=500)
    i, j = np.nonzero(np.triu(np.abs(P) > 1e-6, 1))
    assert edges(feature_graph("glasso", X)) == {(a, b): -np.sign(P[a, b]) for a, b in zip(i.tolist(), j.tolist())}


def test_large_components_keep_the_strongest_correlations(monkeypatch):
    X = gaussian(chain_precision(12, np.full(11, 0.45)), 2000)
    monkeypatch.setattr(graphs, "LARGEST_COMPONENT", 11)
    monkeypatch.setattr(graphs, "NEIGHBOURS", 2)
    R = np.corrcoef(X.T) - np.eye(12)
    expected = {(min(i, j), max(i, j)) for i in range(12) for j in np.argsort(-np.abs(R[i]))[:2].tolist()}
    assert set(edges(feature_graph("glasso", X))) == expected


def test_rows_are_subsampled_by_the_seed():
    X = np.random.default_rng(0).standard_normal((5000, 40)) @ np.random.default_rng(1).standard_normal((40, 40))
    same = [feature_graph("glasso", form(X), 3) for form in (np.asarray, sp.csr_matrix)]
    assert edges(same[0]) == edges(same[1]) == edges(feature_graph("glasso", X, np.random.RandomState(3)))
    assert edges(same[0]) != edges(feature_graph("glasso", X, 4))
    before = np.random.get_state()[1].copy()
    feature_graph("glasso", X, np.random.default_rng(0))
    feature_graph("glasso", X)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("graph", ["glasso", "knn"])
@pytest.mark.parametrize("dense_below", [2000, 0])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize(
    "X",
    [
        np.ones((1, 5)),
        np.eye(2, 5),
        np.eye(3, 7),
        np.arange(8.0).reshape(8, 1),
        np.zeros((10, 4)),
        np.random.default_rng(0).standard_normal((5, 400)),
        np.random.default_rng(0).integers(0, 2, (40, 60)).astype(float),
        np.repeat(np.random.default_rng(0).standard_normal((300, 4)), 5, axis=1),
        np.hstack([np.eye(30), 1 - np.eye(30), np.ones((30, 2))]),
        np.random.default_rng(0).standard_normal((50, 3)) * 1e-200,
    ],
    ids=str,
)
def test_awkward_data_never_fail_nor_warn(graph, dense_below, form, X, monkeypatch):
    monkeypatch.setattr(correlations, "DENSE_BELOW", dense_below)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        G = feature_graph(graph, form(X), 0)
    assert G.shape[1] == X.shape[1]
    constant = np.ptp(X, axis=0) == 0
    assert abs(G).sum(axis=0)[0, constant].sum() == 0


@pytest.mark.parametrize("graph", ["glasso", "knn"])
def test_copies_are_tied_and_opposites_too(graph):
    x = np.random.default_rng(0).standard_normal((200, 2))
    X = np.column_stack([x[:, 0], 5 * x[:, 0] + 1, -x[:, 0], x[:, 1], np.ones(200)])
    assert edges(feature_graph(graph, X)) == {(0, 1): 1, (0, 2): -1, (1, 2): -1}


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("dense_below", [2000, 0])
@pytest.mark.parametrize("chunk", [8_000_000, 100])
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
def test_knn_is_brute_force(form, dense_below, chunk, density, monkeypatch):
    monkeypatch.setattr(correlations, "DENSE_BELOW", dense_below)
    monkeypatch.setattr(correlations, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    X = (rng.random((300, 60)) < density * np.linspace(0.5, 2, 60)) * (rng.standard_normal((300, 60)) + 1)
    X = X[:, np.ptp(X, axis=0) > 0]
    X[:, 1] += X[:, 0]
    d = X.shape[1]
    R = np.corrcoef(X.T) - np.eye(d)
    expected = {}
    for i in range(d):
        for j in np.argsort(-np.abs(R[i]))[:5].tolist():
            if abs(R[i, j]) > 2 / np.sqrt(300):
                expected[min(i, j), max(i, j)] = np.sign(R[i, j])
    assert edges(feature_graph("knn", form(X))) == expected and len(expected) > 10


@pytest.mark.parametrize("chunk", [8_000_000, 50])
def test_sparse_correlations_are_those_of_numpy(chunk, monkeypatch):
    monkeypatch.setattr(correlations, "DENSE_BELOW", 0)
    monkeypatch.setattr(correlations, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    X = (rng.random((100, 30)) < np.linspace(0.05, 0.9, 30)) * rng.choice([-1.0, 1.0, 2.0], (100, 30))
    X[:, 4] = X[:, 5] * 0 + (np.arange(100) < 50)
    X[:, 5] = 1 - X[:, 4]  # never together, correlation -1
    R = np.corrcoef(X.T)
    columns = correlations.Correlations(sp.csc_matrix(X))
    found = np.zeros_like(R)
    for pairs in columns.above(0.1):
        assert (found[pairs.i, pairs.j] == 0).all()
        found[pairs.i, pairs.j] = pairs.r
    expected = np.where(np.abs(R) > 0.1, R, 0) - np.eye(30)
    assert np.allclose(found, expected, atol=1e-12) and found[4, 5] < -0.99
    some = np.array([3, 4, 5, 20])
    assert np.allclose(columns.within(some), R[np.ix_(some, some)], atol=1e-12)


def wide(n, d, per_row, seed=0):
    rng = np.random.default_rng(seed)
    X = sp.csr_matrix(
        (rng.random(n * per_row), rng.integers(0, d, n * per_row), np.arange(0, n * per_row + 1, per_row)), shape=(n, d)
    )
    X.sum_duplicates()
    return X


@pytest.mark.slow
@pytest.mark.parametrize(
    "X",
    [
        gaussian(chain_precision(40, np.full(39, 0.45)), 2000)[:, np.arange(2000) % 40],  # copies: one large component
        np.random.default_rng(0).standard_normal((3000, 2000)),
        np.random.default_rng(0).standard_normal((2000, 10)).repeat(200, axis=1)
        + np.random.default_rng(1).standard_normal((2000, 2000)),  # ten components of 200
    ],
    ids=["copies", "noise", "blocks"],
)
def test_two_thousand_features_take_seconds(X):
    start = time.process_time()
    feature_graph("glasso", X, 0)
    assert time.process_time() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["glasso", "knn"])
def test_fifty_thousand_sparse_features_take_seconds(graph):
    X = wide(5000, 50_000, 60)
    start = time.process_time()
    G = feature_graph(graph, X, 0)
    assert time.process_time() - start < 15 and G.shape[0] < 5 * 50_000


def test_a_graph_is_learned_once_and_given_back(monkeypatch):
    """No graph is kept between fits; a path learns one for all folds, and a search none if it is given one."""
    learned = []
    solve = graphs.Correlations
    monkeypatch.setattr(graphs, "Correlations", lambda *rows: learned.append(1) or solve(*rows))
    X, y = gaussian(chain_precision(8, [0.4] * 7), 60), np.arange(60) % 2
    first, again = (GraphGuidedClassifier(0.01, graph="glasso").fit(X, y) for _ in range(2))
    assert len(learned) == 2 and first.graph_.shape[0] > 0
    path = GraphGuidedClassifierCV(graph="glasso", random_state=0).fit(X, y)
    assert len(learned) == 3 and abs(path.graph_ - first.graph_).max() == 0
    given = clone(GraphGuidedClassifier(graph=first.graph_))
    first.graph_.data[:] = 0
    search = GridSearchCV(given, {"alpha": [0.001, 0.01, 0.1]}, cv=3).fit(X, y)
    assert len(learned) == 3 and abs(search.best_estimator_.graph_ - again.graph_).max() == 0
