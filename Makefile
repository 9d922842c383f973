# Two commands do everything on a fresh machine: `make demo` and `make test`.
# The set-up they share is tools/setup_env.py; its work is skipped while nothing it depends on has changed.
#
#   AGENTSPEC_BACKEND=cpu|cuda|metal|vulkan   how llama.cpp is built (detected by default)
#   AGENTSPEC_CACHE=DIR                       where models and built wheels are kept
#   PYTHON=python3.12                         the Python that .venv is made from (3.11 or newer)

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick proofs mutants check format clean

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
SETUP := $(PYTHON) -m tools.setup_env
VENV := .venv/bin

PAIR := qwen2.5-coder-1.5b-instruct qwen2.5-coder-0.5b-instruct
TEST_MODELS := $(PAIR) smollm2-135m-instruct

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1	/' | expand -t 16

setup: ## Make .venv and install everything into it, llama.cpp included
	@$(SETUP)

demo: ## Run the example agent on the default pair of models, and measure it
	@$(SETUP) --models $(PAIR)
	@$(VENV)/python -m examples.demo

test: ## Run all tests, on real models too
	@$(SETUP) --models $(TEST_MODELS) --sources
	@$(VENV)/python -m pytest tests/unit tests/exactness tests/contract tests/model

quick: ## Run the tests that need no model (seconds)
	@$(SETUP)
	@$(VENV)/python -m pytest tests/unit tests/exactness tests/contract

proofs: ## The proofs on real models at full size (an hour on two cores)
	@$(SETUP) --models $(TEST_MODELS)
	@$(VENV)/python -m pytest -s --full tests/model/test_sampled_law.py tests/model/test_seed_invariant.py tests/model/test_greedy.py

mutants: ## Break the code in known ways and see that the tests notice (minutes)
	@$(SETUP)
	@$(VENV)/python -m tools.mutants

check: ## Lint, formatting and types
	@$(SETUP)
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy

format: ## Format the code and apply the lint fixes that are safe
	@$(SETUP)
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .

clean: ## Remove .venv and tool caches (models and built wheels stay in the cache folder)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
