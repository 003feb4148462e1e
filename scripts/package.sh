#!/usr/bin/env bash
# Builds the Python package into the virtual environment, or checks its crate by clippy.
#
# maturin is the only builder of this crate: its settings for PyO3 differ from a plain cargo's,
# and each change of them compiles PyO3 again.
#
# usage: scripts/package.sh DIRECTORY [clippy]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/$1
if [[ ${2:-} == clippy ]]; then
    # What maturin sets: PyO3 is compiled anew whenever one of these changes.
    configuration=("$PWD"/target/maturin/pyo3-config-*-abi3.txt)
    export PYO3_BUILD_EXTENSION_MODULE=1 PYO3_CONFIG_FILE="${configuration[0]}"
    export PYO3_PYTHON="$venv/bin/python" PYTHON_SYS_EXECUTABLE="$venv/bin/python"
    PYO3_ENVIRONMENT_SIGNATURE=$("$venv/bin/python" -c \
        'import sys; print("cpython-%d.%d-64bit" % sys.version_info[:2])')
    export PYO3_ENVIRONMENT_SIGNATURE
    exec cargo clippy --release ${LOCKED---locked} -p ramlace-python --all-targets -- -D warnings
fi
export VIRTUAL_ENV=$venv
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$venv/bin/maturin" develop --release ${LOCKED---locked} --manifest-path bindings/python/Cargo.toml >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
"$venv/bin/python" -c 'import ramlace'
