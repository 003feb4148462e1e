"""Bytes through a mount: what is written by one door is read by every other."""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import random
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path

import pytest

import clients
import ramlace
from conftest import NewPool
from mount import NewMount, Program, fails
from pool import KIB, MIB, Pool, pattern
from test_content import borders

UNIT = 64 * KIB
WIDTHS = [1, 3]
SECONDS_LONG = bool(os.environ.get("RAMLACE_TEST_LONG"))
KEEP, PUNCH, COLLAPSE, ZERO = 1, 2, 8, 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(file: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2)."""
    if _libc.fallocate(file, mode, offset, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def lay_out(pool: Pool, place: str, width: int) -> None:
    """Let files that are made in a directory have small chunks on so many servers."""
    with pool.connect() as connected:
        connected.set_layout(place, stripe_unit=UNIT, width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_files_of_every_size_are_the_same_through_the_mount_and_by_the_library(
    shared_pool: Pool, place: str, here: Path, there: Path, tmp_path: Path, width: int
) -> None:
    lay_out(shared_pool, place, width)
    sizes = borders(UNIT, width)
    (here / "mount").mkdir()
    (here / "library").mkdir()
    with shared_pool.connect() as pool:
        for size in sizes:
            (here / f"mount/{size}").write_bytes(pattern(size, size))
            with pool.open(f"{place}/library/{size}", "wb", buffering=0) as file:
                assert file.write(pattern(size, size)) == size
        assert pool.layout(f"{place}/mount/1").width == width
        assert pool.layout(f"{place}/mount/1").stripe_unit == UNIT
        for size in sizes:
            expected = pattern(size, size)
            assert pool.open(f"{place}/mount/{size}").read() == expected, size
            for directory in (here / "mount", here / "library", there / "mount", there / "library"):
                assert (directory / str(size)).read_bytes() == expected, (directory, size)
                assert (directory / str(size)).stat().st_size == size
    shared_pool.run("cp", "-r", f"ramlace:{place}/mount", str(tmp_path / "copy"))
    for size in sizes:
        assert (tmp_path / f"copy/{size}").read_bytes() == pattern(size, size), size
    assert shared_pool.run("cat", f"{place}/mount/{UNIT + 1}").stdout == pattern(UNIT + 1, UNIT + 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_writes_of_every_size_at_every_border_change_nothing_beside_them(
    shared_pool: Pool, place: str, here: Path, width: int
) -> None:
    lay_out(shared_pool, place, width)
    whole = bytearray(pattern(1, 2 * UNIT * width + 9000))
    (here / "file").write_bytes(whole)
    offsets = [
        border + beside for border in (0, 4096, UNIT, UNIT * width) for beside in (-1, 0, 1) if border + beside >= 0
    ]
    lengths = [1, 4095, 4096, 4097, UNIT - 1, UNIT, UNIT + 1]
    with open(here / "file", "r+b", buffering=0) as file, shared_pool.connect() as pool:
        for turn, (offset, length) in enumerate(itertools.product(offsets, lengths)):
            data = pattern(turn + 2, length)
            assert os.pwrite(file.fileno(), data, offset) == length
            whole[offset : offset + length] = data
            assert os.pread(file.fileno(), length + 2, max(offset - 1, 0)) == whole[max(offset - 1, 0) :][: length + 2]
        assert (here / "file").read_bytes() == whole
        assert pool.open(f"{place}/file").read() == whole


# SEMANTICS 29.2
def test_a_write_is_in_the_pool_when_it_returns(shared_pool: Pool, place: str, here: Path, there: Path) -> None:
    """Without close, fsync or anything: written bytes are in no cache."""
    with open(here / "file", "wb", buffering=0) as file, shared_pool.connect() as pool:
        for turn in range(50):
            file.write(pattern(turn, 1000))
            assert pool.stat(f"{place}/file").st_size == 1000 * (turn + 1)
            assert pool.open(f"{place}/file").read()[-1000:] == pattern(turn, 1000)
        assert (there / "file").stat().st_size == 50_000


# SEMANTICS 62.1
def test_what_was_never_written_is_zeros_and_takes_hardly_any_room(shared_pool: Pool, place: str, here: Path) -> None:
    lay_out(shared_pool, place, 3)
    before = sum(server["used_bytes"] for server in shared_pool.status())
    with open(here / "sparse", "wb", buffering=0) as file:
        os.pwrite(file.fileno(), b"begin", 0)
        os.pwrite(file.fileno(), b"middle", 10 * MIB + 17)
        os.ftruncate(file.fileno(), 1 << 40)
        os.pwrite(file.fileno(), b"end", (1 << 40) - 3)
    used = sum(server["used_bytes"] for server in shared_pool.status()) - before
    # Beyond its first MiB a lane is taken in huge pages.
    assert used <= 3 * 2 * MIB, f"a file of three small pieces took {used} bytes"
    with open(here / "sparse", "rb", buffering=0) as file, shared_pool.connect() as pool:
        for offset, expected in [
            (0, b"begin" + bytes(UNIT)),
            (10 * MIB, bytes(17) + b"middle" + bytes(100)),
            ((1 << 39) - 5, bytes(10)),
            ((1 << 40) - 5, b"\0\0end"),
        ]:
            assert os.pread(file.fileno(), len(expected), offset) == expected
            buffer = bytearray(len(expected))
            assert pool.open(f"{place}/sparse", buffering=0).pread_into(buffer, offset) == len(expected)
            assert buffer == expected
        assert os.pread(file.fileno(), 10, 1 << 40) == b""
        assert os.lseek(file.fileno(), 100, os.SEEK_DATA) == 100
        assert os.lseek(file.fileno(), 100, os.SEEK_HOLE) == 4 * KIB
        # A huge page of a lane is 32 chunks, each behind two of other lanes.
        assert 10 * MIB - 3 * 2 * MIB < os.lseek(file.fileno(), MIB, os.SEEK_DATA) <= 10 * MIB + 17
        assert (1 << 40) - 3 * 2 * MIB < os.lseek(file.fileno(), 1 << 39, os.SEEK_DATA) < 1 << 40


def test_what_a_truncation_cut_off_is_zeros_when_the_file_grows_again(here: Path, there: Path) -> None:
    for size in (0, 1, 4095, 4096, 5000, UNIT, UNIT + 1):
        (here / "file").write_bytes(pattern(1, 3 * UNIT))
        # Both have the old bytes in their pages.
        assert (there / "file").read_bytes() == (here / "file").read_bytes() == pattern(1, 3 * UNIT)
        os.truncate(here / "file", size)
        os.truncate(there / "file", 2 * UNIT)
        expected = pattern(1, size) + bytes(2 * UNIT - size)
        assert (here / "file").read_bytes() == expected, size
        assert (there / "file").read_bytes() == expected, size


# SEMANTICS 32.1
def test_appends_from_several_programs_and_mounts_leave_no_hole_and_no_overlap(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    lay_out(shared_pool, place, 3)
    (here / "log").write_bytes(b"")
    count = 60
    works = [(append_through_mount, str((here, there)[writer % 2] / "log"), writer, count) for writer in range(3)]
    library = (clients.append_records, shared_pool.name, True, f"{place}/log", 3, count)
    clients.run_all(*works, library)
    content = (here / "log").read_bytes()
    assert (there / "log").read_bytes() == content
    next_number, at = [0] * 4, 0
    while at < len(content):
        writer = int.from_bytes(content[at : at + 2], "little")
        assert writer < 4, f"no record begins at byte {at} of {len(content)}"
        expected = clients.record(writer, next_number[writer])
        assert content[at : at + len(expected)] == expected, f"writer {writer}'s next record is not at {at}"
        next_number[writer] += 1
        at += len(expected)
    assert next_number == [count] * 4


def append_through_mount(line: clients.Line, path: str, writer: int, count: int) -> None:
    """Append records to a file, as a client of the test above."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    line.ready()
    for number in range(count):
        data = clients.record(writer, number)
        assert os.write(file, data) == len(data)
    os.close(file)


