# Every target installs first if pyproject.toml changed. Pass more flags with ARGS, e.g. make demo ARGS="--seed 1".
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo demo-sales serve test check bench bench-learning

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

install: $(INSTALLED) ## a virtual environment in .venv with everything that the demo and the tests need

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[embedded,dev]'
	@touch $@

demo: $(INSTALLED) ## train the email agent on this machine and ask it, before and after
	@$(BIN)/learnloop demo $(ARGS)

demo-sales: $(INSTALLED) ## the same with the sales-email agent on a knowledge graph
	@$(BIN)/learnloop demo --environment sales_email $(ARGS)

serve: $(INSTALLED) ## the service on http://127.0.0.1:8000
	@$(BIN)/learnloop serve $(ARGS)

test: $(INSTALLED) ## all tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(ARGS)

check: $(INSTALLED) ## lint, formatting, imports and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

bench: $(INSTALLED) ## speed beside transformers and TRL, the service under load, what an iteration spends on neither
	$(BIN)/python -m pip install --quiet --editable '.[embedded,bench]'
	@for name in sampling trl_rollouts service_under_load iteration_overhead ruler; do \
		echo; echo "== $$name"; $(BIN)/python -m benchmarks.$$name $(ARGS) || exit; \
	done

bench-learning: $(INSTALLED) ## both demos for three seeds: mean and spread of what was learned
	@for name in email_search sales_email; do \
		echo; echo "== $$name"; $(BIN)/python -m benchmarks.learning --environment $$name $(ARGS) || exit; \
	done
