"""The error of an image reconstructed from few noisy views: |x - truth| / |truth|, and the same as an SNR in dB."""

import math

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    name = "Plug-and-play tomography"
    min_benchopt_version = "1.10"
    requirements = ["numpy"]

    def set_data(self, truth, sinogram):
        self.truth, self.sinogram = truth, sinogram

    def get_objective(self):
        return {"sinogram": self.sinogram, "size": len(self.truth)}

    def evaluate_result(self, image):
        error = float(np.linalg.norm(image - self.truth) / np.linalg.norm(self.truth))
        return {"value": error, "snr": -20 * math.log10(error)}

    def get_one_result(self):
        return {"image": np.zeros_like(self.truth)}
