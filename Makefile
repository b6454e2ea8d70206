# `make help` lists the targets. Everything happens in .venv, which each target sets up if need be.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SITE := docs/_build/html
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start fedbench in dozens of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check test-extended bench docs site format clean

help:  ## this list
	@grep -E '^[a-z -]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# Errors alone are shown: pip warns of each folder in a user's settings that lacks a package.
# Of 18,000 modules that are installed a third is ever imported; Python compiles these by itself.
INSTALL = $(BIN)/python -m pip install -qq --no-compile --editable

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "fedbench needs Python >= 3.11; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -d fedbench/bench || { echo "fedbench/bench is no folder: this checkout has no symbolic links;" \
	  "clone again with git -c core.symlinks=true clone" >&2; exit 2; }
	@echo "installing into $(VENV); this takes 1 to 5 minutes and prints nothing" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) ".[dev]"
	@touch $@

$(VENV)/.docs: $(STAMP)
	@echo "installing what builds the site into $(VENV)" >&2
	@$(INSTALL) ".[docs]"
	@touch $@

demo: $(STAMP)  ## tune, sweep and rank on small pictures of clothes, 3 to 6 minutes on 2 cores
	$(BIN)/fedbench tune orchestra --preset fashion-small --trials 4 --confirm 3
	$(BIN)/fedbench sweep --grid heterogeneity --preset fashion-small
	$(BIN)/fedbench leaderboard --grid heterogeneity --preset fashion-small
	@$(BIN)/python docs/demo.py

# Three processes share the files of tests, in the order of tests/conftest.py. Beside them mypy is
# silent; if it fails, it runs again, from its cache, to print why.
test check: $(STAMP)  ## format, lint, types, import order, tests; CI runs it
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/mypy > /dev/null & types=$$!; trap "kill $$types; exit 130" INT TERM; \
	  $(BIN)/lint-imports && OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder; \
	  tests=$$?; { wait $$types || $(BIN)/mypy; } && exit $$tests

# The site, which one of these builds, needs more packages.
test-extended: $(VENV)/.docs  ## what `make test` leaves out, such as demo, bench and site; CI runs it
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m extended

bench: $(STAMP)  ## speed beside a bare loop and other simulators; ARGS="--only W3 --data hub:DIR"
	$(BIN)/python -m perf $(ARGS)

# Tutorials are executed, unless ARGS="-D nb_execution_mode=off". One job: they run processes of
# their own. -E builds every page anew.
docs site: $(VENV)/.docs  ## documentation and results as a site in docs/_build/html, warnings are errors
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html $(ARGS) docs $(SITE)
	@echo "$(SITE)/index.html"

format: $(STAMP)  ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and caches, keep results
	rm -rf $(VENV) build docs/_build docs/generated *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
