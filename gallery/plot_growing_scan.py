"""
A scan that is still running
============================

Look at the image while the views arrive: a preview from the views so far begins at the last one and needs five
iterations. When the scan is complete, the image is computed anew, as if nobody had looked.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import smadmm
from smadmm.imaging.metrics import snr
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import Radon

size, views = 128, 160
truth = torch.as_tensor(abdomen_image(size)).float()
degrees = np.arange(views) * 111.246 % 180  # golden angles: any number of views covers all directions
sinogram = Radon(size, np.deg2rad(degrees), 182)(truth)
sinogram = sinogram + 0.003 * sinogram.std() * torch.randn(sinogram.shape, generator=torch.Generator().manual_seed(0))

# An instrument hands over 20 views at a time; `smadmm reconstruct scan.h5 --follow` does this with a growing file.
counts, previews, fbps, last = list(range(20, views + 1, 20)), [], [], None
for count in counts:
    preview = smadmm.reconstruct(
        sinogram[:count], degrees[:count], size=size, start=last, iterations=12 if last is None else 5
    )
    last = preview.image
    previews.append(last)
    fbps.append(torch.as_tensor(preview.shown["FBP"]))
final = smadmm.reconstruct(sinogram, degrees, size=size).image

fig, axes = plt.subplots(2, 4, figsize=(10, 5.6), layout="constrained")
fig.suptitle("Previews while views arrive (below), filtered back-projections of the same views (above)")
for column, share in zip(axes.T, (0.25, 0.5, 0.75, 1.0), strict=True):
    at = counts.index(int(share * views))
    for ax, name, images in zip(column, ("FBP", "preview"), (fbps, previews), strict=True):
        ax.imshow(images[at].numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(f"{counts[at]} views, {name}: {snr(truth, images[at]):.1f} dB", fontsize=10)
        ax.axis("off")
print(f"all views, from the beginning: {snr(truth, final):.1f} dB")
plt.show()
