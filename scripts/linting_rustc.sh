#!/bin/sh
# Compiles a crate of this workspace as scripts/rustc.sh does, and lints it: a round compiles every test anyway, and
# checking it all once more by `cargo clippy` takes half as long as a build.
#
# `.ci/run` names this file in CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER, so that cargo calls it with the compiler and its
# arguments. Clippy's compiler compiles the tests: they hold their crate's whole code. It does not compile the product,
# which it would optimise less: what no test holds (examples, build scripts, the Python extension) is checked by it first,
# and compiled as ever. Warnings are errors: CLIPPY_ARGS says so, as `cargo clippy` would. It has to be set where cargo is
# called, because cargo compiles anew what was compiled with another value than it sees itself.
set -eu
: "${CLIPPY_ARGS:?.ci/run sets it}"
here=$(dirname "$0")
driver=$("$1" --print sysroot)/bin/clippy-driver

is_test=
has_no_test=
before=
for word in "$@"; do
    case $before$word in
    --test) is_test=yes ;;
    --crate-name_native | --crate-nameramlace_locks | --crate-namebuild_script_build) has_no_test=yes ;;
    examples/*.rs | */examples/*.rs) has_no_test=yes ;;
    esac
    before=
    [ "$word" != --crate-name ] || before=$word
done
[ -z "$is_test" ] || exec "$here/rustc.sh" "$driver" "$@"

check() { # check COMPILER ARGUMENT...: lint, and leave nothing
    place=$(mktemp -d)
    left=$#
    before=
    while [ "$left" -gt 0 ]; do
        word=$1
        shift
        left=$((left - 1))
        case $before$word in
        --out-dir | --out-dir* | --emit=*) ;;
        *) set -- "$@" "$word" ;;
        esac
        before=
        [ "$word" != --out-dir ] || before=$word
    done
    code=0
    "$driver" "$@" --emit=metadata --out-dir "$place" || code=$?
    rm -rf "$place"
    return "$code"
}
[ -z "$has_no_test" ] || check "$@"
exec "$here/rustc.sh" "$@" -D warnings
