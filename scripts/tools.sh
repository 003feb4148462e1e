# Functions that the other scripts share; to be sourced.

say() { printf '%s\n' "$*" >&2; }

# The home directory of this user as the system knows it, whatever HOME says.
system_home() { getent passwd "$(id -u)" | cut -d: -f6; }

# Makes `cargo` work: exports RUSTUP_HOME where rustup needs it. Says what to do where it cannot.
find_rust() {
    local found beside home
    if ! found=$(command -v cargo); then
        home=$(system_home)
        if [[ -x "$home/.cargo/bin/cargo" ]]; then
            say "cargo is not in PATH, but it is installed in $home/.cargo/bin. Run this, then try again:"
            say "    export PATH=\"$home/.cargo/bin:\$PATH\""
        else
            say "Rust is missing: install it (https://www.rust-lang.org/tools/install), then try again."
        fi
        return 1
    fi
    # rustup's homes are $HOME/.cargo and $HOME/.rustup unless told otherwise. An empty HOME has
    # no toolchain, or an empty .rustup that rustup itself has just made there.
    beside="$(dirname "$(dirname "$(dirname "$found")")")/.rustup"
    if [[ -z "${RUSTUP_HOME:-}" && ! -d "${HOME:-/nonexistent}/.rustup/toolchains" && -d "$beside" ]]; then
        export RUSTUP_HOME="$beside"
    fi
    if ! cargo --version >/dev/null 2>&1; then
        say "cargo does not run:"
        cargo --version >&2 || true
        return 1
    fi
}

# Prints the Python to use: $PYTHON, else the first of the usual names that is 3.11 or newer.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3 python3.12 python3.13 python3.14; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            # pyenv's shims need pyenv's setting to hold: take what they lead to.
            "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return 0
        fi
    done
    return 1
}
