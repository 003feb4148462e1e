"""A pool of real processes for a test, and what tests ask of it.

Every pool has a name of its own below one private XDG_RUNTIME_DIR; its processes are known by
the path of its secret, which is in their command lines, and are only ever signalled by handles
that cannot mean another process.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ramlace

T = TypeVar("T")

MIB = 1 << 20
KIB = 1 << 10
UNIT_MIN = 64 * KIB
# What a command may take on a machine that does other things as well.
PATIENCE_SECONDS = 60.0
# Messages that come by time, from a command that looks at a pool, or that wait for what may happen.
BY_TIME = {
    "OpenSession",
    "CloseSession",
    "Heartbeat",
    "ServerStatus",
    "GetMetrics",
    "GetMap",
    "GetKeyBook",
    "Listen",
    # Where somebody has waited for a lock for a second.
    "FindDeadlock",
    "ListLockWaits",
}
# A failed operation says so before 5 seconds; the rest is for a busy machine.
FAILING_SECONDS_MAX = 8.0


# Where cargo has built what is tested.
BUILT = Path(os.environ.get("RAMLACE_BUILT") or Path(__file__).resolve().parents[2] / "target/release")


def binary() -> str:
    """Return the command under test."""
    return os.environ.get("RAMLACE_BIN") or str(BUILT / "ramlace")


# A prime, so that the pattern repeats at no border of anything.
_PERIOD = 65_521
_CYCLE = bytes((index * 7 + (index >> 8) * 13) % 255 + 1 for index in range(_PERIOD)) * 2


def pattern(seed: int, length: int) -> bytes:
    """Return `length` bytes without zeros that depend on the seed and repeat at no power of two."""
    start = seed * 7919 % _PERIOD
    cycle = _CYCLE[start : start + _PERIOD]
    return (cycle * (length // _PERIOD + 1))[:length]


def take_away(directory: Path) -> None:
    """Remove a directory in which servers may be making files at this moment."""

    def is_gone() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    assert eventually(is_gone)


def eventually(condition: Callable[[], T], seconds: float = 20.0) -> T:
    """Ask again until the answer is true; return it, or the last one when time is over.

    A long wait polls less often: each poll is a command, which take processor time from what is waited for.
    """
    began = time.monotonic()
    while True:
        answer = condition()
        passed = time.monotonic() - began
        if answer or passed >= seconds:
            return answer
        time.sleep(min(max(0.02, passed / 20), 0.1))


def await_stopped(pid: int) -> None:
    """Wait until no thread of a process that was sent SIGSTOP runs on.

    The kernel gives the signal to one thread, which stops the others when it gets a processor: on a busy machine they
    serve requests for seconds. A thread that sleeps uninterruptibly (D) stops before it does anything.
    """
    tasks = Path(f"/proc/{pid}/task")
    assert eventually(lambda: states_of(tasks) <= set("TtDZX"), PATIENCE_SECONDS), f"{pid} runs on: {states_of(tasks)}"


def states_of(tasks: Path) -> set[str]:
    """Return the states of a process's threads; none when it is gone."""
    states: set[str] = set()
    with suppress(OSError):
        states = {state_of(task) for task in tasks.iterdir()}
    return states - {""}


def state_of(task: Path) -> str:
    """Return the state of a process or thread; nothing when it has gone."""
    with suppress(OSError):
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


