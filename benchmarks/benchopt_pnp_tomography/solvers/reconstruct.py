"""smadmm.reconstruct with its defaults, and with total variation; its look at the data is in the time."""

from benchopt import BaseSolver

import smadmm


class Solver(BaseSolver):
    name = "reconstruct"
    requirements = ["pip::smadmm[imaging]"]
    parameters = {"prior": ["ridge-ct", "tv"]}
    sampling_strategy = "iteration"

    def set_objective(self, sinogram, size):
        self.sinogram, self.size = sinogram, size

    def warm_up(self):
        self.run_once()  # compiles

    def run(self, iterations):
        found = smadmm.reconstruct(self.sinogram, size=self.size, prior=self.prior, iterations=max(iterations, 1))
        self.image = found.image

    def get_result(self):
        return {"image": self.image}
