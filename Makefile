# Every target makes its own virtual environment, .venv, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# one thread a process: small tensors are several times slower with more
export OMP_NUM_THREADS ?= 1

.PHONY: venv demo test bench lint clean

venv: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: venv  ## the main job: solve a problem and leave a picture
	$(BIN)/python examples/demo.py

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## lint, types, tests, doctests
	$(BIN)/python -m pytest --numprocesses 2
	$(BIN)/python -m pytest --doctest-modules src --quiet

bench: venv  ## figures against peers, as ratios in one run
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/classification.py
	$(BIN)/python benchmarks/projector.py

clean:
	rm -rf .venv
