"""min_x 1/n sum_i log(1 + exp(-b_i a_i'x)) + alpha |[G; I] x|_1: graph-guided, or plain l1 where G has no rows."""

import numpy as np
from benchopt import BaseObjective
from scipy.sparse import csr_matrix


class Objective(BaseObjective):
    name = "Graph-guided logistic regression"
    min_benchopt_version = "1.10"
    requirements = ["numpy", "scipy"]
    parameters = {"graph": [True, False], "alpha": [1e-3]}

    def set_data(self, X, y, G):
        self.X, self.y = X, y
        self.G = G if self.graph else csr_matrix((0, X.shape[1]))

    def get_objective(self):
        return {"X": self.X, "y": self.y, "G": self.G, "alpha": self.alpha}

    def evaluate_result(self, x):
        loss = np.logaddexp(0, -self.y * (self.X @ x)).mean()
        return {
            "value": float(loss + self.alpha * (np.abs(self.G @ x).sum() + np.abs(x).sum())),
            "accuracy": float(np.mean(np.sign(self.X @ x) == self.y)),
        }

    def get_one_result(self):
        return {"x": np.zeros(self.X.shape[1])}
