"""Classification and regression for scikit-learn: coefficients tied along the edges of a graph (extra `learn`)."""

from smadmm.extras import needs

needs("sklearn", "learn", "classifiers")

from smadmm.learn.classifier import GraphGuidedClassifier  # noqa: E402
from smadmm.learn.graphs import Rows, signed_adjacency  # noqa: E402
from smadmm.learn.loops import Auto  # noqa: E402
from smadmm.learn.path import GraphGuidedClassifierCV, GraphGuidedRegressorCV  # noqa: E402
from smadmm.learn.published_loops import Published  # noqa: E402
from smadmm.learn.regressor import GraphGuidedRegressor  # noqa: E402

__all__ = [
    "Auto",
    "GraphGuidedClassifier",
    "GraphGuidedClassifierCV",
    "GraphGuidedRegressor",
    "GraphGuidedRegressorCV",
    "Published",
    "Rows",
    "signed_adjacency",
]
