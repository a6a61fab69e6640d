# Two commands: `make reproduce` does the main job, `make test` runs the tests. Both set up first.
#
# PYTHON   Python 3.11 or newer, such as PYTHON=python3.12. A .venv made with another Python is
#          rebuilt. Without PYTHON, an existing .venv that works is used.
# UV       the uv program; found on the PATH. `make UV= test` uses pip.
# WORKERS  number of test processes.
#
# Stamps record what is installed: .venv/ready-main for the main job, .venv/ready-NAME for the main
# job and the extras in EXTRAS_NAME. constraints.txt pins all versions, those of build tools too.
CHOSEN := $(if $(filter undefined default,$(origin PYTHON)),,yes)
PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)
WORKERS ?= 2

EXTRAS_dev := dev,docs,data,cluster
EXTRAS_bench := bench,data,cluster
EXTRAS_deep := dev,data,sb3
EXTRAS_browser := dev,lab,browser

BIN := .venv/bin
MADE := .venv/made
MAIN := .venv/ready-main
DEV := .venv/ready-dev
BENCH := .venv/ready-bench
WARM := .venv/warm
COMPILED := $(wildcard src/retvar/engine/*.py src/retvar/td/*.py) $(addprefix src/retvar/,jit.py networks.py random.py rules.py step_sizes.py online/kernel.py online/nodes.py online/memory_layout.py)

VENV = .venv '$(PYTHON)' '$(CHOSEN)' '$(UV)'
PIP = $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
INSTALL = $(if $(UV),'$(UV)' pip install --quiet --python $(BIN)/python,$(PIP) install) -c constraints.txt
BUILD := hatchling editables
# A worker runs whole modules, whose fixtures are made once, until another has nothing left to do.
PYTEST = $(BIN)/pytest -q -n $(WORKERS) --dist worksteal
stop = $(if $(1),$(error $(1)))
# The tests start hundreds of processes, which would otherwise compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: FORCE setup gallery test test-deep browser lint types layers unit reproduce bench gpu mutants soak docs wheel clean study shuffled

setup: $(DEV)

$(MADE): FORCE
	$(call stop,$(shell sh tools/venv.sh trouble $(VENV)))@sh tools/venv.sh make $(VENV)

$(MAIN): $(MADE) pyproject.toml constraints.txt
	@echo "installing retvar"
	@$(INSTALL) $(BUILD)
	@$(INSTALL) --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

.venv/ready-%: $(MAIN)
	@echo "installing retvar[$(EXTRAS_$*)]"
	@$(INSTALL) --no-build-isolation -e ".[$(EXTRAS_$*)]"
	@touch $@

$(WARM): $(MAIN) $(COMPILED)
	$(BIN)/python -m retvar.experiments.precompile
	touch $(WARM)

test: lint types layers docs unit

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports --no-cache

unit: $(DEV)
	$(PYTEST)

# ORDERS random orders of all tests; FROM: the first seed. Stops at the first failure.
ORDERS ?= 10
FROM ?= 1
shuffled: $(DEV)
	@for seed in $$(seq $(FROM) $$(($(FROM) + $(ORDERS) - 1))); do \
	  $(PYTEST) --shuffle $$seed \
	    || { echo "this order fails: make shuffled ORDERS=1 FROM=$$seed"; exit 1; }; \
	done

test-deep: $(DEV)
	@sh tools/deep.sh '$(MAKE)' $(BIN) $(WORKERS)

browser: $(DEV)
	@sh tools/browser.sh '$(MAKE)' $(BIN) $(WORKERS)

soak: $(DEV)
	RETVAR_SOAK=1 $(PYTEST) -m soak -o faulthandler_timeout=7200 tests

reproduce: $(WARM)
	$(BIN)/retvar reproduce --out reproduction

study: $(MAIN)
	$(BIN)/python examples/which_method.py --store study --page docs/which-method.md --out docs/figures

gallery: $(DEV)
	$(BIN)/python tools/gallery.py

bench: $(BENCH)
	$(BIN)/python benchmarks/exact.py --out docs/benchmarks.md
	$(BIN)/python benchmarks/gradient.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/online.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/engine.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/tiles.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/experience.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/estimate.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/sweep.py --append --out docs/benchmarks.md

# With any Python that has numba-cuda and retvar's dependencies; GPU_OUT: file for the benchmark.
gpu:
	PYTHONPATH=src $(PYTHON) -m tests.gpu_cases 300
	cd benchmarks && PYTHONPATH=../src $(PYTHON) gpu.py $(if $(GPU_OUT),--append --out $(GPU_OUT))

mutants: $(DEV)
	$(BIN)/python tests/mutants.py

docs: $(DEV)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python tools/offline.py docs/_build/html

wheel: $(DEV)
	$(BIN)/hatchling build -t wheel

clean:
	rm -rf .venv dist docs/_build
