"""The mode of one open file in the library: what it keeps, what it asks, and what its file's own mode has to say."""

import errno
import itertools
import os
import struct
import sys
from pathlib import Path

import pytest

import ramlace
from conftest import NewPool
from mount import Mount, Program, fails
from pool import KIB, MIB, Pool, eventually, pattern
from test_cache import cached, is_kept, make, messages_of, page

pytestmark = pytest.mark.both

PAGE = 4 * KIB
UNIT = 64 * KIB
LENGTH = 9 * UNIT
PLACES = range(0, LENGTH, UNIT)
MODES = ("coherent", "strict", "relaxed")
STRICTNESS = {"relaxed": 0, "coherent": 1, "strict": 2}


def relaxed(pool: ramlace.Pool, path: str, mode: str = "rb") -> "ramlace.RawFile":
    """Open a file in relaxed mode."""
    return pool.open(path, mode, buffering=0, sharing="relaxed")


def is_quiet(pool: Pool, file: "ramlace.RawFile", expected: bytes) -> bool:
    """Return whether reads of all of a file bring these bytes, and cost hardly a message."""
    rounds = 20

    def read_often() -> None:
        for _ in range(rounds):
            for at in PLACES:
                assert page(file, at) == expected[at : at + PAGE]

    return messages_of(pool, read_often) < rounds * len(PLACES) / 2