@dataclass
class Process:
    """A process of a pool, by a handle that never means another one."""

    pid: int
    role: str
    server: int
    handle: int = field(repr=False)

    def __del__(self) -> None:
        os.close(self.handle)

    def send(self, number: signal.Signals) -> None:
        """Signal it; one that has ended needs no signal. When it is to stop, it has."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)
        if number == signal.SIGSTOP:
            await_stopped(self.pid)

    def cpu_seconds(self) -> float:
        """Return the processor time used so far, of all threads, to the nanosecond."""
        return self.scheduled_seconds()[0]

    def scheduled_seconds(self) -> tuple[float, float]:
        """Return the processor time used so far, and how long it was waited for a processor, of all threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        told = [(task / "schedstat").read_text().split() for task in tasks]
        return sum(int(words[0]) for words in told) / 1e9, sum(int(words[1]) for words in told) / 1e9

    def private_bytes(self) -> int:
        """Return its own memory beside the store: anonymous pages. A server tells its user no more."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith("RssAnon:"))


class Pool:
    """A running pool; `close` takes it down and checks that nothing is left of it."""

    def __init__(self, name: str, runtime: Path, memory_bytes: int, servers: int) -> None:
        self.name = name
        self.runtime = runtime
        self.servers = servers
        self.memory_bytes = memory_bytes
        self.directory = runtime / "ramlace" / name
        self.addresses: list[str] = []

    # Commands

    def run(
        self,
        *words: str | bytes,
        check: bool = True,
        stdin: bytes = b"",
        variables: dict[str, str] | None = None,
        program: str | None = None,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run `ramlace WORDS --pool NAME` to its end."""
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), **(variables or {})}
        done = subprocess.run(
            [program or binary(), "--pool", self.name, *words],
            input=stdin,
            capture_output=True,
            env=environment,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"ramlace {words} failed ({done.returncode}): {done.stderr.decode()}")
        return done

    def json(self, *words: str) -> Any:
        """Run a command and return what it reports."""
        return json.loads(self.run(*words, "--json").stdout)

    def refused(self, *words: str | bytes, variables: dict[str, str] | None = None) -> str:
        """Run a command that must fail, and return what it says."""
        done = self.run(*words, check=False, variables=variables)
        said = done.stderr.decode()
        assert done.returncode in (1, 2), f"ramlace {words} ended with {done.returncode}: {said}"
        assert "panicked" not in said
        assert "\n  at " not in said
        return said

    def up(self, *words: str, program: str | None = None) -> Any:
        """Start it; return what `up` reports."""
        sizes = ("--servers", str(self.servers), "--memory", str(self.memory_bytes))
        done = self.run("up", *sizes, "--no-reserve", "--json", *words, program=program)
        report = json.loads(done.stdout)
        self.addresses = [server["tcp"] for server in report["servers"]]
        return report

    def status(self) -> list[dict[str, Any]]:
        """Return what each server says of itself, also when some say nothing."""
        done = self.run("status", "--json", check=False)
        servers = json.loads(done.stdout)["servers"]
        assert isinstance(servers, list)
        return servers

    def files_bytes(self) -> int:
        """Return the memory of files on all servers: their logs grow by a page now and then, by the very request."""
        return sum(int(server["used_bytes"]) - int(server["meta_bytes"]) for server in self.status())

    def requests(self, *beside: str) -> int:
        """Return how many requests the servers have answered, without those that come by time or that look.

        ``beside`` names messages of those that shall count all the same.
        """
        counted = self.json("status", "--messages")["messages"]
        return sum(one["answers"] for one in counted if one["message"] not in BY_TIME or one["message"] in beside)

    def connect(self, *, local: bool = True, deadline_seconds: float | None = None) -> ramlace.Pool:
        """Connect from this process."""
        return ramlace.connect(self.name, local=local, deadline_seconds=deadline_seconds)

    @property
    def secret(self) -> bytes:
        """The pool's secret."""
        return bytes.fromhex((self.directory / "secret").read_text().strip())

    def lane_servers(self, path: str) -> list[int]:
        """Return the server of each lane of a file."""
        return [int(server) for server in self.json("layout", "get", path)["servers"]]

    # Processes

    def processes(self) -> list[Process]:
        """Return the pool's processes that have not ended; supervisors first."""
        secret = str(self.directory / "secret").encode()
        found = [process for pid in pids_with(secret) if (process := self._look_at(pid))]
        return sorted(found, key=lambda process: (process.role, process.server), reverse=True)

    def _look_at(self, pid: int) -> Process | None:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return None
        secret = str(self.directory / "secret").encode()
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            role = words[1].decode() if len(words) > 1 else ""
            if role == "serve" and secret in words:
                return Process(pid, "supervisor", int(words[words.index(b"--server") + 1]), handle)
            if role == "serve-child":
                options = json.loads(words[2])["options"]
                if options["secret_file"].encode() == secret:
                    return Process(pid, "child", options["server"], handle)
        except (OSError, ValueError, KeyError):
            pass
        os.close(handle)
        return None

    def scheduled(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Return what processors each process that serves has had, by its server and pid."""
        found = {}
        for process in sorted(self.processes(), key=lambda process: process.server):
            # It may end meanwhile.
            with suppress(OSError):
                if process.role == "child":
                    found[process.server, process.pid] = process.scheduled_seconds()
        return found

    def process(self, role: str, server: int) -> Process:
        """Return the supervisor, or the child, of a server; a child that was killed is there again after a moment."""
        found = eventually(lambda: [one for one in self.processes() if (one.role, one.server) == (role, server)])
        assert len(found) == 1, f"server {server} has {len(found)} processes that are its {role}"
        return found[0]

    def kill_child(self, server: int) -> None:
        """Kill the process that serves; its supervisor starts it again."""
        self.process("child", server).send(signal.SIGKILL)

    def kill_server(self, server: int) -> None:
        """Kill a server for good: the supervisor, then the child."""
        for role in ("supervisor", "child"):
            process = self.process(role, server)
            process.send(signal.SIGKILL)
            assert eventually(partial(_ended, process.pid))

    def await_restart(self, server: int, restarts: int) -> None:
        """Wait until a server has been started again so many times, and answers."""

        def is_back() -> bool:
            one = self.status()[server]
            return bool(one["state"] == "up" and one["restarts"] >= restarts)

        assert eventually(is_back), f"server {server} was not started again: {self.log(server)}"

    def restart_each(self, rounds: int, pause_seconds: float) -> None:
        """Kill the processes that serve, one after the other and so many times each; return when all answer again."""
        for restart in range(1, rounds + 1):
            for server in range(len(self.addresses)):
                time.sleep(pause_seconds)
                self.kill_child(server)
                self.await_restart(server, restart)

    def log(self, server: int) -> str:
        """Return what a server has said."""
        return (self.directory / f"server-{server}.log").read_text()

    def check(self) -> list[dict[str, Any]]:
        """Return what `ramlace check` finds wrong; what a forgotten server took with it is not."""
        done = self.run("check", "--json", check=False)
        assert done.stdout.startswith(b"{"), f"`ramlace check` failed: {done.stderr.decode()}"
        findings = json.loads(done.stdout)["findings"]
        assert bool(findings) == bool(done.returncode)
        return [finding for finding in findings if not finding["lost_with_server"]]

    def _findings(self) -> list[dict[str, Any]]:
        """Return what `ramlace check` finds wrong; it cannot look where a server does not answer."""
        try:
            return self.check()
        except AssertionError:
            if self.run("status", "--json", check=False).returncode == 0:
                raise
            return []

    def close(self) -> None:
        """Take the pool down; check that all was in order, and that neither processes nor files are left."""
        for process in self.processes():
            process.send(signal.SIGCONT)
        findings = self._findings() if self.directory.exists() else []
        said = ""
        if self.directory.exists():
            logs = {path.name: path.read_text() for path in self.directory.glob("*.log")}
            done = self.run("down", check=False)
            said = done.stderr.decode()
            print(f"ramlace down: {said or done.stdout.decode()}", {name: log for name, log in logs.items() if log})
            # A server that was alive ends when it is asked to.
            assert "did not stop" not in said, f"{said}\n{logs}"
        left = self.processes()
        for process in left:
            process.send(signal.SIGKILL)
        assert not left, f"`ramlace down` left {left}: {said}"
        assert not self.directory.exists(), f"`ramlace down` left {self.directory}: {said}"
        assert not findings, f"`ramlace check` found {findings}"


def pids_with(text: bytes) -> Iterator[int]:
    """Yield the processes whose command line has this in it; tests ask often, and there are hundreds of processes."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/cmdline", "rb", buffering=0) as words:  # noqa: PTH123
                if text in words.readall():
                    yield int(name)


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Signalled(Protocol):
    """A process that a test may signal."""

    def send(self, number: signal.Signals) -> None:
        """Signal it; when it is to stop, it has."""


@contextmanager
def frozen(*processes: Signalled) -> Iterator[None]:
    """Stop processes, and let them go on afterwards."""
    for process in processes:
        process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send(signal.SIGCONT)
