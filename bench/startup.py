"""How long `ramlace up` takes until the pool is ready."""

import time

import report

from pool import Pool

SERVERS = 4
MEMORY = "1GiB"
ROUNDS = 5


def rows(quick: bool, only: str) -> list[dict]:
    """Time the start of 4 servers, from the command's start to its end."""
    name = f"up of {SERVERS} servers"
    if only not in name:
        return []
    samples = [timed() for _ in range(1 + (1 if quick else ROUNDS))]
    return [report.plain(name, "s", samples[1:])]


def timed() -> float:
    """Return the seconds of one start."""
    begun = time.monotonic()
    with Pool(SERVERS, MEMORY):
        return time.monotonic() - begun
