"""One problem on many processes, which torchrun starts: each computes a part of every gradient.

    grad F_S(x) = sum over ranks r of |S_r|/|S| grad F_{S_r}(x)        S_r: the part of the batch S that rank r computes

Every rank draws the same batch S, a function of (seed, k), and holds the same state: prox, x-step and multiplier are
computed by all alike. So a gradient costs one sum over all ranks, of the size of x, and a run of many ranks is the run
of one up to rounding: it has the same checkpoint, which rank 0 writes, and may go on with another number of ranks.

Processes become ranks when `sharded` or `join` is called first; from then on `run` is something they do together. One
process alone is never a rank and pays nothing.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast, overload

import torch
import torch.distributed as dist
from torch import Tensor

from smadmm.operators.linear import Shape
from smadmm.problem import Batch, FiniteSum, Loss
from smadmm.sampling import Rng

__all__ = ["RankLost", "join", "place", "sharded"]

DIGEST = 6  # bytes of the hash of x that ranks compare
PATIENCE = 60.0  # seconds that ranks are given to start, at least
LOOKED_AT = 8  # samples by which a checkpoint knows data that no rank has as a whole

Denoiser = TypeVar("Denoiser", bound=Callable[..., Tensor])

_PLACE = [(0, 1)]  # rank and number of ranks, once this process has joined


class RankLost(RuntimeError):
    """Another rank has ended, or did not answer in time; start again with resume=True.

    >>> issubclass(smadmm.distributed.RankLost, RuntimeError)
    True
    """


# --- ranks ------------------------------------------------------------------------------------------------------------


def place() -> tuple[int, int]:
    """Rank of this process and number of ranks: (0, 1) until `sharded` has joined the processes of torchrun.

    >>> smadmm.distributed.place()
    (0, 1)
    """
    return _PLACE[0]


def join() -> tuple[int, int]:
    """Join the processes that torchrun started, if it did; returns this one's place.

    `sharded` does so itself. Call it before `smadmm.reconstruct` or `smadmm.retrieve`, to have the views of one image,
    its masks, or the positions of a scan shared out.

    >>> smadmm.distributed.join()
    (0, 1)
    """
    env = os.environ
    if _PLACE[0][1] > 1 or int(env.get("WORLD_SIZE", "1")) == 1:
        return _PLACE[0]
    if not dist.is_available():
        raise RuntimeError("this build of torch has no torch.distributed; install one that has, or start one process")
    if not dist.is_initialized():
        _initialise(int(env["RANK"]), int(env["WORLD_SIZE"]))
    _PLACE[0] = (dist.get_rank(), dist.get_world_size())
    return _PLACE[0]


def _initialise(rank: int, world: int) -> None:
    env = os.environ
    # ranks may need long to start; once they have met, none waits longer for another than the timeout
    patience = max(PATIENCE, _timeout())
    first = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # torchrun has a store already
    store = dist.TCPStore(  # type: ignore[attr-defined]
        env["MASTER_ADDR"],
        int(env["MASTER_PORT"]),
        is_master=first,
        wait_for_workers=False,
        timeout=timedelta(seconds=patience),
    )
    own = dist.PrefixStore(_attempt(store, rank, world, patience), store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", timeout=timedelta(seconds=_timeout()), store=own, rank=rank, world_size=world)
    atexit.register(_leave)


def _attempt(store: Any, rank: int, world: int, patience: float) -> str:
    """A name that the ranks of this attempt have in common, and no earlier attempt.

    torchrun's store outlives restarts, and with it the addresses of dead ranks; its count of restarts differs between
    machines. So every rank shows a number of its own, rank 0 lists all that it sees, and the list holds when all have
    found themselves in it.
    """
    mine, deadline = secrets.token_hex(8), time.monotonic() + patience
    store.set(f"smadmm/{world}/{rank}", mine)
    found = ""
    while time.monotonic() < deadline:
        if rank == 0:
            store.set(f"smadmm/{world}", " ".join(store.get(f"smadmm/{world}/{r}").decode() for r in range(world)))
        listed = store.get(f"smadmm/{world}").decode()
        if listed.split()[rank] == mine:
            name = f"smadmm/{hashlib.sha256(listed.encode()).hexdigest()[:16]}"
            agreed = store.add(f"{name}/found", int(name != found))
            found = name
            if rank == 0 and agreed == world:
                store.set(f"{name}/holds", "yes")
            if store.check([f"{name}/holds"]):
                return name
        time.sleep(0.02)
    raise RankLost(f"not all of {world} ranks came within {patience:g} s; look at the output of the others")


def _leave() -> None:
    """End the group, or its threads may abort a process that is done; after an error it could wait for the dead."""
    if dist.is_initialized() and getattr(sys, "last_value", None) is None:
        dist.destroy_process_group()


def _timeout() -> float:
    given = os.environ.get("SMADMM_TIMEOUT", "60")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"SMADMM_TIMEOUT is the seconds to wait for another rank, such as 60, got {given!r}")
    return seconds


def _together(operation: Callable[..., Any], *arguments: Any) -> None:
    """A collective operation; the error of a lost rank in words."""
    try:
        operation(*arguments)
    except RuntimeError as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise RankLost(
            f"another rank ended, or did not answer within {_timeout():g} s (SMADMM_TIMEOUT): {told:.160}; "
            "start all ranks again with resume=True"
        ) from error


def total(values: Tensor) -> Tensor:
    """The sum over all ranks, in place."""
    if place()[1] > 1:
        _together(dist.all_reduce, values)
    return values


def largest(value: float) -> float:
    """The largest of all ranks."""
    if place()[1] == 1:
        return value
    shared = torch.tensor(float(value), dtype=torch.float64)
    _together(dist.all_reduce, shared, dist.ReduceOp.MAX)
    return float(shared)


def from_first(action: Callable[[], bytes]) -> bytes:
    """What the action returns on rank 0, the only one that takes it; where it fails there, it fails on all."""
    rank, world = place()
    if world == 1:
        return action()
    failure: Exception | None = None
    content = b""
    if rank == 0:
        try:
            content = action()
        except Exception as error:  # told to all below, and raised again
            failure, content = error, f"{error}".encode()
    header = torch.tensor([len(content), failure is not None])
    _together(dist.broadcast, header, 0)
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(int(header[0])).byte()
    if len(data):
        _together(dist.broadcast, data, 0)
    if failure is not None:
        raise failure
    told = data.numpy().tobytes()
    if header[1]:
        raise ValueError(f"rank 0 stopped: {told.decode()}")
    return told


def refuse_drift(x: Tensor, k: int) -> None:
    """Raise where ranks no longer hold the same x: other settings, other data, or processors that round differently."""
    if place()[1] == 1:
        return
    digest = hashlib.sha256(x.detach().cpu().contiguous().resolve_conj().numpy().tobytes()).digest()[:DIGEST]
    mine = torch.tensor([k, *digest], dtype=torch.float64)
    ends = torch.cat([mine, -mine])
    _together(dist.all_reduce, ends, dist.ReduceOp.MAX)
    if not torch.equal(ends[: len(mine)], -ends[len(mine) :]):
        raise RuntimeError(
            f"the ranks have drifted apart by iteration {k}: start all with the same settings and data, on equal "
            "processors with the same versions of torch and NumPy"
        )


# --- losses and denoisers ---------------------------------------------------------------------------------------------


@overload
def sharded(part: FiniteSum, own: bool = False) -> FiniteSum: ...
@overload
def sharded(part: Denoiser, own: bool = False, reach: int | None = None) -> Denoiser: ...
def sharded(part: Any, own: bool = False, reach: int | None = None) -> Any:
    """A loss whose samples, or a denoiser whose rows, are shared out among the ranks of torchrun.

    Of a loss every rank has all data and computes its part of each batch; with `own` a rank's loss holds samples that
    no other rank has, and those of all ranks, one after the other, are the samples of the problem. A denoiser works on
    a strip of rows and as many rows around it as its `reach`, which the shipped ones know: the result is that of the
    whole image, bit for bit. One process alone gets back what it gave.

    >>> f = losses.Squared(torch.eye(3), torch.ones(3))
    >>> smadmm.distributed.sharded(f) is f
    True
    """
    if isinstance(part, Loss) and not isinstance(part, FiniteSum):
        raise TypeError(f"{type(part).__name__} is a stream, which is not shared out; shard a loss of finite data")
    if isinstance(part, FiniteSum):
        world = join()[1]
        return Sharded(part, own) if world > 1 or own else part
    if not callable(part):
        raise TypeError(f"a loss or a denoiser can be shared out, got {type(part).__name__}")
    if own:
        raise ValueError("own=True is for losses: it says that no other rank has these samples; leave it out")
    if join()[1] == 1:
        return part
    return (StepInStrips if hasattr(part, "potential") else Strips)(part, *_reach(part, reach))


def if_joined(part: Any) -> Any:
    """Shared out among ranks where this process is one of several."""
    return sharded(part) if place()[1] > 1 else part


class Sharded(FiniteSum):
    """A loss, or the losses of all ranks one after the other, with gradients shared out."""

    def __init__(self, loss: FiniteSum, own: bool):
        self._loss, self._own, (self._rank, self._world) = loss, own, place()
        sizes = torch.zeros(self._world, dtype=torch.long)
        sizes[self._rank] = loss.n
        sizes = total(sizes) if own else sizes[self._rank :][:1]
        self._start = int(sizes[: self._rank].sum()) if own else 0
        super().__init__(int(sizes.sum()), loss.sampling, loss.everything.device)
        self.shape, self.dtype, self.quadratic = loss.shape, loss.dtype, loss.quadratic
        self.bounded_gradients = loss.bounded_gradients

    def __getattr__(self, name: str) -> Any:
        """What x-steps and starting points ask a loss for: its operator, its scale."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loss, name)

    def majorant(self) -> Loss | None:
        model = self._loss.majorant()
        return self if model is self._loss else None if model is None else Sharded(cast(FiniteSum, model), self._own)

    def described(self) -> Any:
        """For checkpoints: the loss itself, whatever the ranks; of data that no rank has all, a few samples."""
        if not self._own:
            return self._loss
        return {"kind": f"shards of {type(self._loss).__name__}", "n": self.n, "samples": self._fingerprint()}

    def _fingerprint(self) -> str:
        if self.shape is None:
            return "not known"
        x = torch.zeros(self.shape, dtype=self.dtype or torch.get_default_dtype(), device=self.everything.device)
        numbers = torch.linspace(0, self.n - 1, min(self.n, LOOKED_AT)).long()
        rows = [self.gradient((x,), (1.0,), number[None].to(x.device)) + 0.0 for number in numbers]
        return hashlib.sha256(torch.stack(rows).cpu().numpy().tobytes()).hexdigest()[:16]

    def draw(self, rng: Rng, size: int) -> Batch:
        return super().draw(rng, size) if self._own else self._loss.draw(rng, size)

    def samples(self, seed: int, groups: int, size: int) -> list[Batch]:
        return super().samples(seed, groups, size) if self._own else self._loss.samples(seed, groups, size)

    def full(self) -> Batch:
        return self.everything if self._own else self._loss.full()

    def _part(self, batch: Tensor) -> tuple[Tensor | slice, Tensor]:
        """Where this rank's part stands in the batch, and the samples of it, as its loss numbers them."""
        if not self._own:
            size, extra = divmod(len(batch), self._world)
            start = self._rank * size + min(self._rank, extra)
            where = slice(start, start + size + (self._rank < extra))
            return where, batch[where]
        if batch is self.everything:  # its loss knows all of its samples by this very tensor, and copies none
            return slice(self._start, self._start + self._loss.n), self._loss.full()
        here = batch - self._start
        mine = (here >= 0) & (here < self._loss.n)
        return mine, here[mine]

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        _, part = self._part(batch)
        nothing = torch.zeros((), dtype=x.real.dtype, device=x.device)
        return self._summed(nothing, batch, part, lambda: self._loss.value(x, part))

    def gradient(self, points: Sequence[Tensor], weights: Sequence[float], batch: Batch) -> Tensor:
        _, part = self._part(batch)
        return self._summed(points[0], batch, part, lambda: self._loss.gradient(points, weights, part))

    def _summed(self, like: Tensor, batch: Tensor, part: Tensor, mean: Callable[[], Tensor]) -> Tensor:
        """The mean over the batch from the means over the parts."""
        if not len(part):
            return total(torch.zeros_like(like))
        mine = mean()
        if self._world == 1:
            return mine
        summed = getattr(self._loss, "reduction", "mean") == "sum"  # a loss that does not divide by the batch
        return total((mine if summed else len(part) / len(batch) * mine).contiguous())

    def components(self, x: Tensor, batch: Batch) -> Tensor:
        where, part = self._part(batch)
        if self._world == 1:
            return self._loss.components(x, part)
        every = x.new_zeros((len(batch), *self.component_shape(x)))
        if len(part):
            every[where] = self._loss.components(x, part)
        return total(every)

    def component_shape(self, x: Tensor) -> Shape:
        return self._loss.component_shape(x)

    def assemble(self, components: Tensor, batch: Batch) -> Tensor:
        where, part = self._part(batch)
        like = torch.zeros(self.shape or components.shape[1:], dtype=components.dtype, device=components.device)
        return self._summed(like, batch, part, lambda: self._loss.assemble(components[where], part))

    def lipschitz(self) -> float | None:
        """Of shards the mean of their constants, weighted by their samples: a bound for the mean of the losses."""
        return self._loss.lipschitz() if not self._own else self._mean_over_shards(self._loss.lipschitz(), 1)

    def mean_square_lipschitz(self) -> float | None:
        single = self._loss.mean_square_lipschitz()
        return single if not self._own else self._mean_over_shards(single, 2)

    def _mean_over_shards(self, constant: float | None, power: int) -> float | None:
        if constant is None:  # known of all shards or of none: they are of one kind
            return None
        weighted = torch.tensor(self._loss.n / self.n * constant**power, dtype=torch.float64)
        return math.pow(float(total(weighted)), 1 / power)


