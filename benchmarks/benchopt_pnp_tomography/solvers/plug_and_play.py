"""The published methods, from a filtered back-projection, with the shipped denoiser and the weight from the noise."""

import numpy as np
import torch
from benchopt import BaseSolver

from smadmm.denoisers import load
from smadmm.imaging.pnp import pnp, posterior_weight, sinogram_noise
from smadmm.losses import Tomography
from smadmm.operators import Radon
from smadmm.proxes import Denoised


class Solver(BaseSolver):
    name = "plug-and-play"
    requirements = ["pip::smadmm[imaging]"]
    parameters = {"method": ["smadmm", "sadmm", "red-sd", "on-red"], "batch": [10]}
    sampling_strategy = "callback"

    def set_objective(self, sinogram, size):
        b, denoiser = torch.from_numpy(sinogram), load("ridge-ct")
        radon = Radon(size, np.arange(len(b)) * np.pi / len(b), b.shape[1])
        loss = Tomography(radon, b)
        rho = posterior_weight(loss, sinogram_noise(b), denoiser.sigma)
        seed = self.get_seed(use_repetition=True) % 2**31
        self.solver = pnp(loss, Denoised(denoiser, image=True), self.method, self.batch, rho, seed=seed)
        self.start = radon.fbp(b)

    def warm_up(self):
        self.run_once()  # compiles

    def run(self, callback):
        state = self.solver.init(self.start)
        self.image = state.answer.numpy()
        while callback():
            state = self.solver.step(state)
            self.image = state.answer.numpy()

    def get_result(self):
        return {"image": self.image}
