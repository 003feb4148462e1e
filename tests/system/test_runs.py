"""Many runs of bytes in one call of the C library: what they cost, and what is there afterwards."""

import ctypes
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conftest import NewPool
from mount import NewMount
from pool import BUILT, Pool, pattern

LIBRARY = BUILT / "libramlace.so"
UNIT = 64 << 10


class Run(ctypes.Structure):
    """`ramlace_run`."""

    _fields_ = [(name, ctypes.c_int64) for name in ("offset", "length", "stride", "count")]


class Hints(ctypes.Structure):
    """The first fields of `ramlace_hints`."""

    _fields_ = [("size", ctypes.c_size_t), ("stripe_unit", ctypes.c_uint64), ("width", ctypes.c_uint32)]


Description = tuple[int, int, int, int]


class Library:
    """The C library, connected to a pool."""

    def __init__(self, pool: Pool) -> None:
        self.c = ctypes.CDLL(str(LIBRARY), use_errno=True)
        self.c.ramlace_error.restype = ctypes.c_char_p
        for name in ("ramlace_connect", "ramlace_open_with"):
            getattr(self.c, name).restype = ctypes.c_void_p
        for name in ("ramlace_pread_runs", "ramlace_pwrite_runs"):
            getattr(self.c, name).restype = ctypes.c_ssize_t
        self.pool = ctypes.c_void_p(self.c.ramlace_connect(pool.name.encode(), None))
        assert self.pool, self.c.ramlace_error()

    def open(self, path: str, unit: int = UNIT, width: int = 3) -> "File":
        """Open a file for reading and writing; make it where it is not there."""
        hints = Hints(ctypes.sizeof(Hints), unit, width)
        flags = os.O_RDWR | os.O_CREAT
        file = self.c.ramlace_open_with(self.pool, path.encode(), flags, 0o666, ctypes.byref(hints))
        assert file, self.c.ramlace_error()
        return File(self, ctypes.c_void_p(file))

    def close(self) -> None:
        """End the connection."""
        assert self.c.ramlace_disconnect(self.pool) == 0


class File:
    """An open file."""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self.library, self.handle = library, handle

    def write(self, described: list[Description], data: bytes) -> int:
        """Write runs; how many bytes that were."""
        runs = (Run * len(described))(*(Run(*one) for one in described))
        count = ctypes.c_size_t(len(described))
        written = self.library.c.ramlace_pwrite_runs(self.handle, data, ctypes.c_size_t(len(data)), runs, count)
        assert written >= 0, self.library.c.ramlace_error()
        return int(written)

    def read(self, described: list[Description]) -> bytes:
        """Read runs, as far as the file goes."""
        runs = (Run * len(described))(*(Run(*one) for one in described))
        length = sum(each * count for _, each, _, count in described)
        buffer = ctypes.create_string_buffer(length)
        count = ctypes.c_size_t(len(described))
        read = self.library.c.ramlace_pread_runs(self.handle, buffer, ctypes.c_size_t(length), runs, count)
        assert read >= 0, self.library.c.ramlace_error()
        return buffer.raw[:read]

    def cut(self, size: int) -> None:
        """Set the size."""
        assert self.library.c.ramlace_ftruncate(self.handle, ctypes.c_int64(size)) == 0, self.library.c.ramlace_error()

    def close(self) -> None:
        """Close the file."""
        assert self.library.c.ramlace_close(self.handle) == 0


@contextmanager
def library(pool: Pool) -> Iterator[Library]:
    """The C library, connected while the block runs."""
    connected = Library(pool)
    try:
        yield connected
    finally:
        connected.close()


def counts(pool: Pool, *kinds: str) -> list[int]:
    """How many messages of each kind all servers have answered."""
    told = {one["message"]: one["answers"] for one in pool.json("status", "--messages")["messages"]}
    return [told.get(kind, 0) for kind in kinds]


# SEMANTICS 98.4
def test_a_subarray_of_4_kib_rows_costs_one_request_for_each_server(new_pool: NewPool) -> None:
    pool = new_pool()
    kinds = ("WriteRuns", "ReadRuns", "WriteChunk", "ExtendChunk", "ReadChunk")
    with library(pool) as connected:
        # An array of 256 rows of 12 KiB, of which the middle third is one rank's.
        file = connected.open("/array")
        file.write([(0, 1, 0, 1), (256 * 3 * 4096 - 1, 1, 0, 1)], b"..")
        before = counts(pool, *kinds)
        rows, data = [(4096, 4096, 3 * 4096, 256)], pattern(1, 1 << 20)
        assert file.write(rows, data) == 1 << 20
        assert file.read(rows) == data
        assert [now - then for now, then in zip(counts(pool, *kinds), before, strict=True)] == [3, 3, 0, 0, 0]
        # What lies between the rows was not touched, and took no memory of its own.
        assert file.read([(0, 4096, 0, 1), (2 * 4096, 8192, 3 * 4096, 255)]) == b"." + bytes(4095 + 255 * 8192)
        file.close()


