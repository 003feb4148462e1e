#!/usr/bin/env bash
# Makes the Python package usable from the virtual environment, as it lies in the checkout, with the extension that
# cargo has built. (A wheel is built by `pip wheel bindings/python`, that is by maturin.)
#
# The extension of another profile than `release` is for tests alone: target/PROFILE/python has the package with it, for
# PYTHONPATH, and the virtual environment keeps what it has.
#
# usage: scripts/package.sh VENV [PROFILE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/$1
profile=${2:-release}
built=target/$profile/lib_native.so
package=bindings/python/python/ramlace
if [[ $profile != release ]]; then
    sources=$PWD/$package
    package=target/$profile/python/ramlace
    mkdir -p "$package"
    find "$package" -xtype l -delete
    find "$sources" -mindepth 1 -maxdepth 1 ! -name '_native*' ! -name __pycache__ -exec ln -sfn {} "$package/" \;
fi
extension=$package/_native.abi3.so
if ! cmp -s "$built" "$extension"; then
    # Beside it first: a program that has it mapped keeps the old one.
    cp "$built" "$extension.new"
    mv -f "$extension.new" "$extension"
fi
if [[ $profile != release ]]; then
    PYTHONPATH=$(dirname "$package") "$venv/bin/python" -c 'import ramlace'
    exit 0
fi
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# What an earlier way of building has left would come first, or be told as installed.
rm -rf "$packages"/ramlace-*.dist-info
echo "$PWD/bindings/python/python" >"$packages/ramlace.pth"
"$venv/bin/python" -c 'import ramlace'
