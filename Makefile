# exl3d: `make serve` is all a newcomer needs. `make help` lists the rest.

VENV := .venv
BIN := $(VENV)/bin
SERVE_STAMP := $(VENV)/.exl3d-serve
TEST_STAMP := $(VENV)/.exl3d-test
INSTALLER := $(wildcard ops/install.py ops/machine*.py ops/release_wheels.py) pyproject.toml
INSTALL_ARGS := $(if $(DEVICE),--device $(DEVICE))

# Where `make test` keeps the demo model between runs, outside the checkout.
XDG_CACHE_HOME ?= $(HOME)/.cache
export EXL3D_TEST_STATE ?= $(XDG_CACHE_HOME)/exl3d/test-state

PYTEST_ARGS ?=
# Files of tests run at a time: one more than two cores have use for, since tests with engines wait for almost half of their time.
WORKERS ?= 3
BENCH_ARGS ?=
GPU_ARGS ?=
MINUTES ?= 10
SERVE_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install serve test test-gpu lint format bench soak demo clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  DEVICE=cpu with install or serve ignores a GPU."
	@echo "  SERVE_ARGS, PYTEST_ARGS, GPU_ARGS and BENCH_ARGS are passed on, as in: make serve SERVE_ARGS='--port 8000'"

install: $(SERVE_STAMP) ## make .venv fit this machine: GPU or CPU build of torch, exllamav3, exl3d

serve: $(SERVE_STAMP) ## install what is needed, then run the daemon (without a GPU and a model: with the demo model)
	@$(BIN)/python -m ops.first_model $(SERVE_ARGS)
	@exec $(BIN)/exl3d $(SERVE_ARGS)

test: $(TEST_STAMP) ## run the tests
	@$(BIN)/exl3ctl model demo --state-dir "$(EXL3D_TEST_STATE)" >/dev/null \
		|| echo "make test: the demo model is not there; its tests will be skipped" >&2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-gpu: $(TEST_STAMP) ## what only an NVIDIA GPU can show, in 10 minutes: one JSON report (docs/GPU.md)
	$(BIN)/python -m tests.gpu $(GPU_ARGS)

lint: $(TEST_STAMP) ## format, lint, types, room borders
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	@$(BIN)/exl3ctl config example | diff -u config.yaml - \
		|| { echo "config.yaml is not what the schema says: run make format" >&2; exit 1; }

format: $(TEST_STAMP) ## format the code and write generated files anew
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/exl3ctl config example > config.yaml

bench: $(TEST_STAMP) ## measure: make bench NAME=recovery; `make bench NAME=-h` names all
	@$(BIN)/python -m ops.bench "$(NAME)" $(BENCH_ARGS)

soak: $(TEST_STAMP) ## clients of all kinds and dying engines for a while: make soak MINUTES=10
	@$(BIN)/python -m ops.bench soak --minutes "$(MINUTES)" $(BENCH_ARGS)

demo: $(SERVE_STAMP) ## make the demo model ready
	$(BIN)/exl3ctl model demo

clean: ## remove what make made here (models and state stay)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python that can run exl3d. `python3` first; then newer names that a system may have beside an old one.
FIND_PYTHON = for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$python"; exit 0; fi; done; \
	echo "exl3d needs Python 3.11 or newer; python3 here is $$(python3 -V 2>&1 | head -n 1)." >&2; \
	echo "Debian, Ubuntu, WSL: sudo apt-get install python3.11 python3.11-venv python3.11-dev" >&2; exit 1

$(SERVE_STAMP): $(INSTALLER)
	@python="$$($(FIND_PYTHON))" && "$$python" -m ops.install --venv $(VENV) $(INSTALL_ARGS)
	@touch $@

$(TEST_STAMP): $(INSTALLER)
	@python="$$($(FIND_PYTHON))" && "$$python" -m ops.install --venv $(VENV) --extra dev $(INSTALL_ARGS)
	@touch $@ $(SERVE_STAMP)
