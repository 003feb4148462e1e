"""What a mount alone pays for coherence, beside one that is relaxed, and what publishing mapped stores costs."""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import report
from mounts import daemons, mounted_pool
from resources import cpu_seconds

from pool import Pool

NAME = "bench-coherence"
PAGE = 4096
MIB = 1 << 20
# One more is dropped. Many short ones, in turns: what is asked for is two in a hundred.
ROUNDS = 21
ALONE = "coherent alone"
FILE_BYTES = {PAGE: 8 * MIB, MIB: 32 * MIB}
FILE_BYTES_QUICK = {PAGE: MIB, MIB: MIB}
SMALL_FILES = 100
SMALL_BYTES = 3000
PUBLISH = "mount, msync"
PUBLISH_ROUNDS = 9
PAGES = (1, 16, 256, 4096)
PAGES_QUICK = (1, 16)
# Two whose prices are compared: one message and its answer are a small part of either.
COMPARED = (256, 4096)

Work = Callable[[], None]


def rows(pool: Pool, quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure what is wanted; none where nothing can be mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return []
    return alone(pool, quick, only) + published(pool, quick, only)


# One client alone


def alone(pool: Pool, quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure what one mount does by itself, coherent and relaxed in turns."""
    sizes, rounds = (FILE_BYTES_QUICK, 1) if quick else (FILE_BYTES, ROUNDS)
    wanted = [kind for kind in works(Path(), sizes) if only in f"{ALONE}, {kind}"]
    if not wanted:
        return []
    made = []
    with mounted_pool(pool, "--mode=coherent") as coherent, mounted_pool(pool, "--mode=relaxed") as relaxed:
        directories = {"figure": coherent, "relaxed": relaxed}
        for kind in wanted:
            sides = {side: works(mount / f"{NAME}-{side}", sizes)[kind] for side, mount in directories.items()}
            pids = {side: [*pool.pids(), *daemons(mount)] for side, mount in directories.items()}
            measured = in_turns(sides, pids, rounds)
            unit, units = ("bytes", sizes[MIB]) if "MiB" in kind else ("pages", sizes[PAGE] // PAGE)
            if "small" in kind:
                unit, units = "files", SMALL_FILES
            figure = {"name": f"{ALONE}, {kind}", "unit": unit, "units": units, "sides": measured}
            made += report.rows(figure)
            for side, mount in directories.items():
                for path in mount.glob(f"{NAME}-{side}*"):
                    path.unlink()
    return made


def works(path: Path, sizes: dict[int, int]) -> dict[str, Callable[[], Iterator[None]]]:
    """Return what is done, by name: a generator each, which does it once with every step."""
    return {
        "read 4 KiB, cold": partial(read, path, sizes[PAGE], PAGE),
        "read 1 MiB, cold": partial(read, path, sizes[MIB], MIB),
        "read 4 KiB, again": partial(read, path, sizes[PAGE], PAGE, cold=False),
        "write 4 KiB": partial(write, path, sizes[PAGE], PAGE),
        "write 1 MiB": partial(write, path, sizes[MIB], MIB),
        "mapped stores and msync": partial(store, path, sizes[PAGE]),
        "small files opened, read and closed": partial(open_small, path),
    }


def filled(path: Path, size: int) -> None:
    """Make the file."""
    with path.open("wb", buffering=0) as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))


def read(path: Path, size: int, piece: int, *, cold: bool = True) -> Iterator[None]:
    """Read all, piece after piece; `cold` without the kernel's pages, and small pieces without what it reads ahead."""
    filled(path, size)
    buffer = bytearray(piece)
    with path.open("rb", buffering=0) as file:
        if cold and piece < MIB:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while True:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield
            for offset in range(0, size, piece):
                assert os.preadv(file.fileno(), [buffer], offset) == piece
            yield


def write(path: Path, size: int, piece: int) -> Iterator[None]:
    """Write all, piece after piece."""
    filled(path, size)
    content = os.urandom(piece)
    with path.open("r+b", buffering=0) as file:
        while True:
            yield
            for offset in range(0, size, piece):
                assert os.pwrite(file.fileno(), content, offset) == piece
            yield


def store(path: Path, size: int) -> Iterator[None]:
    """Store a byte into each page and publish all."""
    filled(path, size)
    with path.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), size) as view:
        turn = 0
        while True:
            yield
            turn += 1
            view[::PAGE] = bytes([turn % 256]) * (size // PAGE)
            view.flush()
            yield


def open_small(path: Path) -> Iterator[None]:
    """Open, read and close many small files."""
    paths = [path.with_name(f"{path.name}-{number}") for number in range(SMALL_FILES)]
    for one in paths:
        one.write_bytes(os.urandom(SMALL_BYTES))
    while True:
        yield
        for one in paths:
            with one.open("rb", buffering=0) as file:
                assert len(file.read(2 * SMALL_BYTES)) == SMALL_BYTES
        yield


def in_turns(
    sides: dict[str, Callable[[], Iterator[None]]], pids: dict[str, list[int]], rounds: int
) -> list[dict[str, Any]]:
    """Do each side's work in turns, and in each other order each time; return their seconds and CPU time."""
    running = {name: side() for name, side in sides.items()}
    measured = {name: {"side": name, "seconds": [], "cpu_seconds": []} for name in sides}
    for number in range(1 + rounds):
        for name in list(sides) if number % 2 else reversed(sides):
            next(running[name])
            cpu, begun = used(pids[name]), time.monotonic()
            next(running[name])
            seconds = time.monotonic() - begun
            if number:
                measured[name]["seconds"].append(seconds)
                measured[name]["cpu_seconds"].append(used(pids[name]) - cpu)
    for one in running.values():
        one.close()
    return list(measured.values())


def used(pids: list[int]) -> float:
    """Return the CPU time that these processes have had, and this one."""
    return time.process_time() + sum(map(cpu_seconds, pids))


# Publication


def published(pool: Pool, quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure an `msync` of so many pages with stores, alone and where another mount has mapped the file."""
    made = []
    with mounted_pool(pool, name="published") as here, mounted_pool(pool, name="published-to") as there:
        for where in ("", ", which another mount has mapped"):
            name = f"{PUBLISH} of pages with stores{where}: "
            if not any(only in f"{name}{count:,}" for count in PAGES) and only not in price_name(where):
                continue
            counts, rounds = (PAGES_QUICK, 1) if quick else (PAGES, PUBLISH_ROUNDS)
            samples = publish(here / NAME, there / NAME if where else None, counts, rounds)
            made += [report.plain(f"{name}{count:,}", "us", samples[count]) for count in counts]
            few, many = counts[-2:] if quick else COMPARED
            pairs = zip(samples[many], samples[few], strict=True)
            made.append(report.plain(price_name(where), "", [more / many * few / less for more, less in pairs]))
    return made


def price_name(where: str) -> str:
    """Return the name of the row that tells whether an `msync` costs in proportion to its pages."""
    few, many = COMPARED
    return f"{PUBLISH}, a page of {many:,} beside one of {few}{where}"


def publish(here: Path, there: Path | None, counts: tuple[int, ...], rounds: int) -> dict[int, list[float]]:
    """Return the microseconds of an `msync`, by how many pages have stores: every other one, as a write each."""
    size = 2 * max(counts) * PAGE
    here.write_bytes(bytes(size))
    samples: dict[int, list[float]] = {count: [] for count in counts}
    with mapped(here) as view, mapped(there or here) as other:
        for number in range(1 + rounds):
            for count in counts:
                # All pages are there on both sides before, and the stores' memory is the kernel's.
                assert (other if there else view)[::PAGE].count(b"\xff") == 0
                view[: 2 * count * PAGE : 2 * PAGE] = bytes([number % 200 + 1]) * count
                begun = time.monotonic()
                view.flush()
                seconds = time.monotonic() - begun
                if there:
                    assert other[: 2 * count * PAGE : 2 * PAGE] == bytes([number % 200 + 1]) * count
                if number:
                    samples[count].append(seconds * 1e6)
    here.unlink()
    return samples


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file for writing."""
    with path.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as view:
        yield view
