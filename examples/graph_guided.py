"""Coefficients tied along a graph: three groups of correlated features, a graph learned from the data, a picture.

Two groups matter, one does not; single features are noisy, so without the graph their coefficients scatter.
"""

import numpy as np

from smadmm.learn import GraphGuidedClassifier

rng = np.random.default_rng(0)
group = np.repeat([0, 1, 2], 8)
common = rng.standard_normal((800, 3))
X = common[:, group] + 0.8 * rng.standard_normal((800, 24))
y = common @ [1.0, -1.0, 0.0] + 0.7 * rng.standard_normal(800) > 0

for graph in (None, "glasso"):
    model = GraphGuidedClassifier(1e-2, graph=graph, random_state=0).fit(X[:400], y[:400])
    values = [len(np.unique(model.coef_standardized_[0][group == number])) for number in range(3)]
    print(f"graph {graph}: accuracy {model.score(X[400:], y[400:]):.3f}, different coefficients per group {values}")
model.plot().savefig("graph_guided.png")
print("the graph, coefficients as colours: graph_guided.png")
