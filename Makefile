# The commands of the project. Each sets up what it needs; nothing but Python 3.11 has to be there.
#
#   make demo         the flights job on real data, with a kill in the middle, checked against Spark SQL
#   make test         all tests but those that take gigabytes or many minutes (make chaos has them), WORKERS=2 at once;
#                     AFTER=build/coverage/passed leaves out what make coverage has just run
#   make test-fast    the tests of the pure parts but for long sweeps, with ray and pyspark refused
#   make coverage     make test-fast, and the share of branches in engine and coordinator that it takes: not less than before
#   make mutation     MUTANTS=40 changed lines in each of four pure cores, and how many of them the tests notice
#   make check        ruff, mypy --strict on the built wheel, the architecture test
#   make docs         the documentation as a site, in build/site; a warning is an error
#   make versions     the pure tests on every Python promised, with the lowest and the newest pyarrow and numpy, and the wheel as
#                     users get it: its metadata, the README's ten lines in a bare environment, its types
#   make bench        Penstock beside its peers, short: a table, and benchmarks/results/latest.json
#   make bench-checkpoints  what checkpoints cost: a table, and benchmarks/results/checkpoints.json
#   make bench-full   the same with more data and rounds, and every script in benchmarks/
#   make chaos        the tests that kill processes or take gigabytes, then DISASTERS=100 seeded ones, EDGES=150 at the edges of jobs
#                     (copies, old logs, lost and damaged files, other writers, power cuts), RANKS=50 accidents of the
#                     ranks of feeds, and SPARKS=20 of scripts that hand Spark frames over; tables in docs/reliability.md
#   make simulate     the simulations of coordinator and engine, SEEDS=… schedules each, and the sweeps of the pure tests
#   make wheels       wheels for Linux (x86-64, arm64), macOS and Windows, with compiled kernels, in dist/wheels/
#   make lock         resolve requirements.lock anew after a change of pyproject.toml; UPGRADE=1 takes newer versions
#   make clean        remove the environment and everything built
#
# ARGS=… is handed on to pytest, to the demo or to the benchmarks: make test ARGS="-k barrier", make demo ARGS="--scale 2".

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-fast coverage mutation check lint types architecture versions docs bench bench-checkpoints bench-full chaos simulate wheels lock clean
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.complete
READY := $(VENV)/.kernels
SEEDS ?= 2000
DISASTERS ?= 100
EDGES ?= 150
RANKS ?= 50
SPARKS ?= 20
WORKERS ?= 2
MUTANTS ?= 40
AFTER ?=
PLATFORMS ?= manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_11_0_arm64 win_amd64
ARGS ?=
PYTEST := $(PY) -m pytest -p no:cacheprovider
IS_311 := -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))"
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# With it every worker process of Ray compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

venv: $(READY)

# The stamp is written last: an interrupted set-up starts again. An environment of another Python is replaced, one of
# 3.11 brought up to date. Lenient: new modules are there at once.
$(STAMP): requirements.lock pyproject.toml setup.py
	@python=; for candidate in python3.11 python3 python; do \
	    if $$candidate $(IS_311) 2>/dev/null; then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
	    echo "make: no Python 3.11 found (tried python3.11, python3 and python)." >&2; \
	    echo "      Install it, for instance with: apt install python3.11-venv, or uv python install 3.11" >&2; exit 1; fi; \
	echo "Setting up $(VENV) with $$($$python --version)"; \
	rm -f $(STAMP); \
	clear=; $(PY) $(IS_311) 2>/dev/null || clear=--clear; \
	$$python -m venv $$clear $(VENV) || { \
	    echo "make: $$python cannot make a virtual environment; on Debian and Ubuntu: apt install python3.11-venv" >&2; \
	    exit 1; }
	@$(PY) -m pip install --quiet -r requirements.lock
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=lenient -e .
	@touch $(STAMP)

# The kernels, again when their source has changed. A machine without a compiler gets one as a wheel.
ZIG := ziglang==0.17.1
$(READY): $(STAMP) engine/kernels/native.c engine/kernels/pages.c
	@$(PY) setup.py --quiet compile_kernels || { \
	    $(PY) -m pip install --quiet $(ZIG) && $(PY) setup.py --quiet compile_kernels; }
	@touch $(READY)

demo: $(READY)
	@$(VENV)/bin/penstock run flights --demo $(ARGS)

test: $(READY)
	@$(PYTEST) --second-try -n $(WORKERS) --dist loadfile -m "not large and not sweep" $(AFTER:%=--leave-out=%) $(ARGS)

