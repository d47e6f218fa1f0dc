"""
Ptychography with few photons
=============================

Scan a complex object with a probe, count a few thousand photons at each of 25 positions, and find the object: from
the patterns alone, and with a prior.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage.data import camera
from skimage.transform import resize

import smadmm
from smadmm.imaging.metrics import without_ramp
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import Ptychography

size, window, photons = 96, 48, 3000
modulus = 0.3 + 0.7 * torch.from_numpy(resize(camera(), (size, size), anti_aliasing=True)).float()
truth = torch.polar(modulus, 1.5 * abdomen_image(size))

u = np.arange(window) - window / 2 + 0.5  # a disc of light with curved phases
square = u[:, None] ** 2 + u**2
probe = np.exp(-((square / 16**2) ** 4) + 1j * np.pi * square / 144)
probe = (probe * np.sqrt(photons) / np.linalg.norm(probe)).astype(np.complex64)
steps = np.linspace(0, size - window, 5)  # rows and columns of the probe's upper left corner, in pixels
positions = np.array([(row, column) for row in steps for column in steps])
operator = Ptychography(torch.from_numpy(probe), positions, (size, size))
counts = np.random.default_rng(0).poisson(operator(truth).abs().numpy() ** 2)

scan = {"positions": positions, "probe": probe, "shape": (size, size), "quantity": "intensities", "truth": truth}
alone = smadmm.retrieve(counts, **scan, prior="none")
found = smadmm.retrieve(counts, **scan)
print(f"without prior: {alone.mean('snr'):.2f} dB", f"with the prior: {found.mean('snr'):.2f} dB", sep="\n")

lit = operator.light() > 0.05 * operator.light().max()
fig, axes = plt.subplots(2, 4, figsize=(11, 5.6), layout="constrained")
fig.suptitle("A scanned object at 3000 photons per position: counts and probe, then true, alone, with the prior")
axes[0, 0].imshow(np.fft.fftshift(np.log1p(counts[12])), cmap="magma")
axes[0, 0].set_title("counts of one position (log)")
axes[1, 0].imshow(np.abs(probe), cmap="magma")
axes[1, 0].set_title("probe")
images = {
    "true": truth,
    "without prior": torch.from_numpy(alone.image),
    "with the prior": torch.from_numpy(found.image),
}
for column, (title, image) in enumerate(images.items(), 1):
    shown = torch.where(lit, without_ramp(truth, image, lit), torch.nan)
    axes[0, column].imshow(shown.abs().numpy(), cmap="gray", vmin=0.2, vmax=1.1)
    axes[0, column].set_title(f"{title}: modulus")
    axes[1, column].imshow(shown.angle().numpy(), cmap="viridis", vmin=0, vmax=1.2)
    axes[1, column].set_title("phase")
for ax in axes.flat:
    ax.set_axis_off()
plt.show()
