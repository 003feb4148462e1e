#!/usr/bin/env bash
# Makes the virtual environment and installs what bindings/python/pyproject.toml asks for; where that is done already,
# it does nothing, quickly.
#
# usage: scripts/venv.sh DIRECTORY
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/tools.sh

venv=$1
stamp=$venv/venv.stamp
is_old() {
    local file
    [[ -f $stamp ]] || return 0
    for file in bindings/python/pyproject.toml scripts/venv.sh scripts/requirements.py; do
        [[ ! $file -nt $stamp ]] || return 0
    done
    ! "$venv/bin/python" -c '' 2>/dev/null
}
is_old || exit 0
# A virtual environment does not survive that its checkout is moved: its scripts name the old place.
if [[ -x $venv/bin/python ]] && ! grep -qsF "$PWD/$venv" "$venv/bin/activate"; then
    say "the virtual environment was made elsewhere: making it anew"
    rm -rf "$venv"
fi
if ! "$venv/bin/python" -c '' 2>/dev/null; then
    rm -rf "$venv"
    "$(find_python)" -m venv "$venv"
fi
mapfile -t requirements < <("$venv/bin/python" scripts/requirements.py bindings/python/pyproject.toml demo dev)
((${#requirements[@]})) # An error of requirements.py is not seen by mapfile.
# Without compiling every module of every package (more than half of pip's time): Python compiles what is imported.
"$venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check "${requirements[@]}"
touch "$stamp"
