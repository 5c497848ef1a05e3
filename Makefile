PYTHON ?= python3
ARGS ?=

venv := .venv
python := $(venv)/bin/python
pip := $(python) -m pip --disable-pip-version-check
uv := uv==0.13.8
compile := $(venv)/bin/uv pip compile --quiet --python $(python) --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command "make lock"

# Examples of each property that is tested, and the store's servers: a profile of tests/conftest.py.
examples := quick

# A test process for each core, and one for when another one waits. More would only collect all tests once more.
test_workers = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Tests of processes mostly wait. With more than two at a time, their daemons would be late where the cores are few.
system_workers := 2

# The tests of the library: what an application has that does not install the server.
library_tests := tests/test_library.py tests/test_application.py tests/client tests/handlers tests/receiver tests/testing \
	tests/cli tests/core tests/test_option_types.py

# Without its caches, pytest would compile all tests in each of its processes.
unexport PYTHONDONTWRITEBYTECODE
# The variables of an activated venv must not affect this project's own.
unexport VIRTUAL_ENV
unexport PYTHONHOME
unexport PYTHONPATH

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install run test test-base test-lowest test-spark test-system test-console test-zaqar test-all lint type check bench console lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(venv)/.dev ## Create .venv with everything for development

run: $(venv)/.run ## Start later, API and workers; ARGS="--listen 127.0.0.1:9000" passes options
	@exec $(venv)/bin/later up $(ARGS)

test: $(venv)/.dev ## Run the tests without processes (a minute on two cores); ARGS="-k lease" passes options to pytest
	HYPOTHESIS_PROFILE=$(examples) $(python) -m pytest -m "not spark and not system and not console" \
		--ignore tests/spark --ignore tests/system --ignore tests/zaqar -n $(test_workers) $(ARGS)

test-base: $(venv)/.base ## Run the library's tests where nothing but its own dependencies is installed
	$(call test_library,base)

test-lowest: $(venv)/.lowest ## Run the library's tests with the lowest versions of its dependencies, on Python 3.11 or 3.12
	$(call test_library,lowest)

# Few examples: `make test` has the same tests with more.
define test_library
	if [ -x $(venv)/$(1)/bin/python ]; then \
		CI= HYPOTHESIS_PROFILE=quick PYTHONPATH=$(CURDIR) $(venv)/$(1)/bin/python -m pytest $(library_tests) $(ARGS); \
	else echo "skipped: the lowest versions have no wheels for this Python"; fi
endef

test-spark: $(venv)/.dev ## Run the tests of Spark's jobs, in one session; they need Java 17 or newer
	$(python) -m pytest -m "spark and not system" --ignore tests/zaqar $(ARGS)

test-system: $(venv)/.dev ## Run the tests that start processes, two at a time but for those that measure lateness
	$(python) -m pytest -m system --ignore tests/zaqar -n $(system_workers) --maxschedchunk 1 $(ARGS)

test-console: $(venv)/.dev ## Run the tests of the console in a Chromium
	@if command -v chromium-headless-shell chromium >/dev/null; then \
		$(python) -m pytest tests/console/browser -n $(system_workers) $(ARGS); \
	else echo "skipped: install chromium-headless-shell (Debian: apt install chromium-headless-shell)"; fi

test-zaqar: $(venv)/.zaqar ## Run the tests of OpenStack Zaqar and of its client, and ours with that client
	$(python) -m pytest tests/zaqar -n $(system_workers) --dist loadgroup $(ARGS)

test-all check: examples := dev
test-all: test test-base test-lowest test-spark test-system test-console test-zaqar ## Run all tests, those of properties with five times as many examples as in test

lint: $(venv)/.dev ## Check style and format
	$(python) -m ruff check
	$(python) -m ruff format --check

type: $(venv)/.dev ## Check types
	$(python) -m mypy

check: lint type test-all ## Run lint, type and test-all, which must pass before a change is merged

bench: $(venv)/.dev ## Measure later and its references; QUICK=1 takes minutes, ARGS="--only create,query" selects rows
	$(python) -m scripts.bench $(if $(QUICK),--quick) $(ARGS)

console: $(venv)/.dev ## Start later with made-up data, to look at its console; it ends with Ctrl-C
	@exec $(python) -m scripts.console_example

lock: $(venv)/bin/uv ## Write the lock files from pyproject.toml; ARGS=--upgrade for newer versions
	$(compile) $(ARGS) --extra build --extra server -o requirements.txt pyproject.toml
	$(compile) $(ARGS) --extra build --extra dev -c requirements.txt -o requirements-dev.txt pyproject.toml
	$(compile) $(ARGS) --group zaqar -c requirements-dev.txt -o requirements-zaqar.txt
	$(compile) $(ARGS) --group library-tests -c requirements-dev.txt -o requirements-base.txt pyproject.toml
	$(compile) $(ARGS) --group library-tests --resolution lowest-direct -o requirements-lowest.txt pyproject.toml

clean: ## Remove .venv, caches and builds, but not later-data
	rm -rf $(venv) build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp files say which lock .venv was installed from. The dev lock contains the runtime lock: .dev implies .run.

$(venv)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "later needs Python 3.11 or newer, for example: make PYTHON=python3.12 ..." >&2; exit 1; }
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

# A folder, not a venv: behind the one on the path, so that what later itself needs stays as it is locked.
$(venv)/.zaqar: requirements-zaqar.txt | $(venv)/.dev
	rm -rf $(venv)/zaqar
	$(pip) install --quiet --require-hashes --no-deps --only-binary :all: --target $(venv)/zaqar -r requirements-zaqar.txt
	@touch $@

# Environments without the server. They have no pip of their own.
$(venv)/.base: requirements-base.txt | $(venv)/.made
	$(call make_library_venv,base)
	@touch $@

# The lowest versions have no wheels for newer Pythons, and some cannot be built there.
$(venv)/.lowest: requirements-lowest.txt | $(venv)/.made
	if $(python) -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then $(call make_library_venv,lowest); fi
	@touch $@

define make_library_venv
	$(python) -m venv --clear --without-pip $(venv)/$(1) \
		&& $(pip) --python $(venv)/$(1) install --quiet --require-hashes --only-binary :all: -r requirements-$(1).txt
endef

$(venv)/bin/uv: | $(venv)/.made
	$(pip) install --quiet '$(uv)'
