"""
A classifier with a graph
=========================

You learn how coefficients of features that belong together are tied along a graph, and how to look at it.
"""

import matplotlib.pyplot as plt
import numpy as np

from smadmm.learn import GraphGuidedClassifier

rng = np.random.default_rng(0)
group = np.repeat([0, 1, 2], 8)
common = rng.standard_normal((800, 3))
X = common[:, group] + 0.8 * rng.standard_normal((800, 24))
y = common @ [1.0, -1.0, 0.0] + 0.7 * rng.standard_normal(800) > 0

figure, axes = plt.subplots(figsize=(7, 3))
for graph, marker in ((None, "o"), ("glasso", "s")):
    model = GraphGuidedClassifier(3e-3, graph=graph, loss="logistic", random_state=0).fit(X[:400], y[:400])
    axes.plot(model.coef_[0], marker, label=f"graph {graph}: accuracy {model.score(X[400:], y[400:]):.3f}")
axes.set(xlabel="feature", ylabel="coefficient")
axes.legend()
