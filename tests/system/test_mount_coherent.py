"""One memory on two mounts: what is written on one is seen on the other, through whatever is open or mapped there."""

import itertools
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from conftest import NewPool
from mount import Mount, NewMount, Program, mapping
from pool import KIB, MIB, Pool, eventually, frozen, pattern

PAGE = 4 * KIB
UNIT = 64 * KIB
# As the kernel of this machine calls it (x86-64, and arm64).
PWRITE = {"x86_64": 18, "aarch64": 68}[os.uname().machine]
# Three chunks on each of three servers, and a piece of a page.
LENGTH = 9 * UNIT + 100


@dataclass
class Pair:
    """A directory on two mounts, and in the pool."""

    pool: Pool
    place: str
    here: Path
    there: Path

    def by_library(self, name: str, content: bytes, offset: int = 0) -> None:
        """Write a part of a file as a program that has no mount."""
        with self.pool.connect() as connected, connected.open(f"{self.place}/{name}", "r+b", buffering=0) as file:
            assert file.pwrite(content, offset) == len(content)

    def content(self, name: str) -> bytes:
        """Return what the library reads."""
        with self.pool.connect() as connected:
            found = connected.open(f"{self.place}/{name}").read()
        assert isinstance(found, bytes)
        return found

    def layout(self, width: int) -> None:
        """Let new files lie on so many servers."""
        with self.pool.connect() as pool:
            pool.set_layout(self.place, stripe_unit=UNIT, width=width)


@pytest.fixture(scope="module")
def for_users(fuse: None, shared_pool: Pool) -> Iterator[tuple[Mount, Mount]]:
    """The shared pool on two directories, for all users of two machines."""
    mounts: list[Mount] = []
    try:
        mounts += [Mount(shared_pool, "--allow-other"), Mount(shared_pool, "--allow-other")]
        yield mounts[0], mounts[1]
    finally:
        for mount in mounts:
            mount.close()


@pytest.fixture(params=["usual", pytest.param("for users", marks=pytest.mark.needs_root)])
def pair(request: pytest.FixtureRequest, shared_pool: Pool, place: str) -> Pair:
    """This test's directory on two mounts of each kind."""
    if request.param == "usual":
        return Pair(shared_pool, place, request.getfixturevalue("here"), request.getfixturevalue("there"))
    shared_pool.run("chmod", "777", place)
    first, second = request.getfixturevalue("for_users")
    for mount in (first, second):
        mount.daemon.watch()
    return Pair(shared_pool, place, first / place, second / place)


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    """Open a file and close it again."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map all of a file for writing."""
    with opened(path) as descriptor, mmap.mmap(descriptor, 0) as view:
        yield view


# What was open before


# SEMANTICS 114.1
@pytest.mark.parametrize(("width", "size"), [(1, LENGTH), (3, LENGTH), (1, 100)])
def test_a_write_is_seen_by_a_descriptor_that_has_read_before(pair: Pair, width: int, size: int) -> None:
    pair.layout(width)
    (pair.here / "file").write_bytes(bytes(size))
    chance = random.Random(size * width)
    with opened(pair.here / "file") as one, opened(pair.there / "file") as other:
        for turn in range(300):
            writer, reader = (one, other) if turn % 3 else (other, one)
            at = chance.choice([0, size - 40, chance.randrange(size - 40), min(UNIT - 20, size - 40)])
            assert len(os.pread(reader, size, 0)) == size
            data = pattern(turn, 40)
            os.pwrite(writer, data, at)
            assert os.pread(reader, 40, at) == data, (turn, at)


# SEMANTICS 114.2
def test_a_file_that_grows_out_of_its_inode_is_followed_by_open_descriptors(pair: Pair) -> None:
    pair.layout(3)
    for turn in range(20):
        path = f"file{turn}"
        (pair.here / path).write_bytes(b"0" * 100)
        expected = bytearray(b"0" * 100)
        with opened(pair.here / path) as one, opened(pair.there / path) as other:
            for step, size in enumerate([100, 2000, 4096, 4200, 9000, UNIT + 5, 2 * UNIT]):
                writer, reader = (one, other) if (step + turn) % 2 else (other, one)
                os.pread(reader, 3 * UNIT, 0)
                data = pattern(step, 50)
                os.pwrite(writer, data, size - 50)
                expected.extend(bytes(size - len(expected)))
                expected[size - 50 : size] = data
                assert os.pread(reader, 3 * UNIT, 0) == expected, (turn, size)


