"""The stochastic ADMM methods of smadmm, compiled; stop_val is a number of passes in sample gradients."""

import warnings

import numpy as np
from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning

from smadmm.learn import GraphGuidedClassifier, Rows


class Solver(BaseSolver):
    name = "smadmm"
    requirements = ["pip::smadmm[learn]"]
    parameters = {"method": ["auto", "smadmm", "sadmm", "svrg", "saga", "spider", "asvrg"]}
    sampling_strategy = "iteration"

    def set_objective(self, X, y, G, alpha):
        self.X, self.y, self.x = X, y, np.zeros(X.shape[1])
        seed = self.get_seed(use_repetition=True) % 2**31
        self.model = GraphGuidedClassifier(
            alpha, graph=Rows(G), solver=self.method, standardize=False, fit_intercept=False, tol=0, random_state=seed
        )

    def warm_up(self):
        self.run_once()  # compiles

    def run(self, passes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped on purpose
            self.x = self.model.set_params(max_epochs=max(passes, 1)).fit(self.X, self.y).coef_[0]

    def get_result(self):
        return {"x": self.x}
