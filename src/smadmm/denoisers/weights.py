"""Potentials in safetensors files: the tensors, and what is needed to rebuild them in the metadata."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from smadmm.arguments import FileError
from smadmm.denoisers.dncnn import DnCNN
from smadmm.denoisers.gradient_step import GradientStep
from smadmm.denoisers.ridge import Ridge
from smadmm.extras import needs
from smadmm.io.files import atomic_write

SHIPPED = Path(__file__).parent / "shipped"


def save(potential: Ridge | DnCNN, path: Path, sigma: float, lipschitz: float) -> None:
    """Write a potential trained at noise level sigma, with a proved or measured Lip(grad g).

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> D = load("ridge-ct")
    >>> with TemporaryDirectory() as folder:
    ...     save(D.g, Path(folder) / "mine.safetensors", D.sigma, D.lipschitz)
    ...     print(load(Path(folder) / "mine.safetensors").sigma == D.sigma)
    True
    """
    as_bytes = needs("safetensors.torch", "imaging", "files of weights").save
    about: dict[str, str | float] = {"sigma": sigma, "lipschitz": lipschitz}
    if isinstance(potential, Ridge):
        about |= {"kind": "ridge", "spacing": potential.spacing, "singles": potential.singles}
    else:
        about |= {"kind": "dncnn", "layers": potential.layers, "channels": potential.channels}
        about["unshuffle"] = potential.alignment
    tensors = {name: tensor.detach().contiguous() for name, tensor in potential.state_dict().items()}
    atomic_write(path, as_bytes(tensors, metadata={"smadmm": json.dumps(about)}))


def load(name: str | Path) -> GradientStep:
    """A denoiser by the name of shipped weights, as "ridge-ct", or from a file written by training.

    Its `lipschitz`: the certificate of a ridge potential, checked anew; for a network the largest value measured.

    >>> D = load("ridge-ct")
    >>> D(torch.rand(1, 1, 16, 16)).shape
    torch.Size([1, 1, 16, 16])
    """
    path = Path(name) if str(name).endswith(".safetensors") else SHIPPED / f"{name}.safetensors"
    if not path.exists():
        raise ValueError(f"no weights {str(name)!r}; shipped are {', '.join(shipped())}, or give the path of a file")
    about, tensors = read_tensors(path, "smadmm")
    try:
        potential = _potential(about, tensors)
        sigma, bound = about["sigma"], about["lipschitz"]
        proved = not isinstance(potential, Ridge) or potential.certificate() <= bound * (1 + 1e-9)
        denoiser = GradientStep(potential, sigma, bound)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise FileError(path, f"holds no potential that this version can use ({reason})", "train it anew") from error
    if not proved:
        reason = f"is damaged: Lip(I - D) <= {bound} is not true of the weights in it"
        raise FileError(path, reason, "fetch it anew")
    if isinstance(potential, DnCNN) and path.parent == SHIPPED:
        denoiser.lipschitz = max(bound, card(path.stem).get("test", {}).get("measured", bound))
    return denoiser.requires_grad_(False).eval()


def read_tensors(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a safetensors file of this package says under a key of its header, and its tensors."""
    safe_open = needs("safetensors", "imaging", "files of weights").safe_open
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()[key])
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        reason = " ".join(str(error).split())
        raise FileError(path, f"is damaged or was not written by smadmm: {reason}", "fetch it anew") from error


def _potential(about: dict[str, Any], tensors: dict[str, Tensor]) -> Ridge | DnCNN:
    if about["kind"] == "ridge":
        if "singles" not in about or set(tensors) != {"filters", "slopes"}:
            raise ValueError("a ridge potential of a form that is no longer supported")
        return Ridge(tensors["filters"], tensors["slopes"], about["spacing"], about["singles"])
    network = DnCNN(about["layers"], about["channels"], about["unshuffle"])
    network.load_state_dict(tensors)
    return network


def shipped() -> list[str]:
    """Names of the weights in the package.

    >>> "ridge-ct" in shipped()
    True
    """
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def card(name: str) -> dict[str, Any]:
    """Provenance of shipped weights: data, command, seed, time, PSNR, Lip(grad g), SHA-256, licence.

    >>> sorted(card("ridge-ct"))[:3]
    ['command', 'cpu_seconds', 'held_out_images']
    """
    if name not in shipped():
        raise ValueError(f"no weights {name!r}; shipped are {', '.join(shipped())}")
    path = SHIPPED / f"{name}.json"
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise FileError(path, f"is damaged: {' '.join(str(error).split())}", "install smadmm anew") from error
    return content


def sha256(path: Path) -> str:
    """Digest of a file, as the cards state it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
