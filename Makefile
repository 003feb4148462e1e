# Everything a person or a machine does with this repository; `make help` lists it.
#
# One cargo profile (release) for the product and its tests, so that nothing is compiled twice.
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

PACKAGE_SOURCES := $(shell find bindings/python crates Cargo.toml -type f \
	\( -path bindings/python/src/\* -o -path crates/\*/src/\* -o -name Cargo.toml -o -name pyproject.toml \) 2>/dev/null)

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
build: target/release/ramlace $(VENV)/package.stamp $(VENV)/bin/ramlace ## Build target/release/ramlace and .venv/

# Cargo knows best what is out of date: it is always asked, and answers in a moment.
.PHONY: target/release/ramlace
target/release/ramlace: setup
	@$(STAGE) "build the command" $(RUN) cargo build --release $(LOCKED)

$(VENV)/venv.stamp: bindings/python/pyproject.toml scripts/venv.sh | setup
	@$(STAGE) "make the virtual environment" scripts/venv.sh $(VENV)
	@touch $@

# After the command, so that the crates they share are compiled once.
$(VENV)/package.stamp: $(VENV)/venv.stamp $(PACKAGE_SOURCES) | target/release/ramlace
	@$(STAGE) "build the Python package" $(RUN) scripts/package.sh $(VENV)
	@touch $@

$(VENV)/bin/ramlace: $(VENV)/venv.stamp
	@ln -sfn ../../target/release/ramlace $@

# What `cc ... $(PKG_CONFIG_PATH=target/release/pkgconfig pkg-config --cflags --libs ramlace)` needs.
build: target/release/pkgconfig/ramlace.pc

.PHONY: target/release/pkgconfig/ramlace.pc
target/release/pkgconfig/ramlace.pc: target/release/ramlace
	@scripts/c_library.sh here

PREFIX ?= /usr/local

.PHONY: install
install: target/release/ramlace ## Install the command and the C library (PREFIX=/usr/local DESTDIR=)
	@scripts/c_library.sh install $(PREFIX)

.PHONY: demo
demo: build ## The main job: column sums of a real matrix from disk, TCP and shared arrays (DEMO_ARGS=...)
	@$(PYTHON) -m ramlace.demo $(DEMO_ARGS)

.PHONY: test
test: setup-tests build ## Every test of the everyday round
	@scripts/test.sh

.PHONY: test-long
test-long: setup-tests build ## The same with more cases, and the tests that take long
	@RAMLACE_TEST_LONG=1 scripts/test.sh

.PHONY: lint
lint: build ## rustfmt, clippy, ruff, mypy, whitespace; warnings are errors
	@$(STAGE) "rustfmt" $(RUN) cargo fmt --all -- --check
	@$(STAGE) "clippy" $(RUN) cargo clippy --release $(LOCKED) --workspace --exclude ramlace-python --all-targets -- -D warnings
	@$(STAGE) "clippy of the Python crate" $(RUN) scripts/package.sh $(VENV) clippy
	@$(STAGE) "ruff" $(VENV)/bin/ruff check bindings/python tests bench scripts
	@$(STAGE) "ruff format" $(VENV)/bin/ruff format --check bindings/python tests bench scripts
	@$(STAGE) "mypy" scripts/mypy.sh $(VENV)
	@$(STAGE) "hygiene" $(PYTHON) scripts/hygiene.py

.PHONY: format
format: build ## Write every file as rustfmt and ruff want it
	@$(RUN) cargo fmt --all
	@$(VENV)/bin/ruff check --fix-only --quiet bindings/python tests bench scripts
	@$(VENV)/bin/ruff format --quiet bindings/python tests bench scripts

.PHONY: bench
bench: build ## Each figure beside the machine's limit measured in the same run (BENCH_ARGS=...)
	@$(PYTHON) bench/run.py $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf target $(VENV) bench/out demo-out .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find bindings tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -f bindings/python/python/ramlace/_native*.so
