"""What projectors of all geometries share: views and minibatches of them, threads, fused gradients, norms, derivatives.

A projector maps an image to the line integrals of each view and detector, or, for detectors that are wider than pixels,
to the means of several `rays` across each of them: strips instead of lines. In float32 on a CPU with numba its kernels
are compiled; elsewhere the same sums are done by torch, view by view. Nothing is stored for a view, so a subset of
views costs its own work alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy import float32
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from smadmm.operators.linear import Norm, Operator, Shape
from smadmm.operators.radon.derivatives import Adjoint, Forward
from smadmm.operators.radon.filters import Window, ramp

PIECE = 256  # views of a sinogram on disk that are read together
PARALLEL_FROM = 32  # views times slices; below, starting threads costs more than it gains
NO_WEIGHTS = np.empty((1, 0, 0), float32)
ROUNDING = 1e-5  # of single precision, in norms
NORMS = "view norms"
T = TypeVar("T")
P = TypeVar("P", bound="Projector")


class Projector(Operator):
    """Line integrals of images: (..., H, W) -> (..., views, detectors)."""

    period: float  # the turn after which the same lines are measured again
    spacing: float  # of the detectors where the axis of rotation is, in pixels

    def __init__(
        self,
        size: int | tuple[int, int],
        angles: ArrayLike | Tensor,
        detectors: int,
        centre: float,
        *,
        rays: int,
        batch: Shape,
        threads: int,
        compiled: bool | None,
    ):
        sides = np.atleast_1d(size)
        if len(sides) > 2:
            raise ValueError(
                f"size is a number of pixels or (height, width), got {len(sides)} numbers; angles are next"
            )
        self.height, self.width = int(sides[0]), int(sides[-1])
        self.angles: NDArray[np.float64] = np.asarray(angles, dtype=np.float64).copy()  # np.array warns of tensors
        self.detectors, self.centre, self.batch = int(detectors), float(centre), batch
        self.rays, self.threads, self.compiled = rays, threads, compiled
        self._check()
        self.in_shape = (*batch, self.height, self.width)
        self.out_shape = (*batch, len(self.angles), self.detectors)
        self._cosines, self._sines = np.cos(self.angles), np.sin(self.angles)
        self._origin = -0.5 * (self.detectors - 1) - self.centre
        self._first_ray = self.rays * self._origin - 0.5 * (self.rays - 1)  # in rays, as _origin in detectors
        self._memory: list[Any] = []  # scratch memory of the kernels, one for each thread that has run
        self._known: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_memory": []}  # scratch memory is not sent to other processes

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """What depends on the geometry alone, computed the first time; other processes get it with the projector."""
        if name not in self._known:
            self._known[name] = compute()
        found: T = self._known[name]
        return found

    def _check(self) -> None:
        if min(self.height, self.width) < 1:
            raise ValueError(f"an image has at least one pixel, got size {self.height} x {self.width}")
        if self.angles.ndim != 1 or not len(self.angles) or not np.isfinite(self.angles).all():
            raise ValueError(f"angles are a list of finite numbers in radians, got shape {self.angles.shape}")
        if self.detectors < 1:
            raise ValueError(f"a detector has at least one element, got {self.detectors}")
        if not math.isfinite(self.centre):
            raise ValueError(f"centre must be finite, got {self.centre}")
        if self.rays < 1 or int(self.rays) != self.rays:
            raise ValueError(f"rays, per detector, must be a whole number from 1 on, got {self.rays}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")

    # --- what a geometry says -----------------------------------------------------------------------------------------

    @abstractmethod
    def subset(self, views: ArrayLike | Tensor) -> Projector:
        """The operator of these views alone."""

    @abstractmethod
    def has_kernels(self) -> bool:
        """Whether compiled kernels are there."""

    @abstractmethod
    def _new_scratch(self) -> Any:
        """Memory for one running call of the kernels."""

    @abstractmethod
    def _project(self, image: Any, other: Any, share: float, numbers: Any, memory: Any, out: Any) -> None:
        """out = (A_S (image + share other), ray by ray), compiled."""

    @abstractmethod
    def _back_project(self, y: Any, numbers: Any, memory: Any, out: Any) -> None:
        """out = A_S' y, y ray by ray, compiled."""

    @abstractmethod
    def _torch_view(self, v: int, like: Tensor) -> Any:
        """View v as maps in torch: its `project` and `back_project` take stacks of slices."""

    @abstractmethod
    def fbp_weights(self) -> Tensor:
        """What rays count for in a filtered back-projection: views x detectors, or views x 1."""

    @abstractmethod
    def filter_back(self, rows: Tensor, views: ArrayLike | Tensor, window: Window) -> Tensor:
        """What these views, rows of the sinogram, add to the filtered back-projection of all."""

    # --- products -----------------------------------------------------------------------------------------------------

    @property
    def views(self) -> int:
        return len(self.angles)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_views(x, None)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.adjoint_views(y, None)

    def forward_views(self, x: Tensor, views: ArrayLike | Tensor | None) -> Tensor:
        """A_S x for the views S (numbers; None: all): (..., H, W) -> (..., len(S), detectors)."""
        self._refuse("an image", x, (self.height, self.width))
        projected: Tensor = Forward.apply(x, self, self._numbers(views))  # type: ignore[no-untyped-call]
        return projected

    def adjoint_views(self, y: Tensor, views: ArrayLike | Tensor | None) -> Tensor:
        """A_S' y for the views S: (..., len(S), detectors) -> (..., H, W)."""
        numbers = self._numbers(views)
        self._refuse("a sinogram", y, (len(numbers), self.detectors))
        image: Tensor = Adjoint.apply(y, self, numbers)  # type: ignore[no-untyped-call]
        return image

    def _numbers(self, views: ArrayLike | Tensor | None) -> NDArray[np.int64]:
        if views is None:
            return np.arange(self.views)
        numbers = np.asarray(views.cpu() if isinstance(views, Tensor) else views, dtype=np.int64)
        if numbers.ndim != 1 or (len(numbers) and not -self.views <= numbers.min() <= numbers.max() < self.views):
            raise ValueError(f"views are a list of numbers below {self.views}, got {numbers}")
        return numbers

    def _refuse(self, what: str, value: Tensor, shape: Shape) -> None:
        if value.shape[-2:] != shape or not value.is_floating_point():
            raise ValueError(f"{what} of {type(self).__name__} ends in {shape}, got {value.dtype} {tuple(value.shape)}")

    def runs_compiled(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether tensors like this go through the numba kernels."""
        return self.compiled is not False and dtype == torch.float32 and device.type == "cpu" and self.has_kernels()

    def _forward(self, x: Tensor, numbers: NDArray[np.int64]) -> Tensor:
        images = x.detach().reshape(math.prod(x.shape[:-2]), self.height, self.width)
        out = x.new_empty((len(images), len(numbers), self.detectors * self.rays))
        if not self.runs_compiled(x.dtype, x.device):
            for k, v in enumerate(numbers):
                out[:, k] = self._torch_view(v, x).project(images)
        else:
            source, target = images.contiguous().numpy(), out.numpy()

            def task(s: int, part: slice) -> None:
                with self._scratch() as memory:
                    self._project(source[s], source[s], 0.0, numbers[part], memory, target[s, part])

            self._each(task, len(images), len(numbers))
        return self._averaged(out).reshape(*x.shape[:-2], len(numbers), self.detectors)

    def _adjoint(self, y: Tensor, numbers: NDArray[np.int64]) -> Tensor:
        data = self._shared(y.detach().reshape(math.prod(y.shape[:-2]), len(numbers), self.detectors))
        if not self.runs_compiled(y.dtype, y.device):
            out = y.new_zeros((len(data), self.height, self.width))
            for k, v in enumerate(numbers):
                out += self._torch_view(v, y).back_project(data[:, k])
        else:
            source = data.contiguous().numpy()
            parts = self._parts(len(data), len(numbers))
            partial = y.new_empty((len(parts), len(data), self.height, self.width))
            target, where = partial.numpy(), {part.start: i for i, part in enumerate(parts)}

            def task(s: int, part: slice) -> None:
                with self._scratch() as memory:
                    self._back_project(source[s, part], numbers[part], memory, target[where[part.start], s])

            self._each(task, len(data), len(numbers))
            out = partial[0] if len(parts) == 1 else partial.sum(0)
        return out.reshape(*y.shape[:-2], self.height, self.width)

    def _averaged(self, rays: Tensor) -> Tensor:
        """Detectors from their rays."""
        return rays if self.rays == 1 else rays.unflatten(-1, (self.detectors, self.rays)).mean(-1)

    def _shared(self, y: Tensor) -> Tensor:
        """The transpose of `_averaged`."""
        return y if self.rays == 1 else (y / self.rays).repeat_interleave(self.rays, -1)

    def fuses(self, x: Tensor, views: int) -> bool:
        """Whether `fused_gradient` serves this x, and no threads would do better."""
        return self.runs_compiled(x.dtype, x.device) and (self.threads == 1 or views < PARALLEL_FROM)

    def fused_gradient(
        self,
        x: Tensor,
        data: Tensor,
        views: ArrayLike | Tensor,
        *,
        other: Tensor,
        share: float,
        data_share: float,
        weights: Tensor | None,
        scale: float,
    ) -> Tensor:
        """scale A_S'(weights * (A_S (x + share other) - data_share data)): three compiled calls per slice."""
        from smadmm.operators.radon.kernels import weigh  # numba

        slices, numbers = math.prod(x.shape[:-2]), np.asarray(views)
        one, two, b = (self._slices(values, slices) for values in (x, other, data))
        w = NO_WEIGHTS.repeat(slices, 0) if weights is None else self._slices(weights, slices)
        out, lines = torch.empty(x.shape, dtype=x.dtype), torch.empty(len(numbers), self.detectors * self.rays)
        target = self._slices(out, slices)
        with self._scratch() as memory:
            for s in range(slices):
                self._project(one[s], two[s], share, numbers, memory, lines.numpy())
                residual = self._averaged(lines)
                weigh(residual.numpy(), b[s], float32(data_share), w[s], float32(scale))
                self._back_project(self._shared(residual).numpy(), numbers, memory, target[s])
        return out

    @staticmethod
    def _slices(values: Tensor, slices: int) -> NDArray[np.float32]:
        array: NDArray[np.float32] = values.detach().contiguous().numpy().reshape(slices, *values.shape[-2:])
        return array

    @contextmanager
    def _scratch(self) -> Iterator[Any]:
        """Scratch memory of the kernels, used again by later calls; each running call has its own."""
        try:
            memory = self._memory.pop()
        except IndexError:
            memory = self._new_scratch()
        yield memory
        self._memory.append(memory)

    def _parts(self, slices: int, views: int) -> list[slice]:
        """The views in as many parts as threads, where slices alone do not occupy them."""
        count = 1 if slices >= self.threads or slices * views < PARALLEL_FROM else self.threads
        ends = [round(i * views / count) for i in range(count + 1)]
        return [slice(*pair) for pair in pairwise(ends)]

    def _each(self, task: Callable[[int, slice], None], slices: int, views: int) -> None:
        tasks = [(s, part) for s in range(slices) for part in self._parts(slices, views)]
        if self.threads == 1 or len(tasks) == 1 or slices * views < PARALLEL_FROM:
            for s, part in tasks:
                task(s, part)
            return
        with ThreadPoolExecutor(self.threads) as pool:  # the kernels release the GIL
            list(pool.map(lambda pair: task(*pair), tasks))

    # --- norms --------------------------------------------------------------------------------------------------------

    def norm(self, iterations: int = 50, seed: int = 0) -> Norm:
        """|A| by power iteration from a positive image; `upper` is certain, not only likely.

        A has no negative entries, so |A|^2 lies between the quotients min and max of (A'A v)/v for every v > 0 (Collatz
        and Wielandt).
        """
        v = torch.ones(self.height, self.width)
        square, upper = 0.0, math.inf
        for _ in range(iterations):
            image = self._forward(v, np.arange(self.views))
            square = float(image.norm()) ** 2 / float(v.norm()) ** 2
            new = self._adjoint(image, np.arange(self.views))
            seen = new > 0
            if not bool(seen.any()):
                return Norm(0.0)
            upper = min(upper, float((new[seen] / v[seen]).max()))
            v = torch.where(seen, new / new.max(), 0.0)
            if upper < square * (1 + 1e-4):
                break
        lower, higher = math.sqrt(square) * (1 - ROUNDING), math.sqrt(upper) * (1 + ROUNDING)
        return Norm(lower, higher - lower)

    def view_norms(self, iterations: int = 3) -> Tensor:
        """An upper bound of |A_i| for every view, by the same quotients of A_i A_i': at most a few per cent above."""
        return self.once(f"{NORMS} {iterations}", lambda: self._view_norms(iterations)).clone()

    def _with_norms(self, part: P, numbers: NDArray[np.int64]) -> P:
        """The operator of a part of the views, with the bounds that are known of them."""
        norms = {name: value for name, value in self._known.items() if name.startswith(NORMS)}
        part._known |= {name: value[torch.from_numpy(numbers)] for name, value in norms.items()}
        return part

    def _view_norms(self, iterations: int) -> Tensor:
        u = torch.ones(self.views, self.detectors)
        upper = torch.full((self.views,), math.inf)
        for _ in range(iterations):
            new = torch.empty_like(u)
            for i in range(self.views):
                number = np.array([i])
                new[i] = self._forward(self._adjoint(u[i : i + 1], number), number)[0]
            quotients = torch.where(new > 0, new / u, 0.0)
            upper = torch.minimum(upper, quotients.amax(1))
            u = torch.where(new > 0, new / new.amax(1, keepdim=True), 0.0)
        return upper.sqrt() * (1 + ROUNDING)

    # --- filtered back-projection -------------------------------------------------------------------------------------

    def fbp(self, sinogram: Any, window: Window = ramp, views: ArrayLike | Tensor | None = None) -> Tensor:
        """Filtered back-projection of all views, or of the sinogram of some.

        A sinogram that is not a tensor is read some views at a time, as sinogram[..., numbers, :].
        """
        chosen = self if views is None else self.subset(views)
        if isinstance(sinogram, Tensor):
            return chosen.filter_back(sinogram, np.arange(chosen.views), window)
        total = torch.zeros(self.height, self.width)
        for numbers in np.array_split(np.arange(chosen.views), -(-chosen.views // PIECE)):
            total += chosen.filter_back(torch.from_numpy(sinogram[..., numbers, :]), numbers, window)
        return total

    def __repr__(self) -> str:
        size = f"{self.height} x {self.width}"
        return f"{type(self).__name__}({size} -> {self.views} views x {self.detectors} detectors)"
