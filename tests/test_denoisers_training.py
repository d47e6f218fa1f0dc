"""Training data, exact resume, penalty, presets, two processes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from smadmm.denoisers import GradientStep, lipschitz, load
from smadmm.denoisers.training.loop import train
from smadmm.denoisers.training.patches import hold_out, random_patches
from smadmm.denoisers.training.recipes import Recipe, recipe
from smadmm.denoisers.training.state import Run
from smadmm.io.images import read_images

RIDGE = Recipe("ridge", steps=12, batch=2, patch=20, filters=5, size=3, validations=2, held_out=2)
NETWORK = Recipe("unshuffled", steps=8, batch=2, patch=16, layers=3, channels=4, unshuffle=2, penalty=1.0, held_out=2)
PAPER = replace(recipe("dncnn", preset="paper"), epochs=0, steps=5, batch=2, patch=12, held_out=2, validations=1)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for n in range(10):
        smooth = np.kron(rng.integers(0, 255, (5, 6)), np.ones((8, 8)))
        Image.fromarray(smooth.astype(np.uint8)).save(folder / f"{n}.png")
    return folder


def archive(path: Path) -> Path:
    hu = np.stack([np.full((24, 24), v, np.int16) for v in (-2000, -1000, 250, 1500, 3000)])
    kernels = np.array(["B30f", "LUNG", "STANDARD", "59 .10.AB50", "B20s"])
    np.savez(path, hu=hu, kernel=kernels, patient=np.array(["a", "b", "a", "c", "d"]))
    return path


def test_slices_are_windowed_grouped_by_patient_and_sharp_kernels_left_out(tmp_path: Path) -> None:
    images = read_images([archive(tmp_path / "scan.npz")])
    assert [(i.name, i.group, float(i.pixels[0, 0])) for i in images] == [
        ("scan.npz[0]", "a", 0.0),
        ("scan.npz[2]", "a", 0.5),
        ("scan.npz[4]", "d", 1.0),
    ]
    assert len(read_images([tmp_path / "scan.npz"], sharp=True)) == 5
    training, held = hold_out(images, 2, seed=0)
    assert not {i.group for i in training} & {i.group for i in held} and len(training) + len(held) == 3


def test_data_errors_name_the_file_and_stop_or_go_on(pictures: Path, tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.png", tmp_path / "other.npz"
    broken.write_bytes(b"not a picture")
    np.savez(other, volume=np.zeros(3))
    with pytest.raises(ValueError, match=r"broken.png cannot be read.*skip_unreadable"):
        read_images([pictures, broken])
    with pytest.raises(ValueError, match=r"other.npz has no array 'hu'.*volume"):
        read_images([other])
    with pytest.raises(ValueError, match=r"0.png is 40 x 48, smaller than a patch of 41"):
        read_images([pictures], smallest=41)
    with pytest.raises(ValueError, match=r"gone.png"):
        read_images([tmp_path / "gone.png"])
    with pytest.warns(UserWarning, match=r"skipped: .*broken.png cannot be read"):
        assert len(read_images([broken, pictures], skip_unreadable=True)) == 10
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(ValueError, match="no images in"):
        read_images([broken], skip_unreadable=True)


def test_patches_come_from_every_patient_equally_often(tmp_path: Path) -> None:
    images = read_images([archive(tmp_path / "scan.npz")])  # patient a: slices 0.0 and 0.5; patient d: 1.0
    values = random_patches(images, 3000, 2, np.random.default_rng(0))[:, 0, 0, 0].numpy()
    assert (values == 1).mean() == pytest.approx(0.5, abs=0.05)


def test_patches_are_a_function_of_the_generator(pictures: Path) -> None:
    images = read_images([pictures])
    first, again, other = (random_patches(images, 3, 10, np.random.default_rng(s)) for s in (1, 1, 2))
    assert first.shape == (3, 1, 10, 10) and torch.equal(first, again) and not torch.equal(first, other)


SMALLER = replace(PAPER, layers=5, channels=8)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [RIDGE, NETWORK, SMALLER], ids=["ridge", "unshuffled", "paper"])
def test_resume_is_bit_equal(chosen: Recipe, pictures: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    straight = train([pictures], whole, chosen, progress=False)
    assert train([pictures], parts, chosen, stop_after=3, progress=False) is None
    with pytest.raises(ValueError, match="parts.checkpoint holds an unfinished run"):
        train([pictures], parts, chosen, progress=False)
    resumed = train([pictures], parts, chosen, resume=True, progress=False)
    assert straight is not None and resumed is not None
    assert whole.read_bytes() == parts.read_bytes()
    without_time = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in t.history] for t in (straight, resumed)
    ]
    assert without_time[0] == without_time[1]
    assert (tmp_path / "whole.csv").exists() and (tmp_path / "whole.png").exists()


def test_the_paper_preset_is_the_paper() -> None:
    chosen = recipe("dncnn", preset="paper").for_images(pixels=5936 * 512 * 512)
    assert (chosen.layers, chosen.channels, chosen.batch, chosen.patch) == (17, 64, 128, 128)
    assert chosen.steps == 50 * 742
    assert chosen.learning_rate(chosen.steps // 2 - 1) == 1e-3
    assert chosen.learning_rate(chosen.steps // 2) == pytest.approx(1e-4)


@pytest.mark.slow
def test_the_dncnn_of_the_paper_trains(pictures: Path) -> None:
    run = Run(replace(PAPER, steps=60), read_images([pictures]))
    losses = [run.advance() for _ in range(25)]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


@pytest.mark.slow
def test_ridge_training_improves_and_stays_certified(pictures: Path, tmp_path: Path) -> None:
    trained = train([pictures], tmp_path / "w.safetensors", replace(RIDGE, steps=150), progress=False)
    assert trained is not None
    assert trained.psnr > trained.history[0]["psnr"] > 34.2
    denoiser = load(tmp_path / "w.safetensors")
    assert denoiser.lipschitz == denoiser.g.certificate() <= 0.99  # type: ignore[operator]


@pytest.mark.slow
def test_penalty_and_calibration_bring_a_network_below_one(pictures: Path, tmp_path: Path) -> None:
    train([pictures], tmp_path / "w.safetensors", replace(NETWORK, steps=60), progress=False)
    denoiser = load(tmp_path / "w.safetensors")
    claimed = denoiser.lipschitz
    images = [image.pixels[None, None] for image in hold_out(read_images([pictures]), 2, 0)[1]]
    measured = lipschitz(GradientStep(denoiser.g), images, iterations=30)
    assert claimed == pytest.approx(measured.largest, rel=1e-3) and claimed <= NETWORK.target + 1e-6


@pytest.mark.slow
def test_the_penalty_looks_at_other_images_too(pictures: Path, tmp_path: Path) -> None:
    """Other images than those to be denoised are in the loss, in the final measurement and in the card."""
    others = tmp_path / "others"
    others.mkdir()
    rng = np.random.default_rng(1)
    hu = rng.integers(-1000, 1500, (6, 24, 24)).astype(np.int16)
    np.savez(others / "rough.npz", hu=hu, patient=np.arange(6).astype(str))
    chosen = replace(NETWORK, steps=60, penalty_from=0.0)
    images, rough = read_images([pictures]), read_images([others])
    assert Run(chosen, images, rough).advance() != Run(chosen, images).advance()
    train([pictures], tmp_path / "w.safetensors", chosen, also=[others], progress=False)
    held = [image.pixels[None, None] for image in hold_out(rough, 1, 0)[1]]
    denoiser = load(tmp_path / "w.safetensors")
    assert denoiser.lipschitz is not None and denoiser.lipschitz <= NETWORK.target + 1e-6
    assert lipschitz(GradientStep(denoiser.g), held).largest <= denoiser.lipschitz + 1e-3
    assert "--also others" in (tmp_path / "w.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [RIDGE, NETWORK], ids=["ridge", "unshuffled"])
def test_training_can_start_from_weights(chosen: Recipe, pictures: Path, tmp_path: Path) -> None:
    """A few tiny steps from trained weights stay near them; other sizes are refused."""
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    train([pictures], first, replace(chosen, steps=40), progress=False)
    train([pictures], second, replace(chosen, steps=2, rate=1e-9, penalty=0.0), start=first, progress=False)
    before, after = load(first), load(second)
    x = torch.rand(1, 1, 30, 30, generator=torch.Generator().manual_seed(0))
    change = (before(x) - after(x)).abs().max()
    assert change < 1e-3 * (before(x) - x).abs().max()
    other = replace(chosen, filters=6, layers=4)
    with pytest.raises(ValueError, match="only from weights of the same architecture and size"):
        train([pictures], tmp_path / "third.safetensors", other, start=first, progress=False)


@pytest.mark.slow
def test_minutes_set_the_steps_and_nothing_is_overwritten(pictures: Path, tmp_path: Path) -> None:
    out, small = tmp_path / "w.safetensors", replace(RIDGE, filters=4, batch=1)
    trained = train([pictures], out, small, minutes=0.005, progress=False)
    assert trained is not None and trained.recipe.steps > 1
    with pytest.raises(ValueError, match="w.safetensors is there already"):
        train([pictures], out, small, progress=False)
    with pytest.raises(ValueError, match="there is no .*x.checkpoint to resume from"):
        train([pictures], tmp_path / "x.safetensors", small, resume=True, progress=False)
    assert train([pictures], tmp_path / "x.safetensors", small, stop_after=1, progress=False) is None
    with pytest.raises(ValueError, match="belongs to another recipe: filters 4 then, 5 now; remove"):
        train([pictures], tmp_path / "x.safetensors", replace(small, filters=5), resume=True, progress=False)
    with pytest.raises(ValueError, match="1 images of 1 files or patients are too few: .* give at least 5 images of 2"):
        train([pictures / "1.png"], tmp_path / "y.safetensors", small, progress=False)
    assert not (tmp_path / "y.checkpoint").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sigma": 0.0}, "sigma must be positive, got 0.0"),
        ({"patch": 4}, "patches of 4 pixels are too small for these filters; use at least 5"),
        ({"target": 1.0}, "target < 1"),
        ({"means": 6}, "means must lie between 0 and the 5 filters, got 6"),
        ({"size": 4}, "filters need an odd size of at least 3, got 4"),
        ({"size": 1}, "filters need an odd size of at least 3, got 1"),
        ({"penalty": float("nan")}, "penalty must be >= 0"),
    ],
)
def test_impossible_recipes_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(RIDGE, **wrong)  # type: ignore[arg-type]


SCRIPT = """
import sys; from pathlib import Path; import torch; torch.set_num_threads(1)
from smadmm.denoisers.training.recipes import Recipe; from smadmm.denoisers.training.loop import train
for arch in ("ridge", "unshuffled"):
    chosen = Recipe(arch, steps=4, batch=3, patch=20, filters=3, size=3, layers=3, channels=4, unshuffle=2,
                    penalty=10.0, target=0.01, penalty_from=0.0, validations=1, held_out=2)
    train([Path(sys.argv[1])], Path(sys.argv[2]) / f"{arch}.safetensors", chosen, progress=False)
