"""A refresh of a large mapped file: what it costs when nothing has changed."""

import mmap
import os
import time
from typing import Any

import report
from mounts import mounted_pool

from pool import Pool

NAME = "bench-refresh"
ATTRIBUTE = "user.ramlace.refresh"
MIB = 1 << 20
SIZE = 1024 * MIB
SIZE_QUICK = 8 * MIB
ROUNDS = 5
REFRESH = "mount, refresh of an unchanged mapped GiB"


def rows(pool: Pool, quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure what is wanted; none where nothing can be mounted."""
    if only not in REFRESH or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return []
    size, samples = SIZE_QUICK if quick else SIZE, []
    with mounted_pool(pool, name="refreshed") as mount:
        path = mount / NAME
        with path.open("wb", buffering=0) as file:
            for _ in range(size // MIB):
                file.write(bytes(MIB - 1) + b"1")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[MIB - 1 :: MIB] == b"1" * (size // MIB)
            again: list[float] = []
            for _ in range(ROUNDS):
                begun = time.monotonic()
                os.getxattr(path, ATTRIBUTE)
                samples.append((time.monotonic() - begun) * 1e3)
                assert view[MIB - 1 :: MIB] == b"1" * (size // MIB)
                again.append((time.monotonic() - begun) * 1e3)
        path.unlink()
    return [report.plain(f"{REFRESH}, and its loads", "ms", again), report.plain(REFRESH, "ms", samples)]
