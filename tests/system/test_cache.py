"""The library's cache: what was read is read again without a message, and is never older than what others were told."""

import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ramlace
from conftest import NewPool
from mount import Mount
from pool import KIB, MIB, Pool, pattern

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


# SEMANTICS 138.1
@pytest.mark.parametrize("length", [LENGTH, 3000])
def test_what_was_read_is_read_again_without_a_message(new_pool: NewPool, length: int) -> None:
    pool = new_pool(3, 32)
    content = pattern(3, length)
    make(pool, "/file", content)
    # A pool that is pickled connects anew with a cache.
    with pickle.loads(pickle.dumps(cached(pool))) as here, here.open("/file", "rb", buffering=0) as file:
        places = [(at, min(PAGE, length - at)) for at in range(0, length, PAGE)]
        for at, count in places:
            assert page(file, at, count) == content[at : at + count]
        before = pool.requests()
        for _ in range(100):
            for at, count in places:
                assert page(file, at, count) == content[at : at + count]
        # Somebody looks at the pool meanwhile, and sessions are renewed.
        assert pool.requests() - before < 20
    with pool.connect() as without, without.open("/file", "rb", buffering=0) as file:
        before = pool.requests()
        for at, count in places * 100:
            assert page(file, at, count) == content[at : at + count]
        assert pool.requests() - before >= 100 * len(places)


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


# SEMANTICS 138.3
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
        for turn in range(4):
            make(shared_pool, path, bytes([turn]) * length)
            assert page(file, 0, 100) == bytes([turn]) * 100
            change(another if who == "another" else here, mount / path, path)
            assert page(file, 5, 4) == b"new!"
            assert page(file, 0, 5) == bytes([turn]) * 5


# SEMANTICS 138.3
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
        for turn in range(1, 400):
            (writer if turn % 3 else own).pwrite(turn.to_bytes(8, "little"), 2 * PAGE)
            for _ in range(3):
                assert int.from_bytes(page(reader, 2 * PAGE, 8), "little") == turn


# SEMANTICS 138.2
def test_a_cache_keeps_no_more_than_it_may(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    content = pattern(5, LENGTH)
    make(pool, "/file", content)
    with cached(pool, 2 * UNIT) as here, here.open("/file", "rb", buffering=0) as file:
        for _ in range(3):
            before = pool.requests()
            for at in range(0, LENGTH, UNIT):
                assert page(file, at) == content[at : at + PAGE]
            # At most two blocks of nine are left of the turn before, and three are brought together.
            assert pool.requests() - before >= 2


# SEMANTICS 138.4
def test_a_new_life_of_a_server_empties_the_cache(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    make(pool, "/file", bytes(LENGTH))
    with cached(pool) as here, here.open("/file", "rb", buffering=0) as file, pool.connect() as other:
        for turn in range(1, 4):
            for at in range(0, LENGTH, UNIT):
                page(file, at)
            for server in range(2):
                pool.kill_child(server)
            for server in range(2):
                pool.await_restart(server, turn)
            with other.open("/file", "r+b", buffering=0) as writer:
                writer.pwrite(bytes([turn]) * LENGTH, 0)
            for at in range(0, LENGTH, UNIT):
                assert page(file, at) == bytes([turn]) * PAGE


# SEMANTICS 138.4
def test_a_forked_child_keeps_for_itself(shared_pool: Pool, place: str) -> None:
    path = f"{place}/file"
    make(shared_pool, path, b"a" * LENGTH)
    with cached(shared_pool) as here, here.open(path, "r+b", buffering=0) as file:
        assert page(file, 0) == b"a" * PAGE
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