# --pure refuses to import ray, pyspark and raydp (tests/conftest.py): these parts must not need them.
# Left to `make test`: whole jobs in this process (tests/test_*.py), generated data, random sequences of events, and what
# is marked slow.
FAST := $(wildcard tests/engine tests/coordinator tests/cases)
SWEEPS := tests/engine/oracle tests/engine/exchange/test_exchange_runs.py \
    tests/engine/local/test_plan_simulation.py tests/engine/local/test_random_plans.py \
    $(wildcard tests/coordinator/test_*simulation*.py tests/coordinator/*/test_*_machine.py) \
    $(wildcard tests/engine/operators/*/test_*_spill.py tests/engine/indexes/test_*oracle.py) \
    $(wildcard tests/engine/scheduler/test_*simulat*.py)
test-fast: $(READY)
	@$(PYTEST) --pure -n $(WORKERS) --dist loadfile \
	    -m "not ray and not spark and not slow and not chaos and not large and not sweep" $(FAST) $(SWEEPS:%=--ignore=%) $(ARGS)

# Workers start measuring by coverage.pth. What passes is written down, for a `make test` that need not run it again. The floor rises with what is found, and is committed with the tests that did it.
coverage: $(READY)
	@rm -rf build/coverage && mkdir -p build/coverage
	@COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FILE=$(CURDIR)/build/coverage/data \
	    $(MAKE) test-fast ARGS="--record=build/coverage/passed $(ARGS)"
	@export COVERAGE_FILE=build/coverage/data; $(VENV)/bin/coverage combine --quiet \
	    && $(VENV)/bin/coverage json --quiet -o build/coverage/report.json
	@$(PY) tests/coverage_floor.py build/coverage/report.json

mutation: $(READY)
	@PYTHONPATH=tests $(PY) tests/mutate.py --mutants $(MUTANTS) --write docs/design/testing.md $(ARGS)

check: lint types architecture

lint: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

# In the checkout the package has the folder's name; only built and unpacked it is `penstock`. What older builds left is
# removed first, because setuptools would pack it; the environments and data of the benchmarks stay.
types: $(READY)
	@rm -rf build/bdist.* build/lib* build/wheel build/unpacked && mkdir -p build/wheel
	@$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	@$(PY) -m zipfile -e build/wheel/penstock-*.whl build/unpacked
	@MYPYPATH=build/unpacked $(VENV)/bin/mypy --strict -p penstock

architecture: $(READY)
	@$(PYTEST) -q tests/test_architecture.py

# Peers get environments of their own under build/peers. ARGS="ray --only group" runs a part, ARGS=--docs writes the docs.
versions: $(READY)
	@$(PY) -m nox --version >/dev/null 2>&1 || $(PY) -m pip install --quiet 'nox>=2026'
	@$(PY) -m nox $(ARGS)

docs: $(READY)
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/site $(ARGS)
	@echo "build/site/index.html"

bench: $(READY)
	@$(PY) benchmarks/house.py $(ARGS)

# Every part in a process of its own, so that one that fails loses no other's rows.
bench-checkpoints: $(READY)
	@$(PY) benchmarks/checkpoints.py $(ARGS)

bench-full: $(READY)
	@$(PY) benchmarks/house.py --full $(ARGS)

chaos: $(READY)
	@$(PYTEST) -m "chaos or large or sweep and ray" $(ARGS)
	@$(PY) tests/scenarios/chaos.py --seeds $(DISASTERS) --write docs/reliability.md
	@$(PY) tests/scenarios/edges.py --seeds $(EDGES) --write docs/reliability.md
	@$(PY) tests/scenarios/ranks.py --seeds $(RANKS) --write docs/reliability.md
	@$(PY) tests/scenarios/sparks.py --seeds $(SPARKS) --write docs/reliability.md

simulate: $(READY)
	@PYTHONPATH=tests $(PY) tests/coordinator/simulate.py --seeds $(SEEDS) $(ARGS)
	@PYTHONPATH=tests $(PY) tests/scenarios/simulate_engine.py --seeds $(SEEDS) $(ARGS)
	@$(PYTEST) -n $(WORKERS) --dist loadfile -m "sweep and not ray"

# Zig compiles for all of them. What was built for one would be packed for the next. One without kernels is an error here.
wheels: $(STAMP)
	@$(PY) -m pip install --quiet $(ZIG)
	@rm -rf dist/wheels; for platform in $(PLATFORMS); do \
	    rm -rf build/bdist.* build/lib*; \
	    PENSTOCK_WHEEL=$$platform $(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist/wheels . \
	        && $(PY) -m zipfile -l dist/wheels/penstock-*-$$platform.whl | grep engine/kernels/_native > /dev/null || exit 1; done

# pip-tools lives in an environment of its own, so that it is not part of what it resolves. The line of Penstock itself
# (its extras refer to each other) carries this folder's path and goes.
lock:
	@rm -rf build/lock && python3.11 -m venv build/lock && build/lock/bin/pip install --quiet pip-tools
	@CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --extra dev --strip-extras --allow-unsafe \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
	    $(if $(UPGRADE),--upgrade) --output-file requirements.lock pyproject.toml
	@sed -i '/^penstock @/,+1d' requirements.lock

clean:
	@rm -rf $(VENV) build dist penstock.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
