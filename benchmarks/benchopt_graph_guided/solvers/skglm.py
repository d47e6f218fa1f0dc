"""skglm's coordinate descent with working sets, for plain l1."""

import warnings

import numpy as np
from benchopt import BaseSolver
from skglm import SparseLogisticRegression
from sklearn.exceptions import ConvergenceWarning


class Solver(BaseSolver):
    name = "skglm"
    requirements = ["pip::skglm"]
    sampling_strategy = "iteration"
    test_config = {"objective": {"graph": False}}

    def skip(self, X, y, G, alpha):
        return (True, "skglm has no penalty along a graph") if G.shape[0] else (False, None)

    def set_objective(self, X, y, G, alpha):
        self.X, self.y = np.asfortranarray(X), y  # columns together, as it reads them
        self.model = SparseLogisticRegression(alpha, fit_intercept=False, tol=1e-12)

    def warm_up(self):
        self.run_once()  # compiles

    def run(self, iterations):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped on purpose
            self.model.set_params(max_iter=max(iterations, 1)).fit(self.X, self.y)

    def get_result(self):
        return {"x": self.model.coef_.ravel()}