def _reach(denoiser: Any, reach: int | None) -> tuple[int, int]:
    """How far away the pixels may be on which one depends, and of what strips must begin at multiples."""
    step = getattr(denoiser, "denoiser", denoiser)
    potential = getattr(step, "g", None)
    found = getattr(potential, "radius", None) if reach is None else reach
    if found is None:
        raise ValueError(f"{type(denoiser).__name__} does not say how far it looks around a pixel; give reach=PIXELS")
    if found < 0:
        raise ValueError(f"reach is a number of pixels, at least 0, got {found}")
    return int(found), int(getattr(potential, "alignment", 1))


class Strips:
    """A denoiser whose rows are shared out: every rank denoises a strip, with as many rows around it as matter."""

    def __init__(self, denoiser: Any, reach: int, unit: int):
        self.denoiser, self.reach, self.unit = denoiser, -(-reach // unit) * unit, unit

    def described(self) -> Any:
        """For checkpoints: the denoiser itself, whatever the ranks."""
        return self.denoiser

    @property
    def lipschitz(self) -> Any:
        return getattr(self.denoiser, "lipschitz", None)

    def __call__(self, x: Tensor, *sigma: Any) -> Tensor:
        (rank, world), height = place(), x.shape[-2]
        rows = -(-height // (world * self.unit)) * self.unit
        start, stop = min(rank * rows, height), min((rank + 1) * rows, height)
        first, last = max(0, start - self.reach), min(height, stop + self.reach)
        mine = x.new_zeros((*x.shape[:-2], rows, x.shape[-1]))
        if start < stop:
            mine[..., : stop - start, :] = self.denoiser(x[..., first:last, :], *sigma)[
                ..., start - first : stop - first, :
            ]
        every = [torch.empty_like(mine) for _ in range(world)]
        _together(dist.all_gather, every, mine)
        return torch.cat(every, -2)[..., :height, :].contiguous()


class StepInStrips(Strips):
    """The same of a gradient step, whose potential is known."""

    def potential(self, x: Tensor, *sigma: Any) -> Tensor:
        values: Tensor = self.denoiser.potential(x, *sigma)
        return values
