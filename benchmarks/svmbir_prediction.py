"""What svmbir makes of given views, and the views it predicts: FOLDER/given.npz -> FOLDER/predicted.npy.

Called by benchmarks/held_out.py with the Python of an environment that has svmbir, whose axis has the sign of ours.
"""

import sys
from pathlib import Path

import numpy as np
import svmbir


def main(folder):
    given = np.load(folder / "given.npz")
    rows, angles, others, center = given["rows"], given["angles"], given["others"], float(given["center"])
    weights = given["weights"][:, None]
    image = svmbir.recon(rows[:, None], angles, weights=weights, center_offset=center, num_threads=1, verbose=0)
    there = svmbir.project(image, others, rows.shape[1], center_offset=center, num_threads=1, verbose=0)
    np.save(folder / "predicted.npy", there[:, 0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
