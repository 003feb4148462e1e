#!/usr/bin/env bash
# Makes the Python package usable from the virtual environment, as it lies in the checkout, with the extension that
# cargo has built. (A wheel is built by `pip wheel bindings/python`, that is by maturin.)
#
# usage: scripts/package.sh VENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/$1
built=target/release/lib_native.so
extension=bindings/python/python/ramlace/_native.abi3.so
if ! cmp -s "$built" "$extension"; then
    # Beside it first: a program that has it mapped keeps the old one.
    cp "$built" "$extension.new"
    mv -f "$extension.new" "$extension"
fi
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# What an earlier way of building has left would come first, or be told as installed.
rm -rf "$packages"/ramlace-*.dist-info
echo "$PWD/bindings/python/python" >"$packages/ramlace.pth"
"$venv/bin/python" -c 'import ramlace'
