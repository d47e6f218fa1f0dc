"""
A fan beam
==========

Reconstruct data of a laboratory scanner, whose rays come from a point: say where source and detector stand.
"""

import matplotlib.pyplot as plt
import numpy as np

import smadmm
from smadmm.io.phantoms import abdomen_image

truth = abdomen_image(192)
angles = np.arange(60) * 6.0  # degrees of a whole turn
scanner = smadmm.fan(source_to_axis=400, source_to_detector=600, pitch=1.5)  # mm, detectors 1.5 mm apart

# The image has one pixel per detector, as wide as a detector is where the axis of rotation stands.
projector = scanner.projector(192, np.deg2rad(angles), detectors=300)
sinogram = projector(truth).numpy()
noise = np.random.default_rng(0).standard_normal(sinogram.shape)
sinogram += 0.005 * sinogram.std() * noise.astype(np.float32)

result = smadmm.reconstruct(sinogram, angles, geometry=scanner, truth=truth)
print(result)

fig, axes = plt.subplots(1, 4, figsize=(12, 3.6), layout="constrained")
fig.suptitle("60 views of a fan beam, and what becomes of them")
axes[0].imshow(sinogram, cmap="gray", aspect="auto")
axes[0].set(title="sinogram", xlabel="detector", ylabel="view")
titles = {
    "truth": "truth",
    "FBP": f"filtered back-projection\n{result.mean('snr_fbp'):.1f} dB",
    "SMADMM": f"smadmm.reconstruct\n{result.mean('snr'):.1f} dB",
}
for ax, (name, image) in zip(axes[1:], result.shown.items(), strict=True):
    ax.imshow(image, cmap="gray", vmin=0.25, vmax=0.6)
    ax.set_title(titles[name])
    ax.set_axis_off()
plt.show()
