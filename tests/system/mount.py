"""Mounts of pools for tests, and programs of their own that use them.

A second mount of a pool has its own daemon and its own pages in the kernel, so it stands in for
a second machine. Every mount here has a watchdog: a program that waits for a mount cannot be
interrupted, but it gets an error as soon as the mount's daemon is gone.
"""

import errno
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from pool import KIB, MIB, PATIENCE_SECONDS, Pool, await_stopped, pids_with

DEVICE = "/dev/fuse"
REFRESH = "user.ramlace.refresh"
# A test that holds a mount longer than this hangs.
WATCH_SECONDS = 240.0
# How long the kernel may keep a mount that was taken away, for reasons of others.
KERNEL_SECONDS = 60.0
# What the watchdog runs: each byte begins the time anew, the end of the line ends it. Every mount has one, and it takes
# twice as much to start with `os` and `signal`, which are written in Python.
_WATCHDOG = """
import _signal, posix, select, sys
handle, seconds = int(sys.argv[1]), float(sys.argv[2])
while select.select([0], [], [], seconds)[0]:
    if not posix.read(0, 1):
        sys.exit()
_signal.pidfd_send_signal(handle, _signal.SIGKILL)
"""

_numbers = itertools.count()

NewMount = Callable[..., "Mount"]


def why_not() -> str:
    """Return why this process cannot mount, or nothing when it can."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"no mounts here: {DEVICE} cannot be opened ({error.strerror})"
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        return "no mounts here: fusermount3 (Debian's package fuse3) is missing, and this is not root"
    return ""


def is_mounted(directory: Path) -> bool:
    """Return whether something is mounted on exactly this directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4].replace("\\040", " ") == str(directory) for line in lines)


def fails(number: int, operation: Callable[..., object], *arguments: object) -> OSError:
    """Check that an operation fails with this errno; return its error without its frames, which keep files open."""
    try:
        operation(*arguments)
    except OSError as error:
        assert error.errno == number, f"{error!r} is not {errno.errorcode[number]}"
        return error.with_traceback(None)
    raise AssertionError(f"{operation} {arguments} did not fail with {errno.errorcode[number]}")


def copies_of(directory: Path) -> list[str]:
    """Return the processes of other namespaces of mounts in which something is mounted on a directory."""
    found = []
    own = Path("/proc/self/ns/mnt").stat()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if not process.name.isdecimal() or os.path.samestat((process / "ns/mnt").stat(), own):
                continue
            mounts = (process / "mountinfo").read_text().splitlines()
            if any(line.split()[4] == str(directory) for line in mounts):
                found.append(f"{process.name} {(process / 'comm').read_text().strip()}")
    return found


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


