# Every target prepares what it needs: a virtual environment with exactly the versions of the lock
# file and this package in it. The second time that takes no time.

PYTHON ?= python3.11
TORCH := torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help train test test-instruction-sets test-slow bench check lint types format lock clean

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

bench: $(READY) ## measure speed and memory, about ten minutes (leave the machine alone meanwhile)
	$(BIN)/kstep bench $(ARGS)

check: lint types test ## everything a change must pass

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY) ## let ruff put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Torch goes first and alone, so that nothing else can bring another build of it; the rest is
# installed without dependency resolution, so that only what the lock file names is installed.
$(READY): requirements.lock pyproject.toml setup.py src/kstep/native/sources.py \
		$(wildcard src/kstep/native/*.cpp src/kstep/native/*.h)
	@command -v $(PYTHON) >/dev/null || { echo "kstep needs Python 3.11: set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock $(TORCH)
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "import kstep.native; kstep.native.load()" 2>/dev/null \
		&& echo "native encoder: built" \
		|| echo "native encoder: not built (it needs GCC); everything runs through PyTorch"
	@$(BIN)/python -m kstep.envs.gl --check || { \
		echo "no system library can draw without a screen: adding the OSMesa that a wheel ships"; \
		$(BIN)/python -m pip install --quiet --no-deps lavavu-osmesa==1.9.10 \
		&& $(BIN)/python -m kstep.envs.gl --check; }
	@touch $(READY)

lock: ## resolve the newest versions that fit pyproject.toml and write them to requirements.lock
	./scripts/lock.sh

clean: ## remove the virtual environment and caches (never runs/)
	rm -rf $(VENV) build src/kstep/native/*.so .mypy_cache .pytest_cache .ruff_cache src/*.egg-info
