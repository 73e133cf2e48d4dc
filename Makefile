.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install run quick test test-long test-clients faults check audit bench bench-recall soak docs lock

CONFIG ?= config/agora.yaml
ARGS ?=
# Most tests wait for servers and clocks: several processes gain on two cores, too.
JOBS ?= 4

# A Python that the caller names is taken or refused; without one, the first that is new enough.
ifeq ($(origin PYTHON),undefined)
pythons := python3 python3.14 python3.13 python3.12 python3.11
else
pythons := "$(PYTHON)"
endif

bin := .venv/bin
python := $(bin)/python
pip := $(python) -m pip --disable-pip-version-check --no-input --quiet
# Says which package it is at: a first run downloads for a minute.
pip_progress := $(python) -m pip --disable-pip-version-check --no-input

# Where an image forbids to keep what was compiled, each server that a test starts compiles all of it: half of its start.
export PYTHONDONTWRITEBYTECODE :=

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 14

install: .venv/.run.ok ## Make .venv and install what serving needs

run: .venv/.run.ok ## Serve on http://127.0.0.1:8080 (CONFIG=config/agora.yaml, ARGS=…)
	$(bin)/turnkeeper serve "$(CONFIG)" $(ARGS)

test: .venv/.test.ok ## Run the tests (ARGS=… goes to pytest, JOBS=… at once)
	$(python) -m pytest -n $(JOBS) --dist loadfile $(ARGS)

# What has broken most often, without the stores that need a server of their own.
quick: .venv/.test.ok ## Run the tests that tell most, in less than a minute
	$(python) -m pytest -n $(JOBS) --dist loadfile -k "not postgres and not redis and not sentinel and not cluster" \
		$$(cat tests/quick.txt) $(ARGS)

test-long: .venv/.test.ok ## Run the tests that take minutes, too
	$(python) -m pytest -m "not clients" $(ARGS)

test-clients: .venv/.test.ok ## Run Node's SDK and the voice frameworks' own clients against the server, and the server on Mem0
	@$(pip) install uv
	$(python) -m pytest -m clients $(ARGS)

faults: .venv/.test.ok ## Let everything fail that can, and show what came of each fault (ARGS=… goes to pytest, JOBS=… at once)
	$(python) -m pytest -n $(JOBS) --dist loadfile -m faults $(ARGS)

check: .venv/.test.ok ## Lint, format, types, imports
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(bin)/lint-imports

audit: $(python) ## Ask whether a pinned dependency has a known weakness (needs the network)
	$(pip) install pip-audit
	$(python) -m pip_audit --require-hashes --disable-pip --requirement requirements-image.lock $(ARGS)

bench: .venv/.test.ok ## Measure what the proxy adds, beside its peers (ARGS="--peers nginx,smg")
	$(python) -m bench.proxy $(ARGS)

bench-recall: .venv/.test.ok ## Measure how often recall finds what an answer rests on (ARGS="--own FILE")
	$(python) -m bench.recall $(ARGS)

soak: .venv/.test.ok ## Hold mixed load for half an hour (ARGS="--minutes 5 --callers 50 --memory redis")
	$(python) -m bench.soak $(ARGS)

docs: .venv/.test.ok ## Write docs/filters.md and the schemas anew
	$(python) -m docs.make

compile = $(bin)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --universal \
	--python-version 3.11 pyproject.toml --extra build

# Nobody can add to an image, so it has all that a configuration may ask for; Mem0 brings a house of its own.
served := agora encryption exact pdf postgres traces

lock: $(python) ## Pin the dependencies anew (ARGS=--upgrade takes the newest)
	$(pip) install uv
	$(compile) -o requirements.lock $(ARGS)
	$(compile) --extra test -o requirements-test.lock $(ARGS)
	$(compile) $(served:%=--extra %) --constraint requirements-test.lock -o requirements-image.lock $(ARGS)

# Debian parts ensurepip from Python; the others bring a pip of their own. A .venv half made is removed,
# because the next run would take it for a whole one.
$(python):
	@for name in $(pythons); do \
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && found=$$name && break; \
	done; \
	if [ -z "$$found" ]; then \
	    echo 'Turnkeeper needs Python 3.11 or newer; tried:' $(pythons) >&2; \
	    echo 'Install one, or name it: make PYTHON=/path/to/python3 …' >&2; exit 1; \
	fi; \
	echo "Making .venv with $$found ($$("$$found" -V))"; rm -rf .venv; \
	"$$found" -m venv .venv >/dev/null 2>&1 && exit 0; rm -rf .venv; \
	virtualenv --quiet --python "$$found" .venv 2>/dev/null && exit 0; rm -rf .venv; \
	uv venv --quiet --seed --python "$$found" .venv 2>/dev/null && exit 0; rm -rf .venv; \
	echo "$$found cannot make a virtual environment: install its venv module (python3-venv on Debian" >&2; \
	echo 'and Ubuntu), or virtualenv, or uv.' >&2; exit 1

.venv/.run.ok: requirements.lock pyproject.toml $(python)
	@echo 'Installing what requirements.lock pins'
	@$(pip_progress) install --require-hashes -r requirements.lock
	@$(pip) install --no-deps --no-build-isolation -e .
# Else each start compiles all of it wherever PYTHONDONTWRITEBYTECODE is set, which takes a quarter of a second.
	@$(python) -m compileall -q filters proxy turnkeeper
	@touch $@

.venv/.test.ok: requirements-test.lock .venv/.run.ok
	@echo 'Installing what requirements-test.lock pins'
	@$(pip_progress) install --require-hashes -r requirements-test.lock
	@touch $@