# SEMANTICS 32.2
@pytest.mark.parametrize("length", [MIB - 4 * KIB, 3 * MIB])
def test_a_large_append_stays_in_one_piece(shared_pool: Pool, place: str, here: Path, there: Path, length: int) -> None:
    """Up to 1 MiB less a page, which the kernel hands over at once, also between mounts; any length on one mount."""
    lay_out(shared_pool, place, 3)
    (here / "log").write_bytes(b"x" * 5)
    rounds, mounts = 3, (here, there) if length < MIB else (here, here)
    programs = [Program(f"file = os.open({str(mount / 'log')!r}, os.O_WRONLY | os.O_APPEND)") for mount in mounts * 2]
    try:
        for number, program in enumerate(programs):
            # Not at the beginning of a page, as the buffers of programs are.
            program.run(f"data = memoryview(b'{number}' * {length + 1})[1:]")
            program.begin(f"[os.write(file, data) for _ in range({rounds})]", "ask")
        for program in programs:
            assert program.hear() == [length] * rounds
    finally:
        for program in programs:
            program.kill()
    content = (here / "log").read_bytes()
    assert len(content) == 5 + len(programs) * rounds * length
    records = [content[at : at + length] for at in range(5, len(content), length)]
    assert sorted(records) == sorted(b"%d" % number * length for number in range(len(programs)) for _ in range(rounds))


