#!/usr/bin/env bash
# Checks the types of the Python package, its tests and the scripts.
#
# usage: scripts/mypy.sh DIRECTORY
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/$1
cd bindings/python
"$venv/bin/mypy" --config-file pyproject.toml python/ramlace
"$venv/bin/mypy" --config-file pyproject.toml ../../scripts/*.py
"$venv/bin/mypy" --config-file pyproject.toml ../../tests/system/*.py
