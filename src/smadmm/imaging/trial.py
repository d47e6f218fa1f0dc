"""A trial with held-out views: which prior, how strong, and where the image rests on it.

Every sixteenth view is left out (more of few views). From the others come an image with the learned prior, one with
total variation that starts there, both at strength 1, a filtered back-projection and ten conjugate gradient steps for
least squares. Each predicts the views that were left out; its error is |A x - b| / |b| over the rays that are trusted.
Where a prior predicts worse than an image without one, its strength follows: ten times more, or less.

Where two priors lead to one image, the data decide; where they differ, the prior does. Their local difference,
root mean square over a few pixels, is the map of `Trust`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smadmm.bars import tqdm
from smadmm.imaging.detectors import Calibrated, loss_of
from smadmm.imaging.geometry import cgls
from smadmm.imaging.inspection import Inspection
from smadmm.imaging.preconditioner import share_scale
from smadmm.imaging.priors import Prior
from smadmm.imaging.sinograms import BackProjections
from smadmm.imaging.slices import Scan
from smadmm.losses.tomography import Tomography
from smadmm.results import Result
from smadmm.running import Stop

HELD_OUT = 16  # every sixteenth view
FEWEST = 3  # views to predict
MOST = 0.1  # of the views: others have the same constants
FEWEST_VIEWS = 4 * FEWEST  # of a scan that can spare them
STEPS, SHORT = 12, 6  # iterations of the first image, and from there
BETTER = 0.99  # of the error of the learned prior: total variation is taken below (it errs more with few photons)
STRENGTHS = (10.0, 0.1)  # tried where a prior does not help
CGLS_STEPS = 10
MISFIT = 3.0  # times the noise: what no image explains
BINS = 8  # of values, for the misfit
LOCAL = 5  # pixels


@dataclass(frozen=True)
class Trust:
    """How far to trust an image: views that were left out of it, and how far two priors agree on it.

    `held_out` has the relative error at views that were left out, by prior and for "FBP" and "CGLS"; `differs` is the
    local difference between the images of two priors, in the image's unit, small where the data decide.

    >>> from smadmm.io.phantoms import abdomen_image
    >>> sinogram = operators.Radon(48, np.arange(24) * np.pi / 24)(abdomen_image(48))
    >>> trust = smadmm.reconstruct(sinogram, size=48).trust
    >>> trust.held_out[trust.prior] < trust.held_out["FBP"]
    True
    """

    held_out: Mapping[str, float]
    views: int  # left out
    prior: str
    strength: float  # what the trial multiplied the strength by
    misfit: float  # beyond the noise, relative to the sinogram
    differs: NDArray[np.float32]

    def __str__(self) -> str:
        others = ", ".join(f"{name} {error:.2%}" for name, error in self.held_out.items() if name != self.prior)
        own = self.held_out[self.prior]
        return f"{self.views} views were left out; {self.prior} predicts them to {own:.2%} ({others})"

    def notes(self) -> list[str]:
        """What there is to tell."""
        told = [str(self)]
        if self.misfit:
            told.append(
                f"no image fits the data to better than {self.misfit:.2%} (drift, scatter, beam hardening?); all rays "
                "are taken to be that uncertain"
            )
        if self.strength != 1:
            told.append(f"the prior did not help to predict views: its strength is {self.strength:g} times the usual")
        return told


def left_out(views: int) -> NDArray[np.bool_]:
    """Which views are held out."""
    step = max(2, min(HELD_OUT, views // FEWEST))
    out = np.zeros(views, bool)
    out[step // 2 :: step] = True
    return out


def trial_of(
    scan: Scan, images: BackProjections, look: Inspection, priors: Sequence[Prior], prior: str
) -> tuple[Result, Trust]:
    """Try two priors on one slice, and take `prior`, or the better one if that is "auto"."""
    part = _Part(scan, images, look)
    learned, other = priors
    first = part.solved(learned, STEPS)
    if "noise" not in scan.off and not first.interrupted:
        part.explain(first.x)
    found = {learned.name: first}
    for each in priors:  # both go on from there, for as long
        if not first.interrupted:
            found[each.name] = part.solved(each, SHORT, first.x)
    errors = {name: part.error(result.x) for name, result in found.items()} | part.without_prior()
    if prior == "auto":
        prior = other.name if errors.get(other.name, math.inf) < BETTER * errors[learned.name] else learned.name
    chosen, strength = learned if prior == learned.name or len(found) < 2 else other, 1.0
    last = found[chosen.name]
    for factor in STRENGTHS if errors[chosen.name] > min(errors["FBP"], errors["CGLS"]) else ():
        if not last.interrupted:
            tried = part.solved(chosen, SHORT, last.x, factor)
            if tried.interrupted or part.error(tried.x) < errors[chosen.name]:
                last, errors[chosen.name], strength = tried, part.error(tried.x), factor
    images_found = [result.x.cpu() for result in found.values()]
    differs = _local(images_found[-1] - images_found[0]) * scan.scale
    return last, Trust(errors, len(part.hidden), chosen.name, strength, part.scan.misfit, differs)


def settled(scan: Scan, trust: Trust, priors: Sequence[Prior]) -> Scan:
    """The scan with the prior, the strength and the misfit that a trial found."""
    learned = priors[0]
    chosen = next(each for each in priors if each.name == trust.prior)
    return replace(scan, prior=chosen, strength=scan.strength * trust.strength, misfit=trust.misfit,
                   learned=None if chosen is learned else learned)  # fmt: skip


class _Part:
    """The views that are seen, and those to predict."""

    def __init__(self, scan: Scan, images: BackProjections, look: Inspection):
        radon, out = scan.radon, left_out(scan.radon.views)
        radon.view_norms()  # its parts know them, too, and so does the last solve
        self.rows, self.hidden = images.rows[torch.from_numpy(~out)], images.rows[torch.from_numpy(out)]
        made, self.other = (radon.subset(np.flatnonzero(which)) for which in (~out, out))
        if len(self.hidden) <= MOST * radon.views and scan.batch is None:
            share_scale(radon, made)
        self.scan, self.images = replace(scan, radon=made, strength=1.0), BackProjections(made, self.rows)
        weights = np.ones(images.rows.shape, np.float32) if look.weights is None else look.weights
        self.known = torch.from_numpy(weights[out] > 0).float()
        self.look = replace(look, weights=None if look.weights is None else weights[~out])

    def solved(self, prior: Prior, steps: int, start: Tensor | None = None, factor: float = 1.0) -> Result:
        """An image from the views that are seen."""
        stop = Stop(iterations=min(steps, self.scan.stop.iterations or steps))
        scan = replace(self.scan, prior=prior, stop=stop, strength=factor)
        with tqdm(disable=True) as bar:
            found = scan.statistics(self.rows, self.look)
            return scan.run(self.images, found, None, start, bar=bar, certified=False)[0]

    def explain(self, x: Tensor) -> bool:
        """Measure what the image leaves beyond the noise, as a share of the sinogram; False where there is none."""
        found, loss = self.scan.statistics(self.rows, self.look), self.loss()
        weights, left = found.of(self.rows), self.rows - self.scan.radon(x.cpu())
        left = (left - loss.explained(left) if isinstance(loss, Calibrated) else left).abs()
        known = weights > 0
        values, left, noise = self.rows[known], left[known], found.noise**2 / weights[known]
        cuts = torch.from_numpy(np.quantile(values.numpy(), np.linspace(0, 1, BINS + 1)[1:-1]).astype(np.float32))
        which = torch.bucketize(values, cuts)
        bins = [which == n for n in range(BINS) if bool((which == n).any())]
        total = float(np.mean([(1.4826 * float(left[each].median())) ** 2 for each in bins]))
        own = float(np.mean([float(noise[each].mean()) for each in bins]))
        if total <= MISFIT**2 * own:
            return False
        self.scan = replace(self.scan, misfit=math.sqrt((total - own) / float(self.rows.square().mean())))
        return True

    def error(self, x: Tensor) -> float:
        """At the views that were left out, over the rays that are trusted."""
        wrong, loss = self.hidden - self.other(x.cpu()), self.loss()
        if isinstance(loss, Calibrated):  # detectors err there as they do in the views that are seen
            offsets, gains = loss.errors(self.rows - self.scan.radon(x.cpu()))
            wrong -= offsets + gains * self.hidden
        return float((wrong * self.known).norm() / (self.hidden * self.known).norm())

    def loss(self) -> Tomography:
        """Of the views that are seen."""
        found = self.scan.statistics(self.rows, self.look)
        return loss_of(self.scan.radon, self.rows, found.of(self.rows), found.noise, found.deviations)

    def without_prior(self) -> dict[str, float]:
        weights = self.look.weights
        known = None if weights is None else torch.from_numpy(weights > 0).float()
        least_squares = cgls(self.scan.radon, self.rows, CGLS_STEPS, known)
        return {"FBP": self.error(self.images[1.0]), "CGLS": self.error(least_squares)}


def _local(difference: Tensor) -> NDArray[np.float32]:
    """The root mean square over a few pixels each way."""
    square = torch.nn.functional.avg_pool2d(
        difference.square()[None, None], LOCAL, stride=1, padding=LOCAL // 2, count_include_pad=False
    )
    root: NDArray[np.float32] = square[0, 0].sqrt().numpy()
    return root