def test_appended_bytes_are_read_back_by_the_same_descriptor(here: Path, there: Path) -> None:
    with open(here / "log", "a+b", buffering=0) as first, open(there / "log", "a+b", buffering=0) as second:
        expected = b""
        for turn in range(40):
            for file in (first, second):
                data = pattern(turn, 700)
                assert file.write(data) == 700
                expected += data
                assert os.pread(file.fileno(), len(expected) + 10, 0) == expected
    assert (here / "log").read_bytes() == expected


def test_truncating_opens_empty_a_file_for_everybody(shared_pool: Pool, place: str, here: Path, there: Path) -> None:
    for turn in range(10):
        (here / "file").write_bytes(pattern(turn, 100_000))
        assert (there / "file").read_bytes() == pattern(turn, 100_000)
        with open(there / "file", "wb"):
            assert (here / "file").stat().st_size == 0
            assert (here / "file").read_bytes() == b""
        with shared_pool.connect() as pool:
            assert pool.stat(f"{place}/file").st_size == 0
    # Also one that is kept open: it reads what is written after.
    (here / "file").write_bytes(pattern(1, 10_000))
    with open(here / "file", "rb", buffering=0) as kept:
        assert kept.read(100) == pattern(1, 100)
        (here / "file").write_bytes(pattern(2, 5000))
        assert os.pread(kept.fileno(), 10_000, 0) == pattern(2, 5000)


def test_direct_reads_and_writes_of_any_size_and_place(shared_pool: Pool, place: str, here: Path) -> None:
    lay_out(shared_pool, place, 3)
    with shared_pool.connect() as pool:
        pool.open(f"{place}/file", "wb", buffering=0).close()
        model = bytearray()
        descriptor = os.open(here / "file", os.O_RDWR | os.O_DIRECT)
        try:
            aligned = mmap.mmap(-1, 4 * MIB)
            for turn, (offset, length) in enumerate(
                [(0, 3 * MIB), (4096, 4096), (MIB, 2 * MIB), (3 * MIB, 5), (7, 70_001)]
            ):
                aligned[:length] = data = pattern(turn, length)
                assert os.pwritev(descriptor, [memoryview(aligned)[:length]], offset) == length
                model[offset : offset + length] = data
                assert pool.open(f"{place}/file").read() == model
                assert os.preadv(descriptor, [aligned], 0) == len(model)
                assert aligned[: len(model)] == model
            # What the library has written since is read without a new open.
            with pool.open(f"{place}/file", "r+b", buffering=0) as other:
                other.pwrite(b"fresh", 1000)
            model[1000:1005] = b"fresh"
            assert os.preadv(descriptor, [aligned], 0) == len(model)
            assert aligned[: len(model)] == model
        finally:
            os.close(descriptor)
        assert (here / "file").read_bytes() == model


