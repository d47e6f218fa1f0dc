"""The fan beam: an independent Joseph's sum, exact adjoint, lanes, the rays of a pixel, back-projection, ASTRA."""

import math
import warnings

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from smadmm import fan, reconstruct
from smadmm.__main__ import app
from smadmm.arguments import ArgumentError
from smadmm.cli.app import option
from smadmm.imaging.geometry import fan_axis
from smadmm.imaging.preconditioner import NewtonStep
from smadmm.imaging.result import DataWarning
from smadmm.imaging.sinograms import noise_gain
from smadmm.imaging.survey import survey_of
from smadmm.io.phantoms import abdomen_image
from smadmm.io.sinogram import read_sinogram
from smadmm.losses import Tomography
from smadmm.operators import FanBeam, Radon, hann, ramp
from smadmm.operators.fan import kernels
from smadmm.sampling import Rng, stride

scipy_io = pytest.importorskip("scipy.io")

ANGLES = np.array([0.0, 0.3, math.pi / 4, 1.2, math.pi / 2, 2.0, 3 * math.pi / 4, 3.0, 4.4, -0.8, 6.1])
GEOMETRIES = {
    "square": {"size": 36, "detectors": 50, "source_to_axis": 100, "source_to_detector": 150, "pitch": 1.5},
    "wide fan": {"size": (40, 70), "detectors": 90, "source_to_axis": 60, "source_to_detector": 90, "pitch": 0.9,
                 "centre": 3.3, "pixel": 0.8},
    "arc": {"size": (40, 70), "detectors": 90, "source_to_axis": 60, "source_to_detector": 90, "pitch": 0.9,
            "centre": 3.3, "pixel": 0.8, "curved": True},
    "coarse": {"size": (41, 23), "detectors": 12, "source_to_axis": 60, "source_to_detector": 90, "pitch": 4.0,
               "centre": -3.3},
    "fine": {"size": (41, 23), "detectors": 300, "source_to_axis": 60, "source_to_detector": 90, "pitch": 0.2,
             "pixel": 1.0},
    "source in the image": {"size": 36, "detectors": 30, "source_to_axis": 12, "source_to_detector": 50, "pixel": 1.0},
    "far away": {"size": 64, "detectors": 100, "source_to_axis": 1e4, "source_to_detector": 1e4},
    "tiny": {"size": (1, 3), "detectors": 5, "source_to_axis": 10, "source_to_detector": 20},
    "strips": {"size": (41, 23), "detectors": 15, "source_to_axis": 60, "source_to_detector": 90, "pitch": 3.0,
               "pixel": 1.0, "centre": 0.7, "rays": 3},
    "strips on an arc": {"size": 30, "detectors": 20, "source_to_axis": 60, "source_to_detector": 90, "pitch": 3.0,
                         "pixel": 1.0, "curved": True, "rays": 2},
}  # fmt: skip
LANES = [count for count in (16, 8, 1) if count <= len(kernels.LANES)]


def make(name, **options):
    return FanBeam(**GEOMETRIES[name], angles=ANGLES, **options)


