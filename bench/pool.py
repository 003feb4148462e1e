"""A pool that is started for one run of the bench, out of the way of any other."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS_MAX = 60
RESERVE_SECONDS_MAX = 60
LOG_BYTES_MAX = 2000


class BenchError(Exception):
    """The bench cannot go on; the text says why."""


# Where cargo has built what is measured.
BUILT = Path(os.environ.get("RAMLACE_BUILT") or ROOT / "target" / "release")


def binary(variable: str, name: str) -> Path:
    """Return the path of a program that was built."""
    path = Path(os.environ.get(variable) or BUILT / name)
    if not path.exists():
        raise BenchError(f"there is no {name} in {BUILT}; run `make build`, or name one in {variable}")
    return path


def ramlace_binary() -> Path:
    """Return the path of the command."""
    return binary("RAMLACE_BIN", "ramlace")


def bench_binary() -> Path:
    """Return the path of the native drivers."""
    return binary("RAMLACE_BENCH_BIN", "ramlace-bench")


class Pool:
    """A pool in a runtime directory of its own, from `with` to its end."""

    def __init__(self, servers: int, memory: str, *options: str, log: str = "") -> None:
        self.servers = servers
        self.memory = memory
        self.options = options
        # What the servers, and programs of this pool, tell of requests: RAMLACE_LOG.
        self.log = {"RAMLACE_LOG": log} if log else {}
        self.scratch = Path()

    def __enter__(self) -> "Pool":
        self.scratch = Path(tempfile.mkdtemp(prefix="ramlace-bench-"))
        try:
            self.command("up", "--servers", str(self.servers), "--memory", self.memory, *self.options)
        except BaseException:
            shutil.rmtree(self.scratch)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, BenchError):
                error.add_note(self.logs())
            self.command("down")
        finally:
            shutil.rmtree(self.scratch)

    def logs(self) -> str:
        """Return the end of what each server has logged."""
        found = sorted(self.scratch.glob("ramlace/*/server-*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-LOG_BYTES_MAX:]}" for log in found)

    def environment(self) -> dict[str, str]:
        """Return the environment in which programs find this pool and no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAMLACE_")}
        programs = {"RAMLACE_BIN": str(ramlace_binary()), "RAMLACE_BENCH_BIN": str(bench_binary())}
        return {**kept, **programs, **self.log, "XDG_RUNTIME_DIR": str(self.scratch)}

    def command(self, *words: str) -> dict:
        """Run the command and return what it reports."""
        done = subprocess.run(
            [ramlace_binary(), *words, "--json"],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"'ramlace {' '.join(words)}' failed: {done.stderr.strip()}")
        return json.loads(done.stdout or "{}")

    def status(self) -> list[dict]:
        """Return what each server says of itself."""
        return self.command("status")["servers"]

    def wait_for_reservation(self) -> None:
        """Wait until the servers have taken all memory that they lend; meanwhile they are busy."""
        before, end = -1, time.monotonic() + RESERVE_SECONDS_MAX
        while time.monotonic() < end:
            reserved = sum(server["reserved_bytes"] for server in self.status())
            if reserved == before:
                return
            before = reserved
            time.sleep(0.5)

    def pids(self) -> list[int]:
        """Return the processes of all servers: each one's supervisor and its child."""
        return [pid for server in self.status() for pid in (server["supervisor_pid"], server["pid"])]
