"""Two strict mounts: what a page costs that changes sides, and a scan of what another machine has just stored.

A page's change of sides can be measured beside that of another program, of which there is nothing here (`--proof`): it
takes two directories, mounts a file `f` of at least a page on each as one memory, says `up`, and ends when it reads a
line.
"""

import mmap
import multiprocessing
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report
from mounts import mounted_pool

from pool import BenchError, Pool

NAME = "bench-strict"
PAGE = 4096
MIB = 1 << 20
ROUNDS = 5
TURNS = 500
TURNS_QUICK = 20
SCAN_BYTES = 64 * MIB
SCAN_BYTES_QUICK = 2 * MIB
SIDES = "strict, a page that changes sides"
SIDES_PROOF = f"{SIDES}, the other program's"
SIDES_TRIP = f"{SIDES}, a round trip of 64 bytes"
SIDES_RATIO = f"{SIDES}, of twice the other program's and a round trip"
SCAN = "strict, scan of what another mount has stored"


def rows(pool: Pool, quick: bool, only: str, proof: Path | None) -> list[dict[str, Any]]:
    """Measure what is wanted; none where nothing can be mounted."""
    if not any(only in name for name in (SIDES, SCAN)) or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return []
    size, turns, rounds = (SCAN_BYTES_QUICK, TURNS_QUICK, 1) if quick else (SCAN_BYTES, TURNS, ROUNDS)
    made = []
    with mounted_pool(pool, "--mode=strict") as here, mounted_pool(pool, "--mode", "strict") as there:
        with (here / NAME).open("wb") as file:
            file.truncate(size)
        if only in SIDES:
            made += sides_rows(here / NAME, there / NAME, turns, rounds, pool.scratch, proof)
        if only in SCAN:
            pairs = [scan(here / NAME, there / NAME, size) for _ in range(1 + rounds)][1:]
            made.append(report.plain(SCAN, "GiB/s", [size / 2**30 / warm for warm, _ in pairs]))
            made.append(report.plain(f"{SCAN}, of a cold read", "", [cold / warm for warm, cold in pairs]))
        (here / NAME).unlink()
    return made


def sides_rows(
    here: Path, there: Path, turns: int, rounds: int, scratch: Path, proof: Path | None
) -> list[dict[str, Any]]:
    """Measure a page that changes sides; in turns with the other program, if there is one, and with a round trip."""
    if not proof:
        return [report.plain(SIDES, "us", [sides(here, there, turns) for _ in range(1 + rounds)][1:])]
    with proven(proof, scratch) as (one, other), round_trips() as trip:
        samples = [(sides(here, there, turns), sides(one, other, turns), trip(turns)) for _ in range(1 + rounds)][1:]
    ours, theirs, trips = ([sample[side] for sample in samples] for side in range(3))
    ratios = [our / (2 * their + trip) for our, their, trip in samples]
    return [
        report.plain(SIDES, "us", ours),
        report.plain(SIDES_PROOF, "us", theirs),
        report.plain(SIDES_TRIP, "us", trips),
        report.plain(SIDES_RATIO, "", ratios),
    ]


@contextmanager
def proven(program: Path, scratch: Path) -> Iterator[tuple[Path, Path]]:
    """Run the other program for the block; yield its file on both mounts."""
    directories = [scratch / "proof-here", scratch / "proof-there"]
    for directory in directories:
        directory.mkdir()
    pipe = subprocess.PIPE
    with subprocess.Popen([program, *directories], stdin=pipe, stdout=pipe, text=True) as process:
        if not process.stdout or process.stdout.readline().strip() != "up":
            raise BenchError(f"{program} did not say that it is up")
        try:
            yield directories[0] / "f", directories[1] / "f"
        finally:
            process.communicate("\n")


@contextmanager
def round_trips() -> Iterator[Any]:
    """Start a process that answers over TCP; yield what measures the microseconds of 64 bytes and their answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = multiprocessing.get_context("fork").Process(target=echo, args=(server.getsockname(),), daemon=True)
        child.start()
        near, _ = server.accept()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def measure(turns: int) -> float:
        begun = time.monotonic()
        for _ in range(turns):
            near.sendall(bytes(64))
            assert len(near.recv(64, socket.MSG_WAITALL)) == 64
        return (time.monotonic() - begun) / turns * 1e6

    try:
        yield measure
    finally:
        near.close()
        child.join()


def echo(address: tuple[str, int]) -> None:
    """Answer until the other end is closed."""
    with socket.create_connection(address) as far:
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while asked := far.recv(64, socket.MSG_WAITALL):
            far.sendall(asked)


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
