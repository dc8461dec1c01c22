# Each target sets up .venv by itself. Needed beforehand: make and Python 3.11 or newer (`make PYTHON=python3.12 test`).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := build/peers/.venv
SOLVERS := build/solvers/.venv
FLWR ?= 1.41.0
FLOWER := build/flower/$(FLWR)/.venv
NVFLARE_VERSION ?= 2.9.0
NVFLARE := build/nvflare/$(NVFLARE_VERSION)/.venv
FLOWER_TORCH := build/flower/$(FLWR)-torch/.venv
NVFLARE_TORCH := build/nvflare/$(NVFLARE_VERSION)-torch/.venv
PUBLISHING := build/publishing/.venv
PYTHONS := 3.11 3.12 3.13 3.14
SCOREBOARD := build/scoreboard
CKKS := build/ckks/.venv
SITE := build/site/.venv
WEB := build/web/.venv
DCAP := build/dcap/.venv
# A module is compiled once, when it is first imported; pip would compile all that an environment has.
PIP_OPTIONS := --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Tests that need nothing but the development environment.
HERE := not repository and not gpu and not site and not wire and not scale and not web and not dcap and not enclave_boot and not flower and not flower_torch and not nvflare and not nvflare_torch

TO_BEGIN := demo|demo-round|test|lint|site
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo study demo-round test lint types proofs proofs-second-opinion mutants timing bench bench-peers \
  bench-large bench-flower dist-check flower nvflare adapters dist sbom extras pythons oldest newest flower-torch nvflare-torch newest-platforms scoreboard \
  readme test-long suites dcap enclave-boot previous web wire site site-look scale vectors clean

help:  ## list the targets, those to begin with first
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST) | awk -F': *' 'function say(line) { if (first) print line; else rest = rest line "\n" } \
	  BEGIN { print "To begin with:" } END { printf "\nAlso:\n%s", rest } { first = $$1 ~ /^($(TO_BEGIN))$$/; line = sprintf("  make %-24s", $$1); text = $$0; \
	  sub(/^[^:]*: */, "", text); n = split(text, words, " "); for (i = 1; i <= n; i++) { \
	  if (length(line) + length(words[i]) > 79) { say(line); line = sprintf("%31s", "") }; \
	  line = line (i > 1 && line !~ / $$/ ? " " : "") words[i] }; say(line) }'

demo: $(INSTALLED)  ## train with and without compression through real protocols, draw accuracy and bytes: build/demo
	rm -rf build/demo
	$(BIN)/python benchmarks/training_demo.py --out build/demo

study: $(INSTALLED)  ## compare whole-update codes with uncompressed runs, seed by seed (hours; goes on where it was stopped)
	mkdir -p build
	$(BIN)/python benchmarks/iso_accuracy.py build/iso_accuracy.jsonl
	$(BIN)/python benchmarks/iso_accuracy.py build/iso_accuracy.jsonl --json build/iso_accuracy.json

readme: $(INSTALLED)  ## do what README says in a clean clone and environment, with the seconds of each step
	$(BIN)/python .ci/check_readme.py

demo-round: $(INSTALLED)  ## run a small aggregation with dropouts and write its report to build/demo-round
	$(BIN)/python -m secagg.cli demo --out build/demo-round

test: $(INSTALLED)  ## run every test that needs no accelerator, and no other environment
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=40 --durations-min=1 -m "$(HERE) and not long"

test-long: $(INSTALLED)  ## run the tests with eight times the examples, and the long ones; for every night, not every change
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile long -m "$(HERE)"

lint: $(INSTALLED)  ## check style, formatting and spelling, the layout, and that planted faults of the layout are found
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/python -m pytest -n 2 --dist worksteal -m repository $(filter-out tests/test_proof_gates.py,$(wildcard tests/test_*.py))

