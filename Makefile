# `make` lists the targets. Two environments, each installed once from its lock:
# .venv runs cdejax (no torch), .venv-dev tests it.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
CHECK = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	(echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 1)
RUN := .venv/.installed
DEV := .venv-dev/.installed

.PHONY: help quickstart evidence test lint types wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

quickstart: $(RUN) ## Every stage on code that is installed anyway, ending in one table
	.venv/bin/cdejax run --config configs/quickstart.yaml

evidence: $(RUN) ## The same with more pairs and the fuller table (up to an hour)
	.venv/bin/cdejax run --config configs/evidence.yaml

test: $(DEV) ## All tests but the slow ones and those that need an accelerator
	.venv-dev/bin/pytest -n 2 --dist worksteal

lint: $(DEV) ## Style and format
	.venv-dev/bin/ruff check .
	.venv-dev/bin/ruff format --check .

types: $(DEV) ## Static types
	.venv-dev/bin/pyright --pythonpath .venv-dev/bin/python

wheel: $(DEV) ## Build dist/*.whl
	rm -rf dist
	.venv-dev/bin/python -m build --wheel --no-isolation

clean: ## Remove environments, caches and builds (never runs/)
	rm -rf .venv .venv-dev build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): requirements/runtime.txt pyproject.toml
	$(CHECK)
	@echo "Installing into .venv (1.3 GB, a minute or two)"
	$(PYTHON) -m venv --clear .venv
	.venv/bin/pip install --quiet --no-deps -r requirements/runtime.txt
	.venv/bin/pip install --quiet --no-deps -e .
	touch $@

$(DEV): requirements/dev.txt pyproject.toml
	$(CHECK)
	@echo "Installing into .venv-dev (2.7 GB, a few minutes)"
	$(PYTHON) -m venv --clear .venv-dev
	.venv-dev/bin/pip install --quiet -r requirements/dev.txt
	.venv-dev/bin/pip install --quiet --no-deps -e .
	touch $@
