"""
Bring your own denoiser
=======================

Plug any function that removes noise from an image into the solver, and see what the package knows of its own denoisers
that it cannot know of yours.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage.restoration import denoise_nl_means

from smadmm import Stop, run
from smadmm.denoisers import load
from smadmm.imaging.metrics import snr
from smadmm.imaging.pnp import posterior_weight, sinogram_noise, tomography
from smadmm.imaging.simulation import half_turn, simulated_sinogram
from smadmm.io.phantoms import abdomen_image
from smadmm.losses import Tomography
from smadmm.proxes import Denoised, Zero
from smadmm.sampling import stride

SIGMA = 5 / 255  # the noise that the denoisers are made for


def non_local_means(image: torch.Tensor) -> torch.Tensor:
    """A tensor in, a tensor of the same shape out: that is all it takes."""
    found = denoise_nl_means(image.numpy(), patch_size=5, patch_distance=5, h=0.8 * SIGMA, sigma=SIGMA)
    return torch.from_numpy(found.astype(np.float32))


truth = abdomen_image(128)
sinogram = simulated_sinogram(truth, views=90, snr=35)
radon = half_turn(truth, views=90)
loss = Tomography(radon, sinogram, sampling=stride)
rho = posterior_weight(loss, sinogram_noise(sinogram), SIGMA)  # the weight that the noise of the data asks for
priors = {
    "no prior": Zero(),
    "non-local means": Denoised(non_local_means),
    "shipped": Denoised(load("ridge-ct"), image=True),
}
start = radon.fbp(sinogram)
found = {name: run(tomography(loss, h, rho), start, Stop(iterations=15), progress=False) for name, h in priors.items()}

# A shipped denoiser is the gradient step of a known potential with Lip(I - D) < 1, so there is an objective to record.
for name, result in found.items():
    print(f"{name:16s} SNR {snr(truth, result.x):.2f} dB, recorded: {', '.join(result.history)}")

fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
fig.suptitle("90 noisy views reconstructed with no denoiser, with one of your own, and with a shipped one")
images = {"truth": truth} | {f"{name}: {snr(truth, r.x):.1f} dB": r.x for name, r in found.items()}
for ax, (title, image) in zip(axes, images.items(), strict=True):
    ax.imshow(image.numpy(), cmap="gray", vmin=0.25, vmax=0.6)
    ax.set_title(title)
    ax.set_axis_off()
plt.show()
