"""A phantom of the upper abdomen, made by code, another body for every repetition."""

from benchopt import BaseDataset

from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image


class Dataset(BaseDataset):
    name = "phantom"
    requirements = ["pip::smadmm[imaging]"]
    parameters = {"size": [256], "views": [60], "snr": [40.0]}
    test_parameters = {"size": [48], "views": [24], "snr": [40.0]}

    def get_data(self):
        seed = self.get_seed(use_repetition=True) % 2**31
        truth = abdomen_image(self.size, seed)
        sinogram = simulated_sinogram(truth, self.views, self.snr, seed)
        return {"truth": truth.numpy(), "sinogram": sinogram.numpy()}
