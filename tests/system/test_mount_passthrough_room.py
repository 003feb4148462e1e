"""Size and memory of files that the kernel reads and maps without asking: no hole, no gap, no store without room."""

import errno
import os
import signal

import pytest

from mount import Program, fails, mapping
from passthrough import PAGE, SIZE, PassthroughPool
from pool import KIB, MIB, eventually
from test_mount_bytes import KEEP, PUNCH, ZERO, fallocate

# The kernel lets root alone hand files over.
pytestmark = pytest.mark.needs_root


# SEMANTICS 91.1
def test_a_size_that_anybody_changes_counts_for_mappings(passthrough: PassthroughPool) -> None:
    content = passthrough.make()
    path = passthrough.here / "file"
    with passthrough.pool.connect() as pool, Program(mapping(path)) as program:
        pool.truncate("file", MIB + 5)
        assert program.ask(f"view[:{MIB + 5}]") == content[: MIB + 5]
        assert program.ask("os.fstat(file).st_size") == MIB + 5
        # The rest of the last page is zeros, and behind it there is nothing.
        assert program.ask(f"view[{MIB + 5}:{MIB + 9}]") == bytes(4)
        pool.truncate("file", 3 * MIB)
        program.run(f"more = mmap.mmap(file, {3 * MIB})")
        assert program.ask(f"more[{MIB}:]") == content[MIB : MIB + 5] + bytes(2 * MIB - 5)
        program.run(f"more[{3 * MIB - 1}] = 9")
        os.truncate(passthrough.there / "file", 4 * MIB)
        program.run(f"os.ftruncate(file, {5 * MIB}); last = mmap.mmap(file, {5 * MIB}); last[-1] = 8")
        with pool.open("file", "r+b", buffering=0) as file:
            # Far behind the end: what lies between takes its memory, too.
            file.pwrite(b"x", 9 * MIB)
        program.run(f"far = mmap.mmap(file, 0); far[{7 * MIB}] = 7")
        assert passthrough.used_bytes() >= 9 * MIB
        found = passthrough.bytes_of()
        assert (len(found), found[3 * MIB - 1], found[5 * MIB - 1], found[7 * MIB]) == (9 * MIB + 1, 9, 8, 7)
        pool.truncate("file", PAGE)
        assert program.dies_of(f"view[{PAGE}]") == signal.SIGBUS
    assert path.read_bytes() == found[:PAGE]


# SEMANTICS 92.3
def test_a_hole_is_zeros_with_memory_while_a_kernel_has_the_file_and_none_afterwards(
    passthrough: PassthroughPool,
) -> None:
    content = bytearray(passthrough.make(size=8 * MIB))
    path = passthrough.here / "file"
    used = passthrough.used_bytes()
    with Program(mapping(path)) as program:
        for door, start in ((passthrough.here, MIB), (passthrough.there, 3 * MIB + 5)):
            with open(door / "file", "r+b") as file:
                fallocate(file.fileno(), PUNCH | KEEP, start, MIB)
            content[start : start + MIB] = bytes(MIB)
        assert program.ask("view[:]") == content
        assert passthrough.used_bytes() == used
        program.run(f"view[{MIB}] = 5")
        content[MIB] = 5
        assert passthrough.used_bytes() == used
    with open(passthrough.there / "file", "r+b") as file:

        def is_freed() -> bool:
            # A whole huge page: of a part of one the kernel may keep the rest. The log grows by a page now and then.
            fallocate(file.fileno(), PUNCH | KEEP, 4 * MIB, 2 * MIB)
            return passthrough.used_bytes() <= used - 2 * MIB + MIB // 16

        # The kernel lets go of it a moment later.
        assert eventually(is_freed)
    content[4 * MIB : 6 * MIB] = bytes(2 * MIB)
    assert path.read_bytes() == content


