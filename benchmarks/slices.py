"""Slices over workers: what a slice costs, what a second worker gains, and previews of a scan that grows.

    python benchmarks/slices.py [OUT [gain] [cost] [looking] [memory] [previews]]

OUT gets slices.json and slices.md, or new values of some parts; `docs/results/scale` is what the pages quote. The
constants of smadmm.imaging.cost are fitted to CPU seconds of one process, so that other work on the machine counts
little; the memory is the largest resident set of a process that reconstructs one slice. Runs in this process and over
two workers take turns; the bits of all runs are compared.
"""

import json
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import smadmm
from smadmm.imaging.metrics import snr
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.files import atomic_write, output_folder, write_json
from smadmm.io.phantoms import abdomen_image
from smadmm.operators import Radon
from smadmm.workers import Processes

GRID = [(128, 60), (128, 240), (256, 60), (256, 180), (256, 360), (384, 90), (512, 90), (512, 180)]
STEPS = (2, 10)  # iterations of a short and a long run: their difference is that of the iterations alone
MEMORY = [(128, 60), (256, 360), (512, 90), (512, 360), (768, 180), (1024, 180)]
VOLUME, SIZE, VIEWS, TURNS = 12, 256, 180, 5
PREVIEWS, PREVIEW_EVERY, GOLDEN = 240, 20, (5**0.5 - 1) / 2

ONE_SLICE = """
import resource, sys, torch
torch.set_num_threads(1)
import smadmm
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image
size, views = int(sys.argv[1]), int(sys.argv[2])
smadmm.reconstruct(simulated_sinogram(abdomen_image(size), views, 45.0), size=size, iterations=3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def slice_costs(grid=GRID):
    """CPU seconds per iteration, by size and views."""
    rows = []
    for size, views in grid:
        sinogram, taken = simulated_sinogram(abdomen_image(size), views, 45.0), []
        smadmm.reconstruct(sinogram, size=size, iterations=1, center=0.0, raw=True)  # compiles
        for steps in STEPS:
            best = []
            for _ in range(2):
                begin = time.process_time()
                smadmm.reconstruct(sinogram, size=size, iterations=steps, center=0.0, raw=True)
                best.append(time.process_time() - begin)
            taken.append(min(best))
        each = (taken[1] - taken[0]) / (STEPS[1] - STEPS[0])
        rows.append({"size": size, "views": views, "iteration": each, "pixels": size**2})
        print(rows[-1], flush=True)
    return rows


def fitted(rows):
    """p and q of an iteration's p P + q P V, by least squares on relative errors."""
    taken = np.array([row["iteration"] for row in rows])
    A = np.array([[row["pixels"], row["pixels"] * row["views"]] for row in rows]) / taken[:, None]
    (p, q), *_ = np.linalg.lstsq(A, np.ones(len(rows)), rcond=None)
    return {"p": p, "q": q, "error": float(np.abs(A @ [p, q] - 1).max())}


def looking(size=256, views=180, steps=2):
    """What a slice takes beside its iterations (inspection, filtered back-projections, quality), in iterations."""
    volume = simulated_sinogram(abdomen_image(size), views, 45.0).numpy()[None].repeat(8, 0)
    taken = {}
    for count in (1, 3, 1, 3):
        begin = time.process_time()
        smadmm.reconstruct(volume, size=size, iterations=steps, center=0.0, slices=(0, count))
        taken[count] = min(taken.get(count, math.inf), time.process_time() - begin)
    (each,) = (row["iteration"] for row in slice_costs([(size, views)]))
    return (taken[3] - taken[1]) / 2 / each - steps


def memory():
    rows = []
    for size, views in MEMORY:
        done = subprocess.run([sys.executable, "-c", ONE_SLICE, str(size), str(views)], capture_output=True, text=True,
                              check=True)  # fmt: skip
        detectors = simulated_sinogram(abdomen_image(size), 1, 45.0).shape[1]
        rows.append({"size": size, "views": views, "bytes": int(done.stdout), "rays": views * detectors})
    A = np.array([[1, 4 * row["size"] ** 2, 4 * row["rays"]] for row in rows], float)
    taken = np.array([row["bytes"] for row in rows], float)
    (m, i, s), *_ = np.linalg.lstsq(A / taken[:, None], np.ones(len(rows)), rcond=None)
    return rows, {"m": m, "i": i, "s": s, "error": float(np.abs(A @ [m, i, s] / taken - 1).max())}


def resident(row, memory):
    """Bytes by the model."""
    return memory["m"] + 4 * (memory["i"] * row["size"] ** 2 + memory["s"] * row["rays"])


