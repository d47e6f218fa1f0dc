"""Classification and regression for scikit-learn: coefficients tied along the edges of a graph (extra `learn`)."""

from typing import TYPE_CHECKING

from smadmm.extras import needs

needs("sklearn", "learn", "classifiers")

from smadmm.learn.classifier import GraphGuidedClassifier  # noqa: E402
from smadmm.learn.graphs import Rows, signed_adjacency  # noqa: E402
from smadmm.learn.path import GraphGuidedClassifierCV, GraphGuidedRegressorCV  # noqa: E402
from smadmm.learn.regressor import GraphGuidedRegressor  # noqa: E402
from smadmm.learn.tasks import Auto  # noqa: E402

if TYPE_CHECKING:
    from smadmm.learn.published_loops import Published
else:

    def __getattr__(name):
        """The published methods come with their first use: only they, stochastic passes and streams need torch."""
        if name == "Published":
            from smadmm.learn.published_loops import Published

            return Published
        raise AttributeError(f"module 'smadmm.learn' has no attribute {name!r}")


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