def random(shape, seed, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def difference(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def dot_residual(A, x, y):
    image, back = A(x).double(), A.T(y).double()
    return abs(float((image * y).sum() - (x * back).sum())) / float(image.norm() * y.double().norm())


def joseph(A, image):
    """Joseph's sum from the definition: from the source through each detector, row by row or column by column.

    Several rays of a detector go through the middles of as many equal parts of it.
    """
    out, offsets = np.zeros((A.views, A.detectors)), (np.arange(A.rays) + 0.5) / A.rays - 0.5
    for v, theta in enumerate(A.angles):
        across, ahead = np.array([np.cos(theta), np.sin(theta)]), np.array([-np.sin(theta), np.cos(theta)])
        source = -A.source_to_axis * ahead
        for j, offset in np.ndindex(A.detectors, A.rays):
            s = (j + offsets[offset] - (A.detectors - 1) / 2 - A.centre) * A.pitch
            turn = s / A.source_to_detector
            on_arc = math.sin(turn) * across + math.cos(turn) * ahead
            way = on_arc if A.curved else A.source_to_detector * ahead + s * across
            out[v, j] += line_integral(image, source / A.pixel, way) * A.pixel / A.rays
    return out


def line_integral(image, source, way):
    if abs(way[0]) > abs(way[1]):
        return line_integral(image.T, source[::-1], way[::-1])
    height, width = image.shape
    total, columns = 0.0, np.arange(-1, width + 1) - (width - 1) / 2
    for r in range(height):
        along = (r - (height - 1) / 2 - source[1]) / way[1]
        if along > 0:
            total += np.interp(source[0] + along * way[0], columns, np.pad(image[r], 1), left=0, right=0)
    return total * math.hypot(*way) / abs(way[1])


@pytest.mark.parametrize("name", GEOMETRIES)
def test_torch_equals_josephs_sum(name):
    A = make(name, compiled=False)
    x = random(A.in_shape, 0, torch.float64)
    np.testing.assert_allclose(A(x).numpy(), joseph(A, x.numpy()), rtol=1e-9, atol=1e-9 * A.pixel)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_compiled_equals_torch(name, lanes, monkeypatch):
    """Positions are rounded to 2^-24 of their size, so rays err by about that times the difference of two pixels."""
    monkeypatch.setattr(kernels, "LANES", (0,) * lanes)
    fast, slow = make(name), make(name, compiled=False)
    x, y = random((2, *fast.in_shape), 0), random((2, *fast.out_shape), 1)
    assert fast.runs_compiled(x.dtype, x.device) and not slow.runs_compiled(x.dtype, x.device)
    assert difference(fast(x), slow(x.double())) < 5e-6 and difference(slow(x), slow(x.double())) < 1e-6
    assert difference(fast.T(y), slow.T(y.double())) < 5e-6 and difference(slow.T(y), slow.T(y.double())) < 1e-6
    assert dot_residual(fast, x[0], y[0]) < 1e-7


def test_lanes_agree_to_rounding(monkeypatch):
    """The same positions in all of them: what differs is the order of sums."""
    found = []
    for lanes in LANES:
        monkeypatch.setattr(kernels, "LANES", (0,) * lanes)
        A = FanBeam(150, ANGLES, 200, 400, 560, pitch=1.4)
        found.append((A(random(A.in_shape, 0)), A.T(random(A.out_shape, 1))))
    for image, back in found[1:]:
        assert difference(image, found[0][0]) < 3e-7 and difference(back, found[0][1]) < 3e-7


@pytest.mark.parametrize("beams", ["fan", "parallel"])
def test_rays_of_a_detector_are_those_of_a_finer_one(beams):
    """Gradients of batches, compiled and fused, too."""

    def projector(detectors, width, rays=1, **options):
        if beams == "fan":
            return FanBeam(24, ANGLES, detectors, 60, 90, pitch=width, pixel=1.0, rays=rays, **options)
        return Radon(24, ANGLES, detectors, width, rays=rays, **options)

    wide, fine = projector(14, 3.0, rays=3), projector(42, 1.0)
    x, b, views = random((24, 24), 0), random(wide.out_shape, 1), np.array([7, 2, 5])
    means = fine(x).unflatten(-1, (14, 3)).mean(-1)
    assert difference(wide(x), means) < 1e-6
    assert difference(wide.T(b), fine.T((b / 3).repeat_interleave(3, -1))) < 1e-6
    assert torch.equal(wide.subset(views)(x), wide.forward_views(x, views))
    assert torch.equal(wide(torch.stack([x, -x])), torch.stack([wide(x), -wide(x)]))
    losses = Tomography(wide, b), Tomography(projector(14, 3.0, rays=3, compiled=False), b)
    assert wide.fuses(x, 3)
    assert difference(*(f.gradient((x,), (1.0,), torch.from_numpy(views)) for f in losses)) < 1e-5
    disc = (torch.hypot(*torch.meshgrid(*[torch.arange(24) - 11.5] * 2, indexing="ij")) < 8).float()
    assert 0.9 < float(wide.fbp(wide(disc))[10:14, 10:14].mean()) < 1.1
    with pytest.raises(ValueError, match=r"rays, per detector, must be a whole number from 1 on, got 0"):
        projector(14, 3.0, rays=0)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_adjoint_is_exact_in_double_precision(name):
    A = make(name)
    assert dot_residual(A, random(A.in_shape, 0, torch.float64), random(A.out_shape, 1, torch.float64)) < 1e-14


def test_adjoint_residual_at_full_size():
    A = FanBeam(512, np.arange(0, 360, 14) * math.pi / 180, 560, 410.66, 553.74, pitch=0.2)
    assert max(dot_residual(A, random(A.in_shape, s), random(A.out_shape, s + 9)) for s in range(3)) < 1e-7


@pytest.mark.parametrize("curved", [False, True])
def test_every_ray_of_a_pixel_is_among_those_taken(curved):
    """K rays from floor(i - e) + 1 on, i by a line through both ends of a block of pixels: the kernels' text, by brute
    force on random fans, near and far, coarse and fine."""
    rng, tight = np.random.default_rng(0), 0
    for _ in range(300):
        n, theta, h, lanes = int(rng.integers(5, 80)), rng.uniform(-0.7, 0.7), 10 ** rng.uniform(1.3, 3.5), 16
        step = 10 ** rng.uniform(-0.4, 0.5) / h
        n, origin = min(n, int(1.2 / step) + 1), -rng.uniform(0.3, 0.7) * (n - 1)
        places = (np.arange(n) + origin) * step
        tangents, p, q = np.tan(places) if curved else places, math.cos(theta), math.sin(theta)
        m = (tangents * p - q) / (p + tangents * q)
        if np.abs(m).max() > 1 or (p + tangents * q).min() <= 0:
            continue
        beam = kernels.Beam(None, None, tangents, 0.0, 1 / step, origin, curved, 1.0, (0,) * lanes)
        d, e = kernels.rays_of_a_pixel(p, q, m[0], m[-1], h, beam)
        K, x = math.floor(2 * d + 2 * e) + 1 if d < math.inf else 99, h * m
        if K > 5:
            continue
        for c in np.arange(math.ceil(x[0] - 1), math.floor(x[-1] + 1) + 1, lanes):
            ends = [kernels.place_of(end, p, q, h, beam, origin, 0, n - 1, 1.0) for end in (c - 1, c - 1 + lanes)]
            for lane in range(lanes):
                first = math.floor(ends[0] + lane / lanes * (ends[1] - ends[0]) - e) + 1 - kernels.EDGE
                seen = np.flatnonzero(np.abs(x - c - lane) < 1)
                assert not len(seen) or first <= seen[0] <= seen[-1] < first + K
                tight += len(seen) > 0 and seen[-1] == first + K - 1
    assert tight > 100  # one ray less would not be enough


def gaussians(A, size):
    """Three Gaussians and their exact line integrals."""
    rows, columns = (np.mgrid[:size, :size] - (size - 1) / 2) * A.pixel
    normal, along = A.angles[:, None] - A.gammas, A.source_to_axis * np.sin(A.gammas)
    image, sinogram = np.zeros((size, size)), np.zeros((A.views, A.detectors))
    for x, y, width, height in ((0.1, -0.15, 0.06, 1.0), (-0.2, 0.1, 0.03, 0.7), (0.05, 0.2, 0.05, 0.4)):
        x, y, width = (value * size * A.pixel for value in (x, y, width))
        image += height * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * width**2))
        off = along - (x * np.cos(normal) + y * np.sin(normal))
        sinogram += height * width * math.sqrt(2 * math.pi) * np.exp(-(off**2) / (2 * width**2))
    return torch.from_numpy(image).float(), torch.from_numpy(sinogram).float()


