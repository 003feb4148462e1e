"""The library's cache: what was read is read again without a message, and is never older than what others were told."""

import errno
import os
import pickle
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import clients
import ramlace
from conftest import NewPool
from litmus import LONG
from mount import Mount, Program
from pool import KIB, MIB, Pool, eventually, frozen, pattern
from test_death import assert_fails_naming, error_of

pytestmark = pytest.mark.both

PAGE = 4 * KIB
UNIT = 64 * KIB
LENGTH = 9 * UNIT


def cached(pool: Pool, cache_bytes: int = 8 * MIB, *, local: bool = True) -> ramlace.Pool:
    """Connect with a cache."""
    return ramlace.connect(pool.name, local=local, cache_bytes=cache_bytes)


def page(file: "ramlace.RawFile", offset: int, length: int = PAGE) -> bytes:
    """Read a few bytes."""
    buffer = bytearray(length)
    return bytes(buffer[: file.pread_into(buffer, offset)])


def make(pool: Pool, path: str, content: bytes) -> None:
    """Write a file that is striped finely."""
    with pool.connect() as connected:
        connected.set_layout(str(Path(path).parent), stripe_unit=UNIT, width=2)
        with connected.open(path, "wb", buffering=0) as file:
            file.write(content)


# SEMANTICS 139.1, 139.6
@pytest.mark.parametrize("length", [LENGTH, 3000, 0])
def test_what_was_read_is_read_again_without_a_message(new_pool: NewPool, length: int) -> None:
    pool = new_pool(3, 32)
    content = pattern(3, length)
    make(pool, "/file", content)
    # The last of them reach behind the end.
    places = range(0, length + 2 * PAGE, PAGE)
    # A pool that is pickled connects anew with a cache.
    with pickle.loads(pickle.dumps(cached(pool))) as here, here.open("/file", "rb", buffering=0) as file:

        def read_all() -> None:
            for at in places:
                assert page(file, at) == content[at : at + PAGE]

        # It can have leases as soon as it receives recalls.
        assert is_kept(pool, lambda: page(file, 0))
        read_all()
        rounds = 1 + 2_000 // len(places)

        def read_often() -> None:
            for _ in range(rounds):
                read_all()

        # The home is asked twice a second, and others look at the pool. One that was slow is left alone for a while.
        assert eventually(lambda: messages_of(pool, read_often) < rounds * len(places) / 20)
    with pool.connect() as without, without.open("/file", "rb", buffering=0) as file:
        assert messages_of(pool, read_all) >= length / PAGE


def is_kept(pool: Pool, read: Callable[[], object], reads: int = 100) -> bool:
    """Return whether what is read is kept: read again, it costs hardly a message."""
    return eventually(lambda: messages_of(pool, lambda: [read() for _ in range(reads)]) < reads / 2)


def messages_of(pool: Pool, work: Callable[[], object]) -> int:
    """Return how many requests servers answer while something is done."""
    before = pool.requests()
    work()
    return pool.requests() - before


@pytest.fixture(scope="module")
def mount(fuse: None, shared_pool: Pool) -> Iterator[Mount]:
    """A mount of the shared pool."""
    mount = Mount(shared_pool)
    yield mount
    mount.close()


Change = Callable[[ramlace.Pool, Path, str], None]


def by_library(other: ramlace.Pool, _: Path, path: str) -> None:
    with other.open(path, "r+b", buffering=0) as file:
        file.pwrite(b"new!", 5)


def by_mount(_: ramlace.Pool, there: Path, __: str) -> None:
    with there.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"new!", 5)


def by_cut(other: ramlace.Pool, _: Path, path: str) -> None:
    other.truncate(path, 5)
    by_library(other, _, path)
    other.truncate(path, LENGTH)


def by_cell(other: ramlace.Pool, _: Path, path: str) -> None:
    with other.open(path, "r+b", buffering=0) as file:
        held = struct.unpack("<Q", page(file, 0, 8))[0]
        wanted = struct.unpack("<Q", page(file, 0, 5) + b"new")[0]
        file.compare_swap(0, held, wanted)
        held = struct.unpack("<Q", page(file, 8, 8))[0]
        file.compare_swap(8, held, struct.unpack("<Q", b"!" + page(file, 9, 7))[0])


