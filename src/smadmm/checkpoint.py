"""Checkpoints: a run's state in one file, written whole or not at all, and refused when anything is off.

    file = magic (8 bytes) | format version (4) | length of the payload (8) | SHA-256 of the payload (32) | payload
    payload = an NPZ archive without objects: every tensor of the state, and one JSON text with the rest

A file is made under a temporary name, flushed to disk and then renamed. Reading never unpickles. The settings of
problem and solver are stored as readable text, so that a run is only resumed with the settings it began with.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import os
import struct
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smadmm.arguments import FileError
from smadmm.estimators import Estimate
from smadmm.io.files import atomic_write
from smadmm.operators.linear import is_scipy_sparse
from smadmm.solver import Mean, State
from smadmm.stepsize import StepSize

MAGIC = b"SMADMM\r\n"
VERSION = 1
HEADER = struct.Struct("<8sIQ32s")
OLDER = "use an older checkpoint, or remove it and start anew"

Description = dict[str, str]  # of a problem and solver: a text for each setting


class CheckpointError(ValueError):
    """A checkpoint that must not be used, and why."""


class DamagedError(FileError, CheckpointError):
    """A file that is no checkpoint, or no longer."""


# --- settings as text -------------------------------------------------------------------------------------------------


def _tensor_text(x: Tensor) -> str:
    digest = hashlib.sha256()
    for part in _dense_parts(x.detach()):
        if part.dtype == torch.bfloat16:
            part = part.view(torch.int16)
        digest.update(np.ascontiguousarray(part.cpu().resolve_conj().resolve_neg().numpy()).data)
    return f"tensor {tuple(x.shape)} {x.dtype} {digest.hexdigest()[:16]}"


def _dense_parts(x: Tensor) -> list[Tensor]:
    if x.layout == torch.strided:
        return [x.reshape(-1)]
    if x.layout == torch.sparse_csr:
        return [x.crow_indices(), x.col_indices(), x.values().reshape(-1)]
    coalesced = x.to_sparse_coo().coalesce()
    return [coalesced.indices().reshape(-1), coalesced.values().reshape(-1)]


def _code_digest(code: types.CodeType) -> bytes:
    constants = [_code_digest(c).hex() if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    text = "|".join([code.co_code.hex(), *constants, *code.co_names])
    return hashlib.sha256(text.encode()).digest()


def _names_used(code: types.CodeType) -> set[str]:
    inner = [_names_used(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)


def _function_parts(function: types.FunctionType) -> dict[str, Any]:
    """What a function depends on beside its code: closure, defaults, and the globals it names (not modules)."""
    cells = {f"closure[{i}]": cell.cell_contents for i, cell in enumerate(function.__closure__ or ())}
    defaults = {"defaults": function.__defaults__ or (), "keywords": function.__kwdefaults__ or {}}
    used = {name: function.__globals__[name] for name in _names_used(function.__code__) & function.__globals__.keys()}
    skipped = (types.ModuleType, type)
    return cells | defaults | {f"globals.{n}": v for n, v in used.items() if not isinstance(v, skipped)}


def _module_parts(module: torch.nn.Module) -> dict[str, Any]:
    """What a module depends on beside its code: parameters, all buffers, submodules, and attributes of its own."""
    own = {key: item for key, item in vars(module).items() if not key.startswith("_")}
    return own | dict(module._parameters) | dict(module._buffers) | dict(module._modules)


def _parts(value: Any) -> dict[str, Any] | None:
    """What a value is made of, if that is all there is to say of it."""
    if isinstance(value, types.MethodType):
        return {"function": value.__func__, "self": value.__self__}
    if isinstance(value, functools.partial):
        return {"function": value.func, "args": value.args, "keywords": value.keywords}
    if is_scipy_sparse(value):
        value = value.tocsr()
        return {"data": value.data, "indices": value.indices, "indptr": value.indptr}
    return None


def _entries(name: str, value: Any, seen: frozenset[int]) -> Iterator[tuple[str, str]]:
    if id(value) in seen or isinstance(value, torch.device):
        return  # where a run computes is not what it computes
    seen = seen | {id(value)}
    if hasattr(type(value), "described"):  # it knows what of it makes a run another one
        value = value.described()
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype)):
        yield name, repr(value)
    elif isinstance(value, Tensor):
        yield name, _tensor_text(value)
    elif isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()  # read-only and mapped arrays, too
        yield name, f"array {value.shape} {value.dtype} {digest[:16]}"
    elif isinstance(value, types.FunctionType):
        yield name, f"function {value.__module__}.{value.__qualname__} {_code_digest(value.__code__).hex()[:16]}"
        yield from _entries(name, _function_parts(value), seen)
    elif (parts := _parts(value)) is not None:
        yield from _entries(name, parts, seen)
    elif isinstance(value, types.BuiltinFunctionType):
        yield name, f"builtin {value.__module__}.{value.__qualname__}"
    elif isinstance(value, (list, tuple)):
        yield name, f"{len(value)} entries"
        for index, item in enumerate(value):
            yield from _entries(f"{name}[{index}]", item, seen)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _entries(f"{name}.{key}", value[key], seen)
    elif isinstance(value, torch.nn.Module):
        yield name, f"{type(value).__module__}.{type(value).__qualname__}"
        yield from _entries(name, _module_parts(value), seen)
    else:
        known = hasattr(value, "__dict__") or hasattr(type(value), "__slots__") or isinstance(value, type)
        told = "" if known else ", whose values cannot be compared"
        yield name, f"{type(value).__module__}.{type(value).__qualname__}{told}"
        slots = {key: getattr(value, key) for key in getattr(type(value), "__slots__", ()) if hasattr(value, key)}
        every = getattr(value, "__dict__", {}) | slots
        public = {key: item for key, item in every.items() if not key.startswith("_")}
        yield from _entries(name, public, seen)


def describe(solver: Any) -> Description:
    """Problem and solver settings as text, one entry for each number, tensor and function."""
    return dict(_entries("solver", solver, frozenset()))


def refuse_difference(stored: Description, current: Description) -> None:
    """Raise with the first setting that differs."""
    for name in sorted(stored.keys() | current.keys()):
        if stored.get(name) != current.get(name):
            was, now = stored.get(name, "absent"), current.get(name, "absent")
            raise CheckpointError(
                f"the checkpoint is from other settings: {name} was {was}, now it is {now}; "
                "resume with the same settings or start anew with another checkpoint file"
            )


# --- states as tensors and JSON ---------------------------------------------------------------------------------------


def _pack(value: Any, name: str, arrays: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.dtype == torch.bfloat16:
            raise CheckpointError(f"{name} is bfloat16, which checkpoints cannot hold; compute in float32")
        key = next((known for known, tensor in arrays.items() if tensor is value), name)
        arrays[key] = value
        return {"tensor": key}
    if isinstance(value, tuple):
        return [_pack(item, f"{name}.{index}", arrays) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        fields = {f.name: _pack(getattr(value, f.name), f"{name}.{f.name}", arrays) for f in dataclasses.fields(value)}
        return {"type": f"{type(value).__module__}.{type(value).__qualname__}", "fields": fields}
    if isinstance(value, float):
        return {"float": value.hex()}
    if value is None or isinstance(value, int):
        return value
    raise CheckpointError(f"{name} is a {type(value).__name__}; a state holds tensors, numbers and dataclasses of them")


def _known_types() -> dict[str, type]:
    """State, Mean and every class of estimates there is, a user's own included."""
    found: list[type] = [State, Mean, StepSize]
    waiting: list[type] = [Estimate]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting.extend(kind.__subclasses__())
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in found}


