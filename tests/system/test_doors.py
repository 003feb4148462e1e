"""Publish and refresh of some bytes, by every door: each beside each, against the same expectations."""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import ramlace
from mount import REFRESH, Mount, fails
from pool import BUILT, KIB, Pool

pytestmark = pytest.mark.both

LIBRARY = BUILT / "libramlace.so"
PAGE = 4 * KIB
UNIT = 64 * KIB
LENGTH = 9 * UNIT
# As in ramlace.h.
PUBLISH_CALL = 0x4010E601
REFRESH_CALL = 0x4010E602
BEYOND = 1 << 63


class Door:
    """The file as memory of a program on a machine of its own."""

    memory: Any

    def __init__(self, mount: Mount, path: str) -> None:
        """Open the file there, or by the library beside it."""
        raise NotImplementedError

    def store(self, offset: int, content: bytes) -> None:
        """Store bytes, and tell nobody."""
        self.memory[offset : offset + len(content)] = content

    def load(self, offset: int, length: int) -> bytes:
        """Load bytes."""
        return bytes(self.memory[offset : offset + length])

    def publish(self, offset: int, length: int) -> None:
        """Make stores into some bytes visible to others."""
        raise NotImplementedError

    def refresh(self, offset: int, length: int) -> None:
        """Make what others have published visible."""
        raise NotImplementedError

    def refuses(self, offset: int, length: int) -> None:
        """Check that bytes beyond any file are refused."""
        for verb in (self.publish, self.refresh):
            fails(errno.EINVAL, verb, offset, length)

    def close(self) -> None:
        """Give everything back."""


class Mapped(Door):
    """A program's mapping on a mount: `msync`, and the attribute."""

    def __init__(self, mount: Mount, path: str) -> None:
        self.pool, self.path = mount.pool, mount / path
        self.file = os.open(self.path, os.O_RDWR)
        self.memory = mmap.mmap(self.file, 0)

    def publish(self, offset: int, length: int) -> None:
        start = offset // PAGE * PAGE
        self.memory.flush(start, min(offset + length, LENGTH) - start)

    def refresh(self, offset: int, length: int) -> None:
        os.getxattr(self.path, f"{REFRESH}.{offset}.{length}")

    def refuses(self, offset: int, length: int) -> None:
        fails(errno.EINVAL, self.refresh, offset, length)

    def close(self) -> None:
        self.memory.close()
        os.close(self.file)


class Called(Mapped):
    """The same by `ioctl`."""

    def publish(self, offset: int, length: int) -> None:
        fcntl.ioctl(self.file, PUBLISH_CALL, struct.pack("QQ", offset, length))

    def refresh(self, offset: int, length: int) -> None:
        fcntl.ioctl(self.file, REFRESH_CALL, struct.pack("QQ", offset, length))

    def refuses(self, offset: int, length: int) -> None:
        Door.refuses(self, offset, length)


class Commanded(Mapped):
    """The same by the command."""

    def publish(self, offset: int, length: int) -> None:
        self.pool.run("publish", "--offset", str(offset), "--length", str(length), str(self.path))

    def refresh(self, offset: int, length: int) -> None:
        self.pool.run("refresh", "--offset", str(offset), "--length", str(length), str(self.path))

    def refuses(self, offset: int, length: int) -> None:
        for verb in ("publish", "refresh"):
            words = (verb, "--offset", str(offset), "--length", str(length), str(self.path))
            assert "beyond any file" in self.pool.refused(*words)


class Python(Door):
    """An array's view."""

    local = True

    def __init__(self, mount: Mount, path: str) -> None:
        self.pool = mount.pool.connect(local=self.local)
        self.array = self.pool.array(path)
        assert self.array.is_shared == self.local
        self.memory = self.array.view().data

    def publish(self, offset: int, length: int) -> None:
        self.array.publish(slice(offset, offset + length))

    def refresh(self, offset: int, length: int) -> None:
        self.array.refresh(slice(offset, offset + length))

    def refuses(self, offset: int, length: int) -> None:
        """As everywhere in Python a slice ends where the array does."""
        self.publish(offset, length)
        self.refresh(offset, length)

    def close(self) -> None:
        self.memory.release()
        self.array.close()
        self.pool.close()


