"""The trial with held-out views: what it predicts, chooses and keeps."""

import signal

import numpy as np
import pytest
import torch

import smadmm
from smadmm.imaging import slices, trial
from smadmm.imaging.result import DataWarning
from smadmm.io.phantoms import abdomen_image
from smadmm.operators.radon import Radon

SIZE, VIEWS = 64, 48
ANGLES = np.arange(VIEWS) * 180 / VIEWS


def scan(image=None, noise=0.05, seed=0):
    radon = Radon(SIZE, np.deg2rad(ANGLES), SIZE)
    b = radon(abdomen_image(SIZE) if image is None else image).numpy()
    return b + noise * np.random.default_rng(seed).standard_normal(b.shape).astype(np.float32)


@pytest.mark.parametrize(("views", "held_out"), [(12, 3), (14, 3), (48, 3), (180, 11), (720, 45)])
def test_a_few_views_are_left_out_and_never_the_first(views, held_out):
    out = trial.left_out(views)
    assert out.sum() == held_out and not out[0] and not out[-1]


@pytest.mark.slow
def test_what_is_left_out_is_not_seen_and_errors_are_those_of_predictions(monkeypatch):
    b, seen = scan(), []
    plain = slices.run

    def kept(solver, start, stop, **options):
        seen.append((solver.problem.f.radon.views, plain(solver, start, stop, **options)))
        return seen[-1][1]

    monkeypatch.setattr(slices, "run", kept)
    result = smadmm.reconstruct(b, ANGLES, size=SIZE, center=0)
    out, scale = trial.left_out(VIEWS), result.settings["scale"]
    assert [views for views, _ in seen] == [VIEWS - 3] * 3 + [VIEWS]  # learned, both priors from there, the solve
    seen = seen[1:]
    side = seen[0][1].x.shape[-1]  # the body reaches beyond the detector
    radon = Radon(side, np.deg2rad(ANGLES[out]), SIZE)
    for name, (_, each) in zip(("ridge-ct", "tv"), seen):
        wrong = radon(scale * each.x).numpy() - b[out]
        assert result.trust.held_out[name] == pytest.approx(np.linalg.norm(wrong) / np.linalg.norm(b[out]), rel=1e-4)
    change = scale * (seen[0][1].x - seen[1][1].x).numpy()[(side - SIZE) // 2 :, (side - SIZE) // 2 :]
    assert result.trust.differs[20, 30] == pytest.approx(np.sqrt((change[18:23, 28:33] ** 2).mean()), rel=1e-3)
    assert result.trust.views == 3 and "3 views were left out; ridge-ct predicts them to" in result.notes[-1]


@pytest.mark.slow
def test_the_better_prior_is_taken_and_the_other_can_be_asked_for():
    flat = torch.zeros(SIZE, SIZE)
    flat[16:48, 20:44] = 1.0
    flat[30:40, 24:30] = 0.4
    b = scan(flat, noise=0.3)
    found = smadmm.reconstruct(b, ANGLES, size=SIZE)
    assert found.settings["prior"] == found.trust.prior == "tv"
    assert found.trust.held_out["tv"] < trial.BETTER * found.trust.held_out["ridge-ct"]
    other = smadmm.reconstruct(b, ANGLES, size=SIZE, prior="ridge-ct")
    assert other.settings["prior"] == "ridge-ct" and other.trust.held_out["tv"] == found.trust.held_out["tv"]
    errors = [np.linalg.norm(result.image - flat.numpy()) for result in (found, other)]
    assert errors[0] < errors[1]


@pytest.mark.slow
def test_a_prior_that_does_not_help_gets_the_strength_that_predicts_best(monkeypatch):
    plain = slices.posterior_weight
    monkeypatch.setattr(slices, "posterior_weight", lambda *given: 50 * plain(*given))
    usual = smadmm.reconstruct(scan(), ANGLES, size=SIZE, prior="tv").trust
    monkeypatch.setattr(trial._Part, "without_prior", lambda self: {"FBP": 0.0, "CGLS": 0.0})
    monkeypatch.setattr(trial, "STRENGTHS", (1e4, 0.02))
    found = smadmm.reconstruct(scan(), ANGLES, size=SIZE, prior="tv", strength=2)
    assert usual.strength == 1 and found.trust.strength == 0.02 and found.settings["strength"] == pytest.approx(0.04)
    assert found.trust.held_out["tv"] < usual.held_out["tv"]
    assert any("its strength is 0.02 times the usual" in note for note in found.notes)


@pytest.mark.slow
def test_what_no_image_explains_is_part_of_the_noise():
    b = scan(noise=0.02)
    drifting = b * (1 + 0.1 * np.sin(np.linspace(0, 40, VIEWS)))[:, None].astype(np.float32)
    right = smadmm.reconstruct(b, ANGLES, size=SIZE, center=0)
    with pytest.warns(DataWarning, match="explains the sinogram badly"):  # no object changes its mass like that
        wrong = smadmm.reconstruct(drifting, ANGLES, size=SIZE, center=0)
    assert right.trust.misfit == 0 and wrong.trust.misfit == pytest.approx(0.1, abs=0.03)
    assert wrong.slices[0]["relative_noise"] > 3 * wrong.slices[0]["measured_noise"]
    assert any("no image fits the data to better than" in note for note in wrong.notes)


def test_a_variance_of_all_rays_is_added_to_their_own():
    rows = torch.tensor([[1.0, 2.0, 3.0]])
    found = slices.Statistics(0.1, torch.tensor([[1.0, 0.25, 0.0]]), 0.0).with_misfit(rows, 0.3)
    assert found.noise**2 == pytest.approx(0.01 + 0.09) and found.mean**2 == pytest.approx((0.1 + 0.13) / 2)
    torch.testing.assert_close(found.weights, torch.tensor([[1.0, 0.1 / 0.13, 0.0]]))


@pytest.mark.slow
def test_a_volume_stopped_in_its_trial_or_after_it_ends_as_one_never_stopped(tmp_path, monkeypatch):
    volume = np.stack([scan(seed=seed) for seed in range(3)])
    whole = smadmm.reconstruct(volume, ANGLES, size=SIZE, iterations=9, prior="tv")
    true_run, calls = slices.run, []

    def stopped(solver, start, stop, **options):
        calls.append(None)
        if len(calls) in (3, 7):  # in the trial; in the first slice, after another trial
            options["callback"] = lambda s: s.k == 4 and signal.raise_signal(signal.SIGINT)
        return true_run(solver, start, stop, **options)

    monkeypatch.setattr(slices, "run", stopped)
    options = {"size": SIZE, "iterations": 9, "prior": "tv", "checkpoint": tmp_path / "kept"}
    with pytest.raises(KeyboardInterrupt):
        smadmm.reconstruct(volume, ANGLES, **options)
    assert not (tmp_path / "kept" / "trial.npz").exists()
    with pytest.raises(KeyboardInterrupt):
        smadmm.reconstruct(volume, ANGLES, resume=True, **options)
    assert (tmp_path / "kept" / "trial.npz").exists()
    third = smadmm.reconstruct(volume, ANGLES, resume=True, **options)
    assert not third.interrupted and third.trust.held_out == whole.trust.held_out
    np.testing.assert_array_equal(third.image, whole.image)


@pytest.mark.parametrize(
    "given", [{"raw": True}, {"seconds": 0.1}, {"batch": 8}, {"prior": "none"}, {"start": np.zeros((SIZE, SIZE))}]
)
def test_there_is_no_trial_where_the_user_decides(given):
    assert smadmm.reconstruct(scan(), ANGLES, size=SIZE, iterations=8, **given).trust is None
