"""Daemons of mounts that are killed at the worst moment: while the kernel waits for what only they can answer."""

import functools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount, Program, children_of, is_mounted, mapping
from pool import KIB, Pool, eventually, frozen, state_of

# Root mounts by a system call, others by fusermount3.
pytestmark = pytest.mark.both

PAGE = 4 * KIB
UNIT = 64 * KIB


def guard_of(mount: Mount) -> int:
    """Return the process that has the kernel drop pages for a mount; 0: there is none."""
    words = [b"ramlace", b"mount-guard", b"--for", str(mount.directory).encode(), b""]
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes().split(b"\0") == words:
                return int(entry.name)
    return 0


def has_ended(process: int) -> bool:
    """Return whether a process is gone, or waits for its parent to be notified of it."""
    return state_of(Path(f"/proc/{process}")) in ("", "Z")


def drops_under_way(guard: int) -> int:
    """Return how many drops a guard waits for."""
    return sum(state_of(task) == "D" for task in Path(f"/proc/{guard}/task").iterdir())


def waits_for_the_kernel(process: int) -> bool:
    """Return whether a process waits for a page, or for what a daemon is to answer."""
    entry = Path(f"/proc/{process}")
    return state_of(entry) == "D" or (entry / "wchan").read_text() == "request_wait_answer"


def waits_of(process: int) -> str:
    """Return its state and where in the kernel it waits, for messages."""
    entry = Path(f"/proc/{process}")
    return f"{state_of(entry)} {(entry / 'wchan').read_text()}"


class Stuck:
    """A mount whose kernel waits with a drop of pages for a read that a frozen server does not answer."""

    def __init__(self, pool: Pool, one: Mount, other: Mount) -> None:
        self.mount = other
        # The file's home is where the root is.
        name = next(name for name in map(str, range(100)) if self._begins_with_the_root(pool, one, name))
        self.path = other / name
        self.reader = Program(f"file = os.open({str(self.path)!r}, os.O_RDONLY); os.pread(file, 10, 0)")
        self._writer = os.open(one / name, os.O_RDWR)
        os.pread(self._writer, 10, 0)
        self.silent = pool.process("child", 1)

    @staticmethod
    def _begins_with_the_root(pool: Pool, mount: Mount, name: str) -> bool:
        (mount / name).write_bytes(b"0" * 4 * UNIT)
        return pool.lane_servers(f"/{name}") == [0, 1]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have a read and a drop wait for each other's server."""
        try:
            with frozen(self.silent):
                # Both lanes' pages are locked until both servers have answered.
                self.reader.begin(f"os.pread(file, {2 * PAGE}, {UNIT - PAGE})")
                assert eventually(lambda: state_of(Path(f"/proc/{self.reader.pid}")) == "D")
                # The other server waits for the drop, and then no longer.
                self.write(b"new")
                yield
        finally:
            os.close(self._writer)
            self.reader.kill()

    def write(self, content: bytes) -> None:
        """Write by the other mount what this one has."""
        os.pwrite(self._writer, content, UNIT - PAGE)

    def ends(self) -> None:
        """Check that the daemon is gone, and that its programs get errors."""
        assert self.mount.daemon.ends(), "the daemon hangs"
        with pytest.raises(OSError, match="Errno"):
            self.reader.hear()
        with pytest.raises(OSError, match="Errno"):
            os.stat(self.path)


@pytest.fixture
def stuck(new_pool: NewPool, new_mount: NewMount) -> Stuck:
    """Two mounts of a pool of two servers, and a file on both servers."""
    pool = new_pool(2)
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=2)
    return Stuck(pool, new_mount(pool), new_mount(pool))


# SEMANTICS 120.1
def test_a_daemon_that_is_killed_while_its_kernel_drops_a_page_ends_and_programs_hear_of_it(stuck: Stuck) -> None:
    with stuck.held():
        stuck.mount.daemon.send(signal.SIGKILL)
        stuck.ends()