class PythonElsewhere(Python):
    """An array's view on a machine without servers."""

    local = False


class Options(ctypes.Structure):
    """`struct ramlace_options`."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("deadline_millis", ctypes.c_uint32),
        ("local", ctypes.c_int32),
        ("secret_file", ctypes.c_char_p),
        ("label", ctypes.c_char_p),
    )


def library() -> ctypes.CDLL:
    """Return the C library, with the types of what is called here."""
    loaded = ctypes.CDLL(str(LIBRARY), use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    loaded.ramlace_connect.restype = loaded.ramlace_open.restype = loaded.ramlace_view.restype = pointer
    loaded.ramlace_view.argtypes = (pointer, size, size, pointer)
    loaded.ramlace_open.argtypes = (pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint)
    for call in (loaded.ramlace_publish, loaded.ramlace_refresh):
        call.argtypes = (pointer, number, number)
    loaded.ramlace_allocate.argtypes = (pointer, number)
    for call in (loaded.ramlace_close, loaded.ramlace_unmap, loaded.ramlace_disconnect):
        call.argtypes = (pointer,)
    return loaded


class Library(Door):
    """A view of the C library."""

    local = 1
    shared = 1

    def __init__(self, mount: Mount, path: str) -> None:
        self.library = library()
        options = Options(ctypes.sizeof(Options), 0, self.local, None, None)
        self.pool = self.library.ramlace_connect(mount.pool.name.encode(), ctypes.byref(options))
        self.file = self.library.ramlace_open(self.pool, path.encode(), os.O_RDWR, 0)
        self.view(self.shared)

    def view(self, shared: int) -> None:
        """Make the file memory of the program: its own, or a copy."""
        found = ctypes.c_int(-1)
        self.start = self.library.ramlace_view(self.file, 0, 0, ctypes.byref(found))
        assert self.start, os.strerror(ctypes.get_errno())
        assert found.value == shared
        self.memory = memoryview((ctypes.c_char * LENGTH).from_address(self.start)).cast("B")

    def call(self, function: Any, *arguments: object) -> None:
        """Call a function, and raise what it fails with."""
        if function(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def publish(self, offset: int, length: int) -> None:
        self.call(self.library.ramlace_publish, self.file, offset, length)

    def refresh(self, offset: int, length: int) -> None:
        self.call(self.library.ramlace_refresh, self.file, offset, length)

    def close(self) -> None:
        self.memory.release()
        self.call(self.library.ramlace_unmap, self.start)
        self.call(self.library.ramlace_close, self.file)
        self.call(self.library.ramlace_disconnect, self.pool)


class LibraryElsewhere(Library):
    """A view of the C library on a machine without servers."""

    local = -1
    shared = 0


class LibraryWithHoles(Library):
    """A view of a file on a machine of its servers, of which bytes have no memory."""

    shared = 0


DOORS = (Mapped, Called, Commanded, Python, PythonElsewhere, Library, LibraryElsewhere)
# The file's own memory: nobody is asked about stores into it, so none of them are merged with a mount's pages (8).
SHARED = (Python, Library)


@pytest.fixture(scope="module")
def mounts(fuse: None, shared_pool: Pool) -> Iterator[list[Mount]]:
    """Three mounts of the shared pool: on the first two somebody has to ask for what is new."""
    with ExitStack() as stack:
        mounts = []
        for words in (["--mode", "relaxed"], ["--mode", "relaxed"], []):
            mounts.append(Mount(shared_pool, *words))
            stack.callback(mounts[-1].close)
        yield mounts


def check(one: Door, two: Door, third: ramlace.Pool, path: str, *, merges: bool) -> None:
    """Check what every door promises of some bytes."""
    # What is published is there after a refresh of these bytes; what was stored and not published stays.
    two.store(3 * PAGE + 7, b"b" * 9)
    one.store(100, b"a" * 50)
    one.publish(100, 50)
    two.refresh(100, 50)
    assert two.load(90, 70) == bytes(10) + b"a" * 50 + bytes(10)
    two.refresh(0, LENGTH)
    assert two.load(3 * PAGE + 7, 9) == b"b" * 9
    two.publish(3 * PAGE + 7, 9)
    one.refresh(3 * PAGE, PAGE)
    assert one.load(3 * PAGE, PAGE) == bytes(7) + b"b" * 9 + bytes(PAGE - 16)
    # Bytes of one page, and of several lanes.
    if merges:
        one.store(UNIT - 30, b"c" * 20)
        two.store(UNIT - 10, b"d" * 20)
        one.publish(UNIT - 30, 20)
        two.publish(UNIT - 10, 20)
        for door in (one, two):
            door.refresh(UNIT - 30, 40)
            assert door.load(UNIT - 30, 40) == b"c" * 20 + b"d" * 20
    # As far as the file goes.
    two.store(LENGTH - 1, b"e")
    two.publish(LENGTH - 1, 1 << 40)
    one.refresh(LENGTH - 1, 1 << 40)
    assert one.load(LENGTH - 1, 1) == b"e"
    for door in (one, two):
        door.refuses(BEYOND - 5, 10)
    with third.open(path, "rb") as file:
        content = file.read()
    expected = bytearray(LENGTH)
    expected[100:150], expected[3 * PAGE + 7 : 3 * PAGE + 16], expected[LENGTH - 1] = b"a" * 50, b"b" * 9, ord("e")
    if merges:
        expected[UNIT - 30 : UNIT + 10] = b"c" * 20 + b"d" * 20
    assert content == bytes(expected)


# SEMANTICS 8.4, 43.6
@pytest.mark.parametrize(("first", "second"), list(itertools.product(DOORS, DOORS)))
def test_some_bytes_are_published_and_refreshed_by_every_door(
    mounts: list[Mount], shared_pool: Pool, place: str, first: type[Door], second: type[Door]
) -> None:
    for mount in mounts:
        mount.daemon.watch()
    path = f"{place}/file"
    with shared_pool.connect() as third:
        third.set_layout(place, stripe_unit=UNIT, width=3)
        third.array(path, LENGTH, "u1").close()
        one = first(mounts[0], path)
        two = second(mounts[1], path)
        merges = not ({first, second} & set(SHARED) and (issubclass(first, Mapped) or issubclass(second, Mapped)))
        try:
            check(one, two, third, path, merges=merges)
        finally:
            one.close()
            two.close()


# SEMANTICS 8.4
def test_what_is_stored_into_memory_of_a_file_of_which_there_is_a_copy_too_is_published(
    mounts: list[Mount], shared_pool: Pool, place: str
) -> None:
    path = f"{place}/file"
    with shared_pool.connect() as third, third.open(path, "wb", buffering=0) as file:
        file.truncate(LENGTH)
        one = LibraryWithHoles(mounts[0], path)
        copied = one.start
        one.call(one.library.ramlace_allocate, one.file, LENGTH)
        one.view(shared=1)
        two = LibraryElsewhere(mounts[1], path)
        two.refresh(0, LENGTH)
        for turn in range(1, 4):
            one.store(100, bytes([turn]) * 50)
            one.publish(100, 50)
            two.refresh(100, 50)
            assert two.load(100, 50) == bytes([turn]) * 50
        one.call(one.library.ramlace_unmap, copied)
        one.close()
        two.close()


# SEMANTICS 43.6
def test_a_call_that_no_file_of_a_mount_knows_is_no_call_of_it(mounts: list[Mount], place: str, tmp_path: Path) -> None:
    coherent = mounts[2]
    (coherent / f"{place}/file").write_bytes(b"content")
    (tmp_path / "file").write_bytes(b"content")
    span = struct.pack("QQ", 0, 0)
    with (coherent / f"{place}/file").open("rb") as reader, (tmp_path / "file").open("rb") as other:
        fcntl.ioctl(reader, PUBLISH_CALL, span)
        fcntl.ioctl(reader, REFRESH_CALL, span)
        fails(errno.ENOTTY, fcntl.ioctl, reader, PUBLISH_CALL + 7, span)
        fails(errno.ENOTTY, fcntl.ioctl, other, PUBLISH_CALL, span)
    directory = os.open(coherent / place, os.O_RDONLY)
    fails(errno.ENOTTY, fcntl.ioctl, directory, PUBLISH_CALL, span)
    os.close(directory)
