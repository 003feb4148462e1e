#!/usr/bin/env bash
# Runs the system tests as an ordinary user, where this is root.
#
# Everything the user needs is put where it can be read (linked, else copied): the checkout and
# the interpreter may lie under a home that is closed to others. The user has a home, a
# temporary directory (with a short name: paths of sockets are short) and a runtime directory of its own, all
# removed at the end.
#
# usage: scripts/test_as_user.sh [PYTEST OPTION...] [tests/FILE...]
#        scripts/test_as_user.sh --can   succeeds where this can be done; says why not, where it cannot
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly uid=65534
if [[ $(id -u) != 0 ]]; then
    echo "this is an ordinary user already (uid $(id -u))" >&2
    exit 1
fi
if ! setpriv --reuid=$uid --regid=$uid --clear-groups true 2>/dev/null; then
    echo "this machine does not let root become uid $uid (setpriv failed): the system tests run as root alone" >&2
    exit 1
fi
[[ ${1:-} != --can ]] || exit 0

place=$(mktemp -d "${TMPDIR:-/tmp}/ramlace-user.XXXXXX")
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
mkdir -m 700 "$place"/{home,tmp,run}
chown -R $uid:$uid "$place"/{home,tmp,run}

# Words before every command of the user.
within=()
# as_user NAME=VALUE... COMMAND...: as the user, with nothing of this environment.
as_user() {
    "${within[@]}" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        HOME="$place/home" TMPDIR="$place/tmp" XDG_RUNTIME_DIR="$place/run" \
        ${RAMLACE_TEST_LONG:+RAMLACE_TEST_LONG="$RAMLACE_TEST_LONG"} \
        ${RAMLACE_MPI_SUITES:+RAMLACE_MPI_SUITES="$RAMLACE_MPI_SUITES"} \
        setpriv --reuid=$uid --regid=$uid --clear-groups -- env "$@"
}
# Systems let everybody open /dev/fuse. Where this one does not, the user gets a device node of its own, which is seen
# in a mount namespace of these tests alone.
if [[ -c /dev/fuse ]] && ! as_user bash -c 'exec 3<>/dev/fuse' 2>/dev/null &&
    mknod -m 666 "$place/fuse" c 10 229 2>/dev/null &&
    unshare --mount mount --bind "$place/fuse" /dev/fuse 2>/dev/null; then
    within=(unshare --mount bash -c 'mount --bind "$0" /dev/fuse && exec "$@"' "$place/fuse")
fi
# Hard links cost nothing; another file system needs the copy.
bring() { cp -a --link "$1" "$2" 2>/dev/null || { rm -rf "$2" && cp -a "$1" "$2"; }; }

base=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
name=$(.venv/bin/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
interpreter=$base/bin/$name
if ! as_user "$interpreter" -c '' 2>/dev/null; then
    mkdir -p "$place/python/bin" "$place/python/lib" "$place/python/include"
    bring "$base/bin/$name" "$place/python/bin/$name"
    bring "$base/lib/$name" "$place/python/lib/$name"
    # Extensions are built for it.
    [[ ! -d $base/include/$name ]] || bring "$base/include/$name" "$place/python/include/$name"
    find "$base/lib" -maxdepth 1 -name 'libpython*' -exec cp -a {} "$place/python/lib/" \;
    interpreter=$place/python/bin/$name
    if ! as_user LD_LIBRARY_PATH="$place/python/lib" "$interpreter" -c ''; then
        echo "the interpreter of .venv ($base/bin/$name) cannot be run by uid $uid, nor can its copy" >&2
        exit 1
    fi
fi

mkdir -p "$place/checkout/bindings/python"
bring ".venv/lib/$name/site-packages" "$place/site-packages"
built=${RAMLACE_BUILT:-target/release}
cp -L "${RAMLACE_BIN:-$built/ramlace}" "$place/ramlace"
cp -a bindings/python/python bindings/python/pyproject.toml "$place/checkout/bindings/python/"
cp -L "$built/lib_native.so" "$place/checkout/bindings/python/python/ramlace/_native.abi3.so"
cp -a bindings/mpi "$place/checkout/bindings/"
cp -a tests bench docs "$place/checkout/"
bring "$built/ramlace-bench" "$place/ramlace-bench"
# What the C library's tests install and build: the library and where it comes from.
mkdir -p "$place/checkout/target/release" "$place/checkout/crates"
cp -a Cargo.toml README.md CONTRIBUTING.md scripts examples "$place/checkout/"
cp -a crates/capi "$place/checkout/crates/"
cp -aL "$built/libramlace.so" "$place/ramlace" "$place/checkout/target/release/"
"$place/checkout/scripts/c_library.sh" here
chmod -R a+rX "$place/checkout" "$place/ramlace" "$place/ramlace-bench"

# Whoever names files gets these.
words=("$@")
[[ " $* " == *" tests/"* ]] || words+=(tests/system)
cd "$place/checkout"
as_user RAMLACE_BIN="$place/ramlace" RAMLACE_BENCH_BIN="$place/ramlace-bench" PYTHONPYCACHEPREFIX="$place/tmp/pycache" LD_LIBRARY_PATH="$place/python/lib" \
    PYTHONPATH="$place/checkout/bindings/python/python:$place/site-packages" \
    "$interpreter" -m pytest --basetemp="$place/tmp/t" "${words[@]}"
