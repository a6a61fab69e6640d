# Two commands: `make reproduce` does the main job, `make test` runs the tests. Both set up first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
BENCH := .venv/bench-ready
WORKERS ?= 2
WARM := .venv/warm
COMPILED := $(wildcard src/retvar/engine/*.py) $(addprefix src/retvar/,jit.py random.py rules.py step_sizes.py online/kernel.py)

.PHONY: setup test lint types layers unit reproduce bench mutants soak docs wheel clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,data,cluster]"
	$(BIN)/python -m compileall -q src
	touch $(READY)

$(WARM): $(READY) $(COMPILED)
	$(BIN)/python -m retvar.experiments.precompile
	touch $(WARM)

test: lint types layers docs unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports --no-cache

unit: $(READY)
	$(BIN)/pytest -q -n $(WORKERS)

soak: $(READY)
	RETVAR_SOAK=1 $(BIN)/pytest -q -n $(WORKERS) -m soak tests

reproduce: $(WARM)
	$(BIN)/retvar reproduce --out reproduction

$(BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	touch $(BENCH)

bench: $(BENCH)
	$(BIN)/python benchmarks/exact.py --out docs/benchmarks.md
	$(BIN)/python benchmarks/online.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/engine.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/tiles.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/experience.py --append --out docs/benchmarks.md
	$(BIN)/python benchmarks/sweep.py --append --out docs/benchmarks.md

mutants: $(READY)
	$(BIN)/python tests/mutants.py

docs: $(READY)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

wheel: $(READY)
	$(BIN)/hatchling build -t wheel

clean:
	rm -rf .venv dist docs/_build
