"""
A classifier that can be read as a picture
==========================================

Tie coefficients along a graph that you know, here the neighbours of pixels, and they become a picture that shows what
the labels depend on.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from smadmm.learn import GraphGuidedClassifier

# A sample is an image of noise; its label depends, with much noise, on a ring and a bar: 576 coefficients to be found.
side, samples, rng = 24, 2000, np.random.default_rng(0)
i, j = np.mgrid[:side, :side]
radius = np.hypot(i - 9, j - 8)
truth = ((radius > 3) & (radius < 7)).astype(float) - ((i > 15) & (i < 21) & (j > 11))
X = rng.standard_normal((2 * samples, side * side))
y = X @ truth.ravel() + 5 * rng.standard_normal(2 * samples) > 0
number = np.arange(side * side).reshape(side, side)
down, right = (number[:-1].ravel(), number[1:].ravel()), (number[:, :-1].ravel(), number[:, 1:].ravel())
edges = np.concatenate([np.stack(down, 1), np.stack(right, 1)])

models = {
    "ridge (scikit-learn)": LogisticRegression(C=1e-3),
    "l1, no graph": GraphGuidedClassifier(1e-2, graph=None, loss="logistic", random_state=0),
    "graph of neighbours": GraphGuidedClassifier(5e-3, graph=edges, loss="logistic", random_state=0),
}
fig, axes = plt.subplots(1, 4, figsize=(12, 3.5), layout="constrained")
fig.suptitle(
    "Coefficients as pictures: what the labels depend on, and what three classifiers make of 2000 noisy samples"
)
pictures = {"truth": truth}
for name, model in models.items():
    model.fit(X[:samples], y[:samples])
    pictures[f"{name}\naccuracy {model.score(X[samples:], y[samples:]):.3f}"] = model.coef_.reshape(side, side)
    likeness = np.corrcoef(model.coef_.ravel(), truth.ravel())[0, 1]
    print(
        f"{name:21s} test accuracy {model.score(X[samples:], y[samples:]):.3f}, correlation with truth {likeness:.3f}"
    )
for ax, (title, coefficients) in zip(axes, pictures.items(), strict=True):
    ax.imshow(coefficients / np.abs(coefficients).max(), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set_title(title)
    ax.set_axis_off()
plt.show()
