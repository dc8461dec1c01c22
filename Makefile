# Each target sets up .venv by itself. Needed beforehand: make and Python 3.11 or newer (`make PYTHON=python3.12 test`).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint types bench dist-check vectors clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST) | awk -F': *' '{ printf "  make %-12s%s\n", $$1, $$2 }'

demo: $(INSTALLED)  ## run a small aggregation with dropouts and write its report to build/demo
	$(BIN)/python -m secagg.cli demo --out build/demo

test: $(INSTALLED)  ## run every test that needs no accelerator
	$(BIN)/python -m pytest -m "not gpu"

lint: $(INSTALLED)  ## check style, formatting and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

types: $(INSTALLED)  ## check types with mypy and pyright, both strict
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks .ci/check_distributions.py
	$(BIN)/pyright

bench: $(INSTALLED)  ## run the benchmarks and write their figures to build/bench.json
	$(BIN)/python benchmarks/run.py --json build/bench.json

dist-check: $(INSTALLED)  ## build the distributions, install the wheel elsewhere, and check both
	$(BIN)/python .ci/check_distributions.py

vectors: $(INSTALLED)  ## write the test vectors of the protocols again
	$(BIN)/python -m tests.vectors.generate

clean:  ## remove everything that these targets make
	rm -rf $(VENV) build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "secagg needs Python 3.11 or newer, and \`$(PYTHON)\` is not." >&2; \
	  echo "Name one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,plot]'
	touch $@
