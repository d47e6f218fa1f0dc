"""`smadmm retrieve`: read diffraction patterns, or simulate them from an image, call the verb, save the result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import smadmm
from smadmm.arguments import ArgumentError
from smadmm.cli.app import INTERRUPTED, app, resumable, stopped, typed, writing
from smadmm.cli.options import Device, MethodName, Overwrite, Quiet, ResultFolder, Resume, Seed, Strength, Threads
from smadmm.extras import needs
from smadmm.imaging.simulation import refuse_noise, simulated_amplitudes
from smadmm.io.images import read_slices
from smadmm.io.patterns import is_patterns, read_array, read_patterns
from smadmm.operators import CodedDiffraction, circle_masks

SNR = 25.0  # dB, of simulated patterns
UNFINISHED = "unfinished"


@app.command(rich_help_panel="Images")
def retrieve(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Patterns with masks (NPZ or HDF5: amplitudes or intensities, masks or positions, perhaps probe "
            "and truth; NPY with --mask-file), a scan of PtyPy (.ptyd) or CXI, or, with --masks, an image to simulate "
            "from.",
        ),
    ],
    out: ResultFolder,
    masks: Annotated[int | None, typer.Option(help="Simulate patterns of INPUT behind this many masks.")] = None,
    snr: Annotated[float | None, typer.Option(help="Noise of the simulated amplitudes in dB (25).")] = None,
    mask_file: Annotated[str | None, typer.Option(help="NPY file of the masks, n x height x width.")] = None,
    probe_file: Annotated[
        str | None,
        typer.Option(help="Ptychography: the probe, if INPUT has none and it is known (NPY, NPZ, HDF5 or .ptyr)."),
    ] = None,
    valid_file: Annotated[
        str | None, typer.Option(help="NPY file, height x width: True (or 1) where the detector measures.")
    ] = None,
    quantity: Annotated[str | None, typer.Option(help="What an NPY file holds: amplitudes or intensities.")] = None,
    method: MethodName = "smadmm",
    prior: Annotated[
        str | None,
        typer.Option(help="A shipped denoiser, a file of weights (.safetensors), tv or none (ridge-natural)."),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Masks per step (all of at most 16, else 6).")] = None,
    iterations: Annotated[int | None, typer.Option(help="At most so many (60; 200 with batches).")] = None,
    strength: Strength = 1.0,
    start: Annotated[str, typer.Option(help="Of the fit without prior: auto, constant, spectral or raar.")] = "auto",
    complex_image: Annotated[bool, typer.Option("--complex", help="The image is complex.")] = False,
    refine_probe: Annotated[
        bool, typer.Option("--refine-probe", help="Ptychography: the given probe is a first guess; find it, too.")
    ] = False,
    refine_positions: Annotated[
        bool, typer.Option("--refine-positions", help="Ptychography: let the positions move.")
    ] = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = 1,
    quiet: Quiet = False,
) -> None:
    """Retrieve an image from the amplitudes of its coded diffraction patterns."""
    needs("tifffile", "imaging", "retrievals")  # before the work, not after
    torch.set_num_threads(threads)
    path, going_on = Path(source), resume and (Path(out) / UNFINISHED).exists()
    folder = context.with_resource(writing(out, "run.json", overwrite or going_on))
    if masks is None:
        if not is_patterns(path):
            raise ArgumentError("{0} is an image: give {masks} NUMBER to simulate patterns, such as 6", path)
        if snr is not None:
            raise ArgumentError("{snr} is the noise of a simulation; add {masks} NUMBER or leave it out")
        masked, probed = (None if name is None else Path(name) for name in (mask_file, probe_file))
        data = read_patterns(path, masked, quantity, probed)
        if valid_file is not None:
            data["valid"] = read_array(Path(valid_file))
    else:
        if any(given is not None for given in (mask_file, probe_file, quantity, valid_file)):
            raise ArgumentError(
                "{mask_file}, {probe_file}, {quantity} and {valid_file} are for measured patterns; leave them out "
                "with {masks}"
            )
        data = _simulated(path, masks, SNR if snr is None else snr, seed)
    with resumable():
        result = smadmm.retrieve(
            **data, complex=complex_image, prior=prior, start=start, batch=batch, iterations=iterations,
            strength=strength, method=method, seed=seed, device=device, checkpoint=folder / UNFINISHED, resume=resume,
            refine_probe=refine_probe, refine_positions=refine_positions, progress=not quiet,
        )  # fmt: skip
        if result.interrupted:
            stopped(f" after {result.slices[0]['iterations']} iterations", INTERRUPTED)
        said = [*result.notes, *result.save(folder, typed(), path.name)]
        for line in [*said, *(f"Warning: {text}" for text in result.warnings)]:
            typer.echo(line)
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)  # scans leave none


def _simulated(path: Path, masks: int, snr: float, seed: int) -> dict[str, Any]:
    """Noisy amplitudes of an image behind random masks."""
    if masks < 1:
        raise ArgumentError("{masks} must be at least 1, got {0}", masks)
    refuse_noise(snr, None)
    slices = read_slices(path)
    if len(slices) != 1:
        raise ValueError(f"{path} holds {len(slices)} images; give one")
    slices.refuse_constant()
    image = slices[0]
    operator = CodedDiffraction(circle_masks(masks, image.shape, seed))
    noisy = simulated_amplitudes(torch.from_numpy(image), operator, snr, seed)
    drawn = operator.masks(torch.arange(masks)).numpy()
    return {"patterns": noisy.numpy(), "masks": drawn, "quantity": "amplitudes", "truth": np.asarray(image)}
