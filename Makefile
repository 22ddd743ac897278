# make demo      run the demo on real data        make test       run format, lint, types and tests
# make lint      check format, lint and types     make test-all   the same with all long tests and extras
# make test-docs test pages, experiments and benchmarks (in test-all, not in test)
# make setup     only create the virtual environment
# make docs      build the documentation in docs/_build/html/index.html, and run its notebooks
# Another interpreter: make PYTHON=/path/to/python3.12 ...

# Use the first interpreter with a supported version that can create virtual environments.
# 3.14 comes last, because the tests have not been run on it.
USABLE = import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3; do \
	$$p -c '$(USABLE)' >/dev/null 2>&1 && { echo $$p; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ALL_READY := $(VENV)/.all-ready
DOCS_READY := $(VENV)/.docs-ready
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests that also run with all of JAX in 64 bits. The other tests of these two contracts set 64 bits themselves.
EITHER_PRECISION := tests/test_parameters.py \
	$(addprefix tests/kernels/test_contract.py::test_,diag_is_the_diagonal values_have_the_dtype_of_the_rows gradients_are_finite_on_repeated_rows) \
	$(addprefix tests/features/test_contract.py::test_,rows_are_mapped_independently features_have_the_dtype_of_the_rows)

# Tests of experiments, benchmarks and pages. tests/test_wheel.py runs the code of the README.
BESIDE := tests/benchmarks tests/test_experiments.py tests/test_measured_page.py tests/test_measuring.py \
	tests/test_pages.py tests/test_walking.py

# Tests of contracts, which run in a separate process that checks all type annotations.
CONTRACTS := $(filter-out tests/estimators/%,$(wildcard tests/*/test_contract.py)) tests/test_toy_family.py tests/learning/test_fit_by_evidence.py \
	tests/learning/test_fit_by_loss.py

# One process per core. Each file of tests runs on one of them, in the order of conftest.FIRST.
PYTEST := $(BIN)/python -m pytest -q
WORKERS := -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder
# Otherwise each of about thirty processes would compile the package and the tests to bytecode.
unexport PYTHONDONTWRITEBYTECODE
PARTS := tests style types tests-64 contracts

.PHONY: demo test test-all test-docs lint docs setup $(PARTS)
.DEFAULT_GOAL := test

demo: $(READY)
	$(BIN)/python -m examples.demo

# Compiling takes half of a first run, and a fifth of that with these options of XLA. `make test-all` compiles
# with the options of users.
test test-docs: export JAX_DISABLE_MOST_OPTIMIZATIONS := 1
test test-docs: export XLA_FLAGS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
# Each process of tests and each notebook has one core, so more threads of BLAS would only wait.
test test-docs test-all docs: export OPENBLAS_NUM_THREADS := 1
test: export CHOSEN := -m "not long"
test: export ELSEWHERE := $(BESIDE:%=--ignore=%) $(CONTRACTS:%=--ignore=%)
test-all: export STOCHGP_EXTRAS := 1
test-all: export STOCHGP_TYPECHECK := 1
test-all: export STOCHGP_FUZZ ?= 40
test-all: $(ALL_READY)
# Run two parts at a time. All parts finish, and a failed part fails the target.
test test-all: $(READY)
	@$(MAKE) --no-print-directory -k -j2 $(if $(ELSEWHERE),$(PARTS),$(filter-out contracts,$(PARTS)))

tests: $(READY)
	$(PYTEST) $(WORKERS) $(CHOSEN) $(ELSEWHERE)

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyrefly check -j 1 --summary=none

# The output of these two targets is shown when they end.
contracts: $(READY)
	@STOCHGP_TYPECHECK=1 $(PYTEST) -n 0 $(CHOSEN) $(CONTRACTS) tests/test_long_cells.py >$(VENV)/$@.log 2>&1; failed=$$?; cat $(VENV)/$@.log; exit $$failed

tests-64: $(READY)
	@JAX_ENABLE_X64=1 $(PYTEST) -n 0 $(CHOSEN) $(EITHER_PRECISION) >$(VENV)/$@.log 2>&1; failed=$$?; cat $(VENV)/$@.log; exit $$failed

test-docs: $(READY)
	$(PYTEST) $(WORKERS) -m "not long" $(wildcard $(BESIDE))

lint: style types

# Build all pages and run all notebooks; warnings are errors. To rerun only notebooks with changed cells:
# make docs DOCS_OPTIONS="-D nb_execution_mode=cache"
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -E -q -j auto $(DOCS_OPTIONS) -b html docs docs/_build/html
	@echo "docs/_build/html/index.html" >&2

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.14 with venv was found; install one, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $(PYTHON)" >&2; $(PYTHON) -m venv $(VENV); }
	@echo "installing stochgp and its dependencies into $(VENV); this takes a few minutes, once" >&2
	$(INSTALL) --no-compile -e '.[test,lint]'
	-$(BIN)/python -m compileall -q -j 0 -x '/(tests?|pip|setuptools|sphinx|babel|fontTools|docutils)/' $(VENV)/lib >/dev/null 2>&1
	@touch $@

$(ALL_READY): $(READY)
	$(INSTALL) -e '.[botorch,robot]'
	@touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) -e '.[docs]'
	@touch $@
