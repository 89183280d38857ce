# make run: set up and run the main job.  make test: set up and run all tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint format bench fuzz gpu package clean

run: $(READY)
	$(BIN)/taugrad train experiments/quickstart/*.yaml

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p taugrad

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# WRITE=1 writes the figures to docs/results/ too.
bench: $(READY)
	$(BIN)/python benchmarks/compressors.py $(if $(WRITE),--write)
	$(BIN)/python benchmarks/gradients.py $(if $(WRITE),--write)
	$(BIN)/python benchmarks/iteration.py $(if $(WRITE),--write)

# A million damaged messages of every format; each must be refused or be a message.
fuzz: $(READY)
	$(BIN)/python tests/compressors/fuzzing.py --messages 1000000

# Needs an NVIDIA GPU and only torch, NumPy, numba, pydantic and pytest: any Python that has them will do.
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu -m gpu --require-gpu

package: $(READY)
	$(BIN)/python -m build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