class Daemon:
    """The process that serves a mount, by a handle that never means another one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(self._handle), str(WATCH_SECONDS)],
            stdin=subprocess.PIPE,
            pass_fds=[self._handle],
        )

    def watch(self) -> None:
        """Begin the watchdog's time anew."""
        assert self._watchdog.stdin
        with suppress(BrokenPipeError):
            os.write(self._watchdog.stdin.fileno(), b".")

    def send(self, number: signal.Signals) -> None:
        """Signal it; one that has ended needs no signal. When it is to stop, it has."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)
        if number == signal.SIGSTOP:
            await_stopped(self.pid)

    def ends(self, seconds: float = 20.0) -> bool:
        """Return whether it ends in time."""
        return bool(select.select([self._handle], [], [], seconds)[0])

    def close(self) -> None:
        """End the watchdog, and the daemon if it still runs."""
        self._watchdog.communicate()
        if not self.ends(0):
            self.send(signal.SIGKILL)
            assert self.ends()
        os.close(self._handle)


class Mount:
    """A pool on a directory of its own; `close` takes it away and checks that nothing is left."""

    def __init__(
        self, pool: Pool, *words: str, variables: dict[str, str] | None = None, program: str | None = None
    ) -> None:
        self.pool = pool
        self.directory = pool.runtime / f"mount {next(_numbers)}"
        self.directory.mkdir()
        try:
            words = ("mount", *words, str(self.directory), "--json")
            mounted = pool.run(*words, variables=variables, program=program)
            self.report = json.loads(mounted.stdout)
            self.daemon = Daemon(self._find_daemon())
        except BaseException:
            self._force_away()
            self.directory.rmdir()
            raise

    def __truediv__(self, name: str) -> Path:
        return self.directory / name.lstrip("/")

    def _find_daemon(self) -> int:
        words = [b"--", str(self.directory).encode(), b""]
        for pid in pids_with(words[1]):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3:] == words:
                    return pid
        raise AssertionError(f"nobody serves {self.directory}: {self.log()}")

    def log(self) -> str:
        """Return what the daemon has said; a mount that works says nothing."""
        return self.log_path().read_text()

    def log_path(self) -> Path:
        """Return where the daemon says it."""
        return self.pool.runtime / "ramlace" / ".mounts" / f"{str(self.directory).replace('/', '%')}.log"

    def unmount(self, *words: str) -> Any:
        """Run `ramlace unmount` and return what it reports."""
        return self.pool.json("unmount", *words, str(self.directory))

    def close(self) -> None:
        """Take the mount away, whatever state it is in; the daemon must end and must not have complained."""
        said, forced = "", False
        if is_mounted(self.directory):
            done = self.pool.run("unmount", str(self.directory), check=False)
            said = (done.stdout + done.stderr).decode()
            forced = self._force_away()
        ended = self.daemon.ends()
        # The kernel may have the mount still: for another program's namespace, which has a copy of every mount that
        # was there when it was made (`conftest.shared`), or, after that has ended, behind one whose daemon is stopped.
        copies = [] if ended else copies_of(self.directory)
        ended = ended or self.daemon.ends(KERNEL_SECONDS)
        self.daemon.close()
        self.directory.rmdir()
        log = self.log()
        self.log_path().unlink()
        assert not forced, f"`ramlace unmount` left the mount: {said}"
        assert ended, f"the daemon lived on after: {said}; namespaces with copies: {copies}"
        assert "panicked" not in log, log
        assert "no sense" not in log, log

    def _force_away(self) -> bool:
        if not is_mounted(self.directory):
            return False
        words = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        subprocess.run([*words, str(self.directory)], check=False, timeout=PATIENCE_SECONDS)
        return True


# To import all modules takes three times as long as to start the interpreter: each is when it is named first.
_PROGRAM = """
import os, sys
names = globals()
def import_what_is_named(text):
    for module in ("ctypes", "errno", "fcntl", "mmap", "signal", "threading", "time"):
        if module in text and module not in names:
            names[module] = __import__(module)
    if "Path" in text and "Path" not in names:
        names["Path"] = __import__("pathlib").Path
for line in sys.stdin:
    kind, text = line.split(" ", 1)
    try:
        text = eval(text)
        import_what_is_named(text)
        value = eval(text, names) if kind == "ask" else exec(text, names)
        answer = ("value", value)
    except OSError as error:
        answer = ("errno", error.errno)
    except BaseException as error:
        answer = ("failed", repr(error))
    print(repr(answer), flush=True)