@pytest.mark.parametrize(("curved", "centre"), [(False, 0.0), (False, 12.4), (True, -3.0)])
def test_gaussians_have_their_exact_line_integrals(curved, centre):
    options = {"pitch": 0.2, "centre": centre, "curved": curved}
    A = FanBeam(256, np.arange(60) * math.pi / 30 + 0.01, 400, 200, 280, **options)
    image, exact = gaussians(A, 256)
    assert difference(A(image), exact) < 5e-4
    wrong = FanBeam(256, A.angles, 400, 200, 280, **options | {"centre": centre + 0.5})
    assert difference(wrong(image), exact) > 5e-3


def test_a_source_far_away_is_parallel():
    """The parallel kernels have a discretisation of their own, so smooth images agree."""
    angles = np.arange(180) * 2 * math.pi / 180
    A = FanBeam(128, angles, 190, 1e6, 1e6)
    image, _ = gaussians(A, 128)
    parallel = Radon(128, angles, 190)
    assert difference(A(image), parallel(image)) < 1e-4
    assert difference(A.fbp(A(image)), image) < 0.01


@pytest.mark.parametrize("compiled", [None, False])
def test_a_subset_is_rows_of_the_whole(compiled):
    A = make("wide fan", compiled=compiled)
    x, views = random(A.in_shape, 0), [7, 2, 2, 9]
    rows = A(x)[views]
    assert torch.equal(A.forward_views(x, views), rows) and torch.equal(A.subset(views)(x), rows)
    y = random(rows.shape, 1)
    scattered = torch.zeros(A.out_shape).index_add_(0, torch.tensor(views), y)
    torch.testing.assert_close(A.adjoint_views(y, torch.tensor(views)), A.T(scattered), rtol=1e-5, atol=1e-4)
    assert torch.equal(A.adjoint_views(y[:0], []), torch.zeros(A.in_shape))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_derivatives_of_autograd_and_torch_func():
    A = make("arc")
    x, other, y = (random(A.in_shape, 0), random(A.in_shape, 1), random(A.out_shape, 2))
    (gradient,) = torch.autograd.grad(0.5 * A(x.requires_grad_()).square().sum(), x)
    x = x.detach()
    torch.testing.assert_close(gradient, A.T(A(x)))
    torch.testing.assert_close(torch.func.jvp(A, (x,), (other,))[1], A(other))
    torch.testing.assert_close(torch.func.vjp(A, x)[1](y)[0], A.T(y))
    torch.testing.assert_close(torch.func.vmap(A)(torch.stack([x, other])), A(torch.stack([x, other])))


