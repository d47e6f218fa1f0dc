"""Ptychography: the operator between pixels, the object of a scan at few photons, files, and refusals."""

import numpy as np
import pytest
import torch

from smadmm import retrieve
from smadmm.imaging.ptychography import scan_snr
from smadmm.imaging.result import DataWarning
from smadmm.io.patterns import read_patterns
from smadmm.io.phantoms import abdomen
from smadmm.losses import PtychographyLoss
from smadmm.operators import Ptychography

SIZE, WINDOW = 64, 32


def scan(photons, seed=0):
    """An object with edges, a curved probe, and counts at 25 positions, some between pixels."""
    rng, image = np.random.default_rng(seed), np.clip((abdomen(SIZE, 1) + 1000) / 2000, 0, 1)
    truth = torch.from_numpy(((0.4 + 0.6 * image) * np.exp(1.5j * image.T)).astype(np.complex64))
    u = np.arange(WINDOW) - WINDOW / 2 + 0.5
    square = u[:, None] ** 2 + u**2
    probe = np.exp(-((square / 12**2) ** 4) + 1j * np.pi * square / 90)
    probe = (probe * (photons / (np.abs(probe) ** 2).sum()) ** 0.5).astype(np.complex64)
    steps = np.linspace(0, SIZE - WINDOW, 5)
    places = np.array([(r, c) for r in steps for c in steps]) + rng.uniform(-2, 2, (25, 2))
    places = places.clip(0, SIZE - WINDOW)
    operator = Ptychography(torch.from_numpy(probe), places, (SIZE, SIZE))
    counts = rng.poisson(operator(truth).abs().numpy() ** 2)
    return truth, probe, places, counts.astype(np.float32), operator


def epie(loss, epochs):
    """The usual method, position by position."""
    op, x = loss.operator, torch.ones(loss.operator.size, dtype=torch.complex64)
    for epoch in range(epochs):
        for i in np.random.default_rng(epoch).permutation(op.count).tolist():
            number = torch.tensor([i])
            probe, (r, c) = op.probes(number)[0], op.corners[i]
            step = torch.fft.ifft2(loss.residuals(x, number), norm="ortho")[0]
            x[r : r + WINDOW, c : c + WINDOW] -= probe.conj() * step / probe.abs().square().max()
    return x


def test_a_fraction_of_a_pixel_moves_the_probe():
    """By a whole pixel the object behind it is that of the next window."""
    probe = torch.zeros(8, 8, dtype=torch.complex128)
    probe[2:5, 3:6] = 1
    ones = torch.ones(12, 12, dtype=torch.complex128)
    there, half = Ptychography(probe, [(1, 0), (0.5, 0)], (12, 12)), torch.tensor([1])
    centre = (there.probes(half)[0].abs().square().sum(1) * torch.arange(8)).sum() / probe.abs().square().sum()
    assert float(centre) == pytest.approx(3.5, abs=0.1)
    assert float(there(ones)[1].norm()) == pytest.approx(float(there(ones)[0].norm()), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("photons", [1e3, 1e6])
def test_a_prior_is_worth_most_at_few_photons(photons):
    truth, probe, places, counts, operator = scan(photons)
    loss = PtychographyLoss(operator, torch.from_numpy(counts).sqrt())
    theirs = max(scan_snr(truth, epie(loss, epochs), operator.light()) for epochs in (3, 10, 30))
    result = retrieve(counts, positions=places, probe=probe, shape=(SIZE, SIZE), quantity="intensities", truth=truth)
    (row,) = result.slices
    assert row["snr"] > theirs + (2 if photons < 1e5 else -0.5) and row["snr"] > row["snr_fit"]
    assert result.settings["noise"] == pytest.approx(0.5, abs=0.1)
    assert row["sfo"] == 25 * (row["iterations"] + 1)
    assert repr(result).startswith("Ptychography(64 x 64, SNR ")


def test_files_warnings_and_refusals(tmp_path):
    _, probe, places, counts, _ = scan(1e6)
    np.savez(tmp_path / "scan.npz", intensities=counts, positions=places, probe=probe)
    read = read_patterns(tmp_path / "scan.npz")
    direct = retrieve(counts, positions=places, probe=probe, quantity="intensities", iterations=5)
    assert np.array_equal(retrieve(**read, iterations=5).image, direct.image)
    with pytest.warns(DataWarning, match="ifftshift"):
        retrieve(
            np.fft.fftshift(counts, axes=(1, 2)), positions=places, probe=probe, quantity="intensities", iterations=2
        )
    with pytest.raises(ValueError, match="positions go with a probe"):
        retrieve(counts, positions=places)
    with pytest.raises(ValueError, match="give masks, or for ptychography"):
        retrieve(counts)
    with pytest.raises(ValueError, match="beyond the object"):
        retrieve(counts, positions=places + 9, probe=probe, shape=(SIZE, SIZE))
    with pytest.raises(ValueError, match="n x 2"):
        Ptychography(torch.from_numpy(probe), places.T)
