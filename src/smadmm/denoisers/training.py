"""Training of gradient-step denoisers: min E |D(x + sigma n) - x|^2 / sigma^2 over random patches x.

Ridge potentials satisfy Lip(grad g) < 1 by construction. For the networks a penalty on the Jacobian is
added, and at the end the potential is scaled by gamma <= 1 so that the value measured on held-out training
images is at most .9. Randomness is a function of (seed, step), the learning rate a function of the step: a
run stopped anywhere and resumed from its checkpoint is bit-equal to one that was never stopped. Under
torchrun every rank draws the same patches, takes its share, and gradients are averaged.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from smadmm.data.images import Image, read_images
from smadmm.denoisers.dncnn import DnCNN
from smadmm.denoisers.gradient_step import GradientStep
from smadmm.denoisers.jacobian import lipschitz, symmetric_norm
from smadmm.denoisers.patches import hold_out
from smadmm.denoisers.recipes import Arch, Preset, Recipe, recipe
from smadmm.denoisers.ridge import Ridge
from smadmm.denoisers.training_report import write_card, write_curves
from smadmm.denoisers.training_run import Run, rank_and_world
from smadmm.denoisers.weights_file import save


def psnrs(denoise: Callable[[Tensor], Tensor], images: Sequence[Tensor], sigma: float, seed: int = 1) -> list[float]:
    """PSNR in dB of every image (1 x 1 x H x W) after Gaussian noise of level sigma and denoising."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for image in images:
        noisy = image + sigma * torch.randn(image.shape, generator=generator)
        with torch.no_grad():
            values.append(-10 * math.log10(float((denoise(noisy) - image).square().mean())))
    return values


def psnr(denoise: Callable[[Tensor], Tensor], images: Sequence[Tensor], sigma: float, seed: int = 1) -> float:
    """The mean of `psnrs`."""
    values = psnrs(denoise, images, sigma, seed)
    return sum(values) / len(values)


def _validate(run: Run, held_out: list[Image]) -> dict[str, float]:
    potential = run.model.export()
    denoiser = GradientStep(potential)
    images = [image.pixels[None, None] for image in held_out]
    if isinstance(potential, Ridge):
        bound = potential.certificate()
    else:
        seed = 0
        v = torch.randn(images[0].shape, generator=torch.Generator().manual_seed(seed))
        bound = float(symmetric_norm(potential.gradient, images[0], v, 15)[0])
    quality = psnr(denoiser, images, run.recipe.sigma)
    return {
        "step": run.step,
        "loss": run.average,
        "psnr": quality,
        "lipschitz": bound,
        "seconds": run.seconds,
    }


def _calibrate(potential: Ridge | DnCNN, held_out: list[Image], sigma: float) -> float:
    """Lip(grad g): the certificate, or the value on held-out images after scaling it to at most .9."""
    if isinstance(potential, Ridge):
        return potential.certificate()
    images = [image.pixels[None, None] for image in held_out]
    measured = lipschitz(GradientStep(potential), images, sigma).largest
    gamma = min(1.0, 0.9 / measured)
    potential.scale_(gamma)
    return gamma * measured


@dataclass(frozen=True)
class Trained:
    """What a finished run leaves behind."""

    weights: Path
    recipe: Recipe
    psnr: float
    lipschitz: float
    seconds: float
    history: list[dict[str, float]]


