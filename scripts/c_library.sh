#!/usr/bin/env bash
# Makes the C library usable: from this checkout, or installed together with the command.
#
# usage: scripts/c_library.sh here [DIRECTORY]  pkgconfig/ramlace.pc and the soname's link in target/release, or there
#        scripts/c_library.sh install PREFIX [DIRECTORY]   from target/release, or there: the command and its manual, the library, its header and ramlace.pc;
#                                              and /sbin/mount.ramlace where PREFIX is /usr or /usr/local, else PREFIX/sbin
#
# What is installed has neither line tables nor names of functions: they lie beside it, in .debug, where debuggers and
# backtraces look for them. Without them it is a sixth as large.
#
# DESTDIR goes before every path that is written to, as usual.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tools.sh

built=$PWD/target/release
soname=$(sed -nE 's/.*"(libramlace\.so\.[0-9]+)".*/\1/p' crates/capi/build.rs)
version=$(sed -nE 's/^version = "(.*)"/\1/p' Cargo.toml)

pkgconfig() { # pkgconfig PREFIX LIBDIR INCLUDEDIR RPATH
    sed -e "s|@PREFIX@|$1|; s|@LIBDIR@|$2|; s|@INCLUDEDIR@|$3|; s|@RPATH@|$4|; s|@VERSION@|$version|" \
        crates/capi/ramlace.pc.in
}

install_split() { # install_split MODE FROM TO: what it needs to run, and beside it what tells where in the source it was
    local debug
    debug=$(dirname "$3")/.debug/$(basename "$3").debug
    install -d "$(dirname "$debug")"
    objcopy --only-keep-debug "$2" "$debug"
    chmod 644 "$debug"
    objcopy --strip-all "--add-gnu-debuglink=$debug" "$2" "$3.new"
    chmod "$1" "$3.new"
    mv -f "$3.new" "$3"
}

case ${1:-} in
here)
    built=$(realpath -m "${2:-$built}")
    mkdir -p "$built/pkgconfig"
    ln -sfn libramlace.so "$built/$soname"
    # Programs built in a checkout find the library by themselves, wherever they are run.
    pkgconfig "$PWD" "$built" "$PWD/crates/capi/include" "-Wl,-rpath,\${libdir} " >"$built/pkgconfig/ramlace.pc"
    ;;
install)
    prefix=${2:?usage: scripts/c_library.sh install PREFIX [DIRECTORY]}
    built=$(realpath -m "${3:-$built}")
    [[ $prefix == /* ]] || { echo "PREFIX must begin with a slash: $prefix" >&2; exit 1; }
    to=${DESTDIR:-}$prefix
    install -d "$to/bin" "$to/lib/pkgconfig" "$to/include"
    install_split 755 "$built/ramlace" "$to/bin/ramlace"
    install_split 755 "$built/libramlace.so" "$to/lib/$soname"
    ln -sfn "$soname" "$to/lib/libramlace.so"
    install -m 644 crates/capi/include/ramlace.h "$to/include/ramlace.h"
    "$(find_python)" scripts/man.py "$built/ramlace" "$to/share/man"
    # mount(8) looks nowhere else; after an install below another prefix the links are called as programs.
    case $prefix in
    /usr | /usr/local) helpers=/sbin ;;
    *) helpers=$prefix/sbin ;;
    esac
    install -d "${DESTDIR:-}$helpers"
    for name in mount.ramlace mount.fuse.ramlace; do
        ln -sfn "$prefix/bin/ramlace" "${DESTDIR:-}$helpers/$name"
    done
    pkgconfig "$prefix" "\${prefix}/lib" "\${prefix}/include" "" >"$to/lib/pkgconfig/ramlace.pc"
    ;;
*)
    echo "usage: scripts/c_library.sh here [DIRECTORY] | install PREFIX [DIRECTORY]" >&2
    exit 2
    ;;
esac
