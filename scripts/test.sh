#!/usr/bin/env bash
# Every test, stage after stage; all stages run, and the first failure decides the exit code.
#
# RAMLACE_TEST_LONG=1: more cases for each property, and the tests marked `long`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stage=scripts/stage.sh
worst=0
run() { "$stage" "$@" || { local code=$?; ((worst)) || worst=$code; }; }

python=$PWD/.venv/bin/python
pytest_options=(-q -p no:cacheprovider --strict-markers -c bindings/python/pyproject.toml --rootdir .)
if [[ -n "${RAMLACE_TEST_LONG:-}" ]]; then
    # The pure crates take 20,000 cases in minutes; what runs whole pools takes 400.
    pure_cases=${PROPTEST_CASES:-20000}
    export PROPTEST_CASES=400
    export RAMLACE_FUZZ_ITERATIONS=${RAMLACE_FUZZ_ITERATIONS:-300000}
    export RAMLACE_STORM_CASES=${RAMLACE_STORM_CASES:-400}
    export RAMLACE_STORM_SECONDS=${RAMLACE_STORM_SECONDS:-120}
    ignored=(--include-ignored)
else
    pytest_options+=(-m "not long")
    ignored=()
fi
export RAMLACE_BIN=$PWD/target/release/ramlace
before=$(git status --porcelain 2>/dev/null)

run "cargo test" scripts/run.sh \
    cargo test --release ${LOCKED---locked} --workspace --exclude ramlace-python --quiet --no-fail-fast -- "${ignored[@]}"
if [[ -n "${RAMLACE_TEST_LONG:-}" ]]; then
    run "cargo test, pure crates at length" env PROPTEST_CASES="$pure_cases" scripts/run.sh \
        cargo test --release ${LOCKED---locked} --quiet --no-fail-fast \
        -p ramlace-layout -p ramlace-cluster -p ramlace-namespace -p ramlace-model
fi
run "pytest bindings/python" "$python" -m pytest "${pytest_options[@]}" bindings/python/tests
run "pytest tests/system" "$python" -m pytest "${pytest_options[@]}" tests/system
run "as an ordinary user" scripts/test_as_user.sh "${pytest_options[@]}"
run "hygiene" "$python" scripts/hygiene.py

if [[ "$(git status --porcelain 2>/dev/null)" != "$before" ]]; then
    echo "the tests left something in the checkout (git status changed)" >&2
    ((worst)) || worst=1
fi
exit "$worst"
