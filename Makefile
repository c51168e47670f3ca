# `make demo` and `make test` are all that is needed on a fresh machine with Python 3.9 or newer.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test test-all lint bench clean

help:
	@echo "make demo      install and prune a small trained network, with its accuracy before and after"
	@echo "make test      install and run the tests"
	@echo "make test-all  the slow tests and those that download models, too"
	@echo "make lint      ruff and mypy"
	@echo "make bench     time and memory, file to file"
	@echo "make clean     remove what the others made"

# One stamp for each set of extras, renewed when what it was made from changes.
$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) --editable '.[runtime]' 'scikit-learn>=1.3'
	@touch $@

$(VENV)/.dev: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	$(INSTALL) --editable '.[runtime,dev]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/python tools/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -m ''

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

bench: $(VENV)/.dev
	$(BIN)/python tools/bench_files.py

clean:
	rm -rf $(VENV) demo-output build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