# SEMANTICS 114.1
@pytest.mark.parametrize("size", [100, LENGTH])
def test_what_the_library_writes_is_seen_by_what_is_open_and_mapped(pair: Pair, size: int) -> None:
    pair.layout(3)
    (pair.here / "file").write_bytes(bytes(size))
    with opened(pair.there / "file") as reader, mapped(pair.here / "file") as view:
        for turn in range(50):
            at = turn * 7919 % (size - 30)
            assert len(os.pread(reader, size, 0)) == len(view[:]) == size
            pair.by_library("file", pattern(turn, 30), at)
            assert os.pread(reader, 30, at) == view[at : at + 30] == pattern(turn, 30), (turn, at)


# Mappings


# SEMANTICS 42.3, 115
@pytest.mark.parametrize("size", [100, LENGTH])
@pytest.mark.parametrize("how", ["msync", "fsync", "write"])
def test_a_live_mapping_sees_a_store_when_it_is_published_and_a_write_at_once(pair: Pair, size: int, how: str) -> None:
    pair.layout(3)
    (pair.here / "file").write_bytes(bytes(size))
    with opened(pair.here / "file") as writer, mapped(pair.here / "file") as mine, mapped(pair.there / "file") as yours:
        for turn in range(100):
            at = turn * 7919 % (size - 30)
            assert len(yours[:]) == size
            data = pattern(turn, 30)
            if how == "write":
                os.pwrite(writer, data, at)
            else:
                mine[at : at + 30] = data
                mine.flush() if how == "msync" else os.fsync(writer)
            assert yours[at : at + 30] == data, (turn, at)


# SEMANTICS 42.4, 116
@pytest.mark.parametrize("size", [100, LENGTH])
def test_stores_of_two_mounts_into_one_page_all_survive(pair: Pair, size: int) -> None:
    """Each has its own bytes of every page, and publishes in both orders."""
    pair.layout(3)
    (pair.here / "file").write_bytes(bytes(size))
    with mapped(pair.here / "file") as one, mapped(pair.there / "file") as other:
        views = [np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)]
        for turn in range(40):
            values = [turn % 100 + 1, turn % 100 + 101]
            for mine, (view, value) in enumerate(zip(views, values, strict=True)):
                view[mine::2] = value
            for memory in [one, other] if turn % 2 else [other, one]:
                memory.flush()
            for seen in (views[0], views[1], np.frombuffer(pair.content("file"), np.uint8)):
                for mine, value in enumerate(values):
                    wrong = int(np.count_nonzero(seen[mine::2] != value))
                    assert not wrong, f"{wrong} bytes of {'this' if mine == 0 else 'that'} mount, turn {turn}"
        del views, view, seen


# SEMANTICS 116
@pytest.mark.parametrize("size", [100, LENGTH])
def test_a_write_and_stores_of_another_mount_in_one_page_all_survive(pair: Pair, size: int) -> None:
    pair.layout(3)
    (pair.here / "file").write_bytes(bytes(size))
    with opened(pair.here / "file") as writer, mapped(pair.there / "file") as view:
        for turn in range(60):
            at = turn * 6007 % (size - 60)
            view[at : at + 20] = pattern(turn, 20)
            os.pwrite(writer, pattern(turn + 1, 20), at + 20)
            view[at + 40 : at + 60] = pattern(turn + 2, 20)
            view.flush()
            expected = pattern(turn, 20) + pattern(turn + 1, 20) + pattern(turn + 2, 20)
            assert view[at : at + 60] == os.pread(writer, 60, at) == expected, turn
            assert pair.content("file")[at : at + 60] == expected, turn


# Issue 14, A

_FILL = """
import mmap, os
file = os.open(path, os.O_RDWR)
view = mmap.mmap(file, 0)
for column in columns:
    view[column * 8 * rows:(column + 1) * 8 * rows] = array.array("d", [100.0 + column + turn]).tobytes() * rows
view.flush()
view.close()
os.close(file)
"""


