# Needs only Python 3.11+ and make. `make demo` trains; `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench docs faults mutants setup setup-dev setup-loggers lint clean

demo: .venv/installed
	$(BIN)/deir train --env MiniGrid-DoorKey-8x8-v0 --target-return 0.9

test: .venv/installed-dev lint
	$(BIN)/python -m pytest

bench: .venv/installed-dev
	$(BIN)/deir bench --whole-run --peers --curves variants environments length queue

faults: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --jobs 2

# Faults put into the algorithm, to see which no test notices: make mutants MODULES="ppo rollout". Takes hours for all.
mutants: .venv/installed-dev
	$(BIN)/python tests/mutants.py $(MODULES)

# The documentation as pages in site/, to be opened from disk: site/index.html.
docs: .venv/installed-dev
	$(BIN)/mkdocs build --strict

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: .venv/installed

setup-dev: .venv/installed-dev

# wandb, trackio and MLflow, for the tests of these loggers; without them those tests are skipped.
setup-loggers: .venv/installed-loggers

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deir needs Python 3.11 or newer (make PYTHON=python3.12)")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/python requirements.txt pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --editable .
	touch $@

.venv/installed-dev: .venv/installed requirements-dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-dev.txt
	touch $@

.venv/installed-loggers: .venv/installed-dev requirements-loggers.txt
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-loggers.txt
	touch $@

clean:
	rm -rf .venv site .mutants .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