"""


@pytest.mark.slow
@pytest.mark.command
def test_two_processes_equal_one(pictures: Path, tmp_path: Path) -> None:
    """Up to the order of sums; three patches are shared unequally, and the penalty is on for the network."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    two, one = tmp_path / "two", tmp_path / "one"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for folder, prefix in ((two, torchrun), (one, [])):
        folder.mkdir()
        command = [sys.executable, *prefix, str(script), str(pictures), str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    for arch in ("ridge", "unshuffled"):
        a, b = load(one / f"{arch}.safetensors").state_dict(), load(two / f"{arch}.safetensors").state_dict()
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-4, atol=1e-5)


def test_patients_of_many_slices_are_held_out_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for n in range(3):
        np.savez(tmp_path / f"{n}.npz", hu=rng.integers(-1000, 1000, (20 + n, 24, 24)).astype(np.int16))
    training, held = hold_out(read_images([tmp_path]), 8, seed=0)
    assert {i.group for i in training} == {"1", "2"} and {i.group for i in held} == {"0"} and 5 <= len(held) <= 8
    assert len(training) == 43
    with pytest.raises(ValueError, match="20 images of 1 files or patients are too few"):
        train([tmp_path / "0.npz"], tmp_path / "w.safetensors", RIDGE, progress=False)


