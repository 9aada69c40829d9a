# Everything installs itself into .venv from constraints.txt; `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint docs results bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(STAMP) ## create .venv with everything that is needed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedssl needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: install ## train a non-IID federation on handwritten digits (under 3 minutes)
	$(BIN)/fedssl run data.name=digits --report --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: install lint ## lint, types and all tests
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: install ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install ## the documentation as a site in ./site, built without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: install ## fill the generated tables and pictures of README and docs from docs/results/cells
	$(BIN)/python -m fedssl.papers.pages

bench: install ## speed, against peers and limits in the same run, into docs/results/speed.md (an hour)
	$(BIN)/python benchmarks/collect.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
