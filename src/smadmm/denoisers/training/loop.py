"""Training of gradient-step denoisers: min E |D(x + sigma n) - x|^2 / sigma^2 over random patches x.

Ridge potentials satisfy Lip(grad g) < 1 by construction. For the networks a penalty on the Jacobian is
added, and at the end the potential is scaled by gamma <= 1 so that the value measured on held-out training
images is at most .95. Randomness is a function of (seed, step), the learning rate a function of the step: a
run stopped anywhere and resumed from its checkpoint is bit-equal to one that was never stopped. Under
torchrun every rank draws the same patches, takes its share, and gradients are averaged.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from smadmm.bars import tqdm
from smadmm.denoisers.dncnn import DnCNN
from smadmm.denoisers.gradient_step import GradientStep
from smadmm.denoisers.jacobian import lipschitz, symmetric_norm
from smadmm.denoisers.ridge import Ridge
from smadmm.denoisers.training.card import command, write_card, write_curves
from smadmm.denoisers.training.patches import hold_out
from smadmm.denoisers.training.recipes import Recipe
from smadmm.denoisers.training.state import Run
from smadmm.denoisers.weights import load, save
from smadmm.distributed import join, largest, place
from smadmm.io.images import Image, read_images
from smadmm.signals import deliver, interruptible

SAVE_EVERY = 60.0  # seconds between checkpoints


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
    potential = run.model.export().cpu()
    denoiser = GradientStep(potential)
    images = [image.pixels[None, None] for image in held_out]
    if isinstance(potential, Ridge):
        bound = potential.certificate()
    else:
        seed = run.recipe.seed
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


def _calibrate(potential: Ridge | DnCNN, held_out: list[Image], recipe: Recipe) -> float:
    """Lip(grad g): the certificate, or the value on held-out images after scaling it to at most the target."""
    if isinstance(potential, Ridge):
        return potential.certificate()
    images = [image.pixels[None, None] for image in held_out]
    measured = lipschitz(GradientStep(potential), images, recipe.sigma).largest
    gamma = min(1.0, recipe.target / measured)
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
    chosen: Recipe,
    minutes: float | None = None,
    start: Path | None = None,
    also: Sequence[Path] = (),
    resume: bool = False,
    skip_unreadable: bool = False,
    sharp: bool = False,
    progress: bool = True,
    stop_after: int | None = None,
    device: str = "cpu",
) -> Trained | None:
    """Follow a recipe on files and folders of images and CT slices; None if stopped before the end.

    `minutes` sets the steps from the measured CPU time of a step; `start` are weights to begin with; the Jacobian
    penalty and the final measurement of a network look at the images `also`, too; `stop_after` stops after so many
    steps. Ctrl-C and SIGTERM act after the checkpoint is written. Beside the weights `out`: .checkpoint until they
    are finished, .json (card), .csv and .png (learning curves).
    """
    join()
    if device == "cuda" and place()[1] > 1:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    checkpoint = out.with_suffix(".checkpoint")
    _refuse_to_overwrite(out, checkpoint, resume)
    images, held_out = _read(data, chosen, skip_unreadable, sharp)
    others, held_others = _read(also, chosen, skip_unreadable, sharp) if also else ([], [])
    chosen = chosen.for_images(sum(image.pixels.numel() for image in images))
    if resume:
        run = Run.restore(checkpoint, images, others, device)
        if minutes is not None:  # the steps were chosen at the start
            chosen = replace(chosen, steps=run.recipe.steps)
        if run.recipe != chosen:
            changed = _difference(run.recipe, chosen)
            raise ValueError(f"{checkpoint} belongs to another recipe: {changed}; remove it or choose another out")
    else:
        if minutes is not None:
            chosen = replace(chosen, steps=_steps_in(minutes, chosen, images, others, device))
        run = Run(chosen, images, others, device)
        if start is not None:
            run.model.start_from(load(start).g)
    if not _loop(run, held_out, checkpoint, stop_after, progress):
        return None
    return _finish(run, held_out, held_others, out, command(run.recipe, data, out, start, also, sharp))


def _difference(then: Recipe, now: Recipe) -> str:
    names = [name for name, value in vars(then).items() if value != getattr(now, name)]
    return ", ".join(f"{name} {getattr(then, name)} then, {getattr(now, name)} now" for name in names)


def _refuse_to_overwrite(out: Path, checkpoint: Path, resume: bool) -> None:
    if out.suffix != ".safetensors":
        raise ValueError(f"weights go into a file with the ending .safetensors, got {out}")
    if resume and not checkpoint.exists():
        raise ValueError(f"there is no {checkpoint} to resume from")
    if not resume and checkpoint.exists():
        raise ValueError(f"{checkpoint} holds an unfinished run; resume it, remove it, or choose another out")
    for suffix in (".safetensors", ".json", ".csv", ".png"):
        if not resume and out.with_suffix(suffix).exists():  # one that is resumed may have been writing them
            raise ValueError(f"{out.with_suffix(suffix)} is there already; remove it or choose another out")


def _read(data: Sequence[Path], chosen: Recipe, skip_unreadable: bool, sharp: bool) -> tuple[list[Image], list[Image]]:
    """Images to train on, and images held out."""
    images = read_images(data, chosen.patch, skip_unreadable, sharp)
    if len(images) < 5 or len({image.group for image in images}) < 2:
        raise ValueError(
            f"{len(images)} images of {len({image.group for image in images})} files or patients are too few: whole "
            "files or patients are held out for validation; give at least 5 images of 2 files or patients"
        )
    return hold_out(images, min(chosen.held_out, len(images) // 5), chosen.seed)


def _steps_in(minutes: float, chosen: Recipe, images: list[Image], others: list[Image], device: str) -> int:
    """How many steps take that much CPU time, from a few that are thrown away; the same on every rank."""
    trial = Run(chosen, images, others, device)
    trial.advance()
    start = time.process_time()
    for fifth in range(5):
        trial.step = fifth * chosen.steps // 5
        trial.advance()
    steps = max(1, round(5 * 60 * minutes / (time.process_time() - start)))
    return -int(largest(-steps))  # the fewest of all ranks


def _loop(run: Run, held_out: list[Image], checkpoint: Path, stop_after: int | None, progress: bool) -> bool:
    """Advance to the last step, to an interruption, or by stop_after steps; whether the last step was reached."""
    first = place()[0] == 0
    every = max(1, run.recipe.steps // run.recipe.validations)
    last = run.recipe.steps if stop_after is None else min(run.recipe.steps, run.step + stop_after)
    saved = time.monotonic()
    hidden = None if progress and first else True
    with (
        interruptible() as signals,
        tqdm(total=run.recipe.steps, initial=run.step, disable=hidden, mininterval=2) as bar,
    ):
        while run.step < last and not largest(bool(signals)):  # all ranks stop at the same step
            start = time.process_time()
            run.advance()
            run.seconds += time.process_time() - start
            bar.update()
            if run.step % every == 0 or run.step == run.recipe.steps:  # by all ranks: none waits for another
                run.history.append(_validate(run, held_out))
                bar.set_postfix({key: f"{run.history[-1][key]:.3f}" for key in ("loss", "psnr", "lipschitz")})
            if first and time.monotonic() - saved > SAVE_EVERY:
                run.save(checkpoint)
                saved = time.monotonic()
    if first:
        run.save(checkpoint)
    deliver(signals)
    return run.step >= run.recipe.steps


def _finish(run: Run, held_out: list[Image], held_others: list[Image], out: Path, repeat: str) -> Trained:
    potential = run.model.export().cpu()
    bound = _calibrate(potential, held_out + held_others, run.recipe)
    quality = psnr(GradientStep(potential), [image.pixels[None, None] for image in held_out], run.recipe.sigma)
    if place()[0] == 0:
        save(potential, out, run.recipe.sigma, bound)
        write_card(run, held_out, out, repeat, quality, bound)
        write_curves(run.history, out)
        out.with_suffix(".checkpoint").unlink()
    return Trained(out, run.recipe, quality, bound, run.seconds, run.history)
