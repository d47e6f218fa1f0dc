"""
What a classifier learned, and whether its probabilities come true
==================================================================

Draw the graph over the features with tied coefficients in rings, and check on rows held out how often a case that the
classifier calls 80 % likely happens.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg

from smadmm.learn import GraphGuidedClassifier

# Three groups of genes act together; two groups matter, by their sum, and a third of the genes is noise.
rng, samples = np.random.default_rng(0), 4000
activity = rng.standard_normal((samples, 3))
groups = {"repair": 0, "growth": 1, "stress": 2}
columns = {f"{name} {k}": activity[:, g] + rng.standard_normal(samples) for name, g in groups.items() for k in range(6)}
columns |= {f"noise {k}": rng.standard_normal(samples) for k in range(9)}
X = pd.DataFrame(columns)
y = np.where(activity[:, 0] - activity[:, 1] + 0.8 * rng.standard_normal(samples) > 0, "ill", "well")

model = GraphGuidedClassifier(random_state=0).fit(X[:400], y[:400])
print(f"test accuracy {model.score(X[400:], y[400:]):.3f}, {model.n_nonzero_} of {X.shape[1]} coefficients, "
      f"{model.groups_.max()} different values")  # fmt: skip
pictures = {
    "the graph: groups that act together are tied": model.plot(),
    "probabilities of 3600 rows held out": model.calibration_plot(X[400:], y[400:]),
}

fig, axes = plt.subplots(1, 2, figsize=(13, 5.5), layout="constrained", width_ratios=[7.5, 5.5])
fig.suptitle("A classifier that can be read, and probabilities that can be believed")
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    picture.set_dpi(150)
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    ax.imshow(np.asarray(canvas.buffer_rgba()))
    ax.set_title(title)
    ax.set_axis_off()
plt.show()
