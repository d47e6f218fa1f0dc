"""
Few photons
===========

See how much is gained when rays are trusted as far as their counts allow, and that `reconstruct` finds these weights in
the data itself if you do not tell it the number of photons.
"""

import matplotlib.pyplot as plt

import smadmm
from smadmm.imaging.simulation import attenuation_per_pixel, simulated_counts
from smadmm.io.phantoms import abdomen_image

unit = attenuation_per_pixel(360 / 160)  # of an image in [0, 1], for a body 360 mm wide
truth = unit * abdomen_image(160)
fig, axes = plt.subplots(2, 4, figsize=(12, 6.4), layout="constrained")
fig.suptitle("180 views of a body, with 20,000 photons per unattenuated ray (above) and with 1,000 (below)")
for row, photons in zip(axes, (20_000, 1_000), strict=True):
    sinogram = simulated_counts(truth, views=180, photons=photons).numpy()
    alike = smadmm.reconstruct(sinogram, truth=truth.numpy(), raw=["noise"])
    found = smadmm.reconstruct(sinogram, truth=truth.numpy())
    told = smadmm.reconstruct(sinogram, truth=truth.numpy(), photons=photons)
    print(f"{photons} photons:", *found.notes, sep="\n  ")
    images = {
        f"back-projection: {told.mean('snr_fbp'):.1f} dB": told.shown["FBP"],
        f"all rays alike: {alike.mean('snr'):.1f} dB": alike.image,
        f"weights from the data: {found.mean('snr'):.1f} dB": found.image,
        f"photons told: {told.mean('snr'):.1f} dB": told.image,
    }
    for ax, (title, image) in zip(row, images.items(), strict=True):
        ax.imshow(image, cmap="gray", vmin=0.25 * unit, vmax=0.6 * unit)
        ax.set_title(title)
        ax.set_axis_off()
plt.show()
