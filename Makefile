# Each target sets up .venv by itself. Needed beforehand: make and Python 3.11 or newer (`make PYTHON=python3.12 test`).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := build/peers/.venv
DEMO_ROUNDS ?= 80

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-round test lint types proofs bench bench-peers dist-check vectors clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST) | awk -F': *' '{ printf "  make %-12s%s\n", $$1, $$2 }'

demo: $(INSTALLED)  ## train four times through real protocols, draw accuracy against uplink: build/demo
	$(BIN)/python benchmarks/training_demo.py --out build/demo --rounds $(DEMO_ROUNDS)

demo-round: $(INSTALLED)  ## run a small aggregation with dropouts and write its report to build/demo-round
	$(BIN)/python -m secagg.cli demo --out build/demo-round

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

proofs: $(INSTALLED)  ## check the proofs: Coq theories, and the library's kernels on solver terms
	$(BIN)/python proofs/check

bench: $(INSTALLED)  ## run the benchmarks and write their figures to build/bench.json
	$(BIN)/python benchmarks/run.py --json build/bench.json

bench-peers: $(PEERS)/.installed  ## compare with Flower and faiss, in an environment of their own
	$(PEERS)/bin/python benchmarks/peer_flower.py --json build/bench-peers.json
	$(PEERS)/bin/python benchmarks/run.py "product quantization"

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
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,plot,proofs,train,ray]'
	touch $@

# Flower pins other versions of some of its dependencies than constraints.txt, so only the two that matter are held.
$(PEERS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check \
	  flwr==1.41.0 faiss-cpu==1.15.1 $$(grep -E '^(numpy|cryptography)==' constraints.txt) -e .
	touch $@
