"""deepinv's ADMM with our prior beside `smadmm.reconstruct` on the same data: 128 x 128, 60 views, noise of 40 dB.

    python benchmarks/deepinv_admm.py [OUT]

deepinv gets our projector, divided by its norm, as a physics, `ridge-ct` at the level of its training as a prior, the
filtered back-projection as a start, and 30 iterations; of its step sizes the best is shown, judged by the truth.
`reconstruct` gets the sinogram and nothing else; beside its default, the best of as many strengths is shown. OUT gets
results.json and table.md.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

import smadmm
from smadmm import interop
from smadmm.denoisers import load
from smadmm.imaging.metrics import snr
from smadmm.imaging.simulation import with_noise
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import Radon

SIZE, VIEWS, DECIBEL, ITERATIONS = 128, 60, 40.0, 30
STEPS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
STRENGTHS = (1.0, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0)  # 1 is the default
STUBBED = ["nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "qroi_align", "deform_conv2d"]


def library():
    """deepinv; its torchvision wants operators that a mismatched torch lacks."""
    for name in STUBBED:
        for end in ("", "_backward"):
            with contextlib.suppress(RuntimeError):  # it is there
                torch.library.define(f"torchvision::{name}{end}", "(Tensor a) -> Tensor")
    import deepinv

    return deepinv


def main(out):
    torch.set_num_threads(1)
    optim = library().optim
    truth, degrees = abdomen_image(SIZE), np.arange(VIEWS) * (180 / VIEWS)
    radon = Radon(SIZE, np.deg2rad(degrees))
    clean = radon(truth)
    noise = np.random.default_rng(0).standard_normal(clean.shape, dtype=np.float32)
    b = with_noise(clean, DECIBEL, torch.from_numpy(noise))
    size, first, D = float(radon.norm().upper), radon.fbp(b), load("ridge-ct").requires_grad_(False)
    physics, rows = interop.as_physics((1 / size) * radon), []
    start = first[None, None]
    for step in STEPS:
        begin = time.process_time()
        model = optim.ADMM(data_fidelity=optim.L2(), prior=optim.PnP(D), stepsize=step, sigma_denoiser=D.sigma,
                           max_iter=ITERATIONS, custom_init=lambda y, physics: {"est": (start, start)})  # fmt: skip
        with torch.no_grad():
            found = model(b[None, None] / size, physics)[0, 0]
        rows.append({"method": "deepinv ADMM, ridge-ct", "step": step, "snr": snr(truth, found),
                     "cpu": time.process_time() - begin})  # fmt: skip
    for strength in STRENGTHS:
        begin = time.process_time()
        result = smadmm.reconstruct(b.numpy(), degrees, size=SIZE, truth=truth.numpy(), strength=strength)
        rows.append({"method": "smadmm.reconstruct", "step": strength, "snr": result.mean("snr"),
                     "cpu": time.process_time() - begin})  # fmt: skip
    rows.append({"method": "FBP", "step": None, "snr": snr(truth, first), "cpu": None})
    for row in rows:
        print(row)
    if out is None:
        return
    theirs, ours, default = rows[: len(STEPS)], rows[len(STEPS) : -1], rows[len(STEPS)]
    shown = [(rows[-1], "")]
    shown += [(max(them, key=lambda row: row["snr"]), ", best of all") for them in (theirs, ours)]
    shown += [(default, ", default")]
    out.mkdir(parents=True, exist_ok=True)
    content = {"command": "python benchmarks/deepinv_admm.py OUT", "rows": rows}
    (out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# deepinv's ADMM with our prior",
        "",
        "| method | step size, strength | SNR, dB | s |",
        "|---|---|---|---|",
    ]
    for row, which in shown:
        step, cpu = ("" if row[key] is None else f"{row[key]:.3g}" for key in ("step", "cpu"))
        lines.append(f"| {row['method']}{which} | {step} | {row['snr']:.2f} | {cpu} |")
    (out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
