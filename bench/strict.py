"""Two strict mounts: what a page costs that changes sides, and a scan of what another machine has just stored."""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report
from mounts import mounted_pool

from pool import Pool

NAME = "bench-strict"
PAGE = 4096
MIB = 1 << 20
ROUNDS = 5
TURNS = 500
TURNS_QUICK = 20
SCAN_BYTES = 64 * MIB
SCAN_BYTES_QUICK = 2 * MIB
SIDES = "strict, a page that changes sides"
SCAN = "strict, scan of what another mount has stored"


def rows(pool: Pool, quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure what is wanted; none where nothing can be mounted."""
    if not any(only in name for name in (SIDES, SCAN)) or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return []
    size, turns, rounds = (SCAN_BYTES_QUICK, TURNS_QUICK, 1) if quick else (SCAN_BYTES, TURNS, ROUNDS)
    made = []
    with mounted_pool(pool, "--mode=strict") as here, mounted_pool(pool, "--mode", "strict") as there:
        with (here / NAME).open("wb") as file:
            file.truncate(size)
        if only in SIDES:
            samples = [sides(here / NAME, there / NAME, turns) for _ in range(1 + rounds)]
            made.append(report.plain(SIDES, "us", samples[1:]))
        if only in SCAN:
            pairs = [scan(here / NAME, there / NAME, size) for _ in range(1 + rounds)][1:]
            made.append(report.plain(SCAN, "GiB/s", [size / 2**30 / warm for warm, _ in pairs]))
            made.append(report.plain(f"{SCAN}, of a cold read", "", [cold / warm for warm, cold in pairs]))
        (here / NAME).unlink()
    return made


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file for writing."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(descriptor, 0) as view:
            yield view
    finally:
        os.close(descriptor)


def sides(here: Path, there: Path, turns: int) -> float:
    """Return the microseconds that one change takes: each stores into the page that the other has."""
    with mapped(here) as one, mapped(there) as other:
        begun = time.monotonic()
        for _ in range(turns):
            one[0] = other[0] = 1
        return (time.monotonic() - begun) / turns / 2 * 1e6


def scan(here: Path, there: Path, size: int) -> tuple[float, float]:
    """Return the seconds of reading what the other has just stored, and those of reading it again without its pages."""
    content = os.urandom(PAGE) * (size // PAGE)
    with mapped(here) as view:
        view[:] = content
        with there.open("rb", buffering=0) as file:
            first = timed(file.fileno(), size)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return first, timed(file.fileno(), size)


def timed(descriptor: int, size: int) -> float:
    """Return the seconds of one sequential read."""
    buffer = bytearray(MIB)
    begun = time.monotonic()
    for offset in range(0, size, MIB):
        assert os.preadv(descriptor, [buffer], offset) == MIB
    return time.monotonic() - begun