def _unpack(value: Any, tensors: dict[str, Tensor], kinds: dict[str, type]) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(item, tensors, kinds) for item in value)
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "float" in value:
        return float.fromhex(value["float"])
    if value["type"] not in kinds:
        raise CheckpointError(f"the checkpoint holds a {value['type']}, which is not defined; import its module first")
    fields = {name: _unpack(item, tensors, kinds) for name, item in value["fields"].items()}
    return kinds[value["type"]](**fields)


def packed(state: State) -> dict[str, Any]:
    """A state as arrays, one of which is a JSON text: for files of others."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_pack(state, "state", tensors))
    return {"text": np.frombuffer(text.encode(), np.uint8), **{name: x.numpy() for name, x in tensors.items()}}


def unpacked(parts: Mapping[str, Any]) -> State:
    """The state of `packed`."""
    tensors = {name: torch.from_numpy(np.array(part)) for name, part in parts.items() if name != "text"}
    state: State = _unpack(json.loads(np.asarray(parts["text"]).tobytes()), tensors, _known_types())
    return state


def save(
    path: str | os.PathLike[str],
    state: State,
    settings: Description,
    extra: Any = None,
    others: Mapping[str, State] | None = None,
) -> None:
    """Write a checkpoint; `extra` is anything JSON can hold, `others` are further states, which join it when read."""
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, "state", tensors)
    trees = {name: _pack(other, name, tensors) for name, other in (others or {}).items()}
    text = json.dumps({"state": tree, "settings": settings, "extra": extra, "others": trees})
    arrays = {name: x.detach().cpu().resolve_conj().resolve_neg().numpy() for name, x in tensors.items()}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, text=np.frombuffer(text.encode(), np.uint8), **arrays)
    payload = buffer.getvalue()
    atomic_write(Path(path), HEADER.pack(MAGIC, VERSION, len(payload), hashlib.sha256(payload).digest()) + payload)


def load(
    path: str | os.PathLike[str], settings: Description | None = None, device: torch.device | str = "cpu"
) -> tuple[State, Any]:
    """Read a checkpoint back: the state and the extra. With `settings` it must come from the same ones."""
    return parse(Path(path).read_bytes(), path, settings, device)


def parse(
    data: bytes, path: str | os.PathLike[str], settings: Description | None, device: torch.device | str
) -> tuple[State, Any]:
    """The same from the content of the file `path`."""
    payload = _payload(data, Path(path))
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            content = json.loads(archive["text"].tobytes())
            tensors = {name: torch.from_numpy(archive[name]).to(device) for name in archive.files if name != "text"}
        if settings is not None:
            refuse_difference(content["settings"], settings)
        kinds, extra = _known_types(), content["extra"]
        others = {name: _unpack(tree, tensors, kinds) for name, tree in content.get("others", {}).items()}
        state = _unpack(content["state"], tensors, kinds)
        if not isinstance(state, State):
            raise TypeError(f"its state is a {type(state).__name__}")
        return state, extra | others if others else extra
    except CheckpointError:
        raise
    except Exception as error:  # its checksum is right, but not what it holds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedError(Path(path), f"holds no state of smadmm: {reason}", OLDER) from error


def _payload(data: bytes, path: Path) -> bytes:
    """What a checkpoint holds, after its checksum was seen to be right."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise DamagedError(path, "is not a checkpoint of smadmm, or its beginning is damaged", OLDER)
    _, version, length, digest = HEADER.unpack_from(data)
    if version != VERSION:
        raise DamagedError(path, f"has format {version}, this release reads {VERSION}", "use the release that wrote it")
    payload = data[HEADER.size :]
    if len(payload) != length:
        raise DamagedError(path, f"is cut short or padded: {len(payload)} bytes instead of {length}", OLDER)
    if hashlib.sha256(payload).digest() != digest:
        raise DamagedError(path, "is damaged: its checksum does not match", OLDER)
    return payload
