"""From a scan to a folder: image, figure, curves, run.json and a report, slice by slice.

Every slice is solved by the default of smadmm.pnp.tomography (preconditioned steps, rho from the noise of the sinogram
and of the denoiser) from a filtered back-projection, as sharp as the noise allows. What is finished lies in
OUT/unfinished until the last slice is done, as does the checkpoint of the slice at work: a run that was stopped
anywhere goes on from there.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

import smadmm
from smadmm.extras import needs
from smadmm.files import atomic_write, output_folder
from smadmm.history import History
from smadmm.imaging.outputs import Interrupted
from smadmm.imaging.priors import Prior, find_prior
from smadmm.imaging.results import Finished, write_results
from smadmm.imaging.scans import Measurement, Scan, fbp, first_image, fits_badly, residual
from smadmm.losses import Tomography
from smadmm.metrics import snr, ssim
from smadmm.pnp import METHODS, Method, posterior_weight, tomography
from smadmm.preconditioner import NewtonStep
from smadmm.run import Stop, run
from smadmm.sampling import stride
from smadmm.solver import State

EVERY = 5  # iterations between two rows of the curves
ITERATIONS = 30
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Settings:
    """How to reconstruct; strength multiplies the weight of the prior that follows from the noise."""

    method: str = "smadmm"
    prior: str = "ridge-ct"
    batch: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    strength: float = 1.0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"no method {self.method!r}; there are {', '.join(METHODS)}")
        for name in ("batch", "iterations", "seconds", "strength"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"--{name} must be positive, got {value:g}")

    @property
    def chosen(self) -> Method:
        return next(method for method in METHODS if method == self.method)

    @property
    def stop(self) -> Stop:
        iterations = ITERATIONS if self.iterations is None and self.seconds is None else self.iterations
        return Stop(iterations=iterations, seconds=self.seconds)


def reconstruct(
    scan: Scan, out: str | Path, settings: Settings, command: str, resume: bool = False, progress: bool = True
) -> Iterator[str]:
    """Reconstruct all slices and write the results; yields what there is to say."""
    begin = time.perf_counter()
    needs("tifffile", "imaging", "reconstructions")  # before the work, not after
    prior = find_prior(settings.prior, settings.device, scan.limits)
    if settings.batch is not None and settings.batch > scan.radon.views:
        raise ValueError(f"--batch {settings.batch} is more than the {scan.radon.views} views")
    folder = output_folder(out)
    parts = _open_parts(folder, scan, settings, resume)
    yield from scan.notes
    total = settings.stop.iterations
    with tqdm(
        total=None if total is None else total * scan.count,
        unit="it",
        disable=None if progress else True,
        leave=False,
        desc=scan.name,
    ) as bar:
        for number in range(scan.count):
            try:
                _one_slice(scan, number, prior, settings, parts, bar)
            except (Interrupted, KeyboardInterrupt):
                done = f"slice {number + 1} of {scan.count}" if scan.count > 1 else f"{bar.n} iterations"
                raise Interrupted(f"stopped in {done}; everything is kept, go on with: {command} --resume") from None
    rows = write_results(folder, scan, _facts(scan, prior, settings, command, begin), lambda i: Finished.load(parts, i))
    shutil.rmtree(parts)
    yield from rows


def _facts(scan: Scan, prior: Prior, settings: Settings, command: str, begin: float) -> dict[str, Any]:
    """What run.json says beside the results."""
    return {
        "command": command,
        "version": smadmm.__version__,
        "input": scan.name,
        "data": "simulated" if scan.simulated else "measured",
        "input_snr": scan.snr,
        "photons": scan.photons,
        "prior_lipschitz": prior.lipschitz,
        "prior_sigma": prior.sigma,
        **{name: value for name, value in asdict(settings).items() if name not in ("iterations", "seconds")},
        "limits": {"iterations": settings.stop.iterations, "seconds": settings.stop.seconds},
        "views": scan.radon.views,
        "detectors": scan.radon.detectors,
        "size": [scan.radon.height, scan.radon.width],
        "detector_spacing": scan.radon.spacing,
        "centre": scan.radon.centre,
        "threads": scan.radon.threads,
        "scale": scan.scale,
        "notes": list(scan.notes),
        "total_seconds": time.perf_counter() - begin,
    }


# --- what is kept while the run is not finished -----------------------------------------------------------------------


def _open_parts(folder: Path, scan: Scan, settings: Settings, resume: bool) -> Path:
    """The folder of finished slices, refused if it belongs to another run or would be lost."""
    parts = folder / UNFINISHED
    told = parts / "settings.json"
    radon = scan.radon
    now = {name: value for name, value in asdict(settings).items() if name != "device"}
    now |= {"input": scan.name, "slices": scan.count, "size": [radon.height, radon.width], "snr": scan.snr}
    now |= {"photons": scan.photons, "attenuation": scan.attenuation}
    now |= {"scale": scan.scale, "angles": radon.angles.tolist(), "version": smadmm.__version__}
    if told.exists():
        before = json.loads(told.read_text(encoding="utf-8"))
        if not resume:
            raise ValueError(
                f"{folder} holds an unfinished run; add --resume to go on with it, or remove {parts} to start anew"
            )
        for name, value in now.items():
            if before.get(name) != value:
                short = "" if name == "angles" else f": {before.get(name)} then, {value} now"
                raise ValueError(f"{folder} holds an unfinished run with another {name}{short}; choose another --out")
        return parts
    parts.mkdir(exist_ok=True)
    atomic_write(told, json.dumps(now).encode())
    return parts


def _one_slice(scan: Scan, number: int, prior: Prior, settings: Settings, parts: Path, bar: Any) -> None:
    done = Finished.path(parts, number)
    if done.exists():
        bar.update(Finished.load(parts, number).row["iterations"])
        return
    measurement = scan.read(number)
    checkpoint = parts / f"slice_{number:04d}.checkpoint"
    finished = solve(scan, measurement, prior, settings, checkpoint, bar)
    finished.save(parts, number)
    checkpoint.unlink(missing_ok=True)


# --- one slice --------------------------------------------------------------------------------------------------------


def solve(
    scan: Scan, measurement: Measurement, prior: Prior, settings: Settings, checkpoint: Path | None, bar: Any
) -> Finished:
    """Reconstruct one slice; with a checkpoint that exists, go on from it."""
    radon, device = scan.radon, settings.device
    sinogram, truth = measurement.sinogram, measurement.truth
    noise, weights, mean_noise = scan.statistics(sinogram)
    loss = Tomography(radon, sinogram, weights, sampling=stride, device=device)
    rho = settings.strength * posterior_weight(loss, noise, prior.sigma)
    solver = tomography(loss, prior.prox(rho), rho, settings.chosen, settings.batch, settings.seed)
    start, first = fbp(radon, sinogram), first_image(radon, sinogram, mean_noise, prior.sigma)
    name, metric = _metric(scan, measurement, device)
    shown: dict[str, str] = {}

    def measure(s: State) -> float:
        value = metric(s.x)
        shown[name] = f"{value:.2f} dB" if truth is not None else f"{value:.2e}"
        return value

    def tick(s: State) -> None:
        bar.set_postfix(shown, refresh=False)
        bar.update(begin + s.k - bar.n)

    begin = bar.n
    resuming = checkpoint is not None and checkpoint.exists()
    result = run(
        solver,
        first.to(device),
        settings.stop,
        every=EVERY,
        metrics={name: measure},
        objective=False,
        callback=tick,
        progress=False,
        checkpoint=checkpoint,
        resume=resuming,
    )
    if result.reason.startswith("interrupted"):
        raise Interrupted
    extra = solver.x_step.sfo if isinstance(solver.x_step, NewtonStep) else 0
    history = _with_products(result.history, extra)
    image = result.x.detach().cpu()
    row = _row(scan, measurement, start, image) | {
        "iterations": result.state.k,
        "sfo": int(history["sfo"][-1]),
        "seconds": history["seconds"][-1],
        "batch": _batch(solver),
        "rho": rho,
        "noise": noise,
        "stopped": result.reason,
    }
    row["fits_badly"] = not scan.simulated and fits_badly(sinogram, row["residual"], mean_noise)
    return Finished(image.numpy(), start.numpy(), None if truth is None else truth.numpy(), history, row)


def _batch(solver: Any) -> int:
    return int(solver.estimator.batch)


def _with_products(history: History, extra: int) -> History:
    """The history with `extra` sample gradients an iteration for what the x-step computes."""
    sfo = [count + extra * k for count, k in zip(history["sfo"], history["k"], strict=True)]
    return History({**history.columns, "sfo": sfo})


def _metric(scan: Scan, measurement: Measurement, device: str) -> tuple[str, Callable[[Tensor], float]]:
    """SNR where the truth is known, the relative residual of the data elsewhere."""
    if measurement.truth is not None:
        truth = measurement.truth.to(device)
        return "snr", lambda x: snr(truth, x)
    return "residual", lambda x: residual(scan.radon, measurement.sinogram, x)


def _row(scan: Scan, measurement: Measurement, start: Tensor, image: Tensor) -> dict[str, Any]:
    """The quality of a slice."""
    row: dict[str, Any] = {
        "residual": residual(scan.radon, measurement.sinogram, image),
        "residual_fbp": residual(scan.radon, measurement.sinogram, start),
    }
    if measurement.truth is not None:
        for name, measure in (("snr", snr), ("ssim", ssim)):
            row |= {name: measure(measurement.truth, image), f"{name}_fbp": measure(measurement.truth, start)}
    return row
