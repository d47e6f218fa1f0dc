"""
A sinogram in five lines
========================

Get from line integrals to an image without setting a single parameter: angles, noise and the weight of the prior follow
from the data.
"""

import matplotlib.pyplot as plt

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

truth = abdomen_image(256)
sinogram = simulated_sinogram(truth, views=60, snr=40)  # or your own array, views x detectors
result = smadmm.reconstruct(sinogram, truth=truth)  # the truth serves to measure the SNR only
print(result)

# The result also holds a filtered back-projection of the same data, to compare with.
fig, axes = plt.subplots(1, 4, figsize=(12, 3.6), layout="constrained")
fig.suptitle("60 noisy views of a phantom, and what becomes of them")
axes[0].imshow(sinogram.numpy(), cmap="gray", aspect="auto")
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
