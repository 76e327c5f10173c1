# Everything a contributor types. It needs make, bash and Python 3.11 or newer; each target makes its own .venv.
#
#     make test ARGS="-k fence"     arguments for pytest
#     make test JOBS=0              in one process, for a debugger
#     make test PYTHON=python3.13   another Python, after `make clean`
#     make quick SINCE=main         all that came since main, instead of what is not committed

PYTHON ?= python3
ARGS ?=
SINCE ?= HEAD
JOBS ?= 3

venv := .venv/.stamp
bench_venv := .venv-bench/.stamp
servers := .servers/.stamp
bin := .venv/bin
export PYTHON

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo quick test test-all check layers fix bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

demo: $(venv) ## see two processes contend for a lock, in under a minute and without a server
	@$(bin)/python tools/demo.py

quick: $(venv) $(servers) ## in a minute: the core, 6,000 histories, and what belongs to the files that you changed
	@$(bin)/python tools/quick.py $(SINCE)

test: $(venv) $(servers) ## run the tests, in random order; ARGS="-k fence" goes to pytest
	@$(bin)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-all: $(venv) $(servers) ## the same, and the contract of each store in every runtime: about a quarter of an hour
	@$(bin)/python -m pytest -n $(JOBS) --dist worksteal --all-runtimes $(ARGS)

check: $(venv) ## format, lint, types, import rules and docs; changes nothing
	@echo "check: format" && $(bin)/ruff format --quiet --check . || { echo "make fix corrects that"; exit 1; }
	@echo "check: lint" && $(bin)/ruff check --quiet .
	@echo "check: types" && $(bin)/mypy --strict --no-error-summary
	@echo "check: imports" && $(bin)/python -m pytest --quiet --no-header tests/test_imports.py
	@echo "check: rendered pages" && $(bin)/python tools/render.py --check
	@echo "check: docstrings" && $(bin)/python tools/docstrings.py --check
	@echo "check: docs" && $(bin)/sphinx-build -q -E -W --keep-going docs docs/_build/html

layers: $(venv) ## draw the layers of src/dibs, and show which folder imports from which, and every circle of files
	@$(bin)/python tools/layers.py

fix: $(venv) ## format, correct what lint can correct, and write what is rendered: docs and docstrings of faces
	@$(bin)/python tools/docstrings.py
	@$(bin)/ruff check --quiet --fix . ; $(bin)/ruff format .
	@$(bin)/python tools/render.py

bench: $(bench_venv) ## measure against peers and floors, and write docs/benchmarks.md
	@.venv-bench/bin/python benchmarks/run.py $(ARGS)

clean: ## remove the environments, caches and built files
	rm -rf .venv .venv-bench .servers docs/_build build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks tools docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(venv): pyproject.toml tools/venv.sh
	@bash tools/venv.sh .venv dev docs && touch $@

$(bench_venv): pyproject.toml tools/venv.sh
	@bash tools/venv.sh .venv-bench bench && touch $@

$(servers): tools/servers.sh
	@bash tools/servers.sh .servers
