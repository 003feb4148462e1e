# Everything a person or a machine does with this repository; `make help` lists it.
#
# What is shipped is built by cargo's profile `release`. What the round tests is built by `quick`, in two thirds of the time;
# `make test-long` tests what is shipped.
# Each target sets up what it needs and is quick when there is nothing to do.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# cargo and the tests use all cores themselves.
.NOTPARALLEL:

VENV := .venv
PYTHON := $(VENV)/bin/python
# Runs a command with the Rust toolchain found, also where HOME is empty.
RUN := scripts/run.sh
# Runs a stage, prints its time, and keeps it for the summary of `.ci/run`.
STAGE := scripts/stage.sh

# What a clone builds is what Cargo.lock says; `make LOCKED= ...` while dependencies are changed.
LOCKED ?= --locked
export LOCKED

DEMO_ARGS ?=
BENCH_ARGS ?=
# What `make test` shall run; nothing: all of it. ROUND_ARGS=--lint adds the lints.
TESTS ?=
ROUND_ARGS ?=
# What is tested: PROFILE=release for what is shipped.
PROFILE ?= quick
# They read no clock and do no I/O; their tests take seconds.
PURE := base wire layout check namespace lanes slot cluster

.PHONY: help
help: ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'

.PHONY: setup
setup: ## Install what is missing (system packages as root, else print the one line to run)
	@scripts/setup.sh build

.PHONY: setup-tests
setup-tests:
	@scripts/setup.sh test

.PHONY: build
build: setup ## Build target/release/ramlace, the C library and .venv/
	@scripts/build.sh $(VENV)

# Cargo knows best what is out of date: it is always asked, and answers in a moment.
.PHONY: target/release/ramlace
target/release/ramlace: setup
	@$(STAGE) "build the command" $(RUN) cargo build --release $(LOCKED)

PREFIX ?= /usr/local

.PHONY: install
install: target/release/ramlace ## Install the command, mount.ramlace and the C library (PREFIX=/usr/local DESTDIR=)
	@scripts/c_library.sh install $(PREFIX)

.PHONY: demo
demo: build ## The main job: column sums of a real matrix from disk, TCP and shared arrays (DEMO_ARGS=...)
	@$(PYTHON) -m ramlace.demo $(DEMO_ARGS)

.PHONY: test
test: setup-tests ## Every test of the everyday round, or those named: TESTS="tests/system/test_x.py client::locks"
	@scripts/build.sh $(VENV) $(PROFILE)
	@RAMLACE_BUILT=$(CURDIR)/target/$(PROFILE) $(RUN) $(PYTHON) scripts/round.py $(ROUND_ARGS) $(TESTS)

.PHONY: test-long
test-long: setup-tests build ## The same with more cases, the tests that take long, and all as root and as a user
	@RAMLACE_TEST_LONG=1 RAMLACE_BUILT=$(CURDIR)/target/release $(RUN) $(PYTHON) scripts/round.py $(ROUND_ARGS)

.PHONY: environment
environment: setup
	@$(STAGE) "make the virtual environment" scripts/venv.sh $(VENV)

.PHONY: check
check: environment ## What to run before each commit: format, lints, types, and the tests of the pure crates
	@for name in rustfmt ruff ruff-format mypy knots licences clippy; do $(STAGE) "lint: $$name" scripts/lint.sh $$name; done
	@$(STAGE) "hygiene" $(PYTHON) scripts/hygiene.py
	@$(STAGE) "tests of the pure crates" $(RUN) $(PYTHON) scripts/rust_tests.py $(PURE:%=--package=ramlace-%)

.PHONY: lint
lint: environment ## Every lint; warnings are errors
	@for name in $$(scripts/lint.sh --list); do $(STAGE) "lint: $$name" scripts/lint.sh $$name; done
	@$(STAGE) "hygiene" $(PYTHON) scripts/hygiene.py

.PHONY: format
format: environment ## Write every file as rustfmt and ruff want it
	@$(RUN) cargo fmt --all
	@$(VENV)/bin/ruff check --fix-only --quiet bindings/python tests bench scripts examples
	@$(VENV)/bin/ruff format --quiet bindings/python tests bench scripts examples

.PHONY: bench
bench: build ## Each figure beside the machine's limit measured in the same run (BENCH_ARGS=...)
	@$(PYTHON) bench/run.py $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf target $(VENV) bench/out demo-out .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find bindings tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -f bindings/python/python/ramlace/_native*.so