# SEMANTICS 92.1
def test_a_full_pool_ends_no_program_that_stores(passthrough: PassthroughPool) -> None:
    """What is mapped has its memory, and what would have none is refused."""
    passthrough.make(size=8 * MIB)
    path = passthrough.here / "file"
    with Program(mapping(path)) as program, passthrough.pool.connect() as pool:
        with pool.open("file", "r+b", buffering=0) as file:
            fails(errno.ENOSPC, file.truncate, 500 * MIB)
            fails(errno.ENOSPC, file.pwrite, b"x", 500 * MIB)
        fails(errno.ENOSPC, os.truncate, path, 500 * MIB)
        assert path.stat().st_size == 8 * MIB
        with open(passthrough.there / "file", "r+b") as punched:
            fallocate(punched.fileno(), PUNCH | KEEP, 0, 4 * MIB)
        with pool.open("filler", "wb", buffering=0) as filler:
            size = 0
            while True:
                try:
                    size += filler.pwrite(bytes(256 * KIB), size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    break
        program.run(f"view[:] = bytes([7]) * {8 * MIB}; view.flush()")
        assert passthrough.bytes_of() == b"\7" * 8 * MIB
        pool.remove("filler")


# SEMANTICS 92.2
def test_a_write_that_finds_no_room_behind_the_end_takes_none(passthrough: PassthroughPool) -> None:
    """There would be room for what lies between, and not for the write."""
    passthrough.make()
    path = passthrough.here / "file"
    with open(path, "r+b", buffering=0) as file, open(path, "rb", buffering=0) as reader:
        used = passthrough.used_bytes()
        fails(errno.ENOSPC, os.pwrite, file.fileno(), bytes(MIB), SIZE + 64 * MIB - used - 1600 * KIB)
        assert passthrough.used_bytes() <= used + 2 * MIB
        assert len(reader.read(4 * MIB)) == path.stat().st_size == SIZE


# SEMANTICS 92.2, 92.3
@pytest.mark.parametrize("mode", [0, ZERO], ids=["allocate", "zero"])
@pytest.mark.parametrize("door", ["here", "there", "library"])
def test_room_that_is_taken_far_behind_the_end_leaves_no_gap(
    passthrough: PassthroughPool, door: str, mode: int
) -> None:
    passthrough.make()
    path = passthrough.here / "file"
    if door == "library" and mode:
        pytest.skip("the library has no call for this")
    with Program(mapping(path)) as program:
        used = passthrough.used_bytes()
        if door == "library":
            with passthrough.pool.connect() as pool, pool.open("file", "r+b", buffering=0) as file:
                file.truncate(12 * MIB)
        else:
            with open(getattr(passthrough, door) / "file", "r+b") as opened:
                fallocate(opened.fileno(), mode, 11 * MIB, MIB)
        assert path.stat().st_size == 12 * MIB
        assert passthrough.used_bytes() >= used + 9 * MIB
        before = passthrough.used_bytes()
        program.run(f"more = mmap.mmap(file, 0); more[{4 * MIB}:{10 * MIB}] = bytes([7]) * {6 * MIB}")
        assert passthrough.used_bytes() == before


# SEMANTICS 91.3
def test_stores_behind_the_end_within_the_last_page_never_enter_the_file(passthrough: PassthroughPool) -> None:
    content = passthrough.make()
    path = passthrough.here / "file"

    def cut_longer() -> None:
        os.truncate(path, SIZE + 60)

    def write_behind() -> None:
        with open(passthrough.there / "file", "r+b") as file:
            file.seek(SIZE + 50)
            file.write(b"end")

    def append() -> None:
        with open(passthrough.there / "file", "ab") as file:
            file.write(b"appended")

    for grow in (cut_longer, write_behind, append):
        with Program(mapping(path)) as program:
            program.run("import ctypes; base = ctypes.addressof(ctypes.c_char.from_buffer(view))")
            program.run(f"ctypes.memset(base + {SIZE}, ord('y'), 100)")
            grow()
            found = passthrough.bytes_of()
            assert found[:SIZE] == content
            assert b"y" not in found[SIZE:]
            assert program.ask(f"ctypes.string_at(base + {SIZE}, 100)").count(b"y") == 0 or grow is append
        os.truncate(path, SIZE)


# SEMANTICS 92.1
def test_a_file_with_holes_is_no_kernels_and_goes_on_having_holes(passthrough: PassthroughPool) -> None:
    with passthrough.pool.connect() as pool, pool.open("sparse", "wb", buffering=0) as file:
        file.pwrite(b"end", 8 * MIB - 3)
    path = passthrough.here / "sparse"
    used = passthrough.used_bytes()
    with open(path, "rb") as reader, open(path, "r+b") as file:
        # A read while somebody may store takes memory for the holes: they are the same pages.
        assert os.pread(reader.fileno(), 5, 8 * MIB - 5) == b"\0\0end"
        os.ftruncate(file.fileno(), 500 * MIB)
        os.truncate(passthrough.there / "sparse", 600 * MIB)
        fallocate(file.fileno(), KEEP, 0, PAGE)
    # Memory of a large file comes in pieces of 2 MiB.
    assert passthrough.used_bytes() <= used + 3 * MIB
