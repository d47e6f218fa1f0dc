"""Recipes: everything that determines a training run but its data, and the trainable models they build."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smadmm.denoisers.dncnn import DnCNN
from smadmm.denoisers.training.ridge_parameters import RidgeParameters

Arch = Literal["ridge", "unshuffled", "dncnn"]
Preset = Literal["cpu", "paper"]
OF_RIDGE = ("filters", "size", "means")
OF_NETWORKS = ("layers", "channels", "penalty", "target")
RECIPE_OPTIONS = ("steps", "batch", "patch", "rate", "seed", *OF_RIDGE, *OF_NETWORKS)


@dataclass(frozen=True)
class Recipe:
    """Architecture, noise level, patches, Adam and its learning rate, Jacobian penalty, validation."""

    arch: Arch
    sigma: float = 5 / 255
    steps: int = 10_000
    epochs: int = 0  # if not 0, steps follows from it: an epoch draws as many pixels as the images have
    batch: int = 8
    patch: int = 64
    rate: float = 3e-3
    decay: Literal["cosine", "halves"] = "cosine"
    seed: int = 0
    filters: int = 80  # ridge: filters, their size, and how many of them may have a mean
    size: int = 9
    means: int = 0
    layers: int = 17  # networks
    channels: int = 64
    unshuffle: int = 1
    penalty: float = 0.0  # weight of the Jacobian penalty; networks end with at most the norm `target`
    target: float = 0.95
    penalty_from: float = 0.6  # the part of the steps done before the penalty is switched on
    penalised: int = 2  # patches per step it looks at
    validations: int = 20
    held_out: int = 8

    def __post_init__(self) -> None:
        positive = "sigma steps batch patch rate filters size layers channels target"
        for name in positive.split():
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not self.penalty >= 0 or self.target >= 1:
            raise ValueError(f"penalty must be >= 0 and target < 1, got {self.penalty} and {self.target}")
        if self.arch == "ridge" and not 0 <= self.means <= self.filters:
            raise ValueError(f"means must lie between 0 and the {self.filters} filters, got {self.means}")
        if self.arch == "ridge" and (self.size % 2 == 0 or self.size < 3):
            raise ValueError(f"filters need an odd size of at least 3, got {self.size}")
        if self.arch == "ridge" and self.patch < 2 * self.size - 1:
            raise ValueError(
                f"patches of {self.patch} pixels are too small for these filters; use at least {2 * self.size - 1}"
            )

    def learning_rate(self, step: int) -> float:
        """The paper: rate, then a tenth in the second half; else 50 steps of warm-up and a cosine to 2 %."""
        if self.decay == "halves":
            return self.rate * (1.0 if step < self.steps / 2 else 0.1)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        return self.rate * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * cosine)

    def for_images(self, pixels: int) -> "Recipe":
        """With steps computed from epochs over that many pixels."""
        if not self.epochs:
            return self
        return replace(self, steps=self.epochs * max(1, round(pixels / (self.batch * self.patch**2))))


def recipe(arch: Arch, sigma: float = 5 / 255, preset: Preset = "cpu") -> Recipe:
    """`cpu`: minutes on one core. `paper`: Adam 1e-3 then 1e-4, 50 epochs, 128 patches 128 x 128."""
    if preset == "paper":
        start = Recipe(arch, sigma, epochs=50, batch=128, patch=128, rate=1e-3, decay="halves")
    elif arch == "ridge":
        start = Recipe(arch, sigma)
    else:
        start = Recipe(arch, sigma, rate=4e-3 if arch == "unshuffled" else 1e-3, penalty=10.0)
    return replace(start, layers=6, channels=32, unshuffle=2) if arch == "unshuffled" else start


class Network(nn.Module):
    """A DnCNN potential with the training interface of RidgeParameters."""

    margin = 0

    def __init__(self, of: Recipe) -> None:
        super().__init__()
        unshuffle = of.unshuffle if of.arch == "unshuffled" else 1
        self.g = DnCNN(of.layers, of.channels, unshuffle, 1.5 * of.sigma, of.seed)

    def denoise_patches(self, y: Tensor) -> Tensor:
        """y - grad g(y)."""
        return y - self.g.gradient(y)

    @torch.no_grad()
    def start_from(self, potential: object) -> None:
        """Take over the weights of a trained network of the same shape."""
        here = self.g.state_dict()
        there: dict[str, Tensor] = getattr(potential, "state_dict", dict)()
        if [t.shape for t in here.values()] != [t.shape for t in there.values()]:
            raise ValueError("training can start only from weights of the same architecture and size")
        self.g.load_state_dict(there)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """For Adam: one rate for all."""
        return [{"params": list(self.parameters()), "scale": 1.0}]

    def export(self) -> DnCNN:
        """A copy of the potential."""
        return copy.deepcopy(self.g)


def build(of: Recipe) -> RidgeParameters | Network:
    """The trainable model of a recipe."""
    if of.arch == "ridge":
        return RidgeParameters(of.filters, of.size, of.sigma, of.means, of.seed)
    return Network(of)
