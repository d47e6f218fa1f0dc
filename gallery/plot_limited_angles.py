"""
Limited angles
==============

See what a missing range of views costs, which edges it hides, and how much of that a learned prior can fill in.
"""

import matplotlib.pyplot as plt
import numpy as np

import smadmm
from smadmm.imaging.simulation import with_noise
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import Radon

truth = abdomen_image(192)
results = {}
for span in (180, 120, 90):
    degrees = np.arange(0, span, 2.0)
    clean = Radon(192, np.deg2rad(degrees))(truth)
    noise = np.random.default_rng(0).standard_normal(clean.shape, dtype=np.float32)
    sinogram = with_noise(clean, 40.0, clean.new_tensor(noise)).numpy()
    results[span] = smadmm.reconstruct(sinogram, degrees, truth=truth.numpy())
    print(f"{span} degrees:", *results[span].notes or ["nothing to repair"], sep="\n  ")

fig, axes = plt.subplots(2, 3, figsize=(10, 6.6), layout="constrained")
fig.suptitle("One view every 2 degrees over 180, 120 and 90 degrees: back-projection above, reconstruction below")
for column, (span, result) in zip(axes.T, results.items(), strict=True):
    for ax, name, key in zip(column, ("FBP", "SMADMM"), ("snr_fbp", "snr"), strict=True):
        ax.imshow(result.shown[name], cmap="gray", vmin=0.25, vmax=0.6)
        ax.set_title(f"{name}, {span} degrees: {result.mean(key):.1f} dB")
        ax.set_axis_off()
plt.show()