def disc(size, radius):
    fine = (np.arange(4 * size) + 0.5) / 4 - 0.5 - (size - 1) / 2
    inside = (fine[:, None] ** 2 + fine**2 <= radius**2).astype(np.float32)
    return torch.from_numpy(inside.reshape(size, 4, size, 4).mean((1, 3)))


SCANS = {"turn": (0, 360), "short scan": (20, 230), "more than a short scan": (-70, 230), "two turns": (0, 720)}


@pytest.mark.parametrize("compiled", [None, False])
@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("scan", SCANS)
def test_filtered_back_projection_of_a_disc(scan, curved, compiled):
    """Attenuation .3 per mm in a disc off the axis; every line counts once, however often it was seen."""
    start, stop = SCANS[scan]
    angles = np.deg2rad(np.arange(start, stop, 1.0))
    options = {"pitch": 0.6, "pixel": 0.5, "centre": 4.0, "curved": curved}
    A = FanBeam(96, angles, 150, 120, 170, compiled=compiled, **options)
    x, y, radius = 5.0, -3.0, 12.0  # mm
    normal = angles[:, None] - A.gammas
    off = A.source_to_axis * np.sin(A.gammas) - (x * np.cos(normal) + y * np.sin(normal))
    image = A.fbp(torch.from_numpy(0.6 * np.sqrt(np.maximum(radius**2 - off**2, 0))).float(), ramp)
    moved = torch.roll(disc(96, radius / 0.5), (-6, 10), (0, 1))
    inner, outer = (torch.roll(disc(96, radius / 0.5 + k), (-6, 10), (0, 1)) for k in (-5, 5))
    assert float(image[inner == 1].mean()) == pytest.approx(0.3, rel=0.01)
    assert float(image[outer == 0].abs().mean()) < 0.006
    assert float((image - 0.3 * moved).norm() / (0.3 * moved).norm()) < 0.13


