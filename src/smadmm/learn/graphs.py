"""Graphs over features, as the rows G of A = [G; I].

An edge (i, j) with sign s is the row e_i - s e_j: a penalty |x_i - s x_j| ties the coefficients of two features to be
equal (s = +1, associated positively) or opposite (s = -1). Weights are not kept: every row has the entries +-1. The
paper may also be read with the signed adjacency matrix as G: `signed_adjacency` gives it, as `Rows` that are taken as
they are.

`"glasso"`: the support of the graphical lasso on the correlation R of at most 2000 rows, with the penalty

    alpha = 2 sqrt(log d / n),

the size that the largest of d^2/2 correlations of independent features has by chance, so that noise gives no edges; s
is the sign of the partial correlation. Features in different connected components of |R| > alpha are not joined by the
graphical lasso (exact screening), so each component is solved alone; of a component with more than 300 features every
one is tied to its 5 strongest correlations above alpha instead.

`"knn"`: every feature is tied to the 5 with the largest |correlation| on at most 2000 rows, if above 2 / sqrt(n) (what
chance gives one pair); s is the sign of the correlation. Constant features have no edges. `"chain"`: (i, i + 1).

`"auto"`: as `"glasso"` up to 1000 features, none beyond: there learning takes longer than fitting, and edges between
thousands of features are rarely those that the labels obey. The estimators drop its edges if these do not help.

No graphs are kept between fits: `graph=model.graph_` gives one to other fits, and the estimators with CV learn one for
all folds.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix, issparse
from scipy.sparse.csgraph import connected_components

from smadmm.learn.correlations import Correlations, Pairs, subsample

ROWS = 2000
NEIGHBOURS = 5
FEATURES = 1000  # up to which "auto" learns a graph
LARGEST_COMPONENT = 300


@dataclass(frozen=True, eq=False)
class Rows:
    """G itself, one row per penalty |g'x|: any matrix with one column per feature.

    >>> Rows(np.array([[1.0, -1.0, 0.0]])).matrix.shape
    (1, 3)
    """

    matrix: Any


def feature_graph(graph: Any, X: Any, random_state: Any = None, sample_weight: Any = None, names: Any = None) -> Any:
    """G as a CSR matrix with one row per edge, of shape (edges, features); without edges it has no rows.

    `graph`: "auto", "glasso", "knn", "chain", None (no edges), an edge list of pairs (i, j), a networkx graph with the
    nodes 0..d-1 (negative weights: s = -1), or a d x d matrix, sparse or dense. A matrix with the marks of a precision
    matrix (P_ii > 0, P_ij^2 < P_ii P_jj) has s = -sign(P_ij); any other is an adjacency matrix with s = sign(W_ij).
    `Rows`, and a sparse matrix with a row per edge as this function gives it, are taken as they are, without empty
    rows. With the `names` of the features, edges and nodes may be names.
    """
    if isinstance(graph, Rows) or _is_learned(graph, _features(X)):
        return _given_rows(graph.matrix if isinstance(graph, Rows) else graph, _features(X))
    edges, signs = _signed_edges(_numbered(graph, names), X, random_state, sample_weight)
    values = np.column_stack([np.ones(len(edges)), -signs]).ravel()
    return csr_matrix((values, edges.ravel(), np.arange(0, 2 * len(edges) + 1, 2)), shape=(len(edges), _features(X)))


def signed_adjacency(graph: Any, X: Any, random_state: Any = None, sample_weight: Any = None) -> Rows:
    """The signed adjacency matrix W of a graph, as rows: row i penalises |sum_j W_ij x_j|, the sum over i's neighbours.

    GraphGuidedClassifier(graph=signed_adjacency("glasso", X)) is the paper's experiment in this reading.

    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> signed_adjacency([(0, 1)], X).matrix.shape
    (3, 3)
    """
    edges, signs = _signed_edges(graph, X, random_state, sample_weight)
    upper = coo_matrix((signs, (edges[:, 0], edges[:, 1])), shape=(_features(X),) * 2)
    return Rows(csr_matrix(upper + upper.T))


def _numbered(graph: Any, names: Any) -> Any:
    """The graph with numbers instead of the names of features."""
    if names is None or graph is None or isinstance(graph, str) or issparse(graph):
        return graph
    number = {name: i for i, name in enumerate(names)}
    networkx = sys.modules.get("networkx")
    if networkx is not None and isinstance(graph, networkx.Graph):
        return networkx.relabel_nodes(graph, number) if any(node in number for node in graph.nodes) else graph
    pairs = graph if isinstance(graph, list | tuple) else np.asarray(graph).tolist()
    if not any(isinstance(end, str) for pair in pairs for end in np.atleast_1d(pair).tolist()):
        return graph
    unknown = next((end for pair in pairs for end in pair if end not in number), None)
    if unknown is not None:
        raise ValueError(
            f"edge end {unknown!r} is not the name of a feature; there are {', '.join(map(str, names[:10]))}"
        )
    return [(number[i], number[j]) for i, j in pairs]


def _is_learned(graph: Any, d: int) -> bool:
    """Whether this is `graph_` of a fit: a sparse matrix with a row per edge, and if it is square, the edges in order.

    No symmetric adjacency matrix without loops passes: its row 0 begins after column 0, a later row in column 0.
    """
    if not issparse(graph) or graph.shape[1] != d:
        return False
    G = csr_matrix(graph)
    if G.shape[0] != d:
        return True
    if (np.diff(G.indptr) != 2).any() or (np.abs(G.data) != 1).any():
        return False
    keys = np.sort(G.indices.reshape(-1, 2), axis=1).astype(np.int64) @ [d, 1]
    return bool((np.diff(keys) > 0).all())


def _features(X: Any) -> int:
    if len(np.shape(X)) != 2:
        raise ValueError(f"X must be a matrix of samples and features, got the shape {np.shape(X)}")
    return int(X.shape[1])


def _given_rows(matrix: Any, d: int) -> Any:
    G = csr_matrix(matrix, dtype=np.float64)
    if G.shape[1] != d:
        raise ValueError(
            f"the rows of the graph have {G.shape[1]} columns, but X has {d} features: give one column each"
        )
    if not np.isfinite(G.data).all():
        raise ValueError("the rows of the graph hold NaN or infinite numbers; remove them")
    G.sum_duplicates()
    G.eliminate_zeros()
    return G[np.diff(G.indptr) > 0]


Edges = tuple[NDArray[np.int64], NDArray[np.float64]]  # pairs i < j, each once, and their signs


def _signed_edges(graph: Any, X: Any, random_state: Any, weight: Any) -> Edges:
    d = _features(X)
    if graph is None:
        return _from_array([], d)
    if isinstance(graph, str):
        if graph == "chain":
            return _from_array(np.column_stack([np.arange(d - 1), np.arange(1, d)]), d)
        if graph == "auto" and d > FEATURES:
            return _from_array([], d)
        if graph in ("auto", "glasso", "knn"):
            learned = _knn if graph == "knn" else _glasso
            return learned(Correlations(*subsample(X, weight, ROWS, random_state)), d)
        raise ValueError(f"graph must be 'auto', 'glasso', 'knn', 'chain', None, edges or a matrix, got {graph!r}")
    networkx = sys.modules.get("networkx")  # whoever has such a graph has imported it
    if networkx is not None and isinstance(graph, networkx.Graph):
        return _from_networkx(graph, d)
    if issparse(graph):
        return _from_matrix(graph, d)
    return _from_array(graph, d)


def _from_array(graph: Any, d: int) -> Edges:
    """A dense d x d matrix, or pairs; for d = 2 a 2 x 2 array is a matrix and a 2 x 2 list is two pairs."""
    wanted = f"graph must be pairs of features, shape (edges, 2), or a matrix of shape ({d}, {d})"
    try:
        array = np.asarray(graph)
    except ValueError:
        raise ValueError(f"{wanted}, got rows of unequal length") from None
    if array.shape == (d, d) and not (d == 2 and isinstance(graph, list | tuple)):
        return _from_matrix(array, d)
    if array.shape in ((0,), (0, 2)):
        array = np.empty((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"{wanted}, got the shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"the ends of edges must be whole numbers 0..{d - 1}, got {array.dtype}; number the features")
    return _unique(array, np.ones(len(array)), d)


def _from_networkx(graph: Any, d: int) -> Edges:
    for node in graph.nodes:
        if not (isinstance(node, int | np.integer) and 0 <= node < d):
            raise ValueError(
                f"node {node!r} of the graph is not one of the features 0..{d - 1}; relabel it, for example by "
                "networkx.convert_node_labels_to_integers"
            )
    triples = [(i, j, w) for i, j, w in graph.edges(data="weight", default=1.0) if w != 0]
    pairs = np.array([(i, j) for i, j, _ in triples], dtype=np.int64).reshape(-1, 2)
    return _unique(pairs, np.sign(np.array([w for _, _, w in triples], dtype=np.float64)), d)


def _from_matrix(matrix: Any, d: int) -> Edges:
    if matrix.shape != (d, d):
        raise ValueError(f"the graph matrix has shape {matrix.shape}, but X has {d} features: it must be ({d}, {d})")
    W = coo_matrix(matrix, dtype=np.float64)
    W.sum_duplicates()
    if not np.isfinite(W.data).all():
        raise ValueError("the graph matrix holds NaN or infinite numbers; remove them")
    diagonal = W.diagonal()
    off = (W.row != W.col) & (W.data != 0)
    i, j, w = W.row[off], W.col[off], W.data[off]
    precision = bool((diagonal > 0).all()) and bool((w * w < diagonal[i] * diagonal[j]).all())
    return _unique(np.column_stack([i, j]), -np.sign(w) if precision else np.sign(w), d)


def _unique(pairs: NDArray[Any], signs: NDArray[Any], d: int) -> Edges:
    """Every edge once, as (i, j) with i < j, sorted."""
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= d):
        wrong = pairs[(pairs < 0) | (pairs >= d)][0]
        raise ValueError(f"edge end {wrong} is outside 0..{d - 1}; number the features from 0")
    if (pairs[:, 0] == pairs[:, 1]).any():
        i = pairs[pairs[:, 0] == pairs[:, 1]][0, 0]
        raise ValueError(f"edge ({i}, {i}) joins a feature to itself; remove it")
    keys = pairs.min(axis=1, initial=d).astype(np.int64) * d + pairs.max(axis=1, initial=0)
    both, where = np.unique(keys, return_inverse=True)
    highest, lowest = np.full(len(both), -1.0), np.full(len(both), 1.0)
    np.maximum.at(highest, where, signs)
    np.minimum.at(lowest, where, signs)
    edges = np.column_stack([both // max(d, 1), both % max(d, 1)])
    if (highest != lowest).any():
        i, j = edges[highest != lowest][0]
        raise ValueError(f"the graph gives both signs to the edge ({i}, {j}); make it symmetric")
    return edges, highest


def _knn(R: Correlations, d: int) -> Edges:
    nearest = [_strongest(pairs) for pairs in R.above(2 / np.sqrt(max(R.rows, 1)))]
    return _edges_of(nearest, R.features, d)


def _glasso(R: Correlations, d: int) -> Edges:
    m = len(R.features)
    alpha = 2 * np.sqrt(np.log(max(m, 2)) / max(R.rows, 1))
    labels, found = np.arange(m), []
    for pairs in R.above(alpha):  # components grow from chunk to chunk; only the strongest pairs are kept
        joined = coo_matrix((np.ones(len(pairs.r)), (labels[pairs.i], labels[pairs.j])), shape=(m, m))
        labels = connected_components(joined, directed=False)[1][labels]
        found.append(_strongest(pairs))
    sizes = np.bincount(labels, minlength=1) if m else np.zeros(1, dtype=np.int64)
    strongest = [pairs.where(sizes[labels[pairs.i]] > LARGEST_COMPONENT) for pairs in found]
    order = np.argsort(labels, kind="stable")
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        if 1 < len(members) <= LARGEST_COMPONENT:
            strongest.append(_solve_component(R.within(members), alpha, members))
    return _edges_of(strongest, R.features, d)


def _solve_component(S: NDArray[np.float64], alpha: float, members: NDArray[Any]) -> Pairs:
    """The pairs of the graphical lasso's support, with partial correlations; thresholded S if it does not converge."""
    from sklearn.covariance import graphical_lasso

    association = np.where(np.abs(S) > alpha, S, 0.0)
    if len(S) > 2:  # for two features the support is |S_12| > alpha
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            before = np.random.get_state()  # scikit-learn draws from it, without need
            try:
                precision = graphical_lasso(S, alpha, tol=1e-3, max_iter=50)[1]
            except (FloatingPointError, ValueError, np.linalg.LinAlgError):
                precision = None
            finally:
                np.random.set_state(before)
        if precision is not None and np.isfinite(precision).all():
            scale = np.sqrt(np.abs(np.diag(precision)))
            association = -(precision + precision.T) / (2 * np.outer(scale, scale))
    i, j = np.nonzero(np.triu(np.abs(association) > 1e-6, 1))
    return Pairs(members[i], members[j], association[i, j])


def _strongest(pairs: Pairs) -> Pairs:
    """For every i the pairs with the NEIGHBOURS largest |r|."""
    order = np.argsort(pairs.i - 0.5 * np.minimum(np.abs(pairs.r), 1.0))  # by i, then by falling |r|
    i = pairs.i[order]
    first = np.searchsorted(i, i)  # where the pairs of this i begin
    kept = order[np.arange(len(i)) - first < NEIGHBOURS]
    return Pairs(pairs.i[kept], pairs.j[kept], pairs.r[kept])


def _edges_of(chunks: list[Pairs], features: NDArray[np.int64], d: int) -> Edges:
    i, j, r = (np.concatenate([getattr(c, part) for c in chunks] or [np.empty(0)]) for part in ("i", "j", "r"))
    pairs = np.column_stack([features[i.astype(np.int64)], features[j.astype(np.int64)]])
    return _unique(pairs, np.sign(r), d)
