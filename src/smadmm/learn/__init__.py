"""Classification for scikit-learn: coefficients tied along the edges of a graph (extra `learn`)."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("smadmm.learn needs scikit-learn; install it with: pip install 'smadmm[learn]'") from error

from smadmm.learn.classifier import GraphGuidedClassifier

__all__ = ["GraphGuidedClassifier"]