"""


class Program:
    """A Python interpreter of its own that does what a test tells it, one thing after the other.

    `run` and `ask` wait for its answer; an OSError there is one here. `begin` and `hear` are the
    two halves. `mmap`, `os` and their like need no import, and it has nothing of ramlace.
    """

    def __init__(self, start: str = "", *, prefix: tuple[str, ...] = (), python: str | None = None) -> None:
        options = ["-c", _PROGRAM] if python else ["-I", "-S", "-c", _PROGRAM]
        self.process = subprocess.Popen(
            [*prefix, python or sys.executable, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if start:
            self.run(start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it for the block."""
        self.process.send_signal(signal.SIGSTOP)
        await_stopped(self.pid)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def begin(self, text: str, kind: str = "run") -> None:
        """Tell it to do something, and do not wait."""
        assert self.process.stdin
        self.process.stdin.write(f"{kind} {text!r}\n".encode())
        self.process.stdin.flush()

    def hear(self, seconds: float = PATIENCE_SECONDS) -> Any:
        """Return the answer to what was begun."""
        assert self.has_answered(seconds), f"program {self.pid} says nothing"
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait(PATIENCE_SECONDS)}"
        word, value = eval(line)
        if word == "errno":
            raise OSError(value, os.strerror(value))
        assert word == "value", value
        return value

    def has_answered(self, seconds: float = 0) -> bool:
        """Return whether the answer to what was begun is there, or comes in time."""
        assert self.process.stdout
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def run(self, text: str) -> None:
        """Let it execute statements."""
        self.begin(text)
        self.hear()

    def ask(self, text: str) -> Any:
        """Let it evaluate an expression, and return the value."""
        self.begin(text, "ask")
        return self.hear()

    def dies_of(self, text: str) -> int:
        """Let it execute what ends it; return the number of the signal."""
        self.begin(text)
        assert self.process.stdout
        assert select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0], f"program {self.pid} says nothing"
        said = self.process.stdout.readline()
        assert not said, f"it lives on and says {said.decode()}"
        return -self.process.wait(PATIENCE_SECONDS)

    def end(self) -> int:
        """Let it leave as programs do, and return its exit code."""
        assert self.process.stdin
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_SECONDS)
        self.kill()
        return code

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def stopped(mount: Mount) -> Iterator[None]:
    """Stop a mount's daemon for the block."""
    mount.daemon.send(signal.SIGSTOP)
    try:
        yield
    finally:
        mount.daemon.send(signal.SIGCONT)


def mapping(path: Path, length: int = 0) -> str:
    """Return what a `Program` runs to map a file for writing as `view`."""
    return f"file = os.open({str(path)!r}, os.O_RDWR); view = mmap.mmap(file, {length})"


def fill(mount: Mount, name: str = "fills") -> None:
    """Fill the pool to its last page: a file of one lane for each server."""
    for server in range(mount.pool.servers):
        with (mount / f"{name}-{server}").open("wb", buffering=0) as file:
            for size in (MIB, 64 * KIB, 4 * KIB):
                with suppress(OSError):
                    while file.write(b"f" * size) == size:
                        pass


@pytest.fixture(scope="session")
def fuse() -> None:
    """Skip where nothing can be mounted."""
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def first_mount(fuse: None, shared_pool: Pool) -> Iterator[Mount]:
    """The shared pool on a directory."""
    mount = Mount(shared_pool)
    try:
        yield mount
    finally:
        mount.close()


@pytest.fixture(scope="module")
def second_mount(fuse: None, shared_pool: Pool) -> Iterator[Mount]:
    """The shared pool on another directory, as on another machine."""
    mount = Mount(shared_pool)
    try:
        yield mount
    finally:
        mount.close()


@pytest.fixture
def here(first_mount: Mount, place: str) -> Path:
    """This test's directory in the shared pool, on the first mount."""
    first_mount.daemon.watch()
    return first_mount / place


@pytest.fixture
def there(second_mount: Mount, place: str) -> Path:
    """This test's directory in the shared pool, on the second mount."""
    second_mount.daemon.watch()
    return second_mount / place


@pytest.fixture
def new_mount(fuse: None) -> Iterator[NewMount]:
    """Mount pools; all of them are unmounted at the end."""
    made: list[Mount] = []

    def mount(pool: Pool, *words: str) -> Mount:
        made.append(Mount(pool, *words))
        return made[-1]

    yield mount
    for mounted in reversed(made):
        mounted.close()


def json_failure(said: str) -> Any:
    """Return the failure that a command with --json has told."""
    return json.loads(said)["error"]