@pytest.mark.parametrize("curved", [False, True])
def test_a_wide_fan_weighs_its_outer_rays(curved):
    """A disc that fills a fan of 70 degrees has one value from the middle to the rim."""
    angles = np.deg2rad(np.arange(0, 360, 1.0))
    A = FanBeam(96, angles, 150, 60, 90, pitch=0.8, pixel=0.7, curved=curved)
    off = np.broadcast_to(A.source_to_axis * np.sin(A.gammas), A.out_shape)
    image = A.fbp(torch.from_numpy(0.6 * np.sqrt(np.maximum(30.0**2 - off**2, 0))).float(), ramp)
    middle, rim = disc(96, 12) == 1, (disc(96, 38) == 1) & (disc(96, 30) == 0)
    found = [float(image[part].mean()) for part in (middle, rim)]
    assert found == pytest.approx([0.3, 0.3], rel=0.01)


def test_weights_of_opposite_rays_add_up_to_one():
    A = FanBeam(32, np.deg2rad(np.arange(10, 230, 0.5)), 60, 60, 90, pitch=0.7)
    weights = A._seen_once()
    v, j = 30, 12
    opposite = A.angles[v] + math.pi - 2 * A.gammas[j]
    there = np.interp(opposite, A.angles, weights[:, A.detectors - 1 - j])
    assert 0.02 < weights[v, j] < 0.98 and weights[v, j] + there == pytest.approx(1, abs=1e-3)
    limited = FanBeam(32, np.deg2rad(np.arange(10, 100, 0.5)), 60, 60, 90, pitch=0.7)
    np.testing.assert_allclose(limited._seen_once(), 1)
    shares = limited.fbp_weights()
    np.testing.assert_allclose(shares[1:-1], math.radians(0.5))
    assert float(shares.max()) <= math.radians(1.0) * (1 + 1e-9)  # beside the gap


def test_views_of_a_turn_are_numbered_by_their_whole_angle():
    """Half a turn later a fan sees other lines: batches are equispaced over the turn."""
    angles = np.random.default_rng(0).permutation(40) * (2 * math.pi / 40)
    A = FanBeam(8, angles, 12, 30, 40)
    f = Tomography(A, torch.zeros(A.out_shape), sampling=stride)
    chosen = np.sort(angles[f.draw(Rng(0, 1), 8).numpy()])
    np.testing.assert_allclose(np.diff(np.append(chosen, chosen[0] + 2 * math.pi)), 2 * math.pi / 8)


@pytest.mark.parametrize("scan", SCANS)
def test_the_noise_of_a_back_projection_is_known(scan):
    angles = np.deg2rad(np.arange(*SCANS[scan], 4.0))
    A = FanBeam(96, angles, 150, 120, 170, pitch=0.6, pixel=0.5)
    noise = random(A.out_shape, 1)
    assert noise_gain(A, hann) == pytest.approx(float(A.fbp(noise, hann).std()), rel=0.2)


def test_fused_gradient_and_newton_step():
    A = FanBeam(40, np.arange(30) * 2 * math.pi / 30, 60, 80, 110, pitch=1.2)
    truth, x, other = random(A.in_shape, 0), random(A.in_shape, 1), random(A.in_shape, 2)
    fast, slow = (
        Tomography(radon, A(truth)) for radon in (A, FanBeam(40, A.angles, 60, 80, 110, pitch=1.2, compiled=False))
    )
    assert A.fuses(x, 5) and not slow.radon.fuses(x, 5)
    batch = torch.tensor([3, 7, 21])
    gradients = [f.gradient((x, other), (1.0, -0.4), batch) for f in (fast, slow)]
    assert difference(*gradients) < 1e-5
    step = NewtonStep(fast, inner=25)
    direction = random(A.in_shape, 3)
    d = step(direction, 1.0, 0.01)
    zero = torch.zeros_like(d)
    assert difference(fast.gradient((d, zero), (1.0, -1.0), fast.full()) + 0.01 * d, direction) < 1e-3


