"""Classification for scikit-learn: coefficients tied along the edges of a graph (extra `learn`)."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("smadmm.learn needs scikit-learn; install it with: pip install 'smadmm[learn]'") from error

from smadmm.learn.classifier import GraphGuidedClassifier
from smadmm.learn.graphs import Rows, signed_adjacency
from smadmm.learn.loops import Auto
from smadmm.learn.published_loops import Published

__all__ = ["Auto", "GraphGuidedClassifier", "Published", "Rows", "signed_adjacency"]
