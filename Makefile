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
COMPILED := $(wildcard src/retvar/td/*.py src/retvar/online/*.py src/retvar/simulation/*.py)

VENV = .venv '$(PYTHON)' '$(CHOSEN)' '$(UV)'
PIP = $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
INSTALL = $(if $(UV),'$(UV)' pip install --quiet --python $(BIN)/python,$(PIP) install) -c constraints.txt
BUILD := hatchling editables
# A worker runs whole modules, whose fixtures are made once, until another has nothing left to do.
PYTEST = $(BIN)/pytest -q -n $(WORKERS) --dist worksteal
stop = $(if $(1),$(error $(1)))
# The tests start hundreds of processes, which would otherwise compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: FORCE setup test checks lint types layers docs unit quick nightly test-deep browser reproduce study gallery bench gpu wheel clean

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
	$(BIN)/python -c "from retvar.paper.reproduce import precompile; precompile()"
	touch $(WARM)

test: checks unit

# Lint, types, layers and docs, side by side.
checks: $(DEV)
	@$(MAKE) --no-print-directory -j lint types layers docs

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports --no-cache

unit: $(DEV)
	$(PYTEST)

# For work in progress: what most mistakes break.
quick: lint
	$(PYTEST) -x tests/test_rules.py tests/test_solve.py tests/test_mdp.py tests/test_fixed_points.py tests/test_heart.py -k "not (engine or sweeps or gpu)"

# All cases, fresh seeds, deep critics, the lab in a browser, and the classic bugs of TD code.
nightly: $(DEV)
	RETVAR_SOAK=1 $(PYTEST) -o faulthandler_timeout=7200
	$(BIN)/python tests/mutants.py
	$(MAKE) test-deep browser

test-deep: $(DEV)
	@sh tools/deep.sh '$(MAKE)' $(BIN) $(WORKERS)

browser: $(DEV)
	@sh tools/browser.sh '$(MAKE)' $(BIN) $(WORKERS)

reproduce: $(WARM)
	$(BIN)/retvar reproduce --out reproduction

study: $(MAIN)
	$(BIN)/python examples/which_method.py --store study --page docs/which-method.md --out docs/figures

gallery: $(DEV)
	$(BIN)/python tools/gallery.py

bench: $(BENCH)
	$(BIN)/python benchmarks/exact.py --out benchmarks/results.md
	$(BIN)/python benchmarks/gradient.py --append --out benchmarks/results.md
	$(BIN)/python benchmarks/online.py --append --out benchmarks/results.md
	$(BIN)/python benchmarks/engine.py --append --out benchmarks/results.md
	$(BIN)/python benchmarks/tiles.py --append --out benchmarks/results.md
	$(BIN)/python benchmarks/logs.py --append --out benchmarks/results.md
	$(BIN)/python benchmarks/sweep.py --append --out benchmarks/results.md

# With any Python that has numba-cuda and retvar's dependencies; GPU_OUT: file for the benchmark.
gpu:
	PYTHONPATH=src $(PYTHON) -m tests.gpu_cases 300
	cd benchmarks && PYTHONPATH=../src $(PYTHON) gpu.py $(if $(GPU_OUT),--append --out $(GPU_OUT))

docs: $(DEV)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python tools/offline.py docs/_build/html

wheel: $(DEV)
	$(BIN)/hatchling build -t wheel

clean:
	rm -rf .venv dist docs/_build
