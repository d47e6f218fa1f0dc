"""A CT image from 60 noisy views in under a minute: the built-in phantom, the shipped denoiser, no tuning.

The same from the command line, for a slice of your own:   smadmm reconstruct SLICE.dcm --simulate 60 --out DIR
"""

import torch

import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image

SIZE, VIEWS, SNR, OUT = 512, 60, 50.0, "demo"


def main() -> None:
    torch.set_num_threads(1)
    truth = abdomen_image(SIZE)
    sinogram = simulated_sinogram(truth, VIEWS, SNR)
    result = smadmm.reconstruct(sinogram, truth=truth, bounds=(0, 1), progress=True)
    print(result)
    for line in result.save(OUT, "make demo", "phantom"):
        print(line)
    print(f"look at {OUT}/figure.png, or open {OUT}/report.html in a browser")


if __name__ == "__main__":
    main()