class Model:
    """A file in a mount beside what it should hold."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.path = path
        self.bytes = bytearray()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags)

    def write(self, offset: int, data: bytes) -> None:
        assert os.pwrite(self.descriptor, data, offset) == len(data)
        self._reach(offset)
        self.bytes[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self._reach(size)
        del self.bytes[size:]

    def fallocate(self, mode: int, offset: int, length: int) -> None:
        fallocate(self.descriptor, mode, offset, length)
        if not mode & KEEP:
            self._reach(offset + length)
        if mode & (PUNCH | ZERO):
            end = min(offset + length, len(self.bytes))
            self.bytes[offset:end] = bytes(max(end - offset, 0))

    def _reach(self, size: int) -> None:
        self.bytes.extend(bytes(max(size - len(self.bytes), 0)))

    def check(self, offset: int, length: int) -> None:
        assert os.pread(self.descriptor, length, offset) == self.bytes[offset : offset + length]
        assert os.fstat(self.descriptor).st_size == len(self.bytes)


# SEMANTICS 29.1
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(20 if SECONDS_LONG else 3))
def test_random_changes_leave_what_a_bytearray_holds(
    shared_pool: Pool, place: str, here: Path, there: Path, width: int, seed: int
) -> None:
    lay_out(shared_pool, place, width)
    chance = random.Random(seed)
    model = Model(here / "file", os.O_DIRECT if seed == 2 else 0)
    limit = 4 * UNIT * width

    def allocate(mode: int) -> Callable[[int, int], None]:
        return lambda offset, length: model.fallocate(mode, offset, length)

    changes: list[Callable[[int, int], None]] = [
        *[lambda offset, length: model.write(offset, pattern(chance.randrange(1000), length))] * 8,
        lambda offset, _: model.truncate(offset),
        *map(allocate, (0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP)),
    ]
    near = [border + beside for border in (4096, UNIT, UNIT * width, 2 * UNIT * width) for beside in (-1, 0, 1)]
    with shared_pool.connect() as pool:
        try:
            for turn in range(150):
                offset = chance.choice([chance.randrange(limit), chance.choice(near)])
                length = chance.choice([chance.randrange(1, 200), chance.randrange(1, 2 * UNIT), chance.choice(near)])
                chance.choice(changes)(offset, length)
                model.check(max(offset - 100, 0), length + 200)
                if turn % 25 == 24:
                    assert (there / "file").read_bytes() == model.bytes, turn
                    assert pool.open(f"{place}/file").read() == model.bytes, turn
            assert (here / "file").read_bytes() == model.bytes
        finally:
            os.close(model.descriptor)


# SEMANTICS 61.1, 61.2
def test_fallocate_takes_room_punches_and_zeroes(shared_pool: Pool, place: str, here: Path) -> None:
    lay_out(shared_pool, place, 3)
    path = here / "file"

    def used() -> int:
        return sum(server["used_bytes"] for server in shared_pool.status())

    with open(path, "w+b", buffering=0) as file:
        number, before = file.fileno(), used()
        fallocate(number, KEEP, 0, 8 * MIB)
        assert os.fstat(number).st_size == 0
        assert used() - before >= 8 * MIB
        os.posix_fallocate(number, 0, 4 * MIB)
        assert os.fstat(number).st_size == 4 * MIB
        assert file.read() == bytes(4 * MIB)
        os.pwrite(number, pattern(1, 4 * MIB), 0)
        fallocate(number, PUNCH | KEEP, 4097, 2 * MIB)
        expected = bytearray(pattern(1, 4 * MIB))
        expected[4097 : 4097 + 2 * MIB] = bytes(2 * MIB)
        assert os.pread(number, 5 * MIB, 0) == expected
        fallocate(number, ZERO, 4 * MIB - 10, 20)
        expected[-10:] = bytes(20)
        assert os.pread(number, 5 * MIB, 0) == expected
        for mode in (COLLAPSE, PUNCH, 0x20, 0x40):
            fails(errno.EOPNOTSUPP, fallocate, number, mode, 0, 65_536)
        fails(errno.EINVAL, fallocate, number, 0, 0, 0)
        fails(errno.ENOSPC, fallocate, number, 0, 0, 1 << 40)
        # Room far behind is room there alone, and holes before stay holes.
        before = used()
        for mode in (KEEP, ZERO | KEEP):
            fallocate(number, mode, 1 << 40, 3 * MIB)
            # Each of three lanes takes the two huge pages that its MiB touches.
            # And a server's log grows by a page now and then.
            assert 3 * MIB <= used() - before <= 3 * 4 * MIB + 256 * KIB
        fallocate(number, PUNCH | KEEP, 1 << 40, 3 * MIB)
        assert used() - before <= 3 * 3 * MIB + 256 * KIB
        assert os.fstat(number).st_size == 4 * MIB + 10
        assert os.pread(number, 5 * MIB, 0) == expected
    with open(path, "rb") as reader:
        fails(errno.EBADF, fallocate, reader.fileno(), 0, 0, 1)


def test_cp_and_dd_copy_every_byte_whatever_they_are_told(
    shared_pool: Pool, place: str, here: Path, there: Path, tmp_path: Path
) -> None:
    lay_out(shared_pool, place, 3)
    content = pattern(1, 3 * UNIT) + bytes(5 * UNIT) + pattern(2, UNIT + 777)
    (tmp_path / "source").write_bytes(content)

    def copied(*words: str | Path, to: Path) -> None:
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert done.returncode == 0, (words, done.stderr)
        assert to.read_bytes() == content, words

    for sparse in ("auto", "always", "never"):
        inside, outside = here / f"cp-{sparse}", tmp_path / f"cp-{sparse}"
        copied("cp", f"--sparse={sparse}", tmp_path / "source", inside, to=inside)
        copied("cp", f"--sparse={sparse}", inside, outside, to=outside)
        copied("cp", f"--sparse={sparse}", inside, there / f"inside-{sparse}", to=here / f"inside-{sparse}")
    blocks = [("bs=1M",), ("bs=4095",), ("bs=64K", "oflag=direct", "iflag=fullblock"), ("bs=100K", "conv=sparse")]
    for index, options in enumerate(blocks):
        target = here / f"dd-{index}"
        copied("dd", f"if={tmp_path / 'source'}", f"of={target}", "status=none", *options, to=target)
        copied("dd", f"if={target}", f"of={tmp_path / 'back'}", "status=none", options[0], to=tmp_path / "back")
    # A piece in the middle, the rest stays.
    subprocess.run(
        [
            "dd",
            f"if={tmp_path / 'source'}",
            f"of={here / 'dd-0'}",
            "bs=1",
            "seek=100",
            "count=5",
            "conv=notrunc",
            "status=none",
        ],
        check=True,
    )
    assert (there / "dd-0").read_bytes() == content[:100] + content[:5] + content[105:]
    shutil.copyfile(here / "dd-1", there / "shutil")
    assert (here / "shutil").read_bytes() == content


# SEMANTICS 63
def test_the_kernels_own_copies_keep_every_byte(here: Path, there: Path, tmp_path: Path) -> None:
    content = pattern(3, 300_001)
    (here / "source").write_bytes(content)
    for target in (here / "same", there / "other", tmp_path / "outside"):
        with open(here / "source", "rb") as source, open(target, "wb") as to:
            done = 0
            while done < len(content):
                done += os.sendfile(to.fileno(), source.fileno(), done, len(content) - done)
        assert target.read_bytes() == content
    with open(here / "source", "rb") as source, open(here / "range", "wb") as to:
        done = 0
        while done < len(content):
            done += os.copy_file_range(source.fileno(), to.fileno(), len(content) - done, done, done)
    assert (there / "range").read_bytes() == content
    # Pieces from and to several places of memory in one call.
    with open(here / "pieces", "w+b", buffering=0) as file:
        assert os.writev(file.fileno(), [content[:1], content[1:70_000], b"", content[70_000:]]) == len(content)
        buffers = [bytearray(5), bytearray(100_000), bytearray(300_000)]
        assert os.preadv(file.fileno(), buffers, 0) == len(content)
        assert b"".join(buffers)[: len(content)] == content


def test_eight_threads_read_one_file_at_once(shared_pool: Pool, place: str, here: Path) -> None:
    lay_out(shared_pool, place, 3)
    content = pattern(1, 8 * MIB)
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "wb", buffering=0) as file:
        file.write(content)
    wrong: list[object] = []

    def read(number: int) -> None:
        chance = random.Random(number)
        flags = os.O_DIRECT if number % 2 else 0
        descriptor = os.open(here / "file", os.O_RDONLY | flags)
        try:
            for _ in range(40):
                offset, length = chance.randrange(len(content)), chance.randrange(1, 400_000)
                if os.pread(descriptor, length, offset) != content[offset : offset + length]:
                    wrong.append((number, offset, length))
        except OSError as error:
            wrong.append(error)
        finally:
            os.close(descriptor)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_write_disjoint_pieces_of_one_file_at_once(shared_pool: Pool, place: str, here: Path) -> None:
    lay_out(shared_pool, place, 3)
    piece, pieces = 40_003, 96
    descriptors = [os.open(here / "file", os.O_RDWR | os.O_CREAT | flags) for flags in (0, os.O_DIRECT, 0, os.O_DIRECT)]

    def write(nth: int) -> None:
        for index in range(nth, pieces, 4):
            assert os.pwrite(descriptors[nth], pattern(index, piece), index * piece) == piece

    threads = [threading.Thread(target=write, args=(nth,)) for nth in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for descriptor in descriptors:
        os.close(descriptor)
    expected = b"".join(pattern(index, piece) for index in range(pieces))
    assert (here / "file").read_bytes() == expected
    with shared_pool.connect() as pool:
        assert pool.open(f"{place}/file").read() == expected


def test_writes_beyond_the_largest_file_are_refused(here: Path) -> None:
    with open(here / "file", "w+b", buffering=0) as file:
        file.write(b"content")
        for offset in (1 << 62, (1 << 63) - 10):
            fails(errno.EFBIG, os.pwrite, file.fileno(), b"x", offset)
        assert os.fstat(file.fileno()).st_size == 7
        assert os.pread(file.fileno(), 10, 1 << 61) == b""
    with open(here / "file", "rb") as file:
        fails(errno.EBADF, os.write, file.fileno(), b"x")
    with open(here / "file", "ab") as file:
        fails(errno.EBADF, os.read, file.fileno(), 1)


@pytest.mark.parametrize("flags", [0, os.O_DIRECT, os.O_APPEND], ids=["buffered", "direct", "append"])
def test_a_full_pool_is_enospc_and_what_was_acknowledged_stays(
    new_pool: NewPool, new_mount: NewMount, flags: int
) -> None:
    pool = new_pool(2, 16)
    mount = new_mount(pool)
    (mount / "kept").write_bytes(pattern(9, MIB))
    descriptor = os.open(mount / "big", os.O_WRONLY | os.O_CREAT | flags)
    done = 0
    try:
        with pytest.raises(OSError, match="No space left") as refused:
            while True:
                # After a write that was cut short: the rest of it.
                done += os.write(descriptor, pattern(done // MIB, MIB)[done % MIB :])
        assert refused.value.errno == errno.ENOSPC
    finally:
        os.close(descriptor)
    assert done > 8 * MIB
    expected = b"".join(pattern(index, MIB) for index in range(done // MIB + 1))[:done]
    assert (mount / "big").read_bytes()[:done] == expected
    assert (mount / "big").stat().st_size >= done
    assert (mount / "kept").read_bytes() == pattern(9, MIB)
    (mount / "big").unlink()
    (mount / "again").write_bytes(pattern(3, 4 * MIB))
    assert (mount / "again").read_bytes() == pattern(3, 4 * MIB)


# SEMANTICS 18.1
def test_bytes_lost_with_a_server_are_eio_and_never_zeros(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=2)
        connected.mkdir("/d")
    content = pattern(1, 4 * UNIT)
    # The inode may lie on the server that dies: some names are on the other.
    names = [f"file-{index}" for index in range(12)]
    for name in names:
        (mount / name).write_bytes(content)
    pool.kill_server(1)
    pool.run("forget", "1")
    with Program() as program:
        found = 0
        for name in names:
            for chunk in range(4):
                read = f"os.pread(os.open({str(mount / name)!r}, os.O_RDONLY), {UNIT}, {chunk * UNIT})"
                try:
                    got = program.ask(read)
                except OSError as error:
                    assert error.errno == errno.EIO, error
                    continue
                assert got == content[chunk * UNIT : (chunk + 1) * UNIT], "lost bytes were read as something else"
                found += 1
        assert found, "nothing was left of what the other server held"


def test_the_mounts_errors_are_the_librarys(shared_pool: Pool, place: str, here: Path) -> None:
    (here / "file").write_bytes(b"x")
    with shared_pool.connect() as pool:
        pairs: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (lambda: pool.open(f"{place}/none"), lambda: os.open(here / "none", os.O_RDONLY)),
            (lambda: pool.mkdir(f"{place}/file"), lambda: os.mkdir(here / "file")),
            (lambda: pool.rmdir(f"{place}/file"), lambda: os.rmdir(here / "file")),
        ]
        for operation, call in pairs:
            with pytest.raises(ramlace.Error) as wanted:
                operation()
            assert wanted.value.errno
            fails(wanted.value.errno, call)


def test_a_descriptor_appends_as_long_as_it_is_told_to(here: Path, there: Path) -> None:
    """`fcntl` changes that after the open."""
    path = here / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, b"0123456789")
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
        os.pwrite(descriptor, b"X", 0)
        assert path.read_bytes() == b"X123456789"
    finally:
        os.close(descriptor)
    descriptor = os.open(path, os.O_RDWR)
    try:
        with open(there / "file", "ab") as file:
            file.write(b"theirs")
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        os.write(descriptor, b"ours")
        assert (there / "file").read_bytes() == b"X123456789theirsours"
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"X123456789theirsours"


# SEMANTICS 114.1
def test_a_descriptor_that_is_told_to_append_behind_whole_pages_loses_no_store(here: Path, there: Path) -> None:
    """Its kernel holds the page behind them for the write, and has a lease on the whole file."""
    path = here / "file"
    for size in (0, 4_096, 2 * 65_536):
        path.write_bytes(b"a" * size)
        with path.open("r+b", buffering=0) as file:
            assert file.read() == b"a" * size
            view = mmap.mmap(file.fileno(), size) if size else None
            if view:
                view[0] = ord("s")
            fcntl.fcntl(file.fileno(), fcntl.F_SETFL, os.O_APPEND)
            assert file.write(b"appended") == 8
            if view:
                view.flush()
                view.close()
        assert (there / "file").read_bytes() == b"s" * bool(size) + b"a" * (size - 1) + b"appended"
        assert path.read_bytes() == (there / "file").read_bytes()
        path.unlink()


# SEMANTICS 32.1
def test_descriptors_of_two_mounts_that_are_told_to_append_do_not_wait_for_each_other(here: Path, there: Path) -> None:
    """Each kernel holds the page behind the end, and each has a lease on all of the file."""
    pieces = 20
    (here / "file").write_bytes(b"a" * 4_096)
    with ExitStack() as stack:
        files = [stack.enter_context((mount / "file").open("r+b", buffering=0)) for mount in (here, there)]
        views = [stack.enter_context(mmap.mmap(file.fileno(), 0)) for file in files]
        for file in files:
            assert file.read() == b"a" * 4_096
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        for number, view in enumerate(views):
            view[number] = ord("s")
        with ThreadPoolExecutor(len(files)) as threads:
            append = partial(appends, pieces=pieces)
            assert list(threads.map(append, files, [b"x" * 100, b"y" * 100])) == [None, None]
        for view in views:
            view.flush()
    content = (here / "file").read_bytes()
    assert content == (there / "file").read_bytes()
    assert content[:4_096] == b"ss" + b"a" * 4_094
    appended = [content[at : at + 100] for at in range(4_096, len(content), 100)]
    assert Counter(appended) == {b"x" * 100: pieces, b"y" * 100: pieces}


def appends(file: FileIO, piece: bytes, pieces: int) -> None:
    """Append it so often."""
    for _ in range(pieces):
        assert file.write(piece) == len(piece)


# SEMANTICS 114.1
def test_a_descriptor_that_is_told_to_write_directly_loses_no_store_and_shows_what_others_write(
    here: Path, there: Path
) -> None:
    """It was opened without, so its kernel may put what it writes into pages."""
    (here / "file").write_bytes(b"a" * 8_192)
    with ExitStack() as stack:
        file, other = (stack.enter_context((mount / "file").open("r+b", buffering=0)) for mount in (here, there))
        view = stack.enter_context(mmap.mmap(file.fileno(), 0))
        assert view[:] == b"a" * 8_192
        view[5_000] = ord("s")
        fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
        page = stack.enter_context(mmap.mmap(-1, 4_096))
        page.write(b"d" * 4_096)
        assert os.pwritev(file.fileno(), [page], 0) == 4_096
        assert os.pwrite(other.fileno(), b"o", 7) == 1
        assert view[:10] == b"dddddddodd"
        view.flush()
    expected = b"dddddddo" + b"d" * 4_088 + b"a" * 904 + b"s" + b"a" * 3_191
    assert (there / "file").read_bytes() == (here / "file").read_bytes() == expected