def fill_columns(pair: Pair, turns: int) -> None:
    """Two programs on two mounts fill neighbouring columns of a matrix, and each says when it has flushed its own."""
    rows, columns = 1_000_001, 4
    with (pair.here / "matrix").open("wb") as file:
        file.truncate(rows * columns * 8)
    start = f"import array; rows = {rows}"
    with Program(start) as one, Program(start) as other:
        for turn in range(turns):
            for mine, (program, root) in enumerate([(one, pair.here), (other, pair.there)]):
                program.run(f"path, turn, columns = {str(root / 'matrix')!r}, {turn}, {list(range(mine, columns, 2))}")
            for program in (one, other):
                program.begin(_FILL)
            for program in (one, other):
                program.hear()
            for root in (pair.here, pair.there):
                matrix = np.memmap(root / "matrix", np.float64, "r", shape=(columns, rows))
                for column in range(columns):
                    wrong = int(np.count_nonzero(matrix[column] != 100 + column + turn))
                    assert not wrong, f"{wrong} elements of column {column} on {root}, turn {turn}"
                del matrix


# SEMANTICS 116
def test_columns_that_two_mounts_fill_at_once_are_whole(pair: Pair) -> None:
    fill_columns(pair, 5)


# SEMANTICS 116
@pytest.mark.long
def test_columns_that_two_mounts_fill_at_once_are_whole_a_hundred_times(pair: Pair) -> None:
    fill_columns(pair, 100)


# The same pages at once

_WRITE = """
import random
chance = random.Random(seed)
file = os.open(path, os.O_RDWR)
end, count = time.monotonic() + seconds, 0
while count < 20 or time.monotonic() < end:
    page = chance.randrange(pages)
    at, length = (page * 4096, 4096) if chance.random() < 0.4 else (page * 4096 + chance.randrange(4000), 90)
    os.pwrite(file, bytes([mine]) * length, at)
    if chance.random() < reading:
        os.pread(file, 4096, page * 4096)
    count += 1
os.close(file)
"""


