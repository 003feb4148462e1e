#!/usr/bin/env bash
# Builds everything: the crates by one cargo command, the virtual environment meanwhile, then the Python package in it.
#
# One command for all crates, because cargo compiles a crate anew for each set of features that a command asks of it.
#
# usage: scripts/build.sh VENV [PROFILE]
#
# What another profile than `release` has built is used by tests alone, where it lies in target/PROFILE: the virtual
# environment keeps the command and the package of `release`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$1
profile=${2:-release}
stage=scripts/stage.sh

"$stage" "make the virtual environment" scripts/venv.sh "$venv" &
environment=$!
failed=0
"$stage" "build the crates" scripts/run.sh cargo build --profile "$profile" ${LOCKED---locked} --workspace || failed=1
wait "$environment" || failed=1
((!failed)) || exit 1
scripts/package.sh "$venv" "$profile"
[[ $profile != release ]] || ln -sfn ../../target/release/ramlace "$venv/bin/ramlace"
scripts/c_library.sh here "target/$profile"