types: $(INSTALLED)  ## check types with mypy and pyright, both strict
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks docs examples/*.py .ci/*.py
	$(BIN)/pyright

proofs: $(INSTALLED)  ## check the proofs: Coq theories, kernels on solver terms, clients under a model checker, claims
	$(BIN)/python proofs/check
	$(BIN)/python -m pytest -n 2 --dist worksteal -m repository tests/test_proof_gates.py

proofs-second-opinion: $(SOLVERS)/.installed  ## ask cvc5 and bitwuzla what z3 was asked; for every night, not every change
	PYTHONPATH=. $(SOLVERS)/bin/python proofs/smt/second_opinion.py

mutants: $(INSTALLED)  ## weaken statements, and change one token at a time: proofs or tests notice; for every night, not every change
	$(BIN)/python proofs/check weakenings
	PYTHONPATH=. $(BIN)/python proofs/mutants.py
	PYTHONPATH=. $(BIN)/python proofs/mutation/run.py

timing: $(INSTALLED)  ## time kernels that see secrets, a fixed one against random ones; on a quiet machine, some minutes
	PYTHONPATH=. $(BIN)/python benchmarks/timing.py --json build/timing.json

bench: $(INSTALLED)  ## run the benchmarks and write their figures to build/bench.json
	PYTHONPATH=. $(BIN)/python benchmarks/run.py --json build/bench.json $(BENCH_OPTIONS)

bench-peers: $(PEERS)/.installed  ## compare with Flower and faiss, in an environment of their own
	PYTHONPATH=. $(PEERS)/bin/python benchmarks/peer_flower.py --json build/bench-peers.json
	PYTHONPATH=. $(PEERS)/bin/python benchmarks/one_message_peers.py --json build/bench-one-message-peers.json
	PYTHONPATH=. $(PEERS)/bin/python benchmarks/run.py "product quantization"

bench-large: $(INSTALLED) $(CKKS)/.installed  ## sum 10, 42 and 100 million values by each protocol, and by NVFlare's CKKS; minutes, and 5 GB of memory
	for millions in 10 42 100; do PYTHONPATH=. $(BIN)/python benchmarks/large_model.py $$millions \
	  --ckks $(CKKS)/bin/python --json build/large_model.json || exit 1; done

flower: $(FLOWER)/.installed  ## check types and run real Flower apps, in an environment of its own
	MYPYPATH=tests/flower/apps $(FLOWER)/bin/mypy --cache-dir $(FLOWER)/.mypy_cache secagg/flower/*.py \
	  tests/flower/apps/*.py tests/flower/test_failed_rounds.py tests/flower/test_one_message.py tests/flower/test_rounds_in_memory.py \
	  tests/flower/test_noise.py tests/flower/test_overlaps.py \
	  tests/flower/test_analytics.py tests/flower/test_downlink.py benchmarks/bench_flower.py
	$(FLOWER)/bin/python -m pytest -p no:randomly -n 2 --dist loadfile --durations 20 -m "flower and not long" tests/flower

nvflare: $(NVFLARE)/.installed  ## check types and run real NVFlare jobs, in an environment of its own
	MYPYPATH=tests/nvflare/apps:examples/nvflare_quickstart $(NVFLARE)/bin/mypy --cache-dir $(NVFLARE)/.mypy_cache \
	  secagg/nvflare/*.py tests/nvflare/*.py tests/nvflare/apps/*.py
	$(NVFLARE)/bin/python -m pytest -p no:randomly --durations 20 -m "nvflare and not long" tests/nvflare

newest-platforms: $(INSTALLED)  ## run flower and nvflare with the newest release of each; for every night, not every change
	$(MAKE) flower FLWR=$$($(BIN)/python -m pip index versions flwr | sed -n 's/^flwr (\(.*\))/\1/p')
	$(MAKE) nvflare NVFLARE_VERSION=$$($(BIN)/python -m pip index versions nvflare | sed -n 's/^nvflare (\(.*\))/\1/p')

adapters: $(FLOWER_TORCH)/.installed $(NVFLARE_TORCH)/.installed  ## sum adapters of PEFT in Flower and NVFlare, with random weights and no download
	$(FLOWER_TORCH)/bin/python -m pytest -p no:randomly --durations 5 -m "flower_torch and not long" tests/flower/test_adapters.py
	$(NVFLARE_TORCH)/bin/python -m pytest -p no:randomly --durations 5 -m "nvflare_torch and not long" tests/nvflare/test_adapters_job.py

flower-torch: $(FLOWER_TORCH)/.installed  ## run the Flower app with PyTorch and BatchNorm, and SuperNodes that are killed and late
	$(FLOWER_TORCH)/bin/python -m pytest -p no:randomly -m "flower_torch or (flower and long)" tests/flower

nvflare-torch: $(NVFLARE_TORCH)/.installed  ## run NVFlare jobs with PyTorch, the Trainer of transformers, and trainers that are killed
	$(NVFLARE_TORCH)/bin/python -m pytest -p no:randomly -m "nvflare_torch or (nvflare and long)" tests/nvflare

suites: $(INSTALLED)  ## run the suites and evidence of others; SECAGG_VECTORS names their folder
	$(BIN)/python -m pytest -p no:randomly tests/suites tests/protocols/enclave/attestation/test_samples.py \
	  tests/protocols/two_servers/point_functions/test_against_the_slow_reference.py

dcap: $(DCAP)/.installed  ## judge 12,000 altered quotes here and in dcap-qvl, in an environment of its own
	$(DCAP)/bin/python -m pytest -p no:randomly -s tests/protocols/enclave/attestation/test_against_dcap_qvl.py

enclave-boot: dist  ## build an enclave's machine twice, boot it in QEMU, and run a session of every form in it
	rm -rf build/enclave
	.ci/enclave_inputs build/enclave dist/*.whl
	SECAGG_ENCLAVE_INPUTS=$(CURDIR)/build/enclave PATH=$(CURDIR)/$(BIN):$$PATH \
	  $(BIN)/python -m pytest -p no:randomly -s -m enclave_boot tests/enclave_image

wire: $(INSTALLED)  ## run servers and clients over HTTP, each a process, and kill them
	$(BIN)/python -m pytest -n 2 -m wire tests/transport

previous: $(INSTALLED)  ## run the wheel before this one as clients of this server; for every night, not every change
	$(BIN)/python .ci/check_previous.py

web: $(WEB)/.installed  ## run the client in JavaScript, in Node and in Chromium, next to clients in Python
	build/web/node_modules/.bin/tsc -p clients/web
	node --test clients/web/tests/
	PYTHONPATH=. $(WEB)/bin/python -m pytest -p no:randomly -m web tests/web

scale: $(INSTALLED)  ## kill actors of a local Ray, and sum on two of its nodes
	RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$$(printf %064d 7) RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0 \
	  $(BIN)/python -m pytest -p no:randomly -m scale tests/scale

bench-flower: $(FLOWER)/.installed  ## compare whole rounds with Flower's own and with SecAgg+
	$(FLOWER)/bin/python benchmarks/bench_flower.py --json build/bench-flower.json

dist: $(INSTALLED)  ## build the wheel and the source distribution in dist/, the same bytes from the same sources
	rm -rf dist
	$(BIN)/python .ci/build_distributions.py

dist-check: $(INSTALLED) $(PUBLISHING)/.installed  ## build the distributions, install the wheel elsewhere, and check both
	$(BIN)/python .ci/check_distributions.py $(PUBLISHING)/bin

sbom: dist $(PUBLISHING)/.installed  ## list what an installation of the wheel brings, in CycloneDX: dist/secagg.cdx.json
	$(PYTHON) -m venv --clear --without-pip build/materials
	$(BIN)/python -m pip --disable-pip-version-check --python build/materials/bin/python install -c constraints.txt dist/*.whl
	$(PUBLISHING)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-file dist/secagg.cdx.json build/materials/bin/python

extras: $(INSTALLED)  ## install every extra alone, torch's too, and make its first call; minutes, and gigabytes
	$(BIN)/python .ci/check_extras.py

pythons: $(INSTALLED)  ## run the tests of the core on every Python that is supported and here
	$(BIN)/python .ci/check_versions.py $(PYTHONS:%=--python %)

oldest: $(INSTALLED)  ## run the tests of the core with the oldest numpy, cryptography and hypothesis
	$(BIN)/python .ci/check_versions.py --dependencies oldest

newest: $(INSTALLED)  ## run the tests of the core with the newest of all dependencies
	$(BIN)/python .ci/check_versions.py --dependencies newest

scoreboard: $(foreach name,flower openfl declearn appfl secagg,$(SCOREBOARD)/$(name)/.venv/.installed)  ## attack other libraries and this one, each in an environment of its own; gigabytes
	for name in flower openfl declearn appfl; do \
	  $(SCOREBOARD)/$$name/.venv/bin/python benchmarks/scoreboard/against_$$name.py > $(SCOREBOARD)/$$name.json || exit 1; done
	for mode in semi_honest active; do PYTHONPATH=. \
	  $(SCOREBOARD)/secagg/.venv/bin/python benchmarks/scoreboard/against_secagg.py $$mode > $(SCOREBOARD)/$$mode.json || exit 1; done
	$(PYTHON) benchmarks/scoreboard/table.py benchmarks/results/scoreboard.md benchmarks/results/scoreboard.json \
	  $(foreach name,flower openfl declearn appfl semi_honest active,$(SCOREBOARD)/$(name).json)

site: $(INSTALLED) $(SITE)/.installed  ## build the documentation (build/site/html), follow its links, run its code
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict -f docs/mkdocs.yml
	PYTHONPATH=. $(SITE)/bin/python -m docs.links build/site/html
	$(BIN)/python -m pytest -n 2 --dist worksteal -m site tests/docs

site-look: site $(WEB)/.installed  ## open every page in Chromium at 1280 and 400 pixels: nothing is cut off
	PYTHONPATH=. $(WEB)/bin/python -m docs.look build/site/html

vectors: $(INSTALLED)  ## write the test vectors of the protocols, and the interop suite, again
	$(BIN)/python -m tests.vectors.generate
	$(BIN)/python -m tests.vectors.generate_one_message
	$(BIN)/python -m tests.vectors.generate_light_secagg
	$(BIN)/python -m tests.vectors.generate_interop

clean:  ## remove everything that these targets make
	rm -rf $(VENV) build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "secagg needs Python 3.11 or newer, and \`$(PYTHON)\` is not." >&2; \
	  echo "Name one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt -e '.[dev,plot,proofs,train,ray]'
	touch $@

# Flower and NVFlare pin other versions of some of their dependencies than constraints.txt, so only these are held.
HELD = $$(grep -E '^($(1))==' constraints.txt)
ADAPTERS := peft==0.21.2 transformers==5.24.0
TESTING := numpy|cryptography|pytest|pytest-randomly|pytest-xdist|hypothesis

build/%/.venv/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(PIP_OPTIONS) $(PACKAGES)
	touch $@

# `make flower FLWR=1.42.0` makes another environment, next to that of the version that figures and transcripts are of.
$(FLOWER)/.installed: PACKAGES = "flwr[simulation]==$(FLWR)" -e '.[dp]' $(call HELD,$(TESTING)|mypy)
$(FLOWER_TORCH)/.installed: PACKAGES = "flwr[simulation]==$(FLWR)" -e . $(ADAPTERS) $(call HELD,$(TESTING)|torch)
$(NVFLARE)/.installed: PACKAGES = "nvflare==$(NVFLARE_VERSION)" -e . $(call HELD,$(TESTING)|mypy)
$(NVFLARE_TORCH)/.installed: PACKAGES = "nvflare==$(NVFLARE_VERSION)" -e . $(ADAPTERS) $(call HELD,$(TESTING)|torch)
$(PEERS)/.installed: PACKAGES = flwr==1.41.0 faiss-cpu==1.15.1 -e . $(call HELD,numpy|cryptography)
$(CKKS)/.installed: PACKAGES = "nvflare==$(NVFLARE_VERSION)" tenseal==0.3.18 $(call HELD,numpy)
$(PUBLISHING)/.installed: PACKAGES = twine==7.0.0 check-wheel-contents==0.6.3 cyclonedx-bom==7.5.0
$(SOLVERS)/.installed: PACKAGES = -c constraints.txt cvc5==1.4.2 bitwuzla==0.9.1 -e '.[proofs]'
$(DCAP)/.installed: PACKAGES = -c constraints.txt dcap-qvl==0.7.0 -e . cbor2 hypothesis pytest pytest-randomly
$(SITE)/.installed: PACKAGES = -c constraints.txt -e '.[docs]'
$(WEB)/.installed: PACKAGES = -c constraints.txt -e '.[http]' hypothesis pytest pytest-randomly playwright==1.65.2
$(WEB)/.installed: build/web/.tools

build/web/.tools: .ci/web_tools
	.ci/web_tools
	npm install --silent --no-save --prefix build/web typescript@5.6.3
	touch $@

# OpenFL asks for pycryptodome at run time; APPFL brings the newest torch, with its CUDA packages.
$(SCOREBOARD)/flower/.venv/.installed: PACKAGES = flwr==1.41.0
$(SCOREBOARD)/openfl/.venv/.installed: PACKAGES = openfl==1.9 pycryptodome
$(SCOREBOARD)/declearn/.venv/.installed: PACKAGES = declearn==2.9.1
$(SCOREBOARD)/appfl/.venv/.installed: PACKAGES = appfl==1.12.0
$(SCOREBOARD)/secagg/.venv/.installed: PACKAGES = -c constraints.txt -e .
