"""
Killed and resumed, to the last bit
===================================

Kill a run without warning, as a cluster or a power cut does, resume it, and end with exactly the numbers of a run that
was never stopped.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

# The program: it keeps a checkpoint, and dies by SIGKILL, which nothing can catch, at the iteration that it is told.
PROGRAM = """
import os, signal, sys
import torch
from smadmm import ADMM, Problem, SAGA, Stop, run
from smadmm.losses import Logistic
from smadmm.proxes import L1

folder, death = sys.argv[1], int(sys.argv[2])
X = torch.randn(2000, 40, generator=torch.Generator().manual_seed(0))
problem = Problem(Logistic(X, torch.sign(X[:, :5].sum(1))), L1(1e-3))

def die(state):
    if state.k == death:
        os.kill(os.getpid(), signal.SIGKILL)

solver = ADMM(problem, SAGA(batch=8), rho=0.5, eta=2.0)
checkpoint = dict(checkpoint=folder + "/run.checkpoint", checkpoint_iterations=100, resume=True)
run(solver, torch.zeros(40), Stop(iterations=2000), every=20, callback=die, progress=False, **checkpoint).save(folder)
"""


def start(folder: Path, death: int = 0) -> int:
    return subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(death)], check=False).returncode


with tempfile.TemporaryDirectory() as parent:
    quiet, killed = Path(tempfile.mkdtemp(dir=parent)), Path(tempfile.mkdtemp(dir=parent))
    print("never stopped:", start(quiet))
    print("killed:", start(killed, 750), "killed again:", start(killed, 1330), "resumed:", start(killed))
    x, again = (np.load(folder / "x.npy") for folder in (quiet, killed))
    first, second = (np.genfromtxt(f / "history.csv", delimiter=",", names=True) for f in (quiet, killed))
print(f"the same bits: {x.tobytes() == again.tobytes()}; largest difference {np.abs(x - again).max()}")

fig, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
fig.suptitle("A run that was killed twice and one that was not: the same curve, the same bits")
ax.semilogy(first["k"], first["objective"], linewidth=6, color="0.8", label="never stopped")
ax.semilogy(second["k"], second["objective"], label="killed and resumed")
for death in (750, 1330):
    ax.axvline(death, color="C3", linestyle=":", label="SIGKILL" if death == 750 else None)
ax.set(xlabel="iteration", ylabel="objective")
ax.legend()
plt.show()
