# `make demo` and `make test` are all that is needed on a fresh machine with Python 3.9 or newer.
PYTHON ?= python3
VENV ?= .venv
# The engine that trains brings an older onnxruntime and cannot live beside the newest one: a second environment has that.
PLAIN ?= $(VENV)-runtime
# torch is large: its tests have an environment of their own, beside the engine that trains where there is one.
TORCH ?= $(VENV)-torch
# Python compiles the modules that are imported, when they are: most of what is installed never is.
PIP := -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
PINS := pyproject.toml constraints.txt
# Each process of the tests would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test test-venv test-runtime test-torch test-all check lint ruff format mypy bench clean

help:
	@echo "make demo          install and prune a small trained network, with its accuracy before and after"
	@echo "make quick         a selection of the tests, in a minute"
	@echo "make test          install and run the tests, with the engine that trains and with the newest onnxruntime"
	@echo "make test-venv     the first half: the tests in $(VENV)"
	@echo "make test-runtime  the second half: in $(PLAIN), the tests that run models"
	@echo "make test-torch    the tests that need torch, in $(TORCH)"
	@echo "make check         all of these and the linters: what has to pass before a change is taken"
	@echo "make test-all      the slow tests and those that download models, too"
	@echo "make lint          ruff and mypy"
	@echo "make bench         time and memory, file to file"
	@echo "make clean         remove what the others made"

%/pyvenv.cfg:
	$(PYTHON) -m venv $*

# One stamp for each set of extras, renewed when what it was made from changes. The first one says which extra the
# environment has: `ort` where pip finds the engine for this Python and machine, otherwise `runtime`.
$(VENV)/.engine: $(VENV)/pyvenv.cfg $(PINS)
	@$(VENV)/bin/python -m pip uninstall --quiet --yes onnxruntime 2>/dev/null
	@if $(VENV)/bin/python $(PIP) onnxruntime-training-cpu 2>/dev/null; then echo ort > $@; \
	else echo runtime > $@; echo "pip finds no onnxruntime-training-cpu for this Python: tests that train are skipped"; fi

$(VENV)/.demo: $(VENV)/.engine
	$(VENV)/bin/python $(PIP) --editable ".[$$(cat $<)]" 'scikit-learn>=1.3'
	@touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(VENV)/bin/python $(PIP) --editable ".[$$(cat $<),dev]"
	@touch $@

$(PLAIN)/.test: $(PLAIN)/pyvenv.cfg $(PINS)
	$(PLAIN)/bin/python $(PIP) --editable '.[runtime,test]'
	@touch $@

$(TORCH)/.test: $(TORCH)/pyvenv.cfg $(VENV)/.engine $(PINS)
	$(TORCH)/bin/python $(PIP) --editable ".[$$(cat $(VENV)/.engine),torch,test]"
	@touch $@

demo: $(VENV)/.demo
	$(VENV)/bin/python tools/demo.py

# In several processes, and a file's tests in one of them: what a module's fixtures make is made once.
PYTEST := -m pytest -q --numprocesses auto --maxprocesses 4 --dist loadfile $(if $(ALL),-m '') $(if $(RESULTS),--junit-xml=$(RESULTS))
RUN_TESTS := MAKE='$(MAKE)' $(PYTHON) tools/run_tests.py
# Where `.venv` has no engine, it has the newest onnxruntime already.
HALVES = test-venv $$(if grep --quiet ort $(VENV)/.engine; then echo test-runtime; fi)

# The environments beside each other, since pip uses one core. One that fails is tried again by the tests that need it.
INSTALL = $(MAKE) --no-print-directory --jobs --keep-going $(VENV)/.dev
PLAIN_TOO = $$(if grep --quiet ort $(VENV)/.engine; then echo $(PLAIN)/.test; fi)

quick: $(VENV)/.dev
	$(VENV)/bin/python $(PYTEST) --quick

test: $(VENV)/.engine
	-@$(INSTALL) $(PLAIN_TOO)
	@$(RUN_TESTS) $(HALVES)

check: $(VENV)/.engine
	-@$(INSTALL) $(PLAIN_TOO) $(TORCH)/.test
	@$(RUN_TESTS) $(HALVES) test-torch ruff format mypy

test-venv: $(VENV)/.dev
	$(VENV)/bin/python $(PYTEST) $$(if grep --quiet ort $(VENV)/.engine; then echo --beside-other-runtime; fi)

test-runtime: $(PLAIN)/.test
	$(PLAIN)/bin/python $(PYTEST) --other-runtime

test-torch: $(TORCH)/.test
	$(TORCH)/bin/python $(PYTEST) --with-torch tests/engines/torch tests/engines/test_class_axis.py tests/calibration/test_wild_gradients.py tests/engines/test_columns.py tests/engines/test_one_loss.py tests/dialects tests/engines/test_pace.py tests/test_data_files.py tests/test_finetune_layers.py tests/test_finetune_recipes.py tests/runs/test_killed.py tests/runs/test_layers.py tests/networks tests/train tests/quantization/test_qat_export_torch.py

test-all:
	@$(MAKE) --no-print-directory test ALL=yes

lint:
	@$(MAKE) --no-print-directory --keep-going ruff format mypy

ruff: $(VENV)/.dev
	$(VENV)/bin/ruff check .

format: $(VENV)/.dev
	$(VENV)/bin/ruff format --check .

mypy: $(VENV)/.dev
	$(VENV)/bin/mypy --strict

bench: $(VENV)/.dev
	$(VENV)/bin/python tools/bench/bench_files.py

clean:
	rm -rf $(VENV) $(PLAIN) $(TORCH) demo-output build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
