"""Reads through a mount of an array into whose memory a program of its machine stores by a view.

Run as a program, it is the one with the view: it opens it, closes it, and says so.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import report
from coherence import in_turns
from mounts import daemons, mounted_pool

from pool import BenchError, Pool

NAME = "bench-viewed"
VIEWED = "mount, sequential read of an array that a program has open for stores"
UNSTORED = "nobody stores"
MIB = 1 << 20
SIZE = 64 * MIB
SIZE_QUICK = MIB
ROUNDS = 5


def rows(pool: Pool, quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure what is wanted; none where nothing can be mounted, or without the Python package."""
    if only not in VIEWED or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return []
    size, rounds = (SIZE_QUICK, 1) if quick else (SIZE, ROUNDS)
    with mounted_pool(pool, name="viewed") as mount, holder(pool, size) as say:
        if not say:
            return []
        path = mount / NAME
        sides = {"figure": partial(read, path, size, say, "open"), UNSTORED: partial(read, path, size, say, "close")}
        pids = [*pool.pids(), *daemons(mount)]
        measured = in_turns(sides, dict.fromkeys(sides, pids), rounds)
        path.unlink()
    return report.rows({"name": VIEWED, "unit": "bytes", "units": size, "sides": measured})


def read(path: Path, size: int, say: "Say", word: str) -> Iterator[None]:
    """Read all by a new descriptor, without the kernel's pages."""
    buffer = bytearray(128 << 10)
    while True:
        say(word)
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield
            for offset in range(0, size, len(buffer)):
                assert os.preadv(file.fileno(), [buffer], offset) == len(buffer)
            yield


class Say:
    """Tells the program with the view what to do, and waits until it has."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, word: str) -> None:
        """Say a word; it is said back."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline().strip() != word:
            raise BenchError("the program with the view has ended")


@contextmanager
def holder(pool: Pool, size: int) -> Iterator[Say | None]:
    """Start the program with the view; none where the package is missing."""
    command = [sys.executable, __file__, str(size)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=pool.environment(), text=True, **pipes) as process:
        assert process.stdout
        if process.stdout.readline().strip() == "ready":
            yield Say(process)
        else:
            yield None


def main() -> None:
    """Open and close a view of the array, as it is told."""
    try:
        import numpy  # noqa: F401

        import ramlace
    except ImportError as error:
        print(f"reads beside a view are left out: {error}", file=sys.stderr)
        return
    with ramlace.connect() as connected:
        array = connected.array(f"/{NAME}", int(sys.argv[1]), "u1")
        array.view()[:] = 7
        array.close()
        print("ready", flush=True)
        for line in sys.stdin:
            word = line.strip()
            if word == "open":
                array = connected.array(f"/{NAME}")
                view = array.view()
                view[0] = 8
            else:
                view = None
                array.close()
            print(word, flush=True)


if __name__ == "__main__":
    main()
