"""Relaxed mounts: programs publish, refresh and lock for themselves, and nobody waits for what such a mount shows."""

import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import NewPool
from mount import REFRESH, Mount, NewMount, Program, fails, mapping
from pool import KIB, Pool, frozen

pytestmark = pytest.mark.both

PAGE = 4 * KIB
LENGTH = 64 * PAGE


@dataclass
class Machines:
    """A directory on two relaxed mounts, and on a strict one."""

    here: Path
    there: Path
    strict: Path

    def file(self) -> None:
        """Make a file of zeros."""
        (self.here / "file").write_bytes(bytes(LENGTH))
        assert (self.there / "file").stat().st_size == (self.strict / "file").stat().st_size == LENGTH


@pytest.fixture(scope="module")
def mounts(fuse: None, shared_pool: Pool) -> Iterator[list[Mount]]:
    """Two relaxed mounts of the shared pool, and a strict one."""
    mounts: list[Mount] = []
    try:
        for words in (["--mode", "relaxed"], ["-o", "mode=relaxed"], ["--mode", "strict"]):
            mounts.append(Mount(shared_pool, *words))
        yield mounts
    finally:
        for mount in mounts:
            mount.close()


@pytest.fixture
def machines(mounts: list[Mount], place: str) -> Machines:
    """This test's directory on all of them."""
    for mount in mounts:
        mount.daemon.watch()
    machines = Machines(*(mount / place for mount in mounts))
    machines.file()
    return machines


LOCKED = """
def count(start, at):
    fcntl.lockf(file, fcntl.LOCK_EX, PAGE, start)
    number = int.from_bytes(view[at:at + 8], "little")
    view[at:at + 8] = (number + 1).to_bytes(8, "little")
    fcntl.lockf(file, fcntl.LOCK_UN, PAGE, start)
    return number
PAGE = 4096
"""


# SEMANTICS 136.4
@pytest.mark.parametrize("page", [0, 5])
def test_a_lock_brings_what_was_published_and_its_end_publishes_the_locked_bytes(machines: Machines, page: int) -> None:
    with (
        Program(mapping(machines.here / "file") + LOCKED) as first,
        Program(mapping(machines.there / "file") + LOCKED) as second,
    ):
        for turn in range(60):
            program = second if turn % 3 else first
            assert program.ask(f"count({page * PAGE}, {page * PAGE + 100})") == turn


# SEMANTICS 136.2
def test_what_was_published_is_there_after_a_refresh_and_stores_of_both_survive(machines: Machines) -> None:
    with (
        Program(mapping(machines.here / "file")) as first,
        Program(mapping(machines.there / "file")) as second,
    ):
        for turn in range(1, 40):
            first.run(f"view[0:8] = ({turn}).to_bytes(8, 'little'); view.flush()")
            second.run(f"view[8:16] = ({turn}).to_bytes(8, 'little')")
            os.setxattr(machines.there / "file", REFRESH, b"1")
            assert second.ask("view[0:16]") == turn.to_bytes(8, "little") * 2
            os.setxattr(machines.here / "file", REFRESH, b"1")
            assert first.ask("view[0:16]") == turn.to_bytes(8, "little") * 2


# SEMANTICS 136.3
def test_the_stricter_of_two_modes_decides(machines: Machines) -> None:
    descriptors = [os.open(path / "file", os.O_RDWR) for path in (machines.strict, machines.here)]
    with mmap.mmap(descriptors[0], 0) as view, mmap.mmap(descriptors[1], 0) as relaxed:
        for turn in range(1, 60):
            at = turn * 7919 % (LENGTH - 8)
            view[at : at + 8] = turn.to_bytes(8, "little")
            assert relaxed[at : at + 8] == turn.to_bytes(8, "little")
            assert os.pread(descriptors[1], 8, at) == turn.to_bytes(8, "little")
    for descriptor in descriptors:
        os.close(descriptor)


# SEMANTICS 136.4
def test_a_lock_stays_where_what_was_stored_under_it_could_not_be_written_back(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 16)
    here, there = new_mount(pool, "--mode", "relaxed"), new_mount(pool, "--mode", "relaxed")
    (here / "file").write_bytes(bytes(LENGTH))
    with Program(mapping(here / "file") + LOCKED) as first, Program(mapping(there / "file") + LOCKED) as second:
        first.run(f"other = os.open({str(here / 'file')!r}, os.O_RDWR)")
        first.run("fcntl.lockf(file, fcntl.LOCK_EX, PAGE); view[0] = 1")
        with frozen(*pool.processes()):
            # The kernel tries to write it back, tells another descriptor that it could not, and holds the page no more.
            first.begin("os.fsync(other)")
            with pytest.raises(OSError, match=r"error|down|timed out"):
                first.hear()
        with pytest.raises(OSError, match=r"error|down|timed out"):
            first.run("fcntl.lockf(file, fcntl.LOCK_UN, PAGE)")
        fails(errno.EAGAIN, second.run, "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, PAGE)")
        # It was told: the program does with the lock what it likes.
        first.run("fcntl.lockf(file, fcntl.LOCK_UN, PAGE)")
        second.run("fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, PAGE)")


# A program holds the lock while another waits for it, counts, and unlocks as that one gets a signal.
SIGNALLING = """
def count_and_signal(pid, delay):
    number = int.from_bytes(view[100:108], "little")
    view[100:108] = (number + 1).to_bytes(8, "little")
    time.sleep(0.005)
    def send():
        at = time.perf_counter() + delay
        while time.perf_counter() < at:
            pass
        os.kill(pid, signal.SIGALRM)
    sender = threading.Thread(target=send)
    sender.start()
    fcntl.lockf(file, fcntl.LOCK_UN, PAGE)
    sender.join()
"""


# SEMANTICS 136.4
def test_a_lock_that_is_granted_as_a_signal_comes_brings_what_was_published(machines: Machines) -> None:
    with (
        Program(mapping(machines.here / "file") + LOCKED + SIGNALLING) as first,
        Program(mapping(machines.there / "file") + LOCKED) as second,
    ):
        second.run("signal.signal(signal.SIGALRM, lambda *_: None)")
        for turn in range(50):
            first.run("fcntl.lockf(file, fcntl.LOCK_EX, PAGE)")
            second.begin("count(0, 100)", "ask")
            first.run(f"count_and_signal({second.pid}, {turn * 20e-6})")
            assert second.hear() == 2 * turn + 1


# SEMANTICS 136.4
@pytest.mark.parametrize("kind", ["lockf", "flock"])
def test_a_lock_that_becomes_shared_publishes_the_locked_bytes(machines: Machines, kind: str) -> None:
    with (
        Program(mapping(machines.here / "file")) as first,
        Program(mapping(machines.there / "file")) as second,
    ):
        for turn in range(1, 20):
            first.run(f"fcntl.{kind}(file, fcntl.LOCK_EX); view[0:8] = ({turn}).to_bytes(8, 'little')")
            first.run(f"fcntl.{kind}(file, fcntl.LOCK_SH{' | fcntl.LOCK_NB' if turn % 2 else ''})")
            second.run(f"fcntl.{kind}(file, fcntl.LOCK_SH)")
            assert second.ask("view[0:8]") == turn.to_bytes(8, "little")
            for program in (first, second):
                program.run(f"fcntl.{kind}(file, fcntl.LOCK_UN)")
