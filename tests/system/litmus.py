"""Races between programs on two machines, which litmus.c runs again and again, and the outcomes each mode forbids."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pool import KIB

SOURCE = Path(__file__).parent / "litmus" / "litmus.c"
OPTIONS = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror")
LENGTH = 256 * KIB
# How long one race may take in all its runs.
SECONDS = 200.0

LONG = os.environ.get("RAMLACE_TEST_LONG") == "1"

STRICT, COHERENT, PUBLISHED = "strict", "coherent", "coherent, each store published"
RELAXED = "relaxed"
MODES = (STRICT, COHERENT, PUBLISHED, RELAXED)


def lacking(bits: int) -> set[str]:
    """Return all words of so many bits but the one in which everything was seen."""
    return {f"{word:0{bits}b}" for word in range(2**bits - 1)}


# Calls under a lock that missed each other.
UNDER_LOCK = {"0000", "0001", "0010", "0011", "1000", "1001"}

# What must never be seen, by mode; each word is explained in litmus.c. What stands for all modes is said once.
FORBIDDEN: dict[str, dict[str, set[str]] | set[str]] = {
    "mp": {STRICT: {"10"}, COHERENT: set(), PUBLISHED: {"10"}, RELAXED: set()},
    "sb": {STRICT: {"00"}, COHERENT: set(), PUBLISHED: {"00"}, RELAXED: set()},
    "lb": {"11"},
    "iriw": {STRICT: {"1010"}, COHERENT: set(), PUBLISHED: set(), RELAXED: set()},
    "wrc": {STRICT: {"110"}, COHERENT: set(), PUBLISHED: set(), RELAXED: set()},
    "corr": {"10"},
    "own": lacking(2),
    "neighbours": lacking(2),
    "mapwrite": lacking(2),
    "mapcut": lacking(2),
    "append": lacking(2),
    "excl": {"00", "11"},
    "rename": lacking(2),
    # The second bit of each is a number in the mapping.
    "lock": {STRICT: lacking(4), COHERENT: UNDER_LOCK, PUBLISHED: lacking(4), RELAXED: UNDER_LOCK},
}


def forbidden(test: str, mode: str) -> set[str]:
    """Return the words that a mode forbids."""
    words = FORBIDDEN[test]
    return words if isinstance(words, set) else words[mode]


def calls_of(mode: str) -> str:
    """Return what programs do in a mode beside their stores and loads."""
    return {PUBLISHED: "publishes", RELAXED: "refreshes"}.get(mode, "none")


def build(directory: Path) -> Path:
    """Compile the races; skip where there is no compiler."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler here")
    program = directory / "litmus"
    done = subprocess.run(
        ["cc", *OPTIONS, str(SOURCE), "-o", str(program)], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    return program


def race(program: Path, test: str, runs: int, *paths: Path, calls: str = "none") -> dict[str, int]:
    """Run one race between two or three mounts of one file, with the mode's calls; return how often each word came."""
    with paths[0].open("wb") as file:
        file.truncate(LENGTH)
    # The other kernels learn of the size when they are asked for it.
    assert all(path.stat().st_size == LENGTH for path in paths)
    words = [str(program), test, str(runs), calls, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.returncode, done.stderr)
    seen = {word: int(count) for word, count in (line.split() for line in done.stdout.splitlines())}
    assert sum(seen.values()) in (0, runs)
    return seen
