"""
How strong should the penalty be?
=================================

Choose the weight of the penalty by cross-validation along a path, and read which features enter first.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from smadmm.learn import GraphGuidedClassifierCV

data = load_breast_cancer(as_frame=True)
X, X_test, y, y_test = train_test_split(data.data, data.target, test_size=0.4, random_state=0, stratify=data.target)
model = GraphGuidedClassifierCV(graph=None, random_state=0).fit(X, y)
print(f"alpha {model.alpha_:.2g}, {np.sum(model.coef_ != 0)} of {X.shape[1]} features, "
      f"test accuracy {model.score(X_test, y_test):.1%}")  # fmt: skip

path, count = model.path_, X.shape[1]
coefficients = path.unknowns[:, 0, :count]
fig, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
fig.suptitle("The path of an l1 penalty: coefficients, and the loss at rows left out")
axes[0].plot(path.alphas, coefficients, linewidth=1)
for j in np.argsort(-np.abs(coefficients[-1]))[:5]:
    axes[0].annotate(data.feature_names[j], (path.alphas[-1], coefficients[-1, j]), fontsize=8)
axes[0].set(xscale="log", xlabel="weight of the penalty", ylabel="coefficient of the standardised feature")
axes[1].errorbar(path.alphas, path.mean, path.error, capsize=2, color="0.4")
axes[1].set(xscale="log", xlabel="weight of the penalty", ylabel="loss at rows left out")
for ax in axes:
    ax.set_xlim(path.alphas.max() * 1.3, path.alphas.min() / 8)  # weak penalties to the right
    ax.axvline(model.alpha_, color="C3", linestyle="--", label="chosen")
axes[1].legend()
plt.show()