def begin_seconds():
    """CPU seconds until a worker has begun: it imports what it needs, loads kernels and solves a tiny slice."""
    tiny = simulated_sinogram(abdomen_image(32), 24, 45.0).numpy()[None].repeat(2, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Processes(1) as worker:
        smadmm.reconstruct(tiny, size=32, center=0.0, raw=True, iterations=2, executor=worker)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_seconds(pid):
    """CPU seconds of a process so far (Linux)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def gain():
    """This process against two workers that have begun, in turns: wall seconds, and CPU seconds of the busiest path.

    The path is this process and the worker that had more to do: what two idle cores would take. On a machine with other
    work wall times say how that is shared out.
    """
    volume = np.stack([simulated_sinogram(abdomen_image(SIZE, n), VIEWS, 45.0, n).numpy() for n in range(VOLUME)])
    options = {"size": SIZE, "center": 0.0, "raw": True}
    images, wall, path = [], {"serial": [], "two": []}, {"serial": [], "two": []}
    with Processes(2) as two:
        smadmm.reconstruct(volume, executor=two, iterations=2, **options)  # they have loaded kernels now
        workers = [child.pid for child in multiprocessing.active_children()]
        for turn in range(TURNS):
            for name in ("serial", "two") if turn % 2 else ("two", "serial"):
                before, own, begin = [cpu_seconds(pid) for pid in workers], time.process_time(), time.perf_counter()
                result = smadmm.reconstruct(volume, executor=two if name == "two" else None, **options)
                wall[name].append(time.perf_counter() - begin)
                used = max(cpu_seconds(pid) - seconds for pid, seconds in zip(workers, before, strict=True))
                path[name].append(time.process_time() - own + used)
                images.append(result.image)
            print(wall["serial"][-1], wall["two"][-1], path["serial"][-1], path["two"][-1], flush=True)
    made = {"equal": all(np.array_equal(images[0], image) for image in images), "load": os.getloadavg()[0],
            "turns": TURNS, "slices": VOLUME}  # fmt: skip
    for name, taken in (("wall", wall), ("work", path)):
        ratios = [one / other for one, other in zip(*taken.values(), strict=True)]
        made[name] = {"ratio": float(np.median(ratios)), "least": min(ratios), "most": max(ratios)}
        made[name] |= {how: float(np.median(seconds)) for how, seconds in taken.items()}
    return made


def previews(size=256):
    """SNR of previews by golden-angle views, a preview every 20, beside the FBP."""
    truth = torch.as_tensor(abdomen_image(size)).float()
    degrees = np.arange(PREVIEWS) * GOLDEN % 1 * 180
    rows = Radon(size, np.deg2rad(degrees), int(1.42 * size))(truth)
    rows = rows + 0.003 * rows.std() * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    found, last = [], None
    for views in range(PREVIEW_EVERY, PREVIEWS + 1, PREVIEW_EVERY):
        begin = time.process_time()
        result = smadmm.reconstruct(rows[:views], degrees[:views], size=size, start=last,
                                    iterations=12 if last is None else 5)  # fmt: skip
        last = result.image
        found.append({"views": views, "snr": snr(truth, last), "fbp": snr(truth, torch.as_tensor(result.shown["FBP"])),
                      "seconds": time.process_time() - begin})  # fmt: skip
    final = smadmm.reconstruct(rows, degrees, size=size)
    return found, snr(truth, final.image)


def table(found):
    made, cost = found["gain"], found["cost"]
    lines = [
        f"Volume of {VOLUME} slices, {SIZE} x {SIZE}, {VIEWS} views, {TURNS} turns, one process and two workers:",
        *(f"{name}: {made[name]['serial']:.1f} s and {made[name]['two']:.1f} s, ratio {made[name]['ratio']:.2f} "
          f"({made[name]['least']:.2f} to {made[name]['most']:.2f})." for name in ("work", "wall")),
        f"Images {'equal' if made['equal'] else 'NOT EQUAL'}; load of the machine, this included: {made['load']:.0f}.",
        f"A worker begins after {found['begin']:.1f} s of CPU.",
        f"An iteration: {cost['p']:.3g} P + {cost['q']:.3g} P V seconds, within {cost['error']:.0%}.",
        f"Beside them a slice takes as long as {found['looking']:.0f} iterations.",
        "", "| size | views | ms per iteration | model |", "|---|---|---|---|",
        *(f"| {r['size']} | {r['views']} | {1e3 * r['iteration']:.1f} | "
          f"{1e3 * r['pixels'] * (cost['p'] + cost['q'] * r['views']):.1f} |" for r in found["slices"]),
        "", f"Memory: {found['memory']['m'] / 1e6:.0f} MB + 4 ({found['memory']['i']:.0f} P + "
        f"{found['memory']['s']:.0f} V D) bytes, within {found['memory']['error']:.0%}.",
        "", "| size | views | MB | model |", "|---|---|---|---|",
        *(f"| {r['size']} | {r['views']} | {r['bytes'] / 1e6:.0f} | {resident(r, found['memory']) / 1e6:.0f} |"
          for r in found["resident"]),
        "", f"Previews, 256 x 256, golden angles; all {PREVIEWS} views, from a cold start: {found['final']:.2f} dB.",
        "", "| views | preview (dB) | FBP (dB) | CPU (s) |", "|---|---|---|---|",
        *(f"| {r['views']} | {r['snr']:.2f} | {r['fbp']:.2f} | {r['seconds']:.2f} |" for r in found["previews"]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


PARTS = {
    "gain": lambda: {"begin": begin_seconds(), "gain": gain()},
    "cost": lambda: {"slices": (rows := slice_costs()), "cost": fitted(rows)},
    "looking": lambda: {"looking": looking()},
    "memory": lambda: dict(zip(("resident", "memory"), memory(), strict=True)),
    "previews": lambda: dict(zip(("previews", "final"), previews(), strict=True)),
}


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder, *asked = sys.argv[1:] or [None]
    stored = None if folder is None else output_folder(folder) / "slices.json"
    found = json.loads(stored.read_text()) if asked and stored is not None else {}
    for name in asked or PARTS:
        found |= PARTS[name]()
    print(table(found))
    if stored is not None:
        write_json(stored, json.loads(json.dumps(found, default=float)))
        atomic_write(stored.with_suffix(".md"), table(found).encode())


if __name__ == "__main__":
    main()
