"""scikit-learn's SAGA and SGD, for plain l1."""

import warnings

from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier


class Solver(BaseSolver):
    name = "scikit-learn"
    requirements = ["scikit-learn"]
    parameters = {"method": ["saga", "sgd"]}
    sampling_strategy = "iteration"
    test_config = {"objective": {"graph": False}}

    def skip(self, X, y, G, alpha):
        return (True, "scikit-learn has no penalty along a graph") if G.shape[0] else (False, None)

    def set_objective(self, X, y, G, alpha):
        self.X, self.y = X, y
        rest = {"fit_intercept": False, "random_state": self.get_seed(use_repetition=True) % 2**31}
        if self.method == "saga":
            self.model = LogisticRegression(C=1 / (len(y) * alpha), l1_ratio=1, solver="saga", tol=0, **rest)
        else:
            self.model = SGDClassifier(loss="log_loss", penalty="l1", alpha=alpha, tol=None, **rest)

    def run(self, passes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is stopped on purpose
            self.model.set_params(max_iter=max(passes, 1)).fit(self.X, self.y)

    def get_result(self):
        return {"x": self.model.coef_[0]}
