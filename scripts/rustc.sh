#!/bin/sh
# Compiles a crate of this workspace; cargo calls it with the compiler and its arguments (.cargo/config.toml).
#
# Tests are compiled without optimisation: to optimise a crate once more for its own tests takes four times as long as
# to compile it, and they wait for processes more than they compute. What they call of other crates is optimised, and so
# are the few that compute for longer than it saves.
is_test=
computes=
before=
for word in "$@"; do
    case $before$word in
    --test) is_test=yes ;;
    --crate-nameramlace_lanes | --crate-namestorm) computes=yes ;;
    esac
    before=
    [ "$word" != --crate-name ] || before=$word
done
if [ -n "$is_test" ] && [ -z "$computes" ]; then
    set -- "$@" -C opt-level=0
fi
exec "$@"
