# `make test` and `make train` work in a fresh clone: each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= recipes/number_search_tiny.yaml
export HF_HUB_OFFLINE = 1

.PHONY: install test test-full test-adapters check train bench docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,dev]'
	touch $@

# Lint, types, and every test but the large counts.
test: install check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not full'

# The large counts too: seeds, fuzzed replies, kills.
test-full: install check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Each framework we plug into, in an environment of its own (their pins conflict).
test-adapters:
	scripts/test_adapters.sh

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

train: install
	$(BIN)/python -m recipes.drgrpo --config $(CONFIG)

bench: install
	$(BIN)/python -m benchmarks.envs

docs: install
	$(BIN)/python -m docs.build

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
