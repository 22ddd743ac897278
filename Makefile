# make demo      the main job on real data        make test       format, lint, types and tests: every property of every kind
# make lint      format, lint and types           make test-all   the same with all sweeps and the extras botorch and robot
# make test-docs what the pages show, examples, experiments and benchmarks: a part of test-all, not of test
# make setup     only the virtual environment
# make docs      the documentation as a site: docs/_build/html/index.html; runs its notebooks
# Another interpreter: make PYTHON=/path/to/python3.12 ...

# The first interpreter that runs, has a supported version and can make virtual environments. 3.14 is
# last: its packages install, but the tests have not been run on it, so it is not claimed.
USABLE = import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3; do \
	$$p -c '$(USABLE)' >/dev/null 2>&1 && { echo $$p; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ALL_READY := $(VENV)/.all-ready
DOCS_READY := $(VENV)/.docs-ready
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What must hold as well for users who run all of JAX in 64 bits.
EITHER_PRECISION := tests/test_parameters.py tests/kernels/test_contract.py tests/features/test_contract.py

# Of what stands beside the package, and of what the pages show. The README's blocks are run by tests/test_wheel.py.
BESIDE := tests/benchmarks tests/examples tests/test_experiments.py tests/test_measured_page.py tests/test_measuring.py \
	tests/test_pages.py tests/test_walking.py

# Tests in which every kind is called in every way: a process of their own checks the annotations of all functions.
CONTRACTS := $(filter-out tests/estimators/%,$(wildcard tests/*/test_contract.py)) tests/test_toy_family.py tests/learning/test_fit_by_evidence.py \
	tests/learning/test_fit_by_loss.py

# A process for each core, and a file of tests on one of them, in the order of conftest.FIRST.
PYTEST := $(BIN)/python -m pytest -q
WORKERS := -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder
# Each of some thirty processes would compile the package and the tests to bytecode again.
unexport PYTHONDONTWRITEBYTECODE
PARTS := tests style types tests-64 contracts

.PHONY: demo test test-all test-docs lint docs setup $(PARTS)
.DEFAULT_GOAL := test

demo: $(READY)
	$(BIN)/python -m examples.demo

# Half of a first run would be compiling, which takes a fifth of the time with few of XLA's optimisations, in one piece and by its older
# emitters of loops. `make test-all` compiles as users do.
test test-docs: export JAX_DISABLE_MOST_OPTIMIZATIONS := 1
test test-docs: export XLA_FLAGS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
# A process of tests has a core: further threads of BLAS would wait longer than they work.
test test-docs test-all: export OPENBLAS_NUM_THREADS := 1
test: export CHOSEN := -m "not long"
test: export ELSEWHERE := $(BESIDE:%=--ignore=%) $(CONTRACTS:%=--ignore=%)
test-all: export STOCHGP_EXTRAS := 1
test-all: export STOCHGP_TYPECHECK := 1
test-all: export STOCHGP_FUZZ ?= 40
test-all: $(ALL_READY)
# Two parts at a time, each to its end; one that fails fails the whole. `make test-all` checks annotations in all tests.
test test-all: $(READY)
	@$(MAKE) --no-print-directory -k -j2 $(if $(ELSEWHERE),$(PARTS),$(filter-out contracts,$(PARTS)))

tests: $(READY)
	$(PYTEST) $(WORKERS) $(CHOSEN) $(ELSEWHERE)

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

# Both are shown at their end, not between the lines of the other tests.
contracts: $(READY)
	@STOCHGP_TYPECHECK=1 $(PYTEST) -n 0 $(CHOSEN) $(CONTRACTS) tests/test_long_cells.py >$(VENV)/$@.log 2>&1; failed=$$?; cat $(VENV)/$@.log; exit $$failed

tests-64: $(READY)
	@JAX_ENABLE_X64=1 $(PYTEST) -n 0 $(CHOSEN) $(EITHER_PRECISION) >$(VENV)/$@.log 2>&1; failed=$$?; cat $(VENV)/$@.log; exit $$failed

test-docs: $(READY)
	$(PYTEST) $(WORKERS) -m "not long" $(wildcard $(BESIDE))

lint: style types

# Every page anew, every notebook run, every warning an error. No network after the set-up. While one writes:
# make docs DOCS_OPTIONS="-D nb_execution_mode=cache" runs again only the notebooks whose cells have changed.
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -E -q -j auto $(DOCS_OPTIONS) -b html docs docs/_build/html
	@echo "docs/_build/html/index.html" >&2

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.14 with venv was found: install one, or make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV) with $(PYTHON)" >&2; $(PYTHON) -m venv $(VENV); }
	@echo "installing stochgp and what it needs into $(VENV) (a few minutes, once)" >&2
	$(INSTALL) --no-compile -e '.[test,lint]'
	-$(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib >/dev/null 2>&1
	@touch $@

$(ALL_READY): $(READY)
	$(INSTALL) -e '.[botorch,robot]'
	@touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) -e '.[docs]'
	@touch $@