# SEMANTICS 118.2, 120.2
def test_a_guard_that_is_killed_in_the_middle_of_a_drop_costs_nothing(stuck: Stuck) -> None:
    with stuck.held():
        guard = guard_of(stuck.mount)
        # A mount that is fenced shows no older bytes from when it learns of it.
        assert eventually(lambda: drops_under_way(guard) >= 2)
        os.kill(guard, signal.SIGKILL)
        stuck.silent.send(signal.SIGCONT)
        stuck.reader.hear()
        assert stuck.reader.ask(f"os.pread(file, 3, {UNIT - PAGE})") == b"new"
        stuck.write(b"newer")
        assert stuck.reader.ask(f"os.pread(file, 5, {UNIT - PAGE})") == b"newer"


# SEMANTICS 120.4
def test_a_mount_whose_porter_is_killed_goes_on_serving_until_it_is_unmounted(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1)
    mount, other = new_mount(pool), new_mount(pool)
    (mount / "file").write_bytes(bytes(PAGE))
    with Program(mapping(mount / "file")) as program:
        (porter,) = children_of(mount.daemon.pid)
        os.kill(porter, signal.SIGKILL)
        assert eventually(lambda: has_ended(porter))
        program.run("view[0:5] = b'store'")
        mount.daemon.send(signal.SIGTERM)
        # It says so, and does not end.
        assert eventually(lambda: "ramlace unmount" in mount.log())
        assert not mount.daemon.ends(0)
        program.run("view.close(); os.close(file)")
    mount.unmount()
    assert (other / "file").read_bytes()[:5] == b"store"


# SEMANTICS 120.1
def test_requests_that_a_dead_daemon_has_never_read_hold_no_drop(stuck: Stuck) -> None:
    guard = guard_of(stuck.mount)
    with Program(f"file = os.open({str(stuck.path)!r}, os.O_RDONLY)") as late, stuck.held():
        # A mount that is fenced is to drop all that it has.
        assert eventually(lambda: drops_under_way(guard) >= 2)
        # Else its kernel asks for the size first, and waits for that as one waits for a word from a pipe. The first
        # answer beside a drop it does not take in.
        late.run("os.fstat(file); os.fstat(file)")
        stuck.mount.daemon.send(signal.SIGSTOP)
        late.begin(f"os.pread(file, {PAGE}, {2 * UNIT})")
        assert eventually(lambda: waits_for_the_kernel(late.pid)), f"{waits_of(late.pid)}, or {late.has_answered(0)}"
        stuck.mount.daemon.send(signal.SIGKILL)
        stuck.ends()
        with pytest.raises(OSError, match="Errno"):
            late.hear()
    assert eventually(lambda: not guard_of(stuck.mount)), "the guard hangs"


# SEMANTICS 120.2
def test_a_mount_whose_guard_is_killed_goes_on_with_another_one(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    one, other = new_mount(pool), new_mount(pool)
    (one / "file").write_bytes(bytes(PAGE))
    guard = guard_of(other)
    with open(one / "file", "r+b", buffering=0) as writer, open(other / "file", "rb", buffering=0) as reader:
        for turn in range(6):
            assert os.pread(reader.fileno(), 2, 0) == bytes([turn, 0])
            if turn % 2:
                os.kill(guard_of(other), signal.SIGKILL)
            os.pwrite(writer.fileno(), bytes([turn + 1]), 0)
    assert guard_of(other) not in (0, guard)


# SEMANTICS 120.3
def test_a_guard_ends_with_its_mount(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    mounts = [new_mount(pool) for _ in range(3)]
    guards = [guard_of(mount) for mount in mounts]
    assert all(guards), "nobody guards"
    mounts[0].unmount()
    mounts[1].daemon.send(signal.SIGTERM)
    mounts[2].daemon.send(signal.SIGKILL)
    for mount, guard in zip(mounts, guards, strict=True):
        assert mount.daemon.ends()
        assert eventually(functools.partial(has_ended, guard)), "it was left behind"
    assert not is_mounted(mounts[1].directory)
