"""
How far to trust an image
=========================

See how well a reconstruction predicts views that were left out, and where the image depends on its prior.
"""

import matplotlib.pyplot as plt

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

truth = abdomen_image(192)
sinogram = simulated_sinogram(truth, views=90, snr=35)
result = smadmm.reconstruct(sinogram, truth=truth)

# A few views were left out at first. Images with two priors and two without one predict them.
trust = result.trust
print(trust)

fig, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
fig.suptitle(f"{trust.views} of {len(sinogram)} views left out: how well they are predicted, and where priors differ")
names = sorted(trust.held_out, key=trust.held_out.get)
axes[0].barh(names, [100 * trust.held_out[name] for name in names], color="0.6")
axes[0].set(title="error at views left out", xlabel="% of the sinogram")
axes[1].imshow(result.image.numpy(), cmap="gray", vmin=0.25, vmax=0.6)
axes[1].set_title(f"the image, prior {trust.prior}")
shown = axes[2].imshow(trust.differs, cmap="magma", vmin=0, vmax=0.05)
axes[2].set_title("local difference of two priors")
fig.colorbar(shown, ax=axes[2], shrink=0.8)
for ax in axes[1:]:
    ax.set_axis_off()
plt.show()
