"""Networks as losses: the parameters of a torch.nn.Module are x, the items of a DataLoader's dataset the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from smadmm.losses.autograd import autograd_gradient
from smadmm.problem import Batch, FiniteSum
from smadmm.sampling import Sampling, iid


class ModuleLoss(FiniteSum):
    """1/n sum_i criterion(module(input_i), target_i) as a function of the module's trainable parameters, one vector.

    Samples are drawn from `loader.dataset` by the solver and put together by `loader.collate_fn`; so a run is
    reproducible and can be resumed. The criterion averages over a batch. A batch that is a mapping goes whole to the
    module, and the criterion gets the module's output and the mapping. Start from `start()`; `write(x)` puts the
    answer into the module.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.eye(3), torch.ones(3, 1)))
    >>> f = interop.ModuleLoss(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, loader)
    >>> result = run(ADMM(Problem(f, proxes.Zero()), SGD(3), rho=1.0, eta=4.0), f.start(), Stop(iterations=200))
    >>> f.write(result.x)
    >>> bool(f.module(torch.eye(3)).sub(1).abs().max() < 0.01)
    True
    """

    def __init__(
        self, module: torch.nn.Module, criterion: Callable[[Any, Any], Tensor], loader: Any, sampling: Sampling = iid
    ):
        dataset: Any = getattr(loader, "dataset", None)
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError("the loader's dataset must have a length and numbered items; for streams use losses.Stream")
        self.module, self.criterion, self.dataset, self.collate = module, criterion, dataset, loader.collate_fn
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]
        if not self.names:
            raise ValueError(f"{type(module).__name__} has no trainable parameters; there is nothing to solve for")
        first = self.start()
        super().__init__(len(dataset), sampling, first.device)
        self.shape, self.dtype = tuple(first.shape), first.dtype

    def start(self) -> Tensor:
        """The parameters as they are, as one vector."""
        known = dict(self.module.named_parameters())
        return torch.cat([known[name].detach().reshape(-1) for name in self.names])

    def write(self, x: Tensor) -> None:
        """Put the parameters into the module."""
        with torch.no_grad():
            for name, value in self._parameters(x).items():
                self.module.get_parameter(name).copy_(value)

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        shapes = [self.module.get_parameter(name).shape for name in self.names]
        parts = torch.split(x, [shape.numel() for shape in shapes])
        return {name: part.reshape(s) for name, part, s in zip(self.names, parts, shapes, strict=True)}

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        items = self.collate([self.dataset[int(i)] for i in batch])
        items = _moved(items, x.device)
        if isinstance(items, Mapping):
            return self.criterion(functional_call(self.module, self._parameters(x), (items,)), items)
        inputs, target = items
        return self.criterion(functional_call(self.module, self._parameters(x), (inputs,)), target)

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        return autograd_gradient(self.value, points, weights, batch)


def _moved(items: Any, device: torch.device) -> Any:
    """The tensors of a batch where the parameters are."""
    if isinstance(items, Tensor):
        return items.to(device)
    if isinstance(items, Mapping):
        return {name: _moved(item, device) for name, item in items.items()}
    return [_moved(item, device) for item in items] if isinstance(items, (list, tuple)) else items
