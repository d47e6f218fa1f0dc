"""The shipped weights: present, small, as their cards say, below one, and they denoise."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from smadmm.denoisers import GradientStep, Ridge, card, lipschitz, load, save, shipped
from smadmm.denoisers.weights import SHIPPED, sha256
from smadmm.paper.bm3d import BM3D

REQUIRED = {
    "ridge-natural": 5,
    "ridge-natural-15": 15,
    "ridge-natural-25": 25,
    "ridge-ct": 5,
    "ridge-ct-large": 5,
    "unshuffled-natural": 5,
    "unshuffled-ct": 5,
}
EVERY = pytest.mark.parametrize("name", shipped())


def steps_and_ramps() -> Tensor:
    """A synthetic 64 x 64 image with edges, slopes and flat parts."""
    rows, cols = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    disc = ((rows - 30) ** 2 + (cols - 34) ** 2 < 300).float()
    return (0.2 + 0.4 * disc + 0.002 * cols)[None, None]


def test_everything_promised_is_there_and_small() -> None:
    assert set(REQUIRED) <= set(shipped())
    sizes = [(SHIPPED / f"{name}.safetensors").stat().st_size for name in shipped()]
    assert max(sizes) <= 2e6 and sum(sizes) <= 6e6


@pytest.mark.parametrize(("name", "level"), REQUIRED.items())
def test_levels(name: str, level: int) -> None:
    assert load(name).sigma == pytest.approx(level / 255)


@EVERY
def test_card_tells_where_the_weights_come_from(name: str) -> None:
    content = card(name)
    for key in (
        "command",
        "seed",
        "training_images",
        "cpu_seconds",
        "held_out_psnr",
        "lipschitz",
        "licence",
        "test",
    ):
        assert content[key] not in (None, ""), key
    assert content["sha256"] == sha256(SHIPPED / f"{name}.safetensors")
    assert load(name).lipschitz == max(content["lipschitz"], content["test"]["measured"])


@EVERY
def test_card_holds_the_row_of_the_committed_comparison(name: str) -> None:
    results = json.loads((Path(__file__).parents[1] / "docs/results/denoisers/results.json").read_text())
    (row,) = [row for row in results["rows"] if row["denoiser"] == name]
    assert card(name)["test"] == row
    bound = row.get("proved", row["measured"])
    assert row["measured"] <= bound < 1 and row["dncnn_ms"] > 25 * row["ms"]
    if "proved" in row:  # measured on these weights
        assert row["proved"] == pytest.approx(card(name)["lipschitz"], abs=1e-10)


@EVERY
def test_below_one(name: str) -> None:
    denoiser = load(name)
    assert denoiser.lipschitz is not None and denoiser.lipschitz < 1
    measured = lipschitz(GradientStep(denoiser.g), [steps_and_ramps()], iterations=15).largest
    assert measured < 1
    if isinstance(denoiser.g, Ridge):
        assert measured <= denoiser.g.certificate() <= denoiser.lipschitz + 1e-9 <= 0.99


@EVERY
def test_removes_noise(name: str) -> None:
    denoiser, image = load(name), steps_and_ramps()
    assert denoiser.sigma is not None
    noise = denoiser.sigma * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    error = (denoiser(image + noise) - image).square().mean()
    assert error < 0.5 * noise.square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("ridge")])
def test_ridges_are_bounded_below_and_iterates_stay_in_range(name: str) -> None:
    denoiser = load(name)
    assert isinstance(denoiser.g, Ridge) and denoiser.g.bounded_below
    x = steps_and_ramps()
    low, high = x.min(), x.max()
    with torch.no_grad():
        for _ in range(300):
            x = denoiser(x)
    assert x.min() > low - 0.1 and x.max() < high + 0.1


def test_unknown_names_are_told_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no weights 'ridge-mri'; shipped are .*ridge-ct"):
        load("ridge-mri")


def test_bm3d_is_a_denoiser() -> None:
    pytest.importorskip("bm3d")
    image = steps_and_ramps()[..., :32, :32].repeat(1, 2, 1, 1)
    noise = 0.02 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    done = BM3D(0.02)(image + noise)
    assert done.dtype == image.dtype and done.shape == image.shape
    assert (done - image).square().mean() < 0.5 * noise.square().mean()


def test_a_ridge_of_an_older_form_is_refused(tmp_path: Path) -> None:
    """Tensors that would be left out make another denoiser, which is not the one of the certificate."""
    from safetensors.torch import save_file

    tensors = {"filters": torch.ones(1, 3, 3), "slopes": torch.ones(1, 4), "pools": torch.ones(1, 2, 1)}
    about = {"kind": "ridge", "spacing": 0.3, "sigma": 0.02, "lipschitz": 0.99, "singles": 1}
    save_file(tensors, tmp_path / "old.safetensors", {"smadmm": json.dumps(about)})
    with pytest.raises(ValueError, match="old.safetensors holds no potential .*no longer supported.* train it anew"):
        load(tmp_path / "old.safetensors")


def test_damaged_and_foreign_files_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    whole, path = (SHIPPED / "ridge-natural.safetensors").read_bytes(), tmp_path / "w.safetensors"
    for content in (b"", b"junk", whole[:-100]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="w.safetensors is damaged or was not written by smadmm"):
            load(path)
    for header in (None, {"other": "{}"}):
        save_file({"a": torch.ones(1)}, path, header)
        with pytest.raises(ValueError, match="w.safetensors is damaged or was not written by smadmm"):
            load(path)
    save_file({"a": torch.ones(1)}, path, {"smadmm": json.dumps({"kind": "dncnn", "layers": 3})})
    with pytest.raises(ValueError, match="w.safetensors holds no potential that this version can use"):
        load(path)
    with pytest.raises(ValueError, match="no weights 'ridge-mri'; shipped are"):
        card("ridge-mri")


def test_a_bound_that_is_not_true_of_the_weights_is_refused(tmp_path: Path) -> None:
    potential, path = load("ridge-natural").g, tmp_path / "w.safetensors"
    assert isinstance(potential, Ridge)
    bound = potential.certificate()
    save(potential, path, 0.02, bound)
    assert load(path).lipschitz == bound
    with torch.no_grad():
        potential.slopes[0] *= 1.5
    save(potential, path, 0.02, bound)
    with pytest.raises(ValueError, match=r"w.safetensors is damaged: Lip\(I - D\) <= 0.98.* is not true"):
        load(path)
