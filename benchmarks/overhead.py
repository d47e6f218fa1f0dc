"""What the loop itself costs: everything but f.gradient, the prox, A and B, on least squares with a million unknowns.

The solver runs with its parts wrapped in a stopwatch (process CPU time); what is left is the loop. Its work does not
grow with the batch, so the share falls with more rows. Also timed: `import smadmm` after `import torch`, and what the
objective and the certificate cost that a default `reconstruct` records.
"""

import subprocess
import sys
import time

import torch

from smadmm import ADMM, Power, Problem, Storm, reconstruct, running
from smadmm.imaging.simulation import simulated_sinogram
from smadmm.io.phantoms import abdomen_image
from smadmm.losses import LeastSquares
from smadmm.proxes import Zero

UNKNOWNS, ROWS, BATCH, STEPS = 1_000_000, 64, 32, 40


class Stopwatch:
    """Adds up the CPU time of the calls that go through it."""

    def __init__(self):
        self.seconds = 0.0

    def wrap(self, function):
        def timed(*arguments, **options):
            begin = time.process_time()
            result = function(*arguments, **options)
            self.seconds += time.process_time() - begin
            return result

        return timed


def loop_share():
    g = torch.Generator().manual_seed(0)
    f = LeastSquares(torch.randn(ROWS, UNKNOWNS, generator=g), torch.randn(ROWS, generator=g))
    problem = Problem(f, Zero())
    solver = ADMM(problem, Storm(BATCH, Power(1.0, -2 / 3)), rho=1.0, eta=f.lipschitz() + 1.0)
    state = solver.init(torch.zeros(UNKNOWNS))
    watch = Stopwatch()
    f.gradient = watch.wrap(f.gradient)
    object.__setattr__(problem.hs[0], "prox", watch.wrap(problem.hs[0].prox))
    for operator in (problem.A, problem.Bs[0]):
        operator.forward, operator.adjoint = watch.wrap(operator.forward), watch.wrap(operator.adjoint)
    for _ in range(5):
        state = solver.step(state)
    watch.seconds, begin = 0.0, time.process_time()
    for _ in range(STEPS):
        state = solver.step(state)
    total = time.process_time() - begin
    return total / STEPS, 1 - watch.seconds / total


def recording_share(size=256, views=180):
    sinogram, watch = simulated_sinogram(abdomen_image(size), views, 40.0, 0), Stopwatch()
    reconstruct(sinogram, iterations=1)  # compiles
    running.certificate_of, Problem.objective = watch.wrap(running.certificate_of), watch.wrap(Problem.objective)
    begin = time.process_time()
    reconstruct(sinogram)
    total = time.process_time() - begin
    return total, watch.seconds / (total - watch.seconds)


def import_seconds():
    code = "import time, torch; t = time.process_time(); import smadmm; print(time.process_time() - t)"
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    return min(float(output.stdout) for output in outputs)


def main():
    step, share = loop_share()
    print(f"least squares, {UNKNOWNS:,} unknowns, {BATCH} rows a batch: {1e3 * step:.1f} ms an iteration, ", end="")
    print(f"the loop itself {100 * share:.1f} % (aim: below 15 %)")
    total, share = recording_share()
    print(f"reconstruct, 256 x 256 from 180 views: {total:.1f} s, recording adds {100 * share:.1f} % (aim: below 5 %)")
    print(f"import smadmm after torch: {import_seconds():.3f} s (aim: below 0.3 s)")


if __name__ == "__main__":
    main()
