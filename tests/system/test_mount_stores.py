"""Stores into mapped files have their memory before the kernel has the page: where there is none, a store is SIGBUS."""

import errno
import fcntl
import mmap
import os
import signal
import sys
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount, Program, fails, fill, mapping
from pool import KIB, MIB, Pool, eventually, frozen
from test_mount_bytes import KEEP, PUNCH, UNIT, fallocate

PAGE = 4 * KIB
# Each page is filled with a byte that is not zero and tells it from its neighbours.
STORE = """
for page in range({first}, {last}):
    view[page * 4096:(page + 1) * 4096] = bytes([page % 251 + 1]) * 4096
    if page % 256 == 255:
        view.flush((page - 255) * 4096, 256 * 4096)
        os.pwrite(told, (page + 1).to_bytes(8, 'little'), 0)
"""


def used_bytes(pool: Pool) -> int:
    return sum(server["used_bytes"] for server in pool.status())


def lay_out(pool: Pool, width: int) -> None:
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=width)


def stored_pages(path: Path, first: int, last: int) -> int:
    """Return how many pages were stored, from the first on; what follows them must be zeros."""
    with path.open("rb") as file:
        file.seek(first * PAGE)
        found = file.read((last - first) * PAGE)
    assert len(found) == (last - first) * PAGE
    for index in range(last - first):
        page = found[index * PAGE : (index + 1) * PAGE]
        if page != bytes([(first + index) % 251 + 1]) * PAGE:
            assert not any(found[index * PAGE :]), f"page {first + index} was stored in part, or one behind it was"
            return index
    return last - first


def store_until_it_dies(path: Path, first: int, last: int, told: Path) -> tuple[int, int]:
    """Store into each page; return the signal that ended it, and the pages that it had published."""
    told.write_bytes(bytes(8))
    with Program(mapping(path)) as program:
        program.run(f"told = os.open({str(told)!r}, os.O_WRONLY)")
        number = program.dies_of(STORE.format(first=first, last=last))
    return number, int.from_bytes(told.read_bytes(), "little")