def test_agrees_with_astra():
    """ASTRA's line model takes the length of a ray in a pixel, so smooth images agree. Its y-axis points up."""
    astra = pytest.importorskip("astra", exc_type=ImportError)
    A = FanBeam(256, ANGLES, 400, 600, 840, pitch=1.4, pixel=1.0)
    geometry = astra.create_proj_geom("fanflat", 1.4, 400, ANGLES, 600, 240)
    projector = astra.create_projector("line_fanflat", geometry, astra.create_vol_geom(256, 256))
    image, _ = gaussians(A, 256)
    _, theirs = astra.create_sino(np.ascontiguousarray(image.numpy()[::-1]), projector)
    assert difference(A(image), torch.from_numpy(theirs)) < 2e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_to_axis": 0}, "source_to_axis must be positive"),
        ({"source_to_detector": math.inf}, "source_to_detector must be positive"),
        ({"pitch": -1.0}, "-1.0"),
        ({"pixel": 0.0}, "pixel must be positive"),
        ({"pitch": 20.0}, "opens by 146 degrees"),
        ({"detectors": 0}, "at least one element"),
        ({"centre": math.nan}, "centre must be finite"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        FanBeam(**GEOMETRIES["square"] | {"angles": ANGLES} | change)


# --- the verb and the command ---------------------------------------------------------------------------------------


def measured(views, center, last=360.0, curved=False, size=64):
    """Counts of photons through a slice: sinogram, angles in degrees, geometry, truth in attenuation per mm."""
    geometry, degrees = fan(200, 280, pitch=1.4, curved=curved), np.linspace(0, last, views, endpoint=False)
    A = geometry.projector(size, np.deg2rad(degrees), 100, 1.0, center)
    truth = 0.05 * abdomen_image(size)
    clean = A(truth)
    return (clean + 0.003 * float(clean.std()) * random(clean.shape, 1)).numpy(), degrees, geometry, truth.numpy()


@pytest.mark.parametrize("center", [0.0, 0.37, -5.6])
@pytest.mark.parametrize(("last", "curved"), [(360.0, False), (360.0, True), (230.0, False)])
def test_the_axis_by_opposite_rays(last, curved, center):
    sinogram, degrees, geometry, _ = measured(80, center, last, curved)
    axis = fan_axis(sinogram.astype(np.float64), degrees, geometry)
    assert axis.center == pytest.approx(center, abs=0.05) and axis.error < 0.1


def test_no_axis_is_found_where_no_line_is_seen_twice():
    sinogram, degrees, geometry, _ = measured(60, -5.6, 150.0)
    axis = fan_axis(sinogram.astype(np.float64), degrees, geometry)
    assert axis.center == 0 and axis.error == math.inf


def test_reconstruct_takes_a_fan():
    sinogram, degrees, geometry, truth = measured(60, 2.3)
    found = reconstruct(sinogram, (0, 360), geometry=geometry, size=64, truth=truth, iterations=15)
    row = found.slices[0]
    assert found.unit == "attenuation per mm" and found.settings["geometry"]["source_to_axis"] == 200
    assert found.settings["center"] == pytest.approx(2.3, abs=0.05)
    assert row["snr"] > row["snr_fbp"] + 5 and row["snr"] > 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        parallel = reconstruct(sinogram, degrees, size=64, iterations=15)
    assert row["residual"] < 0.2 * parallel.slices[0]["residual"]


def test_what_a_turn_and_a_part_of_it_say():
    sinogram, degrees, geometry, _ = measured(90, 0.0, 360 * 90 / 89)  # the last view is at 360 degrees
    survey = survey_of(sinogram, (0.0, 360.0), 0.0, frozenset(), geometry)
    assert survey.angles[-1] == 360 and [f.kind for f in survey.findings] == ["angles"]
    assert survey_of(*measured(60, 2.3)[:1], (0.0, 360.0), 2.3, frozenset(), geometry).angles[-1] == 354
    for last, kinds in ((360.0, []), (230.0, []), (180.0, ["range"])):  # the fan opens by 28 degrees
        sinogram, degrees, geometry, _ = measured(90, 0.0, last)
        findings = survey_of(sinogram, degrees, 0.0, frozenset(), geometry).findings
        assert [f.kind for f in findings] == kinds
    assert "30 of 208 degrees have no view" in findings[0].text


@pytest.mark.parametrize("views", [60, 180])
@pytest.mark.parametrize("inclusive", [True, False])
def test_the_end_of_a_noisy_turn_is_found(views, inclusive):
    last = 360 * views / (views - 1) if inclusive else 360.0
    sinogram, _, geometry, _ = measured(views, 1.3, last)
    noise = np.random.default_rng(0).standard_normal(sinogram.shape)
    noisy = sinogram + 0.01 * sinogram.max() * noise
    survey = survey_of(noisy, (0.0, 360.0), 1.3, frozenset(), geometry)
    assert survey.angles[-1] == (360 if inclusive else 360 - 360 / views)


@pytest.mark.parametrize("last", [360.0, 230.0])
def test_views_that_turn_the_other_way_are_noticed(last):
    sinogram, degrees, geometry, truth = measured(60, 2.3, last)
    found = reconstruct(sinogram, -degrees, geometry=geometry, size=64, truth=truth, iterations=15)
    assert any("turn the other way" in note for note in found.notes) and found.mean("snr") > 20
    kept = survey_of(sinogram, -degrees, "auto", frozenset({"angles"}), geometry)
    np.testing.assert_array_equal(kept.angles, -degrees)


def test_the_command_reads_fans(tmp_path):
    """Distances by options, and as a file tells them; the verb gives the same image."""
    sinogram, degrees, geometry, _ = measured(40, 0.0)
    np.savez(tmp_path / "a.npz", sinogram=sinogram, angles=degrees)
    parameters = {"distanceSourceOrigin": 200.0, "distanceSourceDetector": 280.0, "distanceUnit": "mm",
                  "angles": degrees, "pixelSizePost": 1.4}  # fmt: skip
    scipy_io.savemat(tmp_path / "b.mat", {"Ct": {"sinogram": sinogram.astype(float), "parameters": parameters}})
    expected = reconstruct(sinogram, degrees, geometry=geometry, iterations=2).image
    told = ("--geometry", "fan", "--source-to-axis", 200, "--source-to-detector", 280, "--pitch", 1.4)
    for name, options in (("a.npz", told), ("b.mat", ())):
        assert (
            command(tmp_path / name, "--out", tmp_path / f"{name}.out", "--iterations", 2, "--quiet", *options) is None
        )
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.out" / "image.npy"), expected, atol=1e-6)
    scan = read_sinogram(tmp_path / "b.mat")  # in Python: the same image by the geometry of the file
    found = reconstruct(scan, iterations=2).image
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert "fan beam (source to axis 200 mm, source to detector 280 mm), as the file says" in scan.notes
    assert repr(scan).startswith(f"Sinogram(1 x {len(degrees)} views x") and len(repr(scan)) < 150
    assert read_sinogram(tmp_path / "a.npz").beam is None
    out = ("--out", tmp_path / "no")
    assert "fan beam without a known --pitch; give it" in command(tmp_path / "a.npz", *out, *told[:6])
    assert "leave them out with --geometry parallel" in command(
        tmp_path / "a.npz", *out, *told[2:], "--geometry", "parallel"
    )
    assert "--geometry is one of parallel, fan" in command(tmp_path / "a.npz", *out, "--geometry", "cone")


def command(*arguments):
    """What the command refuses, in its words; None where it succeeds."""
    error = CliRunner().invoke(app, ["reconstruct", *map(str, arguments)]).exception
    return error.spelled(option) if isinstance(error, ArgumentError) else error
