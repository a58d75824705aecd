# Every target prepares what it needs: a virtual environment with exactly the versions of the lock
# file and this package in it. The second time that takes no time.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(VERSION)
# Torch's version stands in a comment of the lock, that of OSMesa in pyproject.toml.
TORCH := $(shell sed -nE 's/^\# (torch==[^ ]+) .*/\1/p' requirements.lock)
OSMESA := $(shell sed -nE 's/.*"(lavavu-osmesa==[^"]+)".*/\1/p' pyproject.toml)

.PHONY: help train test test-instruction-sets test-slow browser coverage bench docs check lint types \
	format hooks lock clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 24

train: $(READY) ## train KSL to swing up a cart-pole from pixels (ARGS="--seed 2" adds options)
	$(BIN)/kstep train ksl cartpole_swingup --preset cpu $(ARGS)

test: $(READY) ## run the tests (a few minutes)
	$(BIN)/python -m pytest -n auto $(ARGS)

test-instruction-sets: $(READY) ## run what depends on rounding as on older processors
	$(BIN)/python scripts/instruction_sets.py -n auto $(ARGS)

test-slow: $(READY) ## run the long tests as well: learning, many seeds
	$(BIN)/python -m pytest -m slow $(ARGS)

browser: ## install Chromium (Debian, as root), which the tests of the page need; without it they are skipped
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		export DEBIAN_FRONTEND=noninteractive; \
		timeout 300 apt-get update -qq && timeout 900 apt-get install -y -qq chromium; }

coverage: $(READY) ## run the tests and print the modules that they cover least, and the total
	$(BIN)/python -m pytest -n auto --cov --cov-report= $(ARGS)
	@$(BIN)/coverage report --sort=cover | sed -n '1,27p; $$p'

bench: $(READY) ## measure speed and memory, about ten minutes (leave the machine alone meanwhile)
	$(BIN)/kstep bench $(ARGS)

docs: $(READY) ## build the documentation as a site, build/site/index.html, and check its links (no network)
	$(BIN)/python scripts/docs.py $(ARGS)

check: lint types test ## everything a change must pass

lint: $(READY) ## ruff (rules and format) and codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(READY) ## mypy, strict, over the package and its tests
	$(BIN)/mypy

format: $(READY) ## let ruff put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks: $(READY) ## let git run lint and types before each commit
	$(BIN)/pre-commit install

# The lock goes first, with hashes and without dependency resolution: what it names and nothing else.
# Then torch, alone and without a hash, because its build differs between machines. What torch needs is
# there by then, from the lock; only a build for CUDA brings further packages.
$(READY): requirements.lock pyproject.toml setup.py src/kstep/native/sources.py \
		$(wildcard src/kstep/native/*.cpp src/kstep/native/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "kstep needs Python 3.11 or later: set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $$(test -x $(BIN)/python$(VERSION) || echo --clear) $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "import kstep.native; kstep.native.load()" 2>/dev/null \
		&& echo "native encoder: built" \
		|| echo "native encoder: not built (it needs GCC); everything runs through PyTorch"
	@$(BIN)/python -m kstep.envs.gl --check || { \
		echo "no system library can draw without a screen: adding the OSMesa that a wheel ships"; \
		$(BIN)/python -m pip install --quiet --no-deps $(OSMESA) \
		&& $(BIN)/python -m kstep.envs.gl --check; }
	@touch $(READY)

lock: ## write requirements.lock from pyproject.toml (ARGS=--upgrade: with the newest versions)
	PYTHON=$(PYTHON) ./scripts/lock.sh $(ARGS)

clean: ## remove the virtual environment and caches (never runs/)
	rm -rf $(VENV) build src/kstep/native/*.so .mypy_cache .pytest_cache .ruff_cache .coverage* src/*.egg-info
