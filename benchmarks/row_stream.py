"""`smadmm classify --stream` on ten million rows of Parquet: memory, three kills, and how soon a resumed fit begins.

    python benchmarks/row_stream.py [OUT] [--rows N]       OUT: a folder for stream.json

Needs pyarrow. The fit is run once undisturbed and once killed (-9) three times; the models must be equal byte for byte.
Memory is the peak above that after all imports.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FEATURES, FILES, GROUP = 10, 10, 50_000
KILLED_AT = (0.2, 0.5, 0.9)  # of the rows


def write(folder, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    weight = np.repeat(rng.standard_normal(FEATURES // 2), 2)
    folder.mkdir()
    for number in range(FILES):
        X = rng.standard_normal((rows // FILES, FEATURES), dtype=np.float32)
        y = np.sign(X @ weight + rng.standard_normal(len(X))).astype(np.float32)
        columns = {f"f{i}": X[:, i] for i in range(FEATURES)}
        pq.write_table(pa.table({**columns, "y": y}), folder / f"{number:02d}.parquet", row_group_size=GROUP)


def fit(source, out, kill_at):
    """In a process of its own: fit, or resume, and die at that row; tells memory and when the first chunk was done."""
    import pandas
    import pyarrow.parquet

    import smadmm.cli.classify_stream as command
    from smadmm.io import models, row_stream
    from smadmm.learn import GraphGuidedClassifier

    assert pandas and pyarrow.parquet and row_stream
    rng = np.random.default_rng(0)  # kernels are compiled before memory is looked at
    X = rng.standard_normal((3000, FEATURES)).astype(np.float32)
    GraphGuidedClassifier(1e-4, graph="chain").partial_fit(X, np.sign(X[:, 0]), classes=[-1, 1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command.SAVE_EVERY = 0.5
    model = GraphGuidedClassifier(1e-6, graph="chain", random_state=0)
    Path(out).mkdir(exist_ok=True)
    begin, first, learn = time.perf_counter(), [], GraphGuidedClassifier.partial_fit

    def watched(self, *arguments, **options):
        learn(self, *arguments, **options)
        first.append(time.perf_counter() - begin) if not first else None
        if kill_at and self._online[0].columns.rows >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self

    GraphGuidedClassifier.partial_fit = watched
    resume = (Path(out) / command.UNFINISHED).exists()
    done = command.learn_stream(model, source, "y", Path(out), resume, lambda line: print(line, file=sys.stderr))
    models.save_model(Path(out) / "model.npz", done)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = {"first": first[0], "seconds": time.perf_counter() - begin, "cpu": time.process_time()}
    print(json.dumps(told | {"before": before / 1024, "above": (peak - before) / 1024}))


def child(source, out, kill_at=0):
    command = [sys.executable, __file__, "--fit", str(source), str(out), str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    rows = int(sys.argv[sys.argv.index("--rows") + 1]) if "--rows" in sys.argv else 10_000_000
    out = Path(sys.argv[1]) if len(sys.argv) > 1 and not sys.argv[1].startswith("--") else None
    with tempfile.TemporaryDirectory() as name:
        source, calm, cut = (Path(name) / part for part in ("rows", "calm", "cut"))
        write(source, rows)
        print(f"{rows} rows, {sum(p.stat().st_size for p in source.iterdir()) / 1e6:.0f} MB of Parquet")
        told = child(source, calm)
        whole = json.loads(told.stdout)
        for share in KILLED_AT:
            assert child(source, cut, int(share * rows)).returncode == -signal.SIGKILL
        ended = child(source, cut)
        last = json.loads(ended.stdout)
        same = (calm / "model.npz").read_bytes() == (cut / "model.npz").read_bytes()
    found = {"rows": rows, "memory": whole["above"], "seconds": whole["cpu"], "resumed": last["first"], "same": same}
    found |= {"line": ended.stderr.splitlines()[0].split(": ")[-1], "load": os.getloadavg()[0]}
    print(f"{found['memory']:.0f} MB above imports; {whole['cpu']:.0f} s of CPU; killed three times: "
          f"{'the same bytes' if same else 'ANOTHER MODEL'}; {found['line']} within {last['first']:.2f} s")  # fmt: skip
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "stream.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fit"]:
        fit(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