CHANGES = (by_library, by_mount, by_cut, by_cell)


# SEMANTICS 139.3
@pytest.mark.parametrize("who", ["another", "itself"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("length", [LENGTH, 3000])
def test_whoever_changes_bytes_has_what_is_kept_dropped_first(
    shared_pool: Pool, mount: Mount, place: str, change: Change, who: str, length: int
) -> None:
    mount.daemon.watch()
    path = f"{place}/file"
    make(shared_pool, path, bytes(length))
    with cached(shared_pool) as here, shared_pool.connect() as another, here.open(path, "rb", buffering=0) as file:
        assert is_kept(shared_pool, lambda: page(file, 0, 100))
        change(another if who == "another" else here, mount / path, path)
        assert page(file, 5, 4) == b"new!"
        assert page(file, 0, 5) == bytes(5)


# SEMANTICS 139.5
@pytest.mark.parametrize("who", ["another", "itself"])
@pytest.mark.parametrize("length", [LENGTH, 3000])
def test_what_was_cut_off_is_never_read_again(shared_pool: Pool, place: str, who: str, length: int) -> None:
    path, at = f"{place}/file", min(length - 100, 8 * KIB)
    make(shared_pool, path, b"")
    with cached(shared_pool) as here, shared_pool.connect() as another, here.open(path, "rb", buffering=0) as file:
        cutter = another if who == "another" else here
        for turn in range(1, 40):
            with another.open(path, "r+b", buffering=0) as writer:
                writer.pwrite(bytes([turn]) * length, 0)
            assert page(file, at, 100) == bytes([turn]) * 100
            if turn % 10 == 1:
                # Leases are given again, and bytes are kept.
                assert is_kept(shared_pool, lambda: page(file, at, 100))
            cutter.truncate(path, 5)
            assert page(file, at, 100) == b""
            assert page(file, 0, 100) == bytes([turn]) * 5
            cutter.truncate(path, length)
            assert page(file, at, 100) == bytes(100)
            assert page(file, 0, 100) == bytes([turn]) * 5 + bytes(95)


# SEMANTICS 139.3
@pytest.mark.parametrize("length", [3000, 4096])
def test_bytes_that_go_from_the_inode_to_a_lane_are_recalled_all_the_same(new_pool: NewPool, length: int) -> None:
    pool = new_pool(3, 32)
    with pool.connect(deadline_seconds=60) as other, cached(pool) as here:
        path, lane = file_with_lane_elsewhere(pool, other, b"a" * length)
        with (
            here.open(path, "rb", buffering=0) as file,
            other.open(path, "r+b", buffering=0) as writer,
            ThreadPoolExecutor() as threads,
        ):
            assert is_kept(pool, lambda: page(file, 0, 100))
            with frozen(pool.process("child", lane)):
                growing = threads.submit(writer.pwrite, b"b", 5000)
                for _ in range(300):
                    assert page(file, 0, 100) == b"a" * 100
                    time.sleep(0.01)
                # They are the inode's as long as the lane does not have them.
                assert not growing.done()
            growing.result()
            # While it is promoted nobody keeps it, and then it is kept again.
            assert is_kept(pool, lambda: page(file, 0, 100))
            writer.pwrite(b"c", 0)
            assert page(file, 0, 100) == b"c" + b"a" * 99


def file_with_lane_elsewhere(pool: Pool, connected: ramlace.Pool, content: bytes = b"a" * LENGTH) -> tuple[str, int]:
    """Make a file of one lane that is not with its home; return it and the lane's server."""
    for number in range(100):
        path = f"/file-{number}"
        with connected.open(path, "wb", buffering=0, width=1) as file:
            file.write(content)
        lane, home = pool.lane_servers(path)[0], (connected.stat(path).st_ino >> 48) * pool.servers // 4096
        # Server 0 tells the map.
        if lane not in (0, home):
            return path, lane
    raise AssertionError("every lane is with its file's home")


# SEMANTICS 139.5
def test_what_was_cut_off_is_not_read_while_a_lanes_server_is_silent(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    with pool.connect() as other, cached(pool) as here:
        path, lane = file_with_lane_elsewhere(pool, other)
        with here.open(path, "rb", buffering=0) as file:
            assert is_kept(pool, lambda: page(file, 2 * PAGE))
            assert page(file, 2 * PAGE) == b"a" * PAGE
            with frozen(pool.process("child", lane)):
                other.truncate(path, 5)
                assert page(file, 2 * PAGE) == b""
            assert eventually(lambda: answers(lambda: page(file, 0)))
            assert page(file, 0) == b"aaaaa"


def answers(work: Callable[[], object]) -> bool:
    """Return whether something can be done now."""
    try:
        work()
    except ramlace.Error:
        return False
    return True


# SEMANTICS 139.4
def test_a_server_that_is_silent_is_waited_for_once(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    with pool.connect() as other, cached(pool) as here:
        path, lane = file_with_lane_elsewhere(pool, other)
        with here.open(path, "rb", buffering=0) as file:
            assert is_kept(pool, lambda: page(file, 0))
            with frozen(pool.process("child", lane)):
                # What was never read, what follows it, and what was kept and is believed no more.
                for at in (3 * UNIT, 4 * UNIT, 0):
                    assert_fails_naming(lane, lambda at=at: page(file, at))  # type: ignore[misc]
            for at in (3 * UNIT, 0):
                assert eventually(lambda at=at: answers(lambda: page(file, at)))  # type: ignore[misc]
                assert page(file, at) == b"a" * PAGE


# SEMANTICS 139.4
@pytest.mark.parametrize("how", ["stalls", "dies"])
def test_a_server_that_is_away_for_a_while_is_no_error_to_who_keeps_bytes(new_pool: NewPool, how: str) -> None:
    pool = new_pool(3, 32)
    over = threading.Event()
    with (
        pool.connect() as other,
        ramlace.connect(pool.name, deadline_seconds=60, cache_bytes=8 * MIB) as here,
        ThreadPoolExecutor() as threads,
    ):
        path, lane = file_with_lane_elsewhere(pool, other)
        with here.open(path, "rb", buffering=0) as file:

            def read() -> int:
                reads = 0
                while not over.is_set():
                    assert page(file, reads % 2 * UNIT) == b"a" * PAGE
                    reads += 1
                return reads

            assert is_kept(pool, lambda: page(file, 0))
            reading = [threads.submit(read) for _ in range(2)]
            try:
                for turn in range(3):
                    # Longer than anything of it is believed.
                    if how == "stalls":
                        with frozen(pool.process("child", lane)):
                            time.sleep(4.5)
                    else:
                        pool.kill_child(lane)
                        pool.await_restart(lane, turn + 1)
                    assert eventually(lambda: page(file, 8 * UNIT) == b"a" * PAGE)
            finally:
                over.set()
            assert all(reader.result() > 0 for reader in reading)
            assert is_kept(pool, lambda: page(file, 0))


# SEMANTICS 139.2
def test_a_cache_that_could_keep_nothing_is_refused(shared_pool: Pool) -> None:
    for cache_bytes in (1, UNIT - 1):
        assert error_of(lambda size=cache_bytes: cached(shared_pool, size)).errno == errno.EINVAL  # type: ignore[misc]
    cached(shared_pool, UNIT).close()


READER = """
import ramlace
pool = ramlace.connect({name!r}, local={local}, cache_bytes=1 << 20)
file = pool.open({path!r}, "rb", buffering=0)
def page(at=8192, length=4096):
    buffer = bytearray(length)
    return bytes(buffer[: file.pread_into(buffer, at)])
def error():
    try:
        page()
    except ramlace.Error as error:
        return error.errno
"""


# SEMANTICS 139.7
@pytest.mark.parametrize("length", [LENGTH, 3000])
def test_a_program_that_was_stopped_believes_nothing_of_what_it_kept(
    shared_pool: Pool, place: str, length: int
) -> None:
    path, at = f"{place}/file", min(length - 100, 8 * KIB)
    make(shared_pool, path, b"a" * length)
    start = READER.format(name=shared_pool.name, local=False, path=path)
    with Program(start, python=sys.executable) as reader, shared_pool.connect() as other:
        read = f"page({at}, 100)"
        assert is_kept(shared_pool, lambda: reader.ask(read))
        with reader.stopped(), other.open(path, "r+b", buffering=0) as writer:
            # It is answered when the other's time is over.
            writer.pwrite(b"b" * length, 0)
        assert reader.ask(read) == b"b" * 100


# SEMANTICS 139.4
def test_what_was_open_in_a_session_that_has_ended_stays_stale(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    make(pool, "/file", b"a" * LENGTH)

    def sessions() -> list[int]:
        return [server["sessions"] for server in pool.status()]

    with pool.connect() as other:
        other.statfs()
        before = sessions()
        start = READER.format(name=pool.name, local=True, path="/file")
        with Program(start, python=sys.executable) as reader:
            assert is_kept(pool, lambda: reader.ask("page()"))
            with reader.stopped():
                assert eventually(lambda: sessions() == before, 60.0)
            assert reader.ask("[error() for _ in range(8)]") == [errno.ESTALE] * 8


# SEMANTICS 119.4
def test_what_is_kept_of_a_server_that_was_forgotten_goes(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    with pool.connect() as other, cached(pool) as here:
        path, lane = file_with_lane_elsewhere(pool, other)
        with here.open(path, "rb", buffering=0) as file:
            assert is_kept(pool, lambda: page(file, 0))
            pool.kill_server(lane)
            pool.run("forget", str(lane))
            with other.open(path, "r+b", buffering=0) as writer:
                writer.pwrite(b"b" * LENGTH, 0)
            assert eventually(lambda: answers(lambda: page(file, 0)) and page(file, 0) == b"b" * PAGE)


# SEMANTICS 139.4
def test_what_a_lanes_server_has_said_is_not_vouched_for_by_the_next(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    with pool.connect() as other, cached(pool) as here:
        path, lane = file_with_lane_elsewhere(pool, other)
        with here.open(path, "rb", buffering=0) as file:
            assert is_kept(pool, lambda: page(file, 0))
            # It says nothing, not even that it is gone.
            with frozen(pool.process("child", lane)):
                pool.run("forget", str(lane))
                with other.open(path, "r+b", buffering=0) as writer:
                    assert eventually(lambda: answers(lambda: writer.pwrite(b"b" * LENGTH, 0)))
                last = LENGTH - PAGE
                assert eventually(lambda: answers(lambda: page(file, last)) and page(file, last) == b"b" * PAGE)
                assert is_kept(pool, lambda: page(file, last))
                first: list[bytes] = []
                assert eventually(lambda: answers(lambda: first.append(page(file, 0))))
                assert first == [b"b" * PAGE]


# SEMANTICS 139.4
def test_the_memory_of_an_unlinked_file_that_was_kept_is_free_after_its_last_close(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    with pool.connect() as other, cached(pool) as here:
        make(pool, "/file", bytes(LENGTH))
        held = pool.files_bytes()
        with here.open("/file", "rb", buffering=0) as file:
            assert is_kept(pool, lambda: page(file, 0))
            other.remove("/file")
        # Lanes are notified of it a moment later; the heart of a session beats every two and a half seconds.
        assert eventually(lambda: pool.files_bytes() <= held - LENGTH, seconds=1.5)


# SEMANTICS 139.8
def test_a_write_of_64_kib_is_never_seen_half_by_who_keeps_it(shared_pool: Pool, place: str) -> None:
    path = f"{place}/letters"
    ranges = [(at, UNIT) for at in range(0, 6 * UNIT, UNIT)]
    # They follow each other in one lane.
    with shared_pool.connect() as pool, pool.open(path, "wb", buffering=0, stripe_unit=MIB, width=1) as file:
        file.pwrite(b"A" * (6 * UNIT), 0)
    name, seconds = shared_pool.name, 1.5
    near, far, seen = clients.run_all(
        (clients.write_one_letter, name, True, path, ord("A"), ranges, seconds),
        (clients.write_one_letter, name, False, path, ord("B"), ranges, seconds),
        (clients.watch_letters, name, False, path, ranges, seconds, 8 * MIB),
    )
    assert min(near, far) > 5
    assert sum(seen.values()) > 5


# SEMANTICS 139.3
@pytest.mark.parametrize("local", [True, False])
def test_what_is_counted_up_is_never_read_older_than_was_acknowledged(
    shared_pool: Pool, place: str, local: bool
) -> None:
    path, over = f"{place}/file", threading.Event()
    every_place = list(range(2 * PAGE, LENGTH, UNIT))
    acknowledged = dict.fromkeys(every_place, 0)
    make(shared_pool, path, bytes(LENGTH))

    def watch(file: "ramlace.RawFile", places: list[int]) -> int:
        reads = 0
        while not over.is_set():
            for at in places:
                least = acknowledged[at]
                assert int.from_bytes(page(file, at, 8), "little") >= least
                reads += 1
        return reads

    with (
        cached(shared_pool, local=local) as here,
        shared_pool.connect() as there,
        here.open(path, "rb", buffering=0) as reader,
        there.open(path, "r+b", buffering=0) as writer,
        ThreadPoolExecutor() as threads,
    ):
        # One place again and again by two threads, and blocks that follow each other.
        watching = [threads.submit(watch, reader, [2 * PAGE]) for _ in range(2)]
        watching.append(threads.submit(watch, reader, every_place))
        try:
            for turn in range(1, 100 if LONG else 30):
                for at in every_place:
                    writer.pwrite(turn.to_bytes(8, "little"), at)
                    acknowledged[at] = turn
                if turn % 10 == 1:
                    assert is_kept(shared_pool, lambda: page(reader, 2 * PAGE))
        finally:
            over.set()
        assert all(watch.result() > 0 for watch in watching)


# SEMANTICS 139.3
def test_what_is_counted_up_by_many_is_never_seen_to_go_back(shared_pool: Pool, place: str) -> None:
    path = f"{place}/file"
    make(shared_pool, path, bytes(LENGTH))
    with (
        cached(shared_pool) as here,
        shared_pool.connect(local=False) as there,
        here.open(path, "rb", buffering=0) as reader,
        there.open(path, "r+b", buffering=0) as writer,
        here.open(path, "r+b", buffering=0) as own,
    ):
        for turn in range(1, 200):
            if turn % 40 < 3:
                assert is_kept(shared_pool, lambda: page(reader, 2 * PAGE))
            (writer if turn % 3 else own).pwrite(turn.to_bytes(8, "little"), 2 * PAGE)
            for _ in range(3):
                assert int.from_bytes(page(reader, 2 * PAGE, 8), "little") == turn


# SEMANTICS 139.2
def test_a_cache_keeps_no_more_than_it_may(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    content = pattern(5, LENGTH)
    make(pool, "/file", content)
    with cached(pool, 2 * UNIT) as here, here.open("/file", "rb", buffering=0) as file:
        assert is_kept(pool, lambda: page(file, 0))
        for _ in range(3):
            before = pool.requests()
            for at in range(0, LENGTH, UNIT):
                assert page(file, at) == content[at : at + PAGE]
            # At most two blocks of nine are left of the turn before.
            assert pool.requests() - before >= 7


# SEMANTICS 139.4
def test_a_new_life_of_a_server_empties_the_cache(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    make(pool, "/file", bytes(LENGTH))
    with cached(pool) as here, here.open("/file", "rb", buffering=0) as file, pool.connect() as other:
        for turn in range(1, 3):
            for at in range(0, LENGTH, UNIT):
                assert is_kept(pool, lambda at=at: page(file, at), 20)  # type: ignore[misc]
            for server in range(2):
                pool.kill_child(server)
            for server in range(2):
                pool.await_restart(server, turn)
            with other.open("/file", "r+b", buffering=0) as writer:
                writer.pwrite(bytes([turn]) * LENGTH, 0)
            for at in range(0, LENGTH, UNIT):
                assert page(file, at) == bytes([turn]) * PAGE


# SEMANTICS 139.4
def test_a_forked_child_keeps_for_itself(shared_pool: Pool, place: str) -> None:
    path = f"{place}/file"
    make(shared_pool, path, b"a" * LENGTH)
    with cached(shared_pool) as here, here.open(path, "r+b", buffering=0) as file:
        assert is_kept(shared_pool, lambda: page(file, 0))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert page(file, 0) == b"a" * PAGE
                file.pwrite(b"b", 0)
                assert page(file, 0) == b"b" + b"a" * (PAGE - 1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert page(file, 0) == b"b" + b"a" * (PAGE - 1)
