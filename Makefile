# make run: set up and run the main job.  make test: set up and run the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-all lint format docs docs-serve docs-long bench bench-network papers soak fuzz gpu package clean

run: $(READY)
	$(BIN)/taugrad train experiments/quickstart/*.yaml

test: $(READY)
	$(BIN)/python -m pytest -n logical --maxprocesses 4

# With whole runs of everything, of which `make test` has one of a kind: twice as long. Run it before a release.
test-all: $(READY)
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --all

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p taugrad
	$(BIN)/codespell *.md *.toml docs compressors platform search dashboards src/taugrad/*.py benchmarks examples experiments

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, in build/site; it opens as files, too.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The same on http://127.0.0.1:8000, made anew when a page changes.
docs-serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000

# Runs the long commands of the pages, some minutes, and writes what they print into the pages, with the date.
docs-long: $(READY)
	$(BIN)/python docs/site/run_long.py

# WRITE=1 writes the figures to docs/results/ too.
bench: $(READY)
	$(BIN)/python -m benchmarks.compress.hook $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.compress.gradients $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.compress.patches $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.platform.synchronization $(if $(WRITE),--write)

# Over links of a rate and a delay, between network namespaces: needs root, and takes hours. Continues where it
# was stopped. WRITE=1 as above.
bench-network: $(READY)
	$(BIN)/python -m benchmarks.network.network_exchange $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.network.network_sites $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.network.plan $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.network.churn $(if $(WRITE),--write)
	$(BIN)/python -m benchmarks.network.network_target $(if $(WRITE),--write)

# Writes docs/papers.md from the results. PAPERS="strom rae" first measures what is missing of these papers, minutes to
# hours each; it continues where it was stopped.
papers: $(READY)
	$(BIN)/python -m benchmarks.papers $(PAPERS)

# Kills, stops and fills everything that takes part in runs, and compares them with undisturbed ones: hours, as
# root. Goes on where it was stopped. WRITE=1 as above. Before that, ten minutes of members that come and go.
soak: $(READY)
	TAUGRAD_SOAK_S=600 $(BIN)/python -m pytest -q --all tests/compressors/test_member_processes.py -k soak
	$(BIN)/python -m benchmarks.platform.soak $(if $(WRITE),--write)

# A million damaged messages of every format; each must be refused or be a message.
fuzz: $(READY)
	TAUGRAD_FUZZ_MESSAGES=1000000 $(BIN)/python -m pytest -q tests/compressors/test_fuzz.py

# Needs an NVIDIA GPU and only torch, CuPy, NumPy, numba, pydantic, pyzmq, isal, psutil, pytest and hypothesis: any Python
# that has them will do.
# compute-sanitizer, where it is found, looks for accesses out of range in a part of the tests. MINUTES=8 also trains a
# GPT for as long, which goes on where it was stopped. WRITE=1 as above.
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu tests/cuda tests/compressors/test_ops.py \
		tests/compressors/test_ddp.py -m gpu --require-gpu
	if command -v compute-sanitizer; then PYTHONPATH=src PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer \
		--error-exitcode 1 $(PYTHON) -m pytest tests/cuda -m gpu --require-gpu -k same_payloads_as_on_the_cpu; fi
	PYTHONPATH=src $(PYTHON) -m benchmarks.compress.gpu $(if $(WRITE),--write)
	$(if $(MINUTES),PYTHONPATH=src MINUTES=$(MINUTES) $(PYTHON) -m benchmarks.papers.gpu_gpt $(if $(WRITE),--write))

package: $(READY)
	$(BIN)/python -m build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
