# Two commands do all set-up: `make demo` and `make test`. See `make help`.
#
# PYTHON is the interpreter that the virtual environment is made from:
#   make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Quiet, and the same on every machine; pip's own news about itself helps nobody here.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# More workers than this gain nothing: the slow tests wait for brokers and child processes.
WORKERS ?= 2

# The tests start the command line a hundred times: compiled once, not a hundred times.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench prove docs clean requirements

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/runtime.stamp ## Watch a simulated fleet break, on http://127.0.0.1:8600
	@$(BIN)/foreshock demo $(ARGS)

test: lint ## Formatting, lint, types, import rules and all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(ARGS)

lint: $(VENV)/dev.stamp ## Formatting, lint, types and import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/dev.stamp ## Format the code and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp ## Measure samples per second, stage by stage
	@$(BIN)/python -m benchmarks $(ARGS)

prove: lint ## Everything of `make test`, and the tests that take minutes
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

docs: $(VENV)/dev.stamp ## Write the generated tables of docs/ and the JSON Schemas again
	@$(BIN)/python -m schemas
	@$(BIN)/python -m foreshock.docs

requirements: $(VENV)/dev.stamp ## Pin the newest versions that pyproject.toml allows
	@$(BIN)/python -m uv --version >/dev/null 2>&1 || $(PIP) install uv
	@$(BIN)/python -m uv pip compile --quiet --upgrade --universal --no-emit-index-url \
	  --no-header --no-annotate pyproject.toml --output-file requirements/runtime.txt
	@$(BIN)/python -m uv pip compile --quiet --upgrade --universal --no-emit-index-url \
	  --no-header --no-annotate --constraint requirements/runtime.txt --group dev \
	  pyproject.toml --output-file requirements/dev.txt

clean: ## Remove the virtual environment and every cache
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment itself. A half-made one (no ensurepip) is removed, so that the next try starts anew.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: there is no '$(PYTHON)'. Install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: foreshock needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." \
	       "Name a newer one: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "make: '$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; }

# Makes sure of pip: some tools make environments without it.
define ensure_pip
@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null
endef

# The stamps: installed once, and again when the pins or the project's metadata change.
$(VENV)/runtime.stamp: requirements/runtime.txt pyproject.toml | $(BIN)/python
	$(ensure_pip)
	@echo "Installing the pinned requirements"
	@$(PIP) install -r requirements/runtime.txt
	@$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/runtime.txt pyproject.toml | $(BIN)/python
	$(ensure_pip)
	@echo "Installing the pinned requirements, with those of development"
	@$(PIP) install -r requirements/dev.txt
	@$(PIP) install --no-deps -e .
	@touch $@ $(VENV)/runtime.stamp
