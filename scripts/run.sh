#!/usr/bin/env bash
# Runs a command with the Rust toolchain in reach.
#
# CARGO_HOME and RUSTUP_HOME are kept where they are set. Where HOME is not the home rustup was
# installed into (an empty HOME, another user), rustup would find no toolchain: the one that
# lies beside the cargo in PATH is used.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/tools.sh"
find_rust || exit 1
exec "$@"
