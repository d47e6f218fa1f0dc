"""One training run: the loss of a step as a function of (seed, step), Adam, checkpoints.

    loss = |D(x + sigma n) - x|^2 / (sigma^2 pixels)  +  weight * mean max(|J(z) v| - target, 0)^2

The second term, for networks only and in the last part of the run, since it doubles the cost of a step:
J = Hess g, v its top eigenvector, z = x + a sigma n with a uniform in [0, 1].
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from smadmm.data.images import Image
from smadmm.denoisers.jacobian import symmetric_norm
from smadmm.denoisers.patches import random_patches
from smadmm.denoisers.recipes import Network, Recipe, build
from smadmm.denoisers.ridge import RidgeParameters
from smadmm.files import atomic_write


def _penalty(model: Network, recipe: Recipe, clean: Tensor, noisy: Tensor, rng: np.random.Generator) -> Tensor:
    count = min(recipe.penalised, len(clean))
    part = torch.from_numpy(rng.random((count, 1, 1, 1), dtype=np.float32))
    z = (clean[:count] + part * (noisy[:count] - clean[:count])).requires_grad_()
    v = torch.from_numpy(rng.standard_normal(z.shape, dtype=np.float32))
    _, v = symmetric_norm(model.g.gradient, z, v, iterations=8)
    (u,) = torch.autograd.grad(model.g.gradient(z), z, v, create_graph=True)
    excess: Tensor = (u.flatten(1).norm(dim=1) - recipe.target).clamp(min=0)
    loss: Tensor = recipe.penalty * excess.square().mean()
    return loss


def _loss(model: RidgeParameters | Network, recipe: Recipe, images: list[Image], step: int) -> Tensor:
    rng = np.random.Generator(np.random.Philox(key=[recipe.seed, step]))
    clean = random_patches(images, recipe.batch, recipe.patch, rng)
    noise = torch.from_numpy(rng.standard_normal(clean.shape, dtype=np.float32))
    rank, world = rank_and_world()
    clean, noise = clean[rank::world], noise[rank::world]
    noisy = clean + recipe.sigma * noise
    error = model.denoise_patches(noisy) - clean
    m = model.margin
    error = error[..., m : error.shape[-2] - m, m : error.shape[-1] - m]
    loss = error.square().mean() / recipe.sigma**2
    if recipe.penalty and step >= recipe.penalty_from * recipe.steps and isinstance(model, Network):
        loss = loss + _penalty(model, recipe, clean, noisy, rng)
    return loss


def rank_and_world() -> tuple[int, int]:
    """The place of this process among those of torchrun."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class Run:
    """The state of a training run: model, Adam, step, history. One `advance` is one step."""

    def __init__(self, recipe: Recipe, images: list[Image]) -> None:
        self.recipe, self.images, self.step = recipe, images, 0
        self.model = build(recipe)
        self.adam = torch.optim.Adam(self.model.parameter_groups(), betas=(0.9, 0.99))
        self.history: list[dict[str, float]] = []
        self.average, self.seconds = 0.0, 0.0

    def advance(self) -> float:
        """One step of Adam; the loss before it."""
        for group in self.adam.param_groups:
            group["lr"] = group["scale"] * self.recipe.learning_rate(self.step)
        self.adam.zero_grad()
        loss = _loss(self.model, self.recipe, self.images, self.step)
        loss.backward()
        if rank_and_world()[1] > 1:
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad.div_(rank_and_world()[1])
        if self.recipe.arch != "ridge":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        keep = min(0.99, self.step / (self.step + 1))
        self.average = keep * self.average + (1 - keep) * loss.item()
        self.step += 1
        return loss.item()

    def save(self, path: Path) -> None:
        """Write the checkpoint (safetensors, numbers as JSON in its header), whole or not at all."""
        from safetensors.torch import save

        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for number, moments in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        numbers = {"recipe": asdict(self.recipe), "step": self.step, "history": self.history}
        numbers |= {"average": self.average, "seconds": self.seconds}
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        atomic_write(path, save(contiguous, metadata={"run": json.dumps(numbers)}))

    @classmethod
    def restore(cls, path: Path, images: list[Image]) -> "Run":
        """The run of a checkpoint, on the same images."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            numbers = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        run = cls(Recipe(**numbers["recipe"]), images)
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
