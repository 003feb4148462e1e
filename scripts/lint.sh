#!/usr/bin/env bash
# Runs lints; every warning is an error.
#
# usage: scripts/lint.sh --list   the names of all lints
#        scripts/lint.sh NAME...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/.venv
sources=(bindings/python tests bench scripts examples)
locked=(${LOCKED---locked})

advise() { # advise COMMAND: a lint has failed; say what mends it
    echo "'$1' mends this" >&2
    return 1
}

lint() {
    case $1 in
    rustfmt) scripts/run.sh cargo fmt --all -- --check || advise "make format" ;;
    clippy) scripts/run.sh cargo clippy --profile quick "${locked[@]}" --quiet --workspace --all-targets -- -D warnings ;;
    rustdoc) scripts/run.sh "$venv/bin/python" scripts/rustdoc.py ;;
    ruff) "$venv/bin/ruff" check --quiet "${sources[@]}" ;;
    ruff-format) "$venv/bin/ruff" format --quiet --check "${sources[@]}" || advise "make format" ;;
    mypy) scripts/mypy.sh .venv ;;
    knots) "$venv/bin/python" scripts/knots.py --large ;;
    licences) scripts/run.sh "$venv/bin/python" scripts/licences.py ;;
    *)
        echo "no such lint: $1" >&2
        return 2
        ;;
    esac
}

all=(rustfmt ruff ruff-format mypy knots licences clippy rustdoc)
if [[ ${1:-} == --list ]]; then
    printf '%s\n' "${all[@]}"
    exit 0
fi
for name in "$@"; do lint "$name"; done
