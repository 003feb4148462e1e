"""What it costs that requests can be traced: `RAMLACE_LOG` at some levels beside none, and an event that is off."""

import contextlib
import json
import mmap
import os
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import report
from mounts import mounted_pool

from pool import BenchError, Pool, bench_binary

# Nothing is told at `info`, but somebody listens; at `debug` each request is a line at both ends.
LEVELS = ("", "info", "debug")
ROUNDS = 5
MEMORY = "256MiB"
# Events of a call: the client says that it asks and that it is answered, the server what comes and that it is answered.
EVENTS_PER_CALL = 4
OFF = "tracing that is off"
PAGE = 4096
FILE_BYTES = 16 << 20
MOUNT_CALLS = 2_000
MOUNT_CALLS_QUICK = 50
STRIDE_PAGES = 1_021


def rows(quick: bool, only: str) -> list[dict[str, Any]]:
    """Measure all levels in turns, each in a pool of its own."""
    if not (only in OFF or "tracing" in only):
        return []
    rounds = 1 if quick else ROUNDS
    mounts = os.access("/dev/fuse", os.R_OK | os.W_OK)
    samples: dict[str, list[dict[str, float]]] = {level: [] for level in LEVELS}
    with contextlib.ExitStack() as stack:
        pools = {level: stack.enter_context(Pool(1, MEMORY, log=level)) for level in LEVELS}
        files = {level: stack.enter_context(mounted_pool(pools[level])) / "file" for level in LEVELS if mounts}
        for path in files.values():
            path.write_bytes(b"\1" * FILE_BYTES)
        for _ in range(1 + rounds):
            for level in LEVELS:
                one = calls(pools[level], quick=quick)
                if mounts:
                    one |= calls_of_mount(files[level], MOUNT_CALLS_QUICK if quick else MOUNT_CALLS)
                samples[level].append(one)
    return table_of({level: all_of[1:] for level, all_of in samples.items()})


def table_of(samples: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the rows: what an event costs that is off, and each level beside none."""
    silent = samples[""]
    # A difference of two loops: what is less than nothing is their noise.
    nanos = [max(0.0, EVENTS_PER_CALL * one["event_nanos"]) for one in silent]
    shortest = min(median([one[what] for one in silent]) for what in silent[0] if what != "event_nanos")
    made = [
        report.plain(f"{OFF}, of a call", "ns", nanos),
        report.plain(f"{OFF}, of the shortest call", "%", [each / 10 / shortest for each in nanos]),
    ]
    for what in (what for what in silent[0] if what != "event_nanos"):
        made.append(report.plain(f"tracing, {what} 4 KiB, nothing told", "us", [one[what] for one in silent]))
        for level in LEVELS[1:]:
            pairs = zip(samples[level], silent, strict=True)
            ratios = [told[what] / untold[what] for told, untold in pairs]
            made.append(report.plain(f"tracing, {what} 4 KiB, RAMLACE_LOG={level}, of that", "", ratios))
    return made


def calls(pool: Pool, *, quick: bool) -> dict[str, float]:
    """Return microseconds of the library's calls in a process of its own, which tells what the pool's variable says."""
    command = [bench_binary(), "traced", *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, env=pool.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError("ramlace-bench traced failed")
    told: dict[str, float] = json.loads(done.stdout)
    return told


def calls_of_mount(path: Path, count: int) -> dict[str, float]:
    """Return microseconds of calls that no page of the kernel answers."""
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        with mmap.mmap(-1, PAGE) as page:
            found = {}
            for what, call in (("mount, read", os.preadv), ("mount, write", os.pwritev)):
                micros = []
                for index in range(count):
                    offset = index * STRIDE_PAGES % (FILE_BYTES // PAGE) * PAGE
                    begun = time.perf_counter()
                    assert call(descriptor, [page], offset) == PAGE
                    micros.append((time.perf_counter() - begun) * 1e6)
                found[what] = median(micros)
            return found
    finally:
        os.close(descriptor)
