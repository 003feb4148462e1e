"""What servers cost that do nothing: their private memory, and their CPU time."""

import subprocess
import time
from pathlib import Path

import report

from pool import BenchError, Pool, bench_binary

IDLE_SECONDS = 30
IDLE_SECONDS_QUICK = 0.2


def rows(pool: Pool, quick: bool, only: str) -> list[dict]:
    """Measure memory after the load that came before, then idle servers without and with a client."""
    made = []
    name = "private memory of a server (supervisor and child)"
    if only in name:
        each = [sum(private_bytes(pid) for pid in pids) / 2**20 for pids in pool_pids(pool)]
        made.append(report.plain(name, "MiB", each))
    name = "CPU of an idle server, no client"
    if only in name:
        made.append(report.plain(name, "ms/min", idle(pool, quick)))
    name = "CPU of an idle server, a connected client"
    if only in name:
        made.append(report.plain(name, "ms/min", beside_client(pool, quick)))
    return made


def pool_pids(pool: Pool) -> list[tuple[int, int]]:
    """Return each server's two processes."""
    return [(server["supervisor_pid"], server["pid"]) for server in pool.status()]


def private_bytes(pid: int) -> int:
    """Return a process's own memory: its anonymous pages, not the store's. A server tells its user no more."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def cpu_seconds(pid: int) -> float:
    """Return a process's CPU time. The kernel's clock counts nanoseconds, /proc/PID/stat 10 ms."""
    # The number of another process's clock, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime(~pid << 3 | 2)


def idle(pool: Pool, quick: bool) -> list[float]:
    """Return milliseconds of CPU time in a minute, for each server."""
    pids = pool_pids(pool)
    seconds = IDLE_SECONDS_QUICK if quick else IDLE_SECONDS
    # What `status` itself cost the servers is over after a moment.
    time.sleep(0.1)
    before = [sum(map(cpu_seconds, each)) for each in pids]
    begun = time.monotonic()
    time.sleep(seconds)
    after = [sum(map(cpu_seconds, each)) for each in pids]
    scale = 60_000 / (time.monotonic() - begun)
    return [(now - then) * scale for now, then in zip(after, before, strict=True)]


def beside_client(pool: Pool, quick: bool) -> list[float]:
    """Do the same while a client is connected that asks nothing."""
    command = [bench_binary(), "idle-client"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=pool.environment(), stdin=pipe, stdout=pipe, text=True) as client:
        if client.stdout is None or not client.stdout.readline():
            raise BenchError("the idle client did not connect")
        return idle(pool, quick)
