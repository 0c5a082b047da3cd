# Set-up, demo, tests and checks. `make help` lists the targets.

PYTHON ?= python3
DEMO_MODEL := .models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL ?= $(DEMO_MODEL)
PORT ?= 50051
TORCH_INDEX ?=

BIN := .venv/bin
STAMP := .venv/.installed
# Another model than the demo's is the caller's to have.
FETCH := $(if $(filter $(DEMO_MODEL),$(MODEL)),model)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup native model demo serve test check check-python check-protos check-kernels protos traces bench bench-peers bench-scheduler gpu-check format constraints clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'
	@echo "Variables: PYTHON=$(PYTHON)  MODEL=$(MODEL)  PORT=$(PORT)"
	@echo "  TORCH_INDEX=URL adds a package index for torch. PyPI's Linux build brings gigabytes of CUDA; for a CPU build:"
	@echo "  make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu"

setup: $(STAMP)  ## make .venv with the pinned packages and this project

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || \
	  { echo "setup: $(PYTHON) is not on PATH; install Python 3.11 or later, or name one: make setup PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "setup: $(PYTHON) is $$($(PYTHON) -V 2>&1); 3.11 or later is needed: make setup PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m tools.setup_env --torch-index "$(TORCH_INDEX)"
	@touch $@

native: setup  ## compile the native CPU kernels
	@$(BIN)/python -m kernels.cpu.build

model: setup  ## fetch the model of the demo into .models (98 MB)
	@$(BIN)/python -m tools.fetch_model .models

demo: setup native $(FETCH)  ## start everything, ask a real model one question, stop
	@$(BIN)/octavo demo --model $(MODEL)

serve: setup native $(FETCH)  ## serve MODEL on PORT in the foreground; Ctrl-C drains
	@$(BIN)/octavo serve --model $(MODEL) --port $(PORT)

test: setup native model  ## run the tests
	@$(BIN)/python -m pytest

check: check-python check-protos check-kernels test  ## all that must pass before a change lands

check-python: setup  ## format, lint, types, import contracts
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary -p tools
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }

check-protos: setup  ## proto lint, breaking changes against main, stub drift
	@$(BIN)/buf lint
	@$(BIN)/python -m tools.check_breaking
	@$(BIN)/python -m tools.generate_stubs --check

check-kernels: setup  ## compile the GPU kernels for sm_80 and sm_90, report registers and shared memory
	@$(BIN)/python -m kernels.triton.compile_all > /dev/null || { cat build/triton-kernels.txt; exit 1; }

protos: setup  ## generate the stubs in protos/gen
	@$(BIN)/python -m tools.generate_stubs

traces: setup  ## rewrite the golden traces of the scheduler core
	@$(BIN)/python -m tests.scheduler.core.rewrite_traces

BENCH ?=
bench: setup native model  ## Octavo beside the peers that are installed; BENCH="--only W2 --rounds 1" for less
	@$(BIN)/python -m bench $(BENCH)

bench-peers: setup  ## install the peers, each in an environment of its own (half an hour on two cores)
	@$(BIN)/python -m tools.install_peers --torch-index "$(TORCH_INDEX)"

bench-scheduler: setup  ## microseconds per scheduler step, beside vLLM's scheduler
	@$(BIN)/python -m tools.install_peers --torch-index "$(TORCH_INDEX)" vllm
	@$(BIN)/python -m bench.scheduler
	@$(BIN)/python -m bench.scheduler.engine

gpu-check:  ## check and measure this machine's GPU with the Python, torch and Triton that it has, in under 10 minutes
	@$(PYTHON) -m bench.gpu_check $(GPU_CHECK_FLAGS)

format: setup  ## format the code
	@$(BIN)/ruff format --quiet
	@$(BIN)/ruff check --fix --quiet

constraints: setup  ## pin what .venv holds now
	@$(BIN)/python -m tools.pin > constraints.txt.new && mv constraints.txt.new constraints.txt && touch $(STAMP)

clean:  ## remove what was built and cached, but not .venv and .models
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .run
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	@find kernels -name '*.so' -delete