def train(
    data: Sequence[Path],
    out: Path,
    arch: Arch = "ridge",
    sigma: float = 5.0,
    preset: Preset = "cpu",
    minutes: float | None = None,
    steps: int | None = None,
    penalty: float | None = None,
    filters: int | None = None,
    size: int | None = None,
    means: int | None = None,
    layers: int | None = None,
    channels: int | None = None,
    batch: int | None = None,
    patch: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    on_error: Literal["stop", "skip"] = "stop",
    sharp: bool = False,
    progress: bool = True,
) -> Trained:
    """Train on files or folders of images and CT slices; None keeps the preset's value; sigma in 1/255."""
    if preset == "paper" and minutes is not None:
        raise ValueError(
            f"the preset 'paper' runs 50 epochs, not {minutes} minutes; use preset='cpu' or leave out minutes"
        )
    changes: dict[str, Any] = {
        "steps": steps,
        "penalty": penalty,
        "filters": filters,
        "size": size,
        "means": means,
    }
    changes |= {
        "layers": layers,
        "channels": channels,
        "batch": batch,
        "patch": patch,
        "rate": rate,
        "seed": seed,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    chosen = replace(recipe(arch, sigma / 255, preset), **changes)
    if steps is not None:
        chosen = replace(chosen, epochs=0)
    trained = train_recipe(data, out, chosen, minutes, on_error, sharp, progress=progress)
    assert trained is not None
    return trained


def train_recipe(
    data: Sequence[Path],
    out: Path,
    chosen: Recipe,
    minutes: float | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    sharp: bool = False,
    stop_after: int | None = None,
    save_every: float = 60.0,
    progress: bool = True,
) -> Trained | None:
    """Follow a recipe, resuming from the checkpoint beside `out` if there is one.

    `minutes` sets its steps from the measured CPU time of a step; `stop_after` interrupts after so many steps
    (and returns None). Beside the weights `out`: .checkpoint, .json (card), .csv and .png (learning curves).
    """
    _join_processes()
    images = read_images(data, chosen.patch, on_error, sharp)
    images, held_out = hold_out(images, min(chosen.held_out, len(images) // 5), chosen.seed)
    if not held_out:
        raise ValueError(
            f"{len(images)} images are too few to hold some out for validation; give at least 5 files or patients"
        )
    chosen = chosen.for_images(sum(image.pixels.numel() for image in images))
    checkpoint = out.with_suffix(".checkpoint")
    if checkpoint.exists():
        run = Run.restore(checkpoint, images)
        if replace(run.recipe, steps=0) != replace(chosen, steps=0):
            raise ValueError(f"{checkpoint} belongs to another recipe, {run.recipe}; remove it or choose another out")
    else:
        if minutes is not None:
            chosen = replace(chosen, steps=_steps_in(minutes, chosen, images))
        run = Run(chosen, images)
    done = _loop(run, held_out, checkpoint, stop_after, save_every, progress)
    return _finish(run, held_out, data, out) if done else None


def _steps_in(minutes: float, chosen: Recipe, images: list[Image]) -> int:
    """How many steps take that much CPU time, from a few that are thrown away; the same on every rank."""
    trial = Run(chosen, images)
    trial.advance()
    start = time.process_time()
    for fifth in range(5):
        trial.step = fifth * chosen.steps // 5
        trial.advance()
    steps = torch.tensor(max(1, round(5 * 60 * minutes / (time.process_time() - start))))
    if rank_and_world()[1] > 1:
        torch.distributed.broadcast(steps, 0)
    return int(steps)


def _loop(
    run: Run,
    held_out: list[Image],
    checkpoint: Path,
    stop_after: int | None,
    save_every: float,
    progress: bool,
) -> bool:
    """Advance to the last step, or by stop_after steps; whether the last step was reached."""
    first = rank_and_world()[0] == 0
    every = max(1, run.recipe.steps // run.recipe.validations)
    last = run.recipe.steps if stop_after is None else min(run.recipe.steps, run.step + stop_after)
    saved = time.monotonic()
    with tqdm(total=run.recipe.steps, initial=run.step, disable=not (progress and first), mininterval=5) as bar:
        while run.step < last:
            start = time.process_time()
            run.advance()
            run.seconds += time.process_time() - start
            bar.update()
            if first and (run.step % every == 0 or run.step == run.recipe.steps):
                run.history.append(_validate(run, held_out))
                bar.set_postfix(loss=f"{run.average:.4f}", psnr=f"{run.history[-1]['psnr']:.3f}")
            if first and time.monotonic() - saved > save_every:
                run.save(checkpoint)
                saved = time.monotonic()
    if first:
        run.save(checkpoint)
    return run.step >= run.recipe.steps


def _finish(run: Run, held_out: list[Image], data: Sequence[Path], out: Path) -> Trained:
    potential = run.model.export()
    bound = _calibrate(potential, held_out, run.recipe.sigma)
    quality = psnr(GradientStep(potential), [image.pixels[None, None] for image in held_out], run.recipe.sigma)
    if rank_and_world()[0] == 0:
        save(potential, out, run.recipe.sigma, bound)
        write_card(run, held_out, data, out, quality, bound)
        write_curves(run.history, out)
    return Trained(out, run.recipe, quality, bound, run.seconds, run.history)


def _join_processes() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
