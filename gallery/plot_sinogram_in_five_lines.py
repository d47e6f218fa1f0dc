"""
A sinogram in five lines
========================

You learn how line integrals become an image: one call, no tuning.
"""

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

truth = abdomen_image(96)
sinogram = simulated_sinogram(truth, views=60, snr=40)
result = smadmm.reconstruct(sinogram, truth=truth)
print(result)
result.plot()