def described(draw: random.Random, most: int) -> list[Description]:
    """Ascending descriptions of a few runs, or of thousands."""
    found, at = [], 0
    for _ in range(draw.randrange(1, 6)):
        length, count = draw.choice([1, 8, 100, 4096, 70_000]), draw.choice([1, 1, 3, 50])
        stride = length + draw.choice([0, 1, 24, 3000, UNIT - 1])
        offset = at + draw.choice([0, 1, 500, UNIT])
        at = offset + (count - 1) * stride + length
        if at > most:
            break
        found.append((offset, length, stride, count))
    return found or [(draw.randrange(most - 10), 3, 0, 1)]


def places(descriptions: list[Description]) -> Iterator[tuple[int, int]]:
    """The first and the last place of each run."""
    for offset, length, stride, count in descriptions:
        for number in range(count):
            yield offset + number * stride, offset + number * stride + length


class Both:
    """A file, and what it must hold."""

    def __init__(self, file: File) -> None:
        self.file, self.model = file, bytearray()

    def write(self, draw: random.Random, most: int) -> None:
        """Write drawn runs."""
        runs = described(draw, most)
        data = draw.randbytes(sum(end - start for start, end in places(runs)))
        assert self.file.write(runs, data) == len(data)
        at = 0
        for start, end in places(runs):
            self.model.extend(bytes(max(0, end - len(self.model))))
            self.model[start:end] = data[at : at + end - start]
            at += end - start

    def look(self, draw: random.Random, most: int) -> None:
        """Read drawn runs."""
        runs = described(draw, most)
        assert self.file.read(runs) == b"".join(bytes(self.model[start:end]) for start, end in places(runs))

    def cut(self, size: int) -> None:
        """Make it shorter, or longer."""
        self.file.cut(size)
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))


# SEMANTICS 98.5
@pytest.mark.parametrize("seed", range(3))
def test_random_runs_leave_what_a_bytearray_holds_while_servers_are_killed(new_pool: NewPool, seed: int) -> None:
    pool, draw = new_pool(3, 64), random.Random(seed)
    with library(pool) as connected:
        both = Both(connected.open("/random", width=draw.choice([1, 2, 3])))
        for step in range(60):
            # Small at first: the file lives with its inode.
            most = 3000 if step < 10 else 8 << 20
            draw.choice([both.write, both.write, both.look])(draw, most)
            if step % 7 == 6:
                both.cut(draw.randrange(most))
            if step % 20 == 19:
                # Whatever is under way, or comes before it is back, has one effect.
                pool.kill_child(draw.randrange(3))
        assert both.file.read([(0, max(1, len(both.model)), 0, 1)]) == bytes(both.model)
        both.file.close()
    assert pool.check() == []


# SEMANTICS 98.5
@pytest.mark.parametrize("mode", ["coherent", "strict"])
def test_what_is_written_in_runs_is_seen_by_mounts_and_their_stores_between_them_stay(
    new_pool: NewPool, new_mount: NewMount, mode: str
) -> None:
    pool = new_pool(2, 64)
    mount = new_mount(pool, "--mode", mode)
    page, rows = 4096, 40
    with library(pool) as connected:
        file = connected.open("/shared", width=2)
        file.write([(0, page * rows * 2, 0, 1)], b"." * page * rows * 2)
        with (mount / "shared").open("r+b") as opened:
            for turn in range(1, 4):
                # The mount has all of it in its pages, and changes what lies between the rows.
                opened.seek(0)
                assert len(opened.read()) == page * rows * 2
                for row in range(rows):
                    opened.seek(row * 2 * page + 100)
                    opened.write(b"m%02d" % turn)
                    opened.flush()
                data = bytes([turn]) * 8 * rows
                assert file.write([(8, 8, 2 * page, rows)], data) == len(data)
                opened.seek(0)
                seen = opened.read()
                for row in range(rows):
                    at = row * 2 * page
                    assert seen[at + 8 : at + 16] == bytes([turn]) * 8
                    assert seen[at + 100 : at + 103] == b"m%02d" % turn
                assert file.read([(100, 3, 2 * page, rows)]) == b"m%02d" % turn * rows
        file.close()
    assert pool.check() == []
