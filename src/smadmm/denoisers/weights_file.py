"""Potentials in safetensors files: the tensors, and what is needed to rebuild them in the metadata."""

import hashlib
import json
from pathlib import Path

from torch import Tensor

from smadmm.denoisers.dncnn import DnCNN
from smadmm.denoisers.gradient_step import GradientStep
from smadmm.denoisers.ridge import Ridge
from smadmm.files import atomic_write

SHIPPED = Path(__file__).parent / "weights"


def save(potential: Ridge | DnCNN, path: Path, sigma: float, lipschitz: float) -> None:
    """Write a potential trained at noise level sigma, with a proved or measured Lip(grad g)."""
    from safetensors.torch import save as as_bytes

    about: dict[str, str | float] = {"sigma": sigma, "lipschitz": lipschitz}
    if isinstance(potential, Ridge):
        about |= {"kind": "ridge", "spacing": potential.spacing, "singles": potential.singles}
    else:
        about |= {"kind": "dncnn", "layers": potential.layers, "channels": potential.channels}
        about["unshuffle"] = potential.alignment
    tensors = {name: tensor.detach().contiguous() for name, tensor in potential.state_dict().items()}
    atomic_write(path, as_bytes(tensors, metadata={"smadmm": json.dumps(about)}))


def load(name: str | Path) -> GradientStep:
    """A denoiser by the name of shipped weights, as "ridge-ct", or from a file written by training."""
    from safetensors import safe_open

    path = Path(name) if str(name).endswith(".safetensors") else SHIPPED / f"{name}.safetensors"
    if not path.exists():
        raise ValueError(f"no weights {str(name)!r}; shipped are {', '.join(shipped())}, or give the path of a file")
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["smadmm"])
        tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    potential: Ridge | DnCNN
    if about["kind"] == "ridge":
        if "singles" not in about or set(tensors) != {"filters", "slopes"}:
            raise ValueError(f"{path} holds a ridge potential of a form that is no longer supported; train it anew")
        potential = Ridge(tensors["filters"], tensors["slopes"], about["spacing"], about["singles"])
    else:
        potential = DnCNN(about["layers"], about["channels"], about["unshuffle"])
        potential.load_state_dict(tensors)
    denoiser = GradientStep(potential, about["sigma"], about["lipschitz"])
    return denoiser.requires_grad_(False).eval()


def shipped() -> list[str]:
    """Names of the weights in the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def card(name: str) -> dict[str, object]:
    """Provenance of shipped weights: data, command, seed, time, PSNR, Lip(grad g), SHA-256, licence."""
    content: dict[str, object] = json.loads((SHIPPED / f"{name}.json").read_text())
    return content


def sha256(path: Path) -> str:
    """Digest of a file, as the cards state it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
