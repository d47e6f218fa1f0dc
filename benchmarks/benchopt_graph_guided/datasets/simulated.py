"""Groups of correlated features along a chain; two groups matter."""

import numpy as np
from benchopt import BaseDataset
from scipy.sparse import diags_array


class Dataset(BaseDataset):
    name = "simulated"
    requirements = ["numpy", "scipy"]
    parameters = {"n_samples": [5000], "n_features": [100]}
    test_parameters = {"n_samples": [200], "n_features": [20]}

    def get_data(self):
        n, d = self.n_samples, self.n_features
        rng = np.random.default_rng(self.get_seed(use_repetition=True))
        truth = np.repeat([1.0, -1.0, 0.0, 0.0, 0.0], d // 5) / np.sqrt(d)
        X = np.repeat(rng.standard_normal((n, d // 5)), 5, axis=1)[:, :d] * 0.5 + rng.standard_normal((n, d))
        y = np.where(X @ truth + 0.5 * rng.standard_normal(n) > 0, 1.0, -1.0)
        chain = diags_array([np.ones(d - 1), -np.ones(d - 1)], offsets=[0, 1], shape=(d - 1, d))
        return {"X": X, "y": y, "G": chain.tocsr()}
