# Every target installs first if pyproject.toml changed. Pass more flags with ARGS, e.g. make demo ARGS="--seed 1".
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two stamps, because the demo needs less than the tests: what was installed last, and with what.
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
INSTALLED_FROM := pyproject.toml learnloop/pyproject.toml $(wildcard plugins/*/pyproject.toml) constraints.txt scripts/install.py
ARGS ?=
# Processes that run tests: as many as pay on this machine, and fit into its memory.
WORKERS ?= $(shell $(PYTHON) scripts/test_workers.py)
# What the demo and the service of this folder have; the tests need more.
EXTRAS := embedded,openenv,prices,tables,weave
# What runs the tests. CI names another module, which gives a test that fails a second chance.
PYTEST ?= pytest
RUN_TESTS = $(BIN)/python -m $(PYTEST) -q --workers $(WORKERS) --durations=10
# Modules are compiled when they are first imported, not at the installation: what is compiled has to be kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo demo-sales serve test test-all check docs bench bench-learning constraints

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

install: $(INSTALLED) ## a virtual environment in .venv with everything that the demo and the tests need

$(RUNTIME): $(INSTALLED_FROM)
	$(PYTHON) scripts/install.py $(EXTRAS)
	@touch $@

$(INSTALLED): $(INSTALLED_FROM)
	$(PYTHON) scripts/install.py embedded,dev
	@touch $(RUNTIME) $@

# Releases are taken when they are a week old: most of those that were tampered with are withdrawn by then. Hashes would
# make pip refuse the editable installation of `make install`.
constraints: ## the versions of a week ago that fit each other, in constraints.txt; with ARGS="-P NAME" of one package only
	PATH="$(BIN):$$PATH" UV_CUSTOM_COMPILE_COMMAND="make constraints" uv pip compile --quiet --universal --exclude-newer "1 week" \
		--python-version 3.11 --no-annotate --no-emit-package learnloop-client --extra embedded --extra export --extra prices --extra tables --extra weave --extra ray --extra bench --extra docs --extra dev \
		--output-file constraints.txt $(or $(ARGS),--upgrade) pyproject.toml

demo: $(RUNTIME) ## train the email agent on this machine and ask it, before and after
	@$(BIN)/learnloop demo $(ARGS)

demo-sales: $(RUNTIME) ## the same with the sales-email agent on a knowledge graph
	@$(BIN)/learnloop demo --environment sales_email $(ARGS)

serve: $(RUNTIME) ## the service on http://127.0.0.1:8000
	@$(BIN)/learnloop serve $(ARGS)

test: $(INSTALLED) ## all tests but the long ones
	$(RUN_TESTS) -m "not long" $(ARGS)

test-all: $(INSTALLED) ## all tests
	$(RUN_TESTS) $(ARGS)

check: $(INSTALLED) ## lint, formatting, imports, dependencies, long functions, names, types, the OpenAPI file, the dashboard, the formatting of JavaScript, and the documentation's length, commands and links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/deptry app environment judges learnloop training
	@for project in $(wildcard plugins/*/pyproject.toml); do (cd $$(dirname $$project) && ../../$(BIN)/deptry learnloop_*) || exit; done
	$(BIN)/python -m scripts.check_functions
	$(BIN)/python -m scripts.check_names
	$(BIN)/python -m scripts.check_openapi
	$(BIN)/python -m scripts.check_dashboard
	$(BIN)/python -m scripts.check_javascript
	$(BIN)/python -m scripts.check_docs
	$(BIN)/python -m scripts.check_commands
	$(BIN)/python -m scripts.docs_site
	$(BIN)/mypy $(TYPED)

docs: ## the documentation as a site, in build/site: open index.html, or serve the folder
	$(PYTHON) scripts/install.py docs
	$(BIN)/python -m scripts.docs_site

bench: $(INSTALLED) ## speed beside TRL, the service under load, what an iteration spends on neither
	$(PYTHON) scripts/install.py embedded,bench
	@for name in engine.trl_rollouts service.service_under_load service.iteration_overhead learning.ruler; do \
		echo; echo "== $$name"; $(BIN)/python -m benchmarks.$$name $(ARGS) || exit; \
	done

bench-learning: $(INSTALLED) ## both demos for three seeds: mean and spread of what was learned
	@for name in email_search sales_email; do \
		echo; echo "== $$name"; $(BIN)/python -m benchmarks.learning.learning --environment $$name $(ARGS) || exit; \
	done
