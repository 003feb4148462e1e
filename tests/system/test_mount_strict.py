"""Strict mounts: mapped files are one memory for programs on several machines, without msync and without a call."""

import mmap
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from litmus import LONG, build, race
from mount import Mount, NewMount, Program, fails, mapping
from pool import KIB, Pool, eventually

pytestmark = pytest.mark.both

PAGE = 4 * KIB
LENGTH = 64 * PAGE


@dataclass
class Machines:
    """A directory on two strict mounts and a coherent one, and in the pool."""

    pool: Pool
    place: str
    here: Path
    there: Path
    coherent: Path

    def file(self, name: str = "file", length: int = LENGTH) -> None:
        """Make a file of zeros."""
        with (self.here / name).open("wb") as file:
            file.truncate(length)
        assert (self.there / name).stat().st_size == length
        assert (self.coherent / name).stat().st_size == length


@pytest.fixture(scope="module")
def mounts(fuse: None, shared_pool: Pool) -> Iterator[list[Mount]]:
    """Two strict mounts of the shared pool, and one that is not."""
    mounts: list[Mount] = []
    try:
        for words in (["--mode", "strict"], ["-o", "mode=strict"], []):
            mounts.append(Mount(shared_pool, *words))
        yield mounts
    finally:
        for mount in mounts:
            mount.close()


@pytest.fixture
def machines(mounts: list[Mount], shared_pool: Pool, place: str) -> Machines:
    """This test's directory on all of them."""
    for mount in mounts:
        mount.daemon.watch()
    return Machines(shared_pool, place, *(mount / place for mount in mounts))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The races of litmus.c."""
    return build(tmp_path_factory.mktemp("strict"))


def number(view: mmap.mmap, at: int) -> int:
    """Return eight bytes as a number."""
    return int.from_bytes(view[at : at + 8], "little")


def opened(path: Path) -> mmap.mmap:
    """Map a file for writing."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


# SEMANTICS 124.1
@pytest.mark.parametrize("width", [1, 3])
def test_a_store_is_seen_by_a_mapping_elsewhere_at_once(machines: Machines, width: int) -> None:
    with machines.pool.connect() as pool:
        pool.set_layout(machines.place, stripe_unit=64 * KIB, width=width)
    machines.file()
    with opened(machines.here / "file") as one, opened(machines.there / "file") as other:
        for turn in range(1, 200):
            writer, reader = (one, other) if turn % 3 else (other, one)
            at = turn * 7919 % (LENGTH - 8)
            writer[at : at + 8] = turn.to_bytes(8, "little")
            assert number(reader, at) == turn


# SEMANTICS 125.1
@pytest.mark.parametrize("size", [100, LENGTH])
def test_a_store_is_seen_by_every_door_at_once(machines: Machines, size: int) -> None:
    machines.file(length=size)
    with (
        opened(machines.here / "file") as view,
        opened(machines.coherent / "file") as live,
        open(machines.there / "file", "rb", buffering=0) as reader,
        open(machines.coherent / "file", "rb", buffering=0) as other,
    ):
        for turn in range(1, 60):
            at = turn * 7919 % (size - 8)
            view[at : at + 8] = turn.to_bytes(8, "little")
            expected = turn.to_bytes(8, "little")
            assert os.pread(reader.fileno(), 8, at) == expected
            assert os.pread(other.fileno(), 8, at) == expected
            assert live[at : at + 8] == expected
            with machines.pool.connect() as pool, pool.open(f"{machines.place}/file", buffering=0) as file:
                found = bytearray(8)
                assert file.pread_into(found, at) == 8
                assert found == expected


# SEMANTICS 125.2
def test_what_a_coherent_mount_has_stored_and_not_published_comes_along(machines: Machines) -> None:
    machines.file()
    with opened(machines.coherent / "file") as theirs, opened(machines.here / "file") as view:
        for turn in range(1, 60):
            at = turn % 16 * PAGE
            theirs[at : at + 8] = turn.to_bytes(8, "little")
            view[at + 8 : at + 16] = turn.to_bytes(8, "little")
            assert number(view, at) == number(theirs, at + 8) == turn


# SEMANTICS 124.2
def test_reading_mounts_share_pages_until_somebody_stores(machines: Machines) -> None:
    machines.file()
    readers = [os.open(path / "file", os.O_RDONLY) for path in (machines.there, machines.coherent)]
    try:
        views = [mmap.mmap(reader, 0, prot=mmap.PROT_READ) for reader in readers]
        with opened(machines.here / "file") as view:
            for turn in range(1, 60):
                view[0:8] = view[PAGE : PAGE + 8] = turn.to_bytes(8, "little")
                assert [number(one, at) for one in views for at in (0, PAGE)] == [turn] * 4
    finally:
        for reader in readers:
            os.close(reader)


