"""A CT image from 60 noisy views in under a minute: the built-in phantom, the shipped denoiser, no tuning.

The same from the command line, for a slice of your own:   smadmm reconstruct SLICE.dcm --simulate 60 --out DIR
"""

import sys

import torch

from smadmm.imaging.reconstruct import Settings, reconstruct
from smadmm.imaging.scans import simulated
from smadmm.io.images import Slices
from smadmm.io.phantoms import abdomen_image

SIZE, VIEWS, SNR, OUT = 512, 60, 50.0, "demo"


def main() -> None:
    torch.set_num_threads(1)
    image = abdomen_image(SIZE).numpy()
    slices = Slices(1, image.shape, hounsfield=True, read=lambda number: image)
    scan = simulated("phantom", slices, VIEWS, SNR, seed=0)
    resume = True  # a demo that was stopped goes on
    for line in reconstruct(scan, OUT, Settings(), f"python {sys.argv[0]}", resume):
        print(line)
    print(f"look at {OUT}/figure.png, or open {OUT}/report.html in a browser")


if __name__ == "__main__":
    main()
