"""One training run: the loss of a step as a function of (seed, step), Adam, checkpoints.

    loss = |D(x + sigma n) - x|^2 / (sigma^2 pixels)  +  weight * mean max(|J(z) v| - target, 0)^2

The second term, for networks only and in the last part of the run, since it doubles the cost of a step:
J = Hess g, v its top eigenvector, z = x + a sigma n with a uniform in [0, 1], for some of the patches x and as
many of other images (of another kind than those to be denoised), if there are any.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from smadmm.denoisers.jacobian import symmetric_norm
from smadmm.denoisers.training.patches import random_patches
from smadmm.denoisers.training.recipes import Network, Recipe, build
from smadmm.denoisers.training.ridge_parameters import RidgeParameters
from smadmm.denoisers.weights import read_tensors
from smadmm.distributed import place, total
from smadmm.extras import needs
from smadmm.io.files import atomic_write
from smadmm.io.images import Image


def _share(patches: Tensor) -> Tensor:
    """The patches of this process, of those that all processes have drawn alike."""
    rank, world = place()
    return patches[rank::world]


def _penalty(model: Network, recipe: Recipe, z: Tensor, rng: np.random.Generator) -> Tensor:
    """Mean over all patches z, as far as this process adds to it."""
    v = torch.from_numpy(rng.standard_normal(z.shape, dtype=np.float32)).to(z.device)
    count, z, v = len(z), _share(z).requires_grad_(), _share(v)
    if not len(z):
        return torch.zeros((), device=z.device)
    _, v = symmetric_norm(model.g.gradient, z, v, iterations=8)
    (u,) = torch.autograd.grad(model.g.gradient(z), z, v, create_graph=True)
    excess: Tensor = (u.flatten(1).norm(dim=1) - recipe.target).clamp(min=0)
    loss: Tensor = recipe.penalty * excess.square().sum() / count
    return loss


def _loss(
    model: RidgeParameters | Network, recipe: Recipe, images: list[Image], others: list[Image], step: int
) -> Tensor:
    """The loss of a step, as far as this process adds to it: the sum over the processes is the loss."""
    rng = np.random.Generator(np.random.Philox(key=[recipe.seed, step]))
    clean = random_patches(images, recipe.batch, recipe.patch, rng)
    noise = recipe.sigma * torch.from_numpy(rng.standard_normal(clean.shape, dtype=np.float32))
    device = next(model.parameters()).device
    m, loss = model.margin, torch.zeros((), device=device)
    if len(_share(clean)):
        error = model.denoise_patches(_share(clean + noise).to(device)) - _share(clean).to(device)
        error = error[..., m : error.shape[-2] - m, m : error.shape[-1] - m]
        loss = error.square().mean() / recipe.sigma**2 * (len(error) / len(clean))
    if recipe.penalty and step >= recipe.penalty_from * recipe.steps and isinstance(model, Network):
        x = clean[: recipe.penalised]
        if others:
            x = torch.cat([x, random_patches(others, recipe.penalised, recipe.patch, rng)])
            noise = recipe.sigma * torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))
        part = torch.from_numpy(rng.random((len(x), 1, 1, 1), dtype=np.float32))
        loss = loss + _penalty(model, recipe, (x + part * noise[: len(x)]).to(device), rng)
    return loss


def _digest(images: list[Image]) -> str:
    """Of all images in their order."""
    found = hashlib.sha256()
    for image in images:
        found.update(image.group.encode() + str(tuple(image.pixels.shape)).encode())
        found.update(image.pixels.contiguous().numpy().tobytes())
    return found.hexdigest()


class Run:
    """The state of a training run: model, Adam, step, history. One `advance` is one step."""

    def __init__(
        self, recipe: Recipe, images: list[Image], others: list[Image] | None = None, device: str = "cpu"
    ) -> None:
        self.recipe, self.images, self.others, self.step = recipe, images, others or [], 0
        self.model = build(recipe).to(device)
        self.adam = torch.optim.Adam(self.model.parameter_groups(), betas=(0.9, 0.99))
        self.history: list[dict[str, float]] = []
        self.average, self.seconds = 0.0, 0.0
        self.data = _digest(self.images + self.others)

    def advance(self) -> float:
        """One step of Adam; the loss before it."""
        for group in self.adam.param_groups:
            group["lr"] = group["scale"] * self.recipe.learning_rate(self.step)
        self.adam.zero_grad()
        loss = _loss(self.model, self.recipe, self.images, self.others, self.step)
        if not loss.isfinite():
            raise ValueError(f"the loss of step {self.step} is not finite: training diverged; lower rate or penalty")
        if loss.requires_grad:
            loss.backward()
        if place()[1] > 1:
            for parameter in self.model.parameters():
                if parameter.grad is None:  # this process had no patch
                    parameter.grad = torch.zeros_like(parameter)
                total(parameter.grad)
        if self.recipe.arch != "ridge":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        value = total(loss.detach().clone())
        keep = min(0.99, self.step / (self.step + 1))
        self.average = keep * self.average + (1 - keep) * value.item()
        self.step += 1
        return value.item()

    def save(self, path: Path) -> None:
        """Write the checkpoint (safetensors, numbers as JSON in its header), whole or not at all."""
        save = needs("safetensors.torch", "imaging", "files of weights").save
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, moments in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        numbers = {"recipe": asdict(self.recipe), "step": self.step, "history": self.history}
        numbers |= {"average": self.average, "seconds": self.seconds, "data": self.data}
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        atomic_write(path, save(contiguous, metadata={"run": json.dumps(numbers)}))

    @classmethod
    def restore(cls, path: Path, images: list[Image], others: list[Image] | None = None, device: str = "cpu") -> "Run":
        """The run of a checkpoint, on the same images."""
        numbers, tensors = read_tensors(path, "run")
        run = cls(Recipe(**numbers["recipe"]), images, others, device)
        if numbers.get("data") != run.data:
            raise ValueError(f"{path} belongs to a run on other images; give the same ones, or choose another out")
        model = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        run.model.load_state_dict(model)
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, number, key = name.split(".", 2)
                moments.setdefault(int(number), {})[key] = value
        run.adam.load_state_dict({"state": moments, "param_groups": run.adam.state_dict()["param_groups"]})
        run.step, run.history = numbers["step"], numbers["history"]
        run.average, run.seconds = numbers["average"], numbers["seconds"]
        return run
