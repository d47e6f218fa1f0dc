"""
A sinogram in five lines
========================

You learn how line integrals become an image: one call, no tuning.
"""

import matplotlib.pyplot as plt

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

truth = abdomen_image(96)
sinogram = simulated_sinogram(truth, views=60, snr=40)
result = smadmm.reconstruct(sinogram, truth=truth)
print(result)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for ax, (name, image) in zip(axes, result.shown.items(), strict=True):
    ax.imshow(image, cmap="gray", vmin=0, vmax=1)
    ax.set(title=name, xticks=[], yticks=[])
