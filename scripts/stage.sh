#!/usr/bin/env bash
# Runs a stage of the build or of the tests and prints how long it took.
#
# usage: scripts/stage.sh NAME COMMAND [ARGUMENT...]
# RAMLACE_STAGES, where it is set, is a file to which "seconds<TAB>processor seconds<TAB>result<TAB>name" is added.
set -uo pipefail

name=$1
shift
started=$EPOCHREALTIME
printf '== %s\n' "$name" >&2
"$@"
code=$?
seconds=$(awk -v from="$started" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
# What the kernel has counted for this shell's children, user and system, in ticks.
read -r -a counted <"/proc/$$/stat"
processor=$(awk -v ticks=$((counted[15] + counted[16])) -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%.1f", ticks / hz }')
result=ok
((code == 0)) || result="failed ($code)"
printf '== %s: %s in %s s\n' "$name" "$result" "$seconds" >&2
[[ -z "${RAMLACE_STAGES:-}" ]] || printf '%s\t%s\t%s\t%s\n' "$seconds" "$processor" "$result" "$name" >>"$RAMLACE_STAGES"
exit "$code"
