"""Classification for scikit-learn: coefficients tied along the edges of a graph (extra `learn`)."""

from smadmm.extras import needs

needs("sklearn", "learn", "classifiers")

from smadmm.learn.classifier import GraphGuidedClassifier  # noqa: E402

__all__ = ["GraphGuidedClassifier"]