def test_one_slice_a_file_and_values_that_are_no_image(tmp_path: Path) -> None:
    import tifffile

    np.savez(tmp_path / "one.npz", hu=np.zeros((24, 20), np.int16))
    assert [tuple(i.pixels.shape) for i in read_images([tmp_path / "one.npz"])] == [(24, 20)]
    broken = np.zeros((2, 24, 20))
    broken[1, 3, 3] = np.nan
    np.savez(tmp_path / "nan.npz", hu=broken)
    with pytest.raises(ValueError, match=r"nan.npz\[1\] has values that are not finite.*skip_unreadable"):
        read_images([tmp_path / "nan.npz"])
    tifffile.imwrite(tmp_path / "bytes.tif", np.full((24, 20), 200.0, np.float32))
    with pytest.raises(ValueError, match=r"bytes.tif has values from 200 to 200; .* must lie in \[0, 1\]"):
        read_images([tmp_path / "bytes.tif"])


def test_a_checkpoint_knows_its_images_and_steps(pictures: Path, tmp_path: Path) -> None:
    from PIL import Image

    out = tmp_path / "w.safetensors"
    assert train([pictures], out, RIDGE, stop_after=3, progress=False) is None
    others = tmp_path / "others"
    others.mkdir()
    for n in range(10):
        Image.fromarray(np.full((40, 48), 20 * n, np.uint8)).save(others / f"{n}.png")
    with pytest.raises(ValueError, match="w.checkpoint belongs to a run on other images"):
        train([others], out, RIDGE, resume=True, progress=False)
    with pytest.raises(ValueError, match="belongs to another recipe"):
        train([pictures], out, replace(RIDGE, steps=600), resume=True, progress=False)
    (tmp_path / "w.checkpoint").write_bytes(b"junk")
    with pytest.raises(ValueError, match="w.checkpoint is damaged or was not written by smadmm"):
        train([pictures], out, RIDGE, resume=True, progress=False)


def test_divergence_is_said(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="training diverged; lower rate or penalty|the Jacobian is not finite"):
        train([pictures], tmp_path / "w.safetensors", replace(NETWORK, rate=1e8, steps=40), progress=False)
