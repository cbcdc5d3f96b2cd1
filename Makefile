# Each target sets up what it needs in .venv/, and a second run finds it there.
# Kept to POSIX sh and to GNU make 3.81, which is what macOS has.

# Interpreters to try, in this order. `make PYTHON=/path/to/python3` tries that one alone.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11 python \
    /opt/homebrew/bin/python3.1[1-9] /usr/local/bin/python3.1[1-9] \
    /Library/Frameworks/Python.framework/Versions/3.1[1-9]/bin/python3 \
    "$$HOME"/.local/share/uv/python/cpython-3.1[1-9]*/bin/python3 \
    "$$HOME"/.pyenv/versions/3.1[1-9]*/bin/python3

# A usable one can make a virtual environment, and is no x86-64 build on an Apple Silicon Mac,
# for which MLX has no wheels. Python 3.14 and older have wheels for everything, so they go first.
USABLE := import ensurepip, platform, sys, venv; \
    wheels = platform.system() + platform.machine() != "Darwinx86_64"; \
    sys.exit(not (wheels and (3, 11) <= sys.version_info[:2] <= (3, int(sys.argv[1]))))

FOUND = $(shell for newest in 14 99; do for python in $(PYTHON); do \
    if "$$python" -c '$(USABLE)' $$newest >/dev/null 2>&1; then echo "$$python"; exit; fi; \
    done; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A copied tree must not run the code of its original: the stamps carry the folder's own path, and
# tools are run as modules, because their scripts name the interpreter that they were made with.
HERE := $(shell pwd | cksum | cut -d ' ' -f 1)
PRODUCT := .venv/.product-$(HERE)
TOOLS := .venv/.tools-$(HERE)
PEERS := .venv/.peers-$(HERE)
LLAMA_CPP := .venv/.llama-cpp-$(HERE)
# Nothing where the compiler knows no such flag: on ARM, and in old compilers, which know no AMX.
WITHOUT_AMX = $(shell $${CXX:-c++} -mno-amx-int8 -E -x c++ /dev/null >/dev/null 2>&1 \
    && echo -DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo lint test test-all test-peers proof bench wheel format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(PRODUCT) ## run the embedded example: a port with seven bugs, and their names
	@$(BIN)/lockstep demo

lint: $(TOOLS) ## ruff and pyright
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m pyright --threads 2

test: lint ## lint, then the tests that need no peer, a sample of the long ones (about ten minutes)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-all: lint ## the same with every case of the long ones, and tests/long
	LOCKSTEP_EVERY_CASE=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
	LOCKSTEP_EVERY_CASE=1 $(BIN)/python -m pytest tests/long -n auto --maxprocesses 4 --dist worksteal

test-peers: $(PEERS) $(LLAMA_CPP) ## compare live with other engines; all long tests (under forty minutes)
	@command -v chromedriver >/dev/null || tests/debian-packages.sh chromium chromium-driver
	@tests/debian-packages.sh elixir g++ rustc
	$(BIN)/python -m pytest tests/peers tests/long -n auto --maxprocesses 4 --dist worksteal
	LOCKSTEP_MARKED=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# The figures of docs/parity/proof.md and proof-tables.md. A run that was stopped goes on: it is in the file. A sample:
# make proof PROOF='--minutes 20'
proof: $(PEERS) ## plant every bug, run explain on each and print the tables (hours)
	$(BIN)/python -m tests.proof.run --json proof.jsonl $(PROOF)
	$(BIN)/python -m tests.proof.run.table proof.jsonl

# The figures hang on the machine: only those of one run compare. `make bench BENCH='-k linear'`
bench: $(TOOLS) ## time each operation on each backend (minutes)
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable --benchmark-disable-gc \
	    --benchmark-group-by=group --benchmark-columns=median,iqr,rounds --benchmark-sort=name $(BENCH)

wheel: $(TOOLS) ## build the archives into dist/ and test them away from the source
	.ci/check-wheel

format: $(TOOLS) ## let ruff lay the code out
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean: ## remove .venv/ and everything else that was made
	rm -rf .venv dist build .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PRODUCT): pyproject.toml | $(BIN)/python
	@echo 'lockstep: installing into .venv/'
	@$(PIP) install --quiet --upgrade 'pip>=25.1'
	@$(PIP) install --quiet --editable '.[cpu]'
	@touch $@

$(TOOLS): $(PRODUCT)
	@echo 'lockstep: installing the test tools'
	@$(PIP) install --quiet --group test --group lint --group package
	@touch $@

$(PEERS): $(TOOLS)
	@echo 'lockstep: installing the peers (torch is large: this can take minutes)'
	@$(PIP) install --quiet --group peers
	@touch $@

# Its part for pictures is left out, and so are its products by AMX, which end the process on the
# tiny models here. pip keeps the wheel, so another folder need not build it again.
$(LLAMA_CPP): $(PEERS)
	@echo 'lockstep: building llama.cpp (about three minutes on two cores)'
	@CMAKE_ARGS="-DLLAVA_BUILD=OFF $(WITHOUT_AMX) $$CMAKE_ARGS" \
	    $(PIP) install --quiet --group llama-cpp
	@touch $@

$(BIN)/python:
	@"$(or $(FOUND),$(error Lockstep needs Python 3.11 or newer with its venv module; none found))" \
	    -m venv --clear .venv