# SEMANTICS 117.1
@pytest.mark.parametrize("reading", [0.0, 0.5])
@pytest.mark.parametrize(("size", "width"), [(2 * PAGE, 1), (8 * PAGE, 1), (100, 1), (4 * UNIT, 3)])
def test_two_mounts_that_write_the_same_pages_at_once_end_and_agree(
    pair: Pair, size: int, width: int, reading: float
) -> None:
    """Parts of pages and whole ones, whether the kernels have them or not; nothing hangs: each comes to its writes."""
    pair.layout(width)
    (pair.here / "file").write_bytes(bytes(size))
    pages = max(size // PAGE, 1)
    programs = []
    try:
        for mine, root in enumerate([pair.here, pair.there, pair.here, pair.there]):
            start = f"path, mine, seed = {str(root / 'file')!r}, {mine + 1}, {mine}"
            programs.append(Program(f"{start}; pages, reading, seconds = {pages}, {reading}, 1.0"))
        for program in programs:
            program.begin(_WRITE)
        for program in programs:
            program.hear()
        counts = [program.ask("count") for program in programs]
        print(f"{counts} writes in a second, or until there were 20")
    finally:
        for program in programs:
            program.kill()
    truth = pair.content("file")
    assert (pair.here / "file").read_bytes() == truth
    assert (pair.there / "file").read_bytes() == truth


# SEMANTICS 114.1
def test_who_has_written_reads_no_older_bytes_whoever_else_writes(pair: Pair) -> None:
    """A page that was dropped while a write was in flight must not come back as it was before: numbers only grow."""
    (pair.here / "file").write_bytes(bytes(2 * PAGE))
    stop, wrong = threading.Event(), []

    def disturb() -> None:
        with opened(pair.there / "file") as file:
            turn = 0
            while not stop.is_set():
                turn += 1
                os.pwrite(file, turn.to_bytes(8, "little"), PAGE + 8)
                os.pwrite(file, turn.to_bytes(8, "little"), 8)

    def look() -> None:
        with opened(pair.here / "file", os.O_RDONLY) as file:
            while not stop.is_set():
                os.pread(file, PAGE, 0)

    threads = [threading.Thread(target=disturb), threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    try:
        with opened(pair.here / "file") as file:
            end = time.monotonic() + 2.0
            number = 0
            while time.monotonic() < end:
                number += 1
                os.pwrite(file, number.to_bytes(8, "little"), 0)
                seen = int.from_bytes(os.pread(file, 8, 0), "little")
                if seen != number:
                    wrong.append((number, seen))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, f"{len(wrong)} of {number}: (written, read) {wrong[:10]}"


# Calls and stores of one mount, and others

_CALLS = """
file = os.open(path, os.O_RDWR)
end, number, wrong = time.monotonic() + seconds, 0, []
while time.monotonic() < end:
    number += 1
    os.pwrite(file, number.to_bytes(8, "little"), at)
    seen = int.from_bytes(os.pread(file, 8, at), "little")
    if seen < number:
        wrong.append((number, seen))
os.close(file)
"""
_STORES = """
import random
chance = random.Random(seed)
file = os.open(path, os.O_RDWR)
view = mmap.mmap(file, 0)
end, number = time.monotonic() + seconds, 0
while time.monotonic() < end:
    number += 1
    view[at:at + 8] = number.to_bytes(8, "little")
    if chance.random() < flushing:
        view.flush()
view.flush()
view.close()
os.close(file)
"""


def store_and_call_at_once(pair: Pair, seed: int, seconds: float) -> None:
    """On each mount one program writes by calls and one stores into the same page; nobody touches another's bytes."""
    (pair.here / "file").write_bytes(bytes(PAGE + 100))
    programs, places = [], itertools.count(40, 40)
    try:
        for root in (pair.here, pair.there):
            for work in (_CALLS, _STORES):
                start = f"path, at, seconds = {str(root / 'file')!r}, {next(places)}, {seconds}"
                programs.append((Program(f"{start}; seed, flushing = {seed}, {[0.0, 0.05, 0.5][seed % 3]}"), work))
        for program, work in programs:
            program.begin(work)
        for program, _ in programs:
            program.hear()
        expected = [program.ask("(at, number)") for program, _ in programs]
        wrong = [program.ask("wrong") for program, work in programs if work is _CALLS]
    finally:
        for program, _ in programs:
            program.kill()
    assert not any(wrong), f"(written, read): {[those[:5] for those in wrong]}"
    truth = pair.content("file")
    assert [(at, int.from_bytes(truth[at : at + 8], "little")) for at, _ in expected] == expected


# SEMANTICS 116
@pytest.mark.parametrize("seed", range(3))
def test_calls_and_stores_of_one_mount_beside_those_of_another_lose_nothing(pair: Pair, seed: int) -> None:
    store_and_call_at_once(pair, seed, 1.0)


# SEMANTICS 116
@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_calls_and_stores_of_one_mount_beside_those_of_another_lose_nothing_for_long(pair: Pair, seed: int) -> None:
    store_and_call_at_once(pair, seed, 20.0)


# Many that wait for each other

_MANY = """
files = [os.open(f"{root}/{name}", os.O_RDWR) for name in range(2 * count)]
views = [mmap.mmap(file, 0) for file in files[mine::2]]
for view in views:
    view[0:4] = b"kept"
"""
_WRITE_MANY = """
def write(file):
    os.pwrite(file, b"written", 2048)
threads = [threading.Thread(target=write, args=(file,)) for file in files[1 - mine::2]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
_PUBLISH_MANY = """
for view in views:
    view.flush()
    view.close()
for file in files:
    os.close(file)
"""


# SEMANTICS 117.2
def test_more_calls_than_threads_that_wait_for_each_others_pages_lose_no_store(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Each mount writes what the other has stored into; write-backs are answered although all others wait for them."""
    pool = new_pool(2)
    mounts, count = [new_mount(pool), new_mount(pool)], 130
    for name in range(2 * count):
        (mounts[0] / str(name)).write_bytes(bytes(PAGE + 1))
    with Program() as one, Program() as other:
        programs = [one, other]
        for mine, (program, mount) in enumerate(zip(programs, mounts, strict=True)):
            program.run(f"root, mine, count = {str(mount.directory)!r}, {mine}, {count}")
            program.run(_MANY)
        for mount in mounts:
            mount.daemon.send(signal.SIGSTOP)
        for program in programs:
            program.begin(_WRITE_MANY)
        # All of them are there when the daemons look.
        for program in programs:
            assert eventually(partial(are_waiting, program, count))
        for mount in mounts:
            mount.daemon.send(signal.SIGCONT)
        for program in programs:
            program.hear()
        for program in programs:
            program.run(_PUBLISH_MANY)
    for name in range(2 * count):
        content = (mounts[0] / str(name)).read_bytes()
        assert (content[:4], content[2048:2055]) == (b"kept", b"written"), name


_SHARED = """
files = [os.open(f"{root}/{name}", os.O_RDWR) for name in range(count)]
views = [mmap.mmap(file, 0) for file in files]
for file, view in zip(files, views):
    view[stored : stored + 4] = b"kept"
    os.pread(file, 1, 0)
    os.posix_fadvise(file, 0, 4096, os.POSIX_FADV_DONTNEED)
"""
_WRITE_SHARED = """
def write(file):
    os.pwrite(file, b"written", at)
threads = [threading.Thread(target=write, args=(file,)) for file in files[::step]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


# SEMANTICS 117.2
def test_more_calls_than_threads_that_hold_pages_which_the_others_want_are_no_silence(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Each kernel holds pages for calls that no thread of its mount handles; all of the other wait for those."""
    pool = new_pool(2)
    mounts, count = [new_mount(pool), new_mount(pool)], 220
    for name in range(count):
        (mounts[0] / str(name)).write_bytes(bytes(20 * PAGE))
    with Program() as one, Program() as other:
        programs = [one, other]
        for mine, (program, mount) in enumerate(zip(programs, mounts, strict=True)):
            program.run(f"root, count = {str(mount.directory)!r}, {count}")
            program.run(f"at, step, stored = {2048 * mine}, {1 - 2 * mine}, {(10 + mine) * PAGE}")
            program.run(_SHARED)
        with frozen(*(mount.daemon for mount in mounts)):
            for program in programs:
                program.begin(_WRITE_SHARED)
            # All of them are there when the daemons look.
            for program in programs:
                assert eventually(partial(are_waiting, program, count))
        for program in programs:
            program.hear()
        for program in programs:
            # A mount that was taken for silent has lost what was stored there.
            program.run(_PUBLISH_MANY)
    for name in range(count):
        content = (mounts[0] / str(name)).read_bytes()
        places = [0, 2048, 10 * PAGE, 11 * PAGE]
        assert [content[at : at + 4] for at in places] == [b"writ", b"writ", b"kept", b"kept"], name


def are_waiting(program: Program, count: int) -> bool:
    """Return whether so many of a program's threads wait for a write."""
    return sum(map(is_waiting, Path(f"/proc/{program.pid}/task").iterdir())) >= count


def is_waiting(task: Path) -> bool:
    """Return whether a thread waits for a write."""
    with suppress(OSError):
        return (task / "syscall").read_text().split()[0] == str(PWRITE)
    return False


# Bad days


# SEMANTICS 118.1, 118.2
def test_a_stopped_daemon_is_waited_for_a_while_and_what_was_stored_there_is_told_lost(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2)
    one, other = new_mount(pool), new_mount(pool)
    (one / "file").write_bytes(b"0" * 2 * PAGE)
    with Program(mapping(other / "file") + "; view[100:104] = b'lost'; view[:]") as holder:
        with opened(one / "file") as writer:
            other.daemon.send(signal.SIGSTOP)
            try:
                # They return although it says nothing.
                os.pwrite(writer, b"new", 0)
                os.pwrite(writer, b"newer", 0)
                os.pwrite(writer, b"beside", PAGE)
            finally:
                other.daemon.send(signal.SIGCONT)
        assert eventually(lambda: holder.ask(f"(view[:5], view[{PAGE}:{PAGE + 6}])") == (b"newer", b"beside"))
        with pytest.raises(OSError, match="Input/output"):
            holder.run("os.fsync(file)")
        with opened(one / "file") as reader:
            assert os.pread(reader, 4, 100) == b"0000", "what a fenced holder has stored is not applied"
        # From then on all is as before.
        with suppress(OSError):
            # The kernel may tell of it, too.
            holder.run("os.fsync(file)")
        holder.run("view[200:204] = b'kept'; view.flush()")
    assert (one / "file").read_bytes()[200:204] == b"kept"


# SEMANTICS 119.1
def test_a_server_that_begins_again_is_asked_anew(new_pool: NewPool, new_mount: NewMount) -> None:
    """Its new life knows no leases: what was kept by those of the last one is dropped."""
    pool = new_pool(2)
    one, other = new_mount(pool), new_mount(pool)
    names = [f"file{number}" for number in range(6)]
    for number, name in enumerate(names):
        (one / name).write_bytes(b"0" * (100 if number % 2 else 3 * PAGE))
    with all_opened([other / name for name in names], [one / name for name in names]) as (readers, writers):
        for restart in range(1, 4):
            for reader in readers:
                os.pread(reader, PAGE, 0)
            for server in range(2):
                pool.kill_child(server)
            for server in range(2):
                pool.await_restart(server, restart)
            for turn in range(3):
                for reader, writer in zip(readers, writers, strict=True):
                    data = b"%d%d" % (restart, turn)
                    os.pwrite(writer, data, 10)
                    assert os.pread(reader, 2, 10) == data


@contextmanager
def all_opened(*groups: list[Path]) -> Iterator[list[list[int]]]:
    """Open many files, and close them all."""
    made: list[list[int]] = []
    try:
        for group in groups:
            made.append([os.open(path, os.O_RDWR) for path in group])
        yield made
    finally:
        for descriptor in itertools.chain(*made):
            os.close(descriptor)


# SEMANTICS 118.1
def test_a_mount_that_ends_holds_nobody_up(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    one, other = new_mount(pool), new_mount(pool)
    (one / "file").write_bytes(bytes(PAGE))
    assert (other / "file").read_bytes() == bytes(PAGE)
    other.unmount()
    with opened(one / "file") as writer:
        os.pwrite(writer, b"new", 0)
    assert (one / "file").read_bytes()[:3] == b"new"


# What it costs


# SEMANTICS 114.3
def test_one_mount_alone_pays_no_message_for_it(new_pool: NewPool, new_mount: NewMount) -> None:
    """Writing, reading again from pages, reading cold, storing through a mapping: a request for each MiB, as before."""
    pool = new_pool(1, 96)
    mount = new_mount(pool)
    block = pattern(1, MIB)

    def cost(work: Callable[[], object]) -> int:
        before = pool.requests()
        work()
        return pool.requests() - before

    with (mount / "file").open("w+b", buffering=0) as file:

        def write() -> None:
            for at in range(16):
                os.pwrite(file.fileno(), block, at * MIB)

        def read() -> None:
            for at in range(16):
                assert os.pread(file.fileno(), MIB, at * MIB) == block

        def store() -> None:
            with mmap.mmap(file.fileno(), 16 * MIB) as view:
                for at in range(16 * MIB // PAGE):
                    view[at * PAGE] = 7
                view.flush()

        costs = {"write": cost(write)}
        # On a busy machine the mount may begin before it has learned from its server which life of it this is: then all
        # pages go once.
        again = [(cost(write), cost(read)) for _ in range(3)]
        costs["write again"], costs["read"] = min(again, key=lambda pair: pair[1])
        os.setxattr(mount / "file", "user.ramlace.refresh", b"1")
        costs["read cold"] = cost(read)
        # The kernel may begin to write pages back by itself, in smaller parts, while a busy machine stores.
        costs["store"] = min(cost(store) for _ in range(3))
    print(costs)
    # Each has a few for sizes, times and attributes beside those for bytes.
    assert costs["write"] <= 16 * 2 + 12
    assert costs["write again"] <= 16 + 12
    assert costs["read"] <= 12
    # Read-ahead may be of 128 KiB.
    assert costs["read cold"] <= 128 + 16 + 12
    assert costs["store"] <= 128 + 12


@contextmanager
def no_processor_at_once() -> Iterator[None]:
    """Run this thread where two others compute: it gets a processor some milliseconds after it is woken."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, allowed)
        for process in burning:
            process.kill()
            process.wait()


# SEMANTICS 114.4
def test_a_read_ends_where_another_mount_has_cut_the_file_though_its_program_gets_no_processor(pair: Pair) -> None:
    """A kernel that drops something of a file while a program has yet to take in an answer keeps to the old end."""
    content = pattern(0, 3 * PAGE - 100)
    paths = [pair.here / "file", pair.there / "file"]
    paths[0].write_bytes(b"")
    with paths[0].open("r+b", buffering=0) as here, paths[1].open("r+b", buffering=0) as there:
        files = [here.fileno(), there.fileno()]
        with no_processor_at_once():
            for turn in range(8):
                assert os.pwrite(files[0], content, 0) == len(content)
                assert os.pread(files[1], 5 * PAGE, 0) == content
                os.truncate(paths[turn % 2], 0)
                assert os.pread(files[1 - turn % 2], 2 * PAGE, 0) == b""
                assert os.pread(files[turn % 2], 2 * PAGE, 0) == b""
