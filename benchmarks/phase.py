"""One stochastic gradient of phase retrieval, two points and one mask of 256 x 256, against its three FFTs alone.

One thread, interleaved, CPU time; a ratio is the median over rounds. The FFTs are torch's (unitary, float32), each on
an array of its own with all results kept, as in the gradient. The plain torch path and two separate gradients (four
FFTs) are shown beside it.
"""

import os
import statistics
import sys
import time

import torch

from smadmm.losses import AmplitudeLoss
from smadmm.operators import CodedDiffraction, circle_masks

SIZE, MASKS, ROUNDS, REPEAT = 256, 6, 60, 20
WEIGHTS = (1.0, -0.7)


def random(shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def cpu(function):
    begin = time.process_time()
    for _ in range(REPEAT):
        function()
    return (time.process_time() - begin) / REPEAT


def interleaved(functions):
    """{name: function} -> {name: seconds of every round}."""
    times = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(ROUNDS):
        for name, function in functions.items():
            times[name].append(cpu(function))
    return times


def main():
    torch.set_num_threads(1)
    operator = CodedDiffraction(circle_masks(MASKS, (SIZE, SIZE)))
    x, old = random((SIZE, SIZE), 0), random((SIZE, SIZE), 1)
    data = operator(random((SIZE, SIZE), 2)).abs()
    ours, plain = AmplitudeLoss(operator, data), AmplitudeLoss(operator, data)
    plain.compiled = False
    batch = torch.tensor([3])
    fields = torch.complex(random((3, SIZE, SIZE), 3), random((3, SIZE, SIZE), 4))

    def three_ffts():
        forward = [torch.fft.fft2(fields[j], norm="ortho") for j in range(2)]
        return forward, torch.fft.ifft2(fields[2], norm="ortho")

    def two_gradients():
        return plain.gradient((x,), (1.0,), batch) + WEIGHTS[1] * plain.gradient((old,), (1.0,), batch)

    times = interleaved(
        {
            "three FFTs": three_ffts,
            "gradient": lambda: ours.gradient((x, old), WEIGHTS, batch),
            "gradient, plain torch": lambda: plain.gradient((x, old), WEIGHTS, batch),
            "two gradients, plain torch": two_gradients,
        }
    )
    error = ours.gradient((x, old), WEIGHTS, batch) - plain.gradient((x, old), WEIGHTS, batch)
    print(f"{SIZE} x {SIZE}, one mask, two points, one thread, CPU time")
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["three FFTs"], strict=True))
        aim = " (aim: below 1.5)" if name == "gradient" else ""
        print(f"{name:<28}{1e3 * statistics.median(values):8.3f} ms   {ratio:5.2f} x the FFTs{aim}", flush=True)
    print(f"largest difference of the two paths {float(error.abs().max()):.1e}")


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # it is read when libraries are loaded: start again with it
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})
    main()
