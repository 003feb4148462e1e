#!/usr/bin/env bash
# Checks what the build (and with `test` the tests) need, and installs what is missing.
#
# As root on a system with apt-get the packages are installed; else the one line to run is
# printed and the script fails. What single tests use (FUSE's helper, R, Open MPI, MPICH, a
# Fortran compiler) is installed where that works; else it is named, and those tests are
# skipped. Does nothing, quickly, when everything is there.
#
# usage: scripts/setup.sh build|test
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tools.sh

purpose=${1:-build}
missing=()
# What some tests use; they are skipped, and say so, where it cannot be installed.
wished=()

need_command() { # need_command COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

need_python() {
    local python
    if ! python=$(find_python); then
        missing+=(python3 python3-venv)
    elif [[ ! -x .venv/bin/python ]] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian keeps ensurepip apart, one package for each version.
        missing+=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
    fi
}

collect_missing() {
    missing=()
    wished=()
    need_python
    need_command cc gcc
    need_command git git
    if [[ $purpose == test ]]; then
        need_command ip iproute2
        need_command setpriv util-linux
        need_command unshare util-linux
        need_command cmp diffutils
        need_command pkg-config pkg-config
        need_command nm binutils
        command -v fusermount3 >/dev/null || wished+=(fuse3)
        command -v setfacl >/dev/null || wished+=(acl)
        command -v Rscript >/dev/null || wished+=(r-base-core)
        # Starting R to ask for a package would take longer than everything else here.
        compgen -G "/usr/*/R/*library/bigmemory" >/dev/null ||
            compgen -G "/usr/local/lib/R/*library/bigmemory" >/dev/null || wished+=(r-cran-bigmemory)
        command -v mpicc.openmpi >/dev/null || wished+=(openmpi-bin libopenmpi-dev)
        command -v mpicc.mpich >/dev/null || wished+=(mpich libmpich-dev)
        command -v gfortran >/dev/null || wished+=(gfortran)
    fi
}

# The mount for ordinary users, R, and two MPIs with a Fortran compiler. Without a network, and where others use apt, the
# round goes on without them.
install_wished() {
    if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 ]]; then
        say "Not here, so the tests that use it are skipped: ${wished[*]} (the names that Debian gives them)"
        return
    fi
    say "installing ${wished[*]}"
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=20)
    local install=("${apt[@]}" install -y --no-install-recommends) package absent=()
    "${install[@]}" "${wished[@]}" >/dev/null 2>&1 && return
    "${apt[@]}" update >/dev/null 2>&1 || true
    "${install[@]}" "${wished[@]}" >/dev/null 2>&1 && return
    # What cannot be had keeps nothing else away.
    for package in "${wished[@]}"; do
        "${install[@]}" "$package" >/dev/null 2>&1 || absent+=("$package")
    done
    say "That did not work; the tests that use it are skipped: ${absent[*]}"
}

install_missing() {
    local line="apt-get install -y --no-install-recommends ${missing[*]}"
    if ! command -v apt-get >/dev/null; then
        say "Missing: ${missing[*]} (the names that Debian gives them). Install them, then try again."
        exit 1
    fi
    if [[ $(id -u) != 0 ]]; then
        say "Some system packages are missing. Run this, then try again:"
        say "    sudo $line"
        exit 1
    fi
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # A fresh system has no list of packages yet: try what is there first, then ask for the list.
    $line >/dev/null 2>&1 || { apt-get update >/dev/null && $line >/dev/null; } || {
        say "That did not work. Install them by hand, then try again: ${missing[*]}"
        exit 1
    }
}

find_rust
collect_missing
if ((${#missing[@]})); then
    install_missing
    collect_missing
    if ((${#missing[@]})); then
        say "Still missing after the installation: ${missing[*]}"
        exit 1
    fi
fi
if ((${#wished[@]})); then
    install_wished
fi