# SEMANTICS 102.1
@pytest.mark.parametrize(("servers", "width"), [(1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("shape", ["extended", "holes in the middle"])
def test_a_store_that_the_pool_has_no_room_for_is_a_bus_error_and_none_before_is_lost(
    new_pool: NewPool, new_mount: NewMount, tmp_path: Path, servers: int, width: int, shape: str
) -> None:
    pool = new_pool(servers, 32)
    here, there = new_mount(pool), new_mount(pool)
    lay_out(pool, width)
    length = 2 * servers * 32 * MIB
    before = b"" if shape == "extended" else b"b" * MIB
    with (here / "matrix").open("xb", buffering=0) as file:
        file.write(before)
        os.ftruncate(file.fileno(), length)
        if before:
            os.pwrite(file.fileno(), before, length - MIB)
    first, last = len(before) // PAGE, (length - len(before)) // PAGE
    number, published = store_until_it_dies(here / "matrix", first, last, tmp_path / "told")
    assert number == signal.SIGBUS
    stored = stored_pages(there / "matrix", first, last)
    # It ends where a server is full: a file of one lane lies on one.
    room = (32 * MIB - MIB) * width
    assert 0.85 * room < stored * PAGE + 2 * len(before) <= room, f"{stored * PAGE} bytes had room"
    assert stored >= published - first
    with (there / "matrix").open("rb") as file:
        assert file.read(len(before)) == before
        assert os.pread(file.fileno(), len(before), length - len(before)) == before
    # Nothing was promised that is not there, and everybody else goes on.
    assert not pool.check()
    (here / "matrix").unlink()
    (here / "again").write_bytes(b"a" * (4 * MIB))
    assert (there / "again").read_bytes() == b"a" * (4 * MIB)


# SEMANTICS 102.1
def test_numpy_ends_by_a_bus_error_where_a_matrix_is_larger_than_the_pool(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    path = str(mount / "matrix")
    start = f"import numpy as np; m = np.memmap({path!r}, dtype='f8', mode='w+', shape=({2 * MIB}, 8), order='F')"
    with Program(start, python=sys.executable) as program:
        assert program.dies_of("m[:] = 1.0; m.flush()") == signal.SIGBUS
    with (mount / "matrix").open("rb") as file:
        found = memoryview(file.read()).cast("d")
    stored = next((at for at, value in enumerate(found) if value != 1.0), len(found))
    assert stored * 8 > 24 * MIB
    assert not any(found[stored:])


# SEMANTICS 102.1
@pytest.mark.needs_root
def test_it_is_the_same_on_a_mount_for_several_users(new_pool: NewPool, new_mount: NewMount, tmp_path: Path) -> None:
    pool = new_pool(1, 32, "--no-root-squash")
    mount = new_mount(pool, "--allow-other")
    with (mount / "matrix").open("xb") as file:
        os.ftruncate(file.fileno(), 64 * MIB)
    number, published = store_until_it_dies(mount / "matrix", 0, 64 * MIB // PAGE, tmp_path / "told")
    assert number == signal.SIGBUS
    assert stored_pages(mount / "matrix", 0, 64 * MIB // PAGE) >= published > 20 * MIB // PAGE


# SEMANTICS 102.2
@pytest.mark.parametrize("size", [100, PAGE])
@pytest.mark.parametrize("bytes_there", [0, 50])
def test_a_small_file_in_a_full_pool_is_a_bus_error_too(
    new_pool: NewPool, new_mount: NewMount, size: int, bytes_there: int
) -> None:
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    (mount / "small").write_bytes(b"s" * bytes_there)
    os.truncate(mount / "small", size)
    (mount / "full").write_bytes(b"f" * size)
    fill(mount)
    with Program(mapping(mount / "small")) as program:
        assert program.dies_of(f"view[{size - 1}] = 1") == signal.SIGBUS
    assert (mount / "small").read_bytes() == b"s" * bytes_there + bytes(size - bytes_there)
    # One whose bytes are there has its memory.
    with Program(mapping(mount / "full")) as program:
        program.run(f"view[:] = b'n' * {size}; view.flush()")
    assert (mount / "full").read_bytes() == b"n" * size


# SEMANTICS 103.1
def test_a_load_of_a_hole_through_a_mapping_for_writing_takes_memory_and_others_take_none(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    lay_out(pool, 2)
    with (mount / "sparse").open("xb") as file:
        os.ftruncate(file.fileno(), 24 * MIB)
    before = used_bytes(pool)
    # By calls, by a mapping, by its holes: a program that may only read takes nothing, though it be in a page's way.
    with (mount / "sparse").open("rb", buffering=0) as file:
        assert not any(file.read(24 * MIB))
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert sum(view[::PAGE]) == 0
        fails(errno.ENXIO, os.lseek, file.fileno(), 0, os.SEEK_DATA)
        assert os.fstat(file.fileno()).st_blocks == 0
    assert used_bytes(pool) - before < MIB
    # Nor by calls that leave the kernel's pages alone.
    direct = os.open(mount / "sparse", os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, MIB) as buffer:
        assert os.preadv(direct, [buffer], 0) == MIB
    os.close(direct)
    assert used_bytes(pool) - before < MIB
    with Program(mapping(mount / "sparse")) as program:
        assert program.ask("sum(view[:8 << 20:4096])") == 0
    assert used_bytes(pool) - before >= 8 * MIB


# SEMANTICS 102.3
def test_pages_that_readers_have_brought_get_their_memory_before_somebody_may_store(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    path = mount / "sparse"
    with path.open("xb") as file:
        file.write(b"a" * PAGE)
        os.ftruncate(file.fileno(), MIB)
    with path.open("rb", buffering=0) as reader, mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert sum(view[PAGE:]) == 0, "the reader's kernel has all pages now, without memory"
        fill(mount)
        assert sum(view[PAGE:]) == 0
        with Program(mapping(path)) as program:
            program.run("view[0] = 98; view.flush()")
            assert program.dies_of(f"view[{PAGE}] = 1") == signal.SIGBUS
        assert view[: PAGE + 1] == b"b" + b"a" * (PAGE - 1) + b"\0"
        for index in range(mount.pool.servers):
            (mount / f"fills-{index}").unlink()
        with Program(mapping(path)) as program:
            program.run(f"view[{PAGE}:] = b'c' * {MIB - PAGE}; view.flush()")
        assert view[:] == b"b" + b"a" * (PAGE - 1) + b"c" * (MIB - PAGE)


# SEMANTICS 102.1
def test_a_hole_that_is_made_here_has_no_memory_for_the_next_store(new_pool: NewPool, new_mount: NewMount) -> None:
    """What was whole when it was opened may be so no longer: by a punch, and by a size that went down and up."""
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    for name in ("punched", "cut"):
        (mount / name).write_bytes(b"w" * MIB)
    with Program(mapping(mount / "punched")) as punched, Program(mapping(mount / "cut")) as cut:
        assert punched.ask("view[:3]") == cut.ask("view[:3]") == b"www"
        with (mount / "punched").open("r+b") as file:
            fallocate(file.fileno(), PUNCH | KEEP, MIB // 2, MIB // 2)
        os.truncate(mount / "cut", MIB // 2)
        os.truncate(mount / "cut", MIB)
        fill(mount)
        for program in (punched, cut):
            program.run("view[:5] = b'there'; view.flush()")
            assert program.dies_of(f"view[{MIB // 2}] = 1") == signal.SIGBUS
    for name in ("punched", "cut"):
        assert (mount / name).read_bytes() == b"there" + b"w" * (MIB // 2 - 5) + bytes(MIB // 2)


# SEMANTICS 103.2
def test_a_file_without_holes_costs_no_message_for_its_memory(new_pool: NewPool, new_mount: NewMount) -> None:
    """The same requests to open, load, store and publish, in a pool that is full."""
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    (mount / "whole").write_bytes(b"w" * MIB)
    words = f"{mapping(mount / 'whole')}; sum(view[::4096]); view[:] = b's' * {MIB}; view.flush(); view.close()"

    def cost() -> int:
        before = pool.requests()
        with Program(words) as program:
            program.run("os.close(file)")
        return pool.requests() - before

    cost()
    ample = cost()
    fill(mount)
    assert cost() <= ample + 2, "times that are told each second may be among them"
    assert (mount / "whole").read_bytes() == b"s" * MIB


# SEMANTICS 102.1
def test_memory_that_a_page_has_outlives_its_server_s_process(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    with (mount / "sparse").open("xb") as file:
        os.ftruncate(file.fileno(), 4 * MIB)
    with Program(mapping(mount / "sparse")) as program:
        # Loads bring the pages, and nothing is stored yet.
        assert program.ask("sum(view[::4096])") == 0
        fill(mount)
        pool.kill_child(0)
        pool.await_restart(0, 1)
        program.run(f"view[:] = b'k' * {4 * MIB}; view.flush()")
        assert program.end() == 0
    assert (mount / "sparse").read_bytes() == b"k" * (4 * MIB)


# SEMANTICS 102.1
def test_a_silent_server_is_a_bus_error_in_time_and_not_one_of_room(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    with (mount / "sparse").open("xb") as file:
        os.ftruncate(file.fileno(), 8 * MIB)
    with Program(mapping(mount / "sparse")) as program:
        program.run("view[0] = 1; view.flush()")
        with frozen(*pool.processes()):
            assert program.dies_of(f"view[{8 * MIB - 1}] = 1") == signal.SIGBUS
    with Program(mapping(mount / "sparse")) as program:
        program.run(f"view[{8 * MIB - 1}] = 1; view.flush()")


def lose_stores(pool: Pool, here: Mount, name: str, start: int, length: int) -> None:
    """Let a program store, and publish while no server answers."""
    with Program(mapping(here / name)) as program:
        program.run(f"view[{start}:{start + length}] = b's' * {length}")
        with frozen(*pool.processes()):
            program.begin("view.flush()")
            with pytest.raises(OSError, match=r"error|down|timed out"):
                program.hear()
    # What the kernel still has it shows; now it has nothing.
    with (here / name).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# SEMANTICS 104.1
@pytest.mark.parametrize("width", [1, 2])
def test_stores_that_were_lost_are_an_error_until_they_are_written_again(
    new_pool: NewPool, new_mount: NewMount, width: int
) -> None:
    pool = new_pool(width, 16)
    here, there = new_mount(pool), new_mount(pool)
    lay_out(pool, width)
    (here / "file").write_bytes(b"o" * MIB)
    lose_stores(pool, here, "file", MIB // 2, 4 * PAGE)
    # Who writes elsewhere in the file, past the kernel's pages, hears nothing of it.
    descriptor = os.open(here / "file", os.O_WRONLY)
    assert os.pwrite(descriptor, b"o" * PAGE, 0) == PAGE
    os.close(descriptor)
    # Nor does who locks, though its pages are dropped for what another machine has written.
    with (here / "file").open("r+b", buffering=0) as file, (there / "file").open("r+b", buffering=0) as other:
        assert os.pread(file.fileno(), 1, 0) == b"o"
        assert os.pwrite(other.fileno(), b"o" * PAGE, PAGE) == PAGE
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    inode = os.stat(here / "file").st_ino
    lost = range(MIB // 2, MIB // 2 + 4 * PAGE, PAGE)
    for flags in (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT):
        descriptor = os.open(here / "file", flags)
        with mmap.mmap(-1, PAGE) as buffer:
            for at in lost:
                fails(errno.EIO, os.preadv, descriptor, [buffer], at)
            for at in (0, lost[0] - PAGE, lost[-1] + PAGE, MIB - PAGE):
                assert os.preadv(descriptor, [buffer], at) == PAGE
                assert buffer[:] == b"o" * PAGE
        os.close(descriptor)
    with Program(mapping(here / "file")) as program:
        assert program.dies_of(f"print(view[{lost[2]}])") == signal.SIGBUS
    # It is told with the file and the bytes: by the log, and by `status`.
    log = here.log()
    assert f"of inode {inode:016x}" in log, log
    assert "could not be written back" in log, log
    told = {mount["directory"]: mount["lost_stores"] for mount in pool.json("status")["mounts"]}
    assert told[str(there.directory)] == []
    assert {run["inode"] for run in told[str(here.directory)]} == {f"{inode:016x}"}
    assert min(run["start"] for run in told[str(here.directory)]) == lost[0]
    assert max(run["end"] for run in told[str(here.directory)]) == lost[-1] + PAGE
    said = pool.run("status").stdout.decode()
    assert f"has lost {4 * PAGE} bytes" in said, said
    found = pool.check()
    assert [(finding["kind"], finding["path"]) for finding in found] == [("stores-lost", "/file")]
    assert f"{4 * PAGE} bytes between {lost[0]} and {lost[-1] + PAGE}" in found[0]["text"]
    # Page by page they come back, by a write and by holes; what is left is still an error.
    with (here / "file").open("r+b", buffering=0) as file:
        assert os.pwrite(file.fileno(), b"w" * PAGE, lost[0]) == PAGE
        fallocate(file.fileno(), PUNCH | KEEP, lost[1], PAGE)
        assert os.pread(file.fileno(), 2 * PAGE, lost[0]) == b"w" * PAGE + bytes(PAGE)
        fails(errno.EIO, os.pread, file.fileno(), PAGE, lost[2])
        os.ftruncate(file.fileno(), lost[2])
        os.ftruncate(file.fileno(), MIB)
        assert os.pread(file.fileno(), MIB, lost[2]) == bytes(MIB - lost[2])
    told = {mount["directory"]: mount["lost_stores"] for mount in pool.json("status")["mounts"]}
    assert told[str(here.directory)] == []
    assert not pool.check()


# SEMANTICS 105
@pytest.mark.parametrize("width", [1, 2])
def test_a_size_that_has_no_room_is_refused_on_a_mount_that_reserves(
    new_pool: NewPool, new_mount: NewMount, width: int
) -> None:
    pool = new_pool(width, 32)
    mount = new_mount(pool, "--reserve")
    lay_out(pool, width)
    before = used_bytes(pool)
    with (mount / "matrix").open("x+b", buffering=0) as file:
        fails(errno.ENOSPC, os.ftruncate, file.fileno(), 64 * width * MIB)
        fails(errno.ENOSPC, os.pwrite, file.fileno(), b"\0", 64 * width * MIB)
        fails(errno.ENOSPC, os.truncate, mount / "matrix", 64 * width * MIB)
        assert os.fstat(file.fileno()).st_size == 0
    assert eventually(lambda: used_bytes(pool) < before + MIB)
    made = "import numpy as np; np.memmap({!r}, dtype='u1', mode='w+', shape=({},))"
    with Program(python=sys.executable) as program:
        program.begin(made.format(str(mount / "large"), 64 * width * MIB))
        with pytest.raises(OSError, match="space"):
            program.hear()
        program.run(made.format(str(mount / "numpy"), 4 * MIB))
    # What was made has its memory, whatever comes; small files live with their inodes, as ever.
    os.truncate(mount / "matrix", 8 * MIB)
    (mount / "small").touch()
    os.truncate(mount / "small", 100)
    assert os.stat(mount / "matrix").st_blocks * 512 >= 8 * MIB
    assert used_bytes(pool) >= before + 12 * MIB
    fill(mount)
    for name, length in (("matrix", 8 * MIB), ("numpy", 4 * MIB)):
        with Program(mapping(mount / name)) as program:
            program.run(f"view[:] = b's' * {length}; view.flush()")
            assert program.end() == 0
        assert (mount / name).read_bytes() == b"s" * length
