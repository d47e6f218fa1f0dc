"""
Phase retrieval of a complex object
===================================

Find a complex image, modulus and phase, from the amplitudes of coded diffraction patterns alone: detectors count
photons and lose every phase.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage.data import camera
from skimage.transform import resize

import smadmm
from smadmm.imaging.simulation import simulated_amplitudes
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import CodedDiffraction
from smadmm.operators.diffraction import circle_masks

size, masks = 128, circle_masks(6, (128, 128), seed=0)
modulus = 0.2 + 0.8 * torch.from_numpy(resize(camera(), (size, size), anti_aliasing=True)).float()
phase = 2.0 * abdomen_image(size)  # radians: what a thin sample does to a wave
truth = torch.polar(modulus, phase)
patterns = simulated_amplitudes(truth, CodedDiffraction(masks, torch.complex64), snr=20)
result = smadmm.retrieve(patterns, masks, complex=True, truth=truth, iterations=100)
print(result, f"without prior: {result.mean('snr_fit'):.2f} dB", sep="\n")

fig, axes = plt.subplots(1, 5, figsize=(13.5, 3), layout="constrained")
fig.suptitle(
    "A complex object from six noisy diffraction patterns: one pattern, then modulus and phase, true and found"
)
axes[0].imshow(np.log1p(patterns[0].numpy()), cmap="magma")
axes[0].set_title("one of six patterns (log)")
found = result.image
panels = {"true modulus": truth.abs(), "found modulus": found.abs(), "true phase": phase, "found phase": found.angle()}
for ax, (title, image) in zip(axes[1:], panels.items(), strict=True):
    limits, colours = ((0, 1), "gray") if "modulus" in title else ((0, 1.5), "viridis")
    drawn = ax.imshow(image.numpy(), cmap=colours, vmin=limits[0], vmax=limits[1])
    ax.set_title(title)
fig.colorbar(drawn, ax=axes[-1], label="radians")
for ax in axes:
    ax.set_axis_off()
plt.show()