# SEMANTICS 143.1, 143.2
def test_what_was_read_in_relaxed_mode_is_read_again_until_a_refresh(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    old, new = pattern(3, LENGTH), pattern(4, LENGTH)
    make(pool, "/file", old)
    with cached(pool) as here, pool.connect() as there, relaxed(here, "/file") as file:
        with here.open("/file", "rb", buffering=0) as asking, there.open("/file", "r+b", buffering=0) as writer:
            # Each read of a block brings it, whatever its server learns.
            for at in PLACES:
                assert page(file, at) == old[at : at + PAGE]
            writer.pwrite(new, 0)
            assert eventually(lambda: is_quiet(pool, file, old))
            assert page(asking, 0) == new[:PAGE]
            # Part of it, and then all.
            file.refresh(2 * UNIT + 5, 1)
            for at in PLACES:
                assert page(file, at) == (new if at == 2 * UNIT else old)[at : at + PAGE]
            file.refresh()
            for at in PLACES:
                assert page(file, at) == new[at : at + PAGE]
            assert eventually(lambda: is_quiet(pool, file, new))
        # A program that opens it anew begins with nothing.
        with there.open("/file", "r+b", buffering=0) as writer:
            writer.pwrite(old, 0)
        assert page(file, 0) == new[:PAGE]
        with relaxed(here, "/file") as other:
            assert page(other, 0) == old[:PAGE]


# SEMANTICS 143.2
def test_a_refresh_in_relaxed_mode_asks_a_few_times_and_keeps_what_has_not_changed(new_pool: NewPool) -> None:
    pool = new_pool(2, 64)
    length = 128 * UNIT
    content = bytearray(pattern(3, length))
    make(pool, "/file", bytes(content))
    with cached(pool, 16 * MIB) as here, pool.connect() as there, relaxed(here, "/file") as file:
        places = range(0, length, UNIT)

        def read_all() -> None:
            for at in places:
                assert page(file, at) == content[at : at + PAGE]

        def refresh_and_read() -> None:
            file.refresh()
            read_all()

        read_all()
        # A request for each lane, and no block of 128 anew.
        assert eventually(lambda: messages_of(pool, refresh_and_read) < len(places) / 4)
        with there.open("/file", "r+b", buffering=0) as writer:
            for at in (5 * UNIT, 77 * UNIT + 9):
                content[at : at + 4] = b"new!"
                writer.pwrite(b"new!", at)
        read = messages_of(pool, refresh_and_read)
        assert read < len(places) / 2, "what has changed is found by halves"


# SEMANTICS 143.3
def test_an_open_file_in_relaxed_mode_reads_what_it_has_changed_itself(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    content = bytearray(pattern(3, LENGTH))
    make(pool, "/file", bytes(content))
    with cached(pool) as here, relaxed(here, "/file", "r+b") as file:

        def check() -> None:
            for at in range(0, len(content), UNIT // 4):
                assert page(file, at) == content[at : at + PAGE]

        check()
        for turn in range(1, 30):
            at = turn * 7919 * 8 % (LENGTH - PAGE)
            file.pwrite(bytes([turn]) * 100, at)
            content[at : at + 100] = bytes([turn]) * 100
            assert page(file, at, 200) == content[at : at + 200]
        check()
        before = struct.unpack_from("<Q", content, 8 * 100)[0]
        assert file.fetch_add(8 * 100, 5) == before
        struct.pack_into("<Q", content, 8 * 100, (before + 5) % (1 << 64))
        check()
        file.truncate(3 * UNIT + 10)
        file.truncate(LENGTH)
        content[3 * UNIT + 10 :] = bytes(LENGTH - 3 * UNIT - 10)
        check()
        # Behind the end, and over a hole.
        assert page(file, LENGTH) == b""
        file.pwrite(b"end", LENGTH + UNIT)
        content += bytes(UNIT) + b"end"
        check()
        assert page(file, LENGTH + UNIT) == b"end"


# SEMANTICS 143.1
def test_nobody_waits_for_who_has_a_file_open_in_relaxed_mode(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    make(pool, "/file", pattern(3, LENGTH))
    program = f"import ramlace; pool = ramlace.connect({pool.name!r}, cache_bytes={8 * MIB})\n"
    program += "file = pool.open('/file', 'rb', buffering=0, sharing={!r})\n"
    reads = f"[file.pread_into(bytearray(100), at) for at in range(0, {LENGTH}, {UNIT})]"

    def has_leases() -> bool:
        return bool(pool.json("status", "--leases")["leases"]["places"])

    with Program(python=sys.executable) as reader:
        reader.run(program.format("relaxed"))
        for _ in range(20):
            reader.run(f"{reads}; time.sleep(0.01)")
        with pool.connect() as there, there.open("/file", "r+b", buffering=0) as writer, reader.stopped():
            assert not has_leases()
            for at in PLACES:
                writer.pwrite(b"new!", at)
    with Program(python=sys.executable) as reader:
        reader.run(program.format("coherent"))

        def reads_by_a_lease() -> bool:
            # A session keeps nothing before it listens.
            reader.run(reads)
            return has_leases()

        assert eventually(reads_by_a_lease)


# SEMANTICS 143.4
def test_a_lock_in_relaxed_mode_brings_what_was_published_before_it(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    make(pool, "/file", bytes(LENGTH))
    with (
        cached(pool) as one,
        cached(pool) as two,
        relaxed(one, "/file", "r+b") as first,
        relaxed(two, "/file", "r+b") as second,
    ):

        def count(file: "ramlace.RawFile", timeout: float | None) -> int:
            lock = file.lock(UNIT, 8, timeout=timeout)
            assert lock is not None
            with lock:
                buffer = bytearray(8)
                file.pread_into(buffer, UNIT)
                number = int.from_bytes(buffer, "little")
                file.pwrite((number + 1).to_bytes(8, "little"), UNIT)
                return number

        page(first, 0), page(second, 0)
        for turn in range(40):
            assert count((first, second)[turn % 3 % 2], None if turn % 4 else 0) == turn
        # What is not locked stays as it was.
        with one.open("/file", "r+b", buffering=0) as writer:
            writer.pwrite(b"x", 0)
        assert count(first, None) == 40
        assert page(first, 0, 1) == b"\0"
        with first.lock():
            assert page(first, 0, 1) == b"x"


# SEMANTICS 143.5
def test_in_strict_mode_every_read_asks(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    content = pattern(3, LENGTH)
    make(pool, "/file", content)
    with cached(pool) as here, here.open("/file", "rb", buffering=0) as other:
        assert is_kept(pool, lambda: page(other, 0))
        with here.open("/file", "rb", buffering=0, sharing="strict") as file:
            assert messages_of(pool, lambda: [page(file, 0) for _ in range(100)]) >= 100
            assert page(file, 5) == content[5 : 5 + PAGE]


# SEMANTICS 143.6
@pytest.mark.parametrize(("own", "asked"), list(itertools.product((None, *MODES), (None, *MODES))))
def test_the_stricter_of_an_open_s_mode_and_its_file_s_own_decides(
    shared_pool: Pool, place: str, own: str | None, asked: str | None
) -> None:
    path = f"{place}/file"
    make(shared_pool, path, bytes(LENGTH))
    with cached(shared_pool) as pool, shared_pool.connect() as there:
        pool.set_layout(path, mode=own)  # type: ignore[arg-type]
        expected = max((own or "relaxed", asked), key=STRICTNESS.__getitem__) if asked else "coherent"
        with pool.open(path, "rb", buffering=0, sharing=asked) as file:  # type: ignore[arg-type]
            assert file.sharing == expected
            assert page(file, 0) == bytes(PAGE)
            with there.open(path, "r+b", buffering=0) as writer:
                writer.pwrite(b"new!", 0)
            assert page(file, 0, 4) == (bytes(4) if expected == "relaxed" else b"new!")


# SEMANTICS 143.6
def test_what_is_no_mode_of_an_open_is_refused(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool:
        make(shared_pool, f"{place}/file", b"content")
        with pytest.raises(ValueError, match="loose"):
            pool.open(f"{place}/file", "rb", sharing="loose")  # type: ignore[call-overload]
        # Without room to keep anything, relaxed mode keeps nothing.
        with relaxed(pool, f"{place}/file", "r+b") as file, pool.open(f"{place}/file", "r+b", buffering=0) as writer:
            for turn in range(3):
                writer.pwrite(bytes([turn]), 0)
                assert page(file, 0, 1) == bytes([turn])


# SEMANTICS 143.7
def test_on_a_mount_an_open_has_no_mode_of_its_own(fuse: None, shared_pool: Pool, place: str) -> None:
    mount = Mount(shared_pool, "--mode", "coherent")
    name = "user.ramlace.mode"
    try:
        path: Path = mount / place / "file"
        path.write_bytes(bytes(LENGTH))
        with path.open("r+b", buffering=0) as file:
            for mode in MODES:
                fails(errno.EBUSY, os.setxattr, file.fileno(), name, mode.encode())
            fails(errno.ENODATA, os.getxattr, file.fileno(), name)

        def set_it() -> bool:
            try:
                os.setxattr(path, name, b"relaxed")
            except OSError as error:
                assert error.errno == errno.EBUSY
                return False
            return True

        # The kernel closes a file some moments later.
        assert eventually(set_it)
        with path.open("r+b", buffering=0) as file, path.open("rb", buffering=0) as other:
            # To what it is already it may be set by any descriptor, and it is told by each: it is the file's.
            os.setxattr(file.fileno(), name, b"relaxed")
            assert os.getxattr(other.fileno(), name) == b"relaxed"
            fails(errno.EBUSY, os.setxattr, other.fileno(), name, b"strict")
    finally:
        mount.close()