# SEMANTICS 124.2
def test_an_open_for_writing_gives_up_what_was_shared(machines: Machines) -> None:
    machines.file()
    with open(machines.here / "file", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as old:
        assert old[:LENGTH] == bytes(LENGTH)
        with opened(machines.there / "file") as other, opened(machines.here / "file") as view:
            other[0:8] = (5).to_bytes(8, "little")
            view[8:16] = (6).to_bytes(8, "little")
            assert [number(one, at) for one in (old, view, other) for at in (0, 8)] == [5, 6] * 3


# SEMANTICS 124.1, 126.1
@pytest.mark.parametrize("test", ["spin", "ring", "places"])
def test_programs_of_two_machines_share_memory(machines: Machines, program: Path, test: str) -> None:
    runs = {"spin": 1_000_000, "ring": 5_000, "places": 50_000}[test] * (10 if LONG else 1)
    race(program, test, runs, machines.here / "file", machines.there / "file")


# SEMANTICS 127
@pytest.mark.parametrize("elsewhere", [False, True])
def test_stores_and_writes_into_one_page_all_survive(machines: Machines, program: Path, elsewhere: bool) -> None:
    there = machines.there if elsewhere else machines.here
    seen = race(program, "mapwrite", 2_000 if LONG else 200, machines.here / "file", there / "file")
    assert list(seen) == ["11"]


_REACHES = """
import ctypes
file = os.open({path!r}, os.O_RDWR)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
view = libc.mmap(None, {length}, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
"""


@pytest.mark.parametrize("strict", [True, False])
def test_a_mapping_reaches_farther_when_its_kernel_has_heard_of_the_size(machines: Machines, strict: bool) -> None:
    here, there = (machines.here, machines.there) if strict else (machines.coherent, machines.here)
    machines.file(length=PAGE)
    with Program(_REACHES.format(path=str(here / "file"), length=LENGTH)) as program:
        assert program.ask("ctypes.string_at(view, 1)") == bytes(1)
        with (there / "file").open("r+b", buffering=0) as file:
            assert os.pwrite(file.fileno(), b"more", LENGTH - 4) == 4
        assert program.ask("os.fstat(file).st_size") == LENGTH
        assert program.ask(f"ctypes.string_at(view + {LENGTH - 4}, 4)") == b"more"
        program.run(f"ctypes.memset(view + {PAGE}, 7, 1)")
        with (there / "file").open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as other:
            if not strict:
                program.run("os.fsync(file)")
            assert other[PAGE] == 7


_COMMITS = """
import sqlite3
pool = sqlite3.connect({path!r}, timeout=60, isolation_level=None)
assert pool.execute("pragma journal_mode = wal").fetchone()[0] == "wal"
pool.execute("create table if not exists commits (who integer, number integer)")
def work(who, times):
    seen = 0
    for number in range(times):
        pool.execute("insert into commits values (?, ?)", (who, number))
        now = pool.execute("select count(*) from commits").fetchone()[0]
        assert now > seen, (now, seen)
        seen = now
    return seen
"""


# SEMANTICS 126.2
def test_sqlite_keeps_its_log_on_two_machines(machines: Machines) -> None:
    times = 2_000 if LONG else 150
    crew = [Program(_COMMITS.format(path=str(path / "base"))) for path in (machines.here, machines.there)]
    try:
        for who, one in enumerate(crew):
            one.begin(f"work({who}, {times})", "ask")
        assert max(one.hear(120.0) for one in crew) == 2 * times
        for one in crew:
            one.run("pool.close()")
    finally:
        for one in crew:
            one.kill()
    base = sqlite3.connect(machines.there / "base")
    try:
        assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
        counts = base.execute("select who, count(*), max(number) from commits group by who").fetchall()
        assert counts == [(0, times, times - 1), (1, times, times - 1)]
    finally:
        base.close()


# SEMANTICS 128.1
def test_who_does_not_answer_loses_its_pages_and_hears_of_it(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    first, second = new_mount(shared_pool, "--mode", "strict"), new_mount(shared_pool, "--mode", "strict")
    with (first / place / "file").open("wb") as file:
        file.truncate(2 * PAGE)
    with Program(mapping(first / place / "file")) as one, Program(mapping(second / place / "file")) as other:
        one.run("view[0] = 1; view.flush(); view[0] = 2")
        first.daemon.send(signal.SIGSTOP)
        try:
            other.run("view[1] = 7")
            assert other.ask("view[0]") == 1
        finally:
            first.daemon.send(signal.SIGCONT)
        fails(5, one.run, "view.flush()")
        # The refusal may be there before the mount has dropped the page.
        assert eventually(lambda: one.ask("view[0], view[1]") == (1, 7))
        other.run("view[0] = 3")
        assert one.ask("view[0]") == 3


def stopped_owner(first: Mount, path: Path, pages: int) -> Program:
    """Begin a program that has stored 1 into each page, published that, stored 2, and whose daemon is stopped then."""
    with path.open("wb") as file:
        file.truncate(pages * PAGE)
    program = Program(mapping(path))
    program.run(f"for page in range({pages}): view[page * {PAGE}] = 1")
    program.run(f"view.flush()\nfor page in range({pages}): view[page * {PAGE}] = 2")
    first.daemon.send(signal.SIGSTOP)
    return program


# SEMANTICS 128.1
@pytest.mark.parametrize("door", ["call", "mapping", "library"])
def test_every_door_waits_for_who_does_not_answer(
    shared_pool: Pool, place: str, new_mount: NewMount, door: str
) -> None:
    first, second = new_mount(shared_pool, "--mode", "strict"), new_mount(shared_pool)
    with stopped_owner(first, first / place / "file", 1):
        try:
            path = second / place / "file"
            if door == "library":
                assert shared_pool.run("cat", f"{place}/file").stdout[0] == 1
            elif door == "call":
                with path.open("rb", buffering=0) as file:
                    assert file.read(1) == b"\1"
            else:
                with Program(mapping(path)) as other:
                    assert other.ask("view[0]") == 1
        finally:
            first.daemon.send(signal.SIGCONT)


# SEMANTICS 128.1
def test_more_loads_than_connections_wait_for_who_does_not_answer(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    first, second = new_mount(shared_pool, "--mode", "strict"), new_mount(shared_pool)
    pages = 48
    with stopped_owner(first, first / place / "file", pages):
        try:
            source = f"if={second / place / 'file'}"
            words = ["dd", source, f"bs={PAGE}", "count=1", "status=none"]
            readers = [subprocess.Popen([*words, f"skip={page}"], stdout=subprocess.PIPE) for page in range(pages)]
            assert [reader.communicate()[0][:1] for reader in readers] == [b"\1"] * pages
        finally:
            first.daemon.send(signal.SIGCONT)


_PUNCHES = """
import os
file = os.open({path!r}, os.O_RDWR)
libc = __import__("ctypes").CDLL(None, use_errno=True)
def punch():
    import ctypes
    PUNCH_AND_KEEP = 3
    done = libc.fallocate(file, PUNCH_AND_KEEP, ctypes.c_long(0), ctypes.c_long({length}))
    assert done == 0, os.strerror(ctypes.get_errno())
"""

_STORES = """
import random
dice = random.Random({seed!r})
def store():
    for _ in range(2000):
        view[dice.randrange({length})] = 1
    view.flush()
"""


# SEMANTICS 128.2
def test_large_punches_beside_stores_fence_nobody(machines: Machines) -> None:
    # More pages than are recalled one by one.
    length = 6_000 * PAGE
    machines.file(length=length)
    paths = [str(mount / "file") for mount in (machines.here, machines.there)]
    stores = [Program(mapping(Path(path)) + _STORES.format(seed=path, length=length)) for path in paths]
    puncher = Program(_PUNCHES.format(path=str(machines.coherent / "file"), length=length))
    try:
        for _ in range(5 if LONG else 2):
            for one in stores:
                one.begin("store()", "ask")
            puncher.run("punch()")
            for one in stores:
                one.hear(120.0)
    finally:
        for one in (*stores, puncher):
            one.kill()


# SEMANTICS 131.1, 131.2
def test_doctor_and_status_say_who_has_pages_and_where_machines_collide(machines: Machines) -> None:
    machines.file()
    path, at = f"{machines.place}/file", 5 * PAGE
    with opened(machines.here / "file") as one, opened(machines.there / "file") as other:
        for turn in range(40):
            (one if turn % 2 else other)[at] = turn
        told = machines.pool.json("doctor", path)
        said = machines.pool.run("doctor", path).stdout.decode()
        everywhere = machines.pool.json("status", "--leases")["leases"]
    [place] = told["places"]
    assert sum(holder["owned_bytes"] for holder in place["holders"]) >= PAGE, place
    [page] = [page for page in place["pages"] if page["offset"] == at]
    assert page["changes"] >= 30, page
    assert page["fight"], page
    assert len(page["between"]) == 2, page
    assert f"the page at {at} changed sides" in said, said
    assert place["inode"] in [found["inode"] for found in everywhere["places"]]


# SEMANTICS 129
def test_a_mount_says_why_it_cannot_be_strict(shared_pool: Pool, fuse: None, tmp_path: Path) -> None:
    done = shared_pool.run("mount", "--mode", "stricter", str(tmp_path), check=False)
    assert done.returncode == 2
    assert b"coherent, strict or relaxed" in done.stderr
    done = shared_pool.run("mount", "-o", "mode=strict,passthrough", str(tmp_path), check=False)
    assert done.returncode != 0
    assert b"passthrough" in done.stderr
