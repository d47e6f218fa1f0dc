# Every target makes its own virtual environment, .venv, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# one thread per process: small tensors are several times slower with more
export OMP_NUM_THREADS ?= 1

.PHONY: venv demo check test coverage test-browser test-peers mutants faults torture bench benchopt lint clean
# the tests of a developer's minute
FAST := not slow and not command and not browser

venv: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $@

demo: venv  ## the main job: a CT phantom from 60 noisy views; leaves a figure and a report
	$(BIN)/python examples/demo.py

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## lint, types and the fast tests, within a minute
	$(BIN)/python -m pytest --numprocesses 2 -m "$(FAST)" --quiet

test: lint  ## lint, types, tests, doctests
	$(BIN)/python -m pytest --numprocesses 2
	$(BIN)/python -m pytest --doctest-modules src --quiet

coverage: venv  ## branch coverage of the engine by the fast tests; below 95 % it fails
	$(BIN)/python -m coverage run -m pytest -m "$(FAST)" --quiet
	$(BIN)/python -m coverage report

.PHONY: docs
docs: venv  ## the site, docs/_build/html; it needs no network, and a warning is an error
	rm -rf docs/_build/html  # pages that are gone
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet -d docs/_build/doctrees docs docs/_build/html
	@echo "open docs/_build/html/index.html"

test-browser: venv  ## the report page and the site of make docs in Debian's chromium, installed here if it is missing
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
	  command -v apt-get >/dev/null || { echo "there is no apt-get; install Chromium by hand, then run make test-browser again"; exit 1; }; \
	  if [ "$$(id -u)" = 0 ]; then root=; elif command -v sudo >/dev/null; then root=sudo; \
	  else echo "Chromium can be installed by root only; run as root: apt-get install chromium"; exit 1; fi; \
	  $$root apt-get update --quiet && \
	  $$root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium; }
	SMADMM_BROWSER=required $(BIN)/python -m pytest tests/test_browser.py tests/test_site.py

test-peers: .venv-peers/.ready  ## tests of other libraries on our parts, in an environment of their own, .venv-peers
	.venv-peers/bin/python -m pytest tests/test_peers.py tests/test_interop.py tests/test_transforms.py

.venv-peers/.ready: pyproject.toml constraints.txt constraints-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[all,cone]" pytest
	@# one by one: what cannot be had here is skipped by name
	for peer in $$(grep -v '^\#' constraints-peers.txt); do .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt $$peer || echo "$$peer cannot be installed here; its tests are skipped"; done
	touch $@

mutants: venv  ## known errors put into a copy of src one by one: for each a test must fail
	$(BIN)/python tests/mutants.py

faults: venv  ## workers and ranks that are killed and, as root, cables that are cut: each must end with the right answer
	$(BIN)/python benchmarks/slice_faults.py 20 docs/results/scale
	$(BIN)/python tests/faults.py kill 20 docs/results/scale
	$(BIN)/python tests/faults.py cable 5 docs/results/scale

bench-stream: venv  ## ten million rows of Parquet, killed three times; installs pyarrow
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pyarrow
	$(BIN)/python benchmarks/row_stream.py

TORTURE_MINUTES ?= 30
torture: venv  ## faults and damaged files for as long as you like; it goes on where it stopped, tables go into docs/results
	$(BIN)/python tests/torture/faults.py --minutes $(TORTURE_MINUTES) --out docs/results/torture
	$(BIN)/python tests/torture/readers.py --minutes $(TORTURE_MINUTES) --out docs/results/torture
	$(BIN)/python tests/torture/first_call.py --out docs/results/torture
	$(BIN)/python tests/test_concurrency.py 1000000

bench: venv  ## figures against peers, as ratios in one run
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/classification.py
	$(BIN)/python benchmarks/projector.py
	$(BIN)/python benchmarks/fan.py
	$(BIN)/python benchmarks/phase.py
	$(BIN)/python benchmarks/priors.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/slices.py

benchopt: venv  ## the benchopt benchmarks: their tests, and a small run whose tables go into docs/results/benchopt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench]"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/benchopt test benchmarks/benchopt_graph_guided --skip-install
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/benchopt test benchmarks/benchopt_pnp_tomography --skip-install
	$(BIN)/python benchmarks/benchopt_results.py

clean:
	rm -rf .venv .venv-peers docs/_build docs/gallery docs/api/*.rst
