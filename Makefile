PYTHON ?= python3
ARGS ?=

venv := .venv
python := $(venv)/bin/python
pip := $(python) -m pip --disable-pip-version-check
uv := uv==0.13.8
compile := $(venv)/bin/uv pip compile --quiet --python $(python) --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command "make lock"

# What an activated venv leaves behind must not reach into ours.
unexport VIRTUAL_ENV
unexport PYTHONHOME
unexport PYTHONPATH

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install run test test-spark test-system test-all lint type check bench lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(venv)/.dev ## Make .venv with everything needed to work on later

run: $(venv)/.run ## Start later, API and workers; ARGS="--listen 127.0.0.1:9000" for its options
	@exec $(venv)/bin/later up $(ARGS)

test: $(venv)/.dev ## Run the tests that start no processes (a minute at most); ARGS="-k lease" for pytest's options
	$(python) -m pytest -m "not spark and not system" -n auto $(ARGS)

test-spark: $(venv)/.dev ## Run the tests of Spark's jobs, all in one Spark; they need Java 17 or newer
	$(python) -m pytest -m "spark and not system" $(ARGS)

test-system: $(venv)/.dev ## Run the tests that start processes, one at a time: some measure how late they are
	$(python) -m pytest -m system $(ARGS)

test-all: test test-spark test-system ## Run all tests

lint: $(venv)/.dev ## Check style and format
	$(python) -m ruff check
	$(python) -m ruff format --check

type: $(venv)/.dev ## Check types
	$(python) -m mypy

check: lint type test-all ## Run lint, type and test-all: what must pass before a change goes in

bench: $(venv)/.dev ## Measure later beside its references; QUICK=1 takes a minute, ARGS="--only create,query" picks rows
	$(python) -m scripts.bench $(if $(QUICK),--quick) $(ARGS)

lock: $(venv)/bin/uv ## Write the lock files anew from pyproject.toml; ARGS=--upgrade for newer versions
	$(compile) $(ARGS) --extra build -o requirements.txt pyproject.toml
	$(compile) $(ARGS) --extra build --extra dev -c requirements.txt -o requirements-dev.txt pyproject.toml

clean: ## Remove .venv, caches and builds; later-data stays
	rm -rf $(venv) build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say what .venv was last filled from. The dev lock holds the runtime lock, so filling .dev fills .run.

$(venv)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "later needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(venv)
	@touch $@

$(venv)/.run: requirements.txt pyproject.toml | $(venv)/.made
	$(pip) install --quiet --require-hashes -r requirements.txt
	$(pip) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(venv)/.dev: requirements-dev.txt pyproject.toml | $(venv)/.made
	$(pip) install --quiet --require-hashes -r requirements-dev.txt
	$(pip) install --quiet --no-deps --no-build-isolation -e .
	@touch $(venv)/.run $@

$(venv)/bin/uv: | $(venv)/.made
	$(pip) install --quiet '$(uv)'
