"""Where files have holes, and what memory they hold: by a mount, the library, the command and usual tools."""

import errno
import fcntl
import mmap
import os
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest

import ramlace
from conftest import NewPool
from mount import NewMount, fails
from pool import KIB, MIB, Pool, frozen, pattern
from test_mount_bytes import KEEP, PUNCH, UNIT, fallocate, lay_out

PAGE = 4 * KIB
WIDTHS = [1, 3]
# The ioctl that asks for a file's extents.
FIEMAP = 0xC020_660B
# The first MiB of a lane is taken page by page, what lies behind it in huge pages.
PIECES = [(0, 2 * PAGE), (5 * PAGE, PAGE), (UNIT - PAGE, 3 * PAGE), (4 * UNIT, UNIT), (9 * UNIT + PAGE, 100)]
SIZE = 12 * UNIT + 77


def extents(descriptor: int) -> list[tuple[int, int]]:
    """Return where the data of a file lies, by lseek(2)."""
    found, at, size = [], 0, os.fstat(descriptor).st_size
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        assert start < at <= size
        found.append((start, at))
    return found


def extents_by_library(file: ramlace.RawFile) -> list[tuple[int, int]]:
    """Return the same by the library."""
    found, at, size = [], 0, file.size()
    while at < size:
        try:
            start = file.seek(at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        at = file.seek(start, os.SEEK_HOLE)
        assert file.tell() == at
        found.append((start, at))
    return found


def pages(pieces: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the pages of pieces that were written, as runs of data of a file."""
    touched = sorted({page for start, length in pieces for page in range(start // PAGE, -(-(start + length) // PAGE))})
    runs: list[tuple[int, int]] = []
    for page in touched:
        start, end = page * PAGE, min((page + 1) * PAGE, size)
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))
    return runs


def write_pieces(path: Path) -> None:
    """Make a file of some pieces and holes."""
    with path.open("xb", buffering=0) as file:
        os.ftruncate(file.fileno(), SIZE)
        for start, length in PIECES:
            os.pwrite(file.fileno(), pattern(start, length), start)


# SEMANTICS 62.1
@pytest.mark.parametrize("width", WIDTHS)
def test_holes_are_told_by_every_door(
    shared_pool: Pool, place: str, here: Path, there: Path, tmp_path: Path, width: int
) -> None:
    lay_out(shared_pool, place, width)
    write_pieces(here / "file")
    expected = pages(PIECES, SIZE)
    with shared_pool.connect() as pool:
        for mount in (here, there):
            with (mount / "file").open("rb", buffering=0) as file:
                assert extents(file.fileno()) == expected
                for start, end in expected:
                    assert os.lseek(file.fileno(), start + 1, os.SEEK_DATA) == start + 1
                    assert os.lseek(file.fileno(), end - 1, os.SEEK_HOLE) == end
                for (_, end), (start, _) in pairwise(expected):
                    assert os.lseek(file.fileno(), end + 1, os.SEEK_HOLE) == end + 1
                    assert os.lseek(file.fileno(), end + 1, os.SEEK_DATA) == start
                fails(errno.ENXIO, os.lseek, file.fileno(), expected[-1][1], os.SEEK_DATA)
                assert os.lseek(file.fileno(), SIZE - 1, os.SEEK_HOLE) == SIZE - 1
                fails(errno.ENXIO, os.lseek, file.fileno(), SIZE, os.SEEK_HOLE)
                fails(errno.ENXIO, os.lseek, file.fileno(), SIZE + 1, os.SEEK_DATA)
        with pool.open(f"{place}/file", "rb", buffering=0) as file:
            assert extents_by_library(file) == expected
        # Small ones, which live with their inodes: their bytes are data, what a truncation added is a hole.
        (here / "small").write_bytes(b"some bytes")
        os.truncate(here / "small", 10 * MIB)
        (here / "full").write_bytes(bytes(3 * UNIT + 5))
        (here / "empty").touch()
        for name, found in [("small", [(0, 10)]), ("full", [(0, 3 * UNIT + 5)]), ("empty", [])]:
            with (there / name).open("rb", buffering=0) as file:
                assert extents(file.fileno()) == found, name
            with pool.open(f"{place}/{name}", "rb", buffering=0) as file:
                assert extents_by_library(file) == found, name


# SEMANTICS 62.3
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_stored_into_a_mapping_is_no_hole(shared_pool: Pool, place: str, here: Path, width: int) -> None:
    """Nothing was published: a copy of a file by its holes must not leave out what programs have stored."""
    lay_out(shared_pool, place, width)
    with (here / "file").open("x+b", buffering=0) as file:
        os.ftruncate(file.fileno(), 10 * UNIT)
        with mmap.mmap(file.fileno(), 10 * UNIT) as view, (here / "file").open("rb", buffering=0) as reader:
            assert extents(reader.fileno()) == []
            for at in (3 * PAGE + 1, 4 * UNIT, 10 * UNIT - 1):
                view[at] = 7
                start = at // PAGE * PAGE
                assert os.lseek(reader.fileno(), start, os.SEEK_DATA) == start
                assert os.lseek(file.fileno(), start, os.SEEK_HOLE) == start + PAGE
            assert [start for start, _ in extents(reader.fileno())] == [3 * PAGE, 4 * UNIT, 10 * UNIT - PAGE]
            assert view[4 * UNIT] == 7


def blocks_everywhere(pool: Pool, place: str, name: str, mounts: list[Path]) -> int:
    """Return the bytes that a file holds, about which all doors agree."""
    time.sleep(0.6)  # A kernel may believe what it knew for so long.
    told = [os.stat(mount / name).st_blocks * 512 for mount in mounts]
    with pool.connect() as connected:
        told.append(connected.stat(f"{place}/{name}").st_blocks * 512)
    told.append(pool.json("stat", f"{place}/{name}")["allocated"])
    told.append(pool.json("du", f"{place}/{name}")[0]["bytes"])
    kernel = subprocess.run(["du", "-B1", mounts[0] / name], check=True, capture_output=True).stdout
    told.append(int(kernel.split()[0]))
    assert max(told) - min(told) < 512, told
    return max(told)


# SEMANTICS 62.4
@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_are_those_of_the_memory_that_a_file_holds(
    shared_pool: Pool, place: str, here: Path, there: Path, width: int
) -> None:
    lay_out(shared_pool, place, width)

    def held(name: str) -> int:
        return blocks_everywhere(shared_pool, place, name, [here, there])

    (here / "matrix").touch()
    os.truncate(here / "matrix", 4 << 30)
    assert held("matrix") == 0
    (here / "full").write_bytes(pattern(1, 5 * UNIT + 1))
    assert held("full") == 5 * UNIT + PAGE
    write_pieces(here / "pieces")
    assert held("pieces") == sum(-(-(end - start) // PAGE) * PAGE for start, end in pages(PIECES, SIZE))
    # Filled up, cut, made longer, punched, and with memory behind its end.
    with (here / "pieces").open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), pattern(2, SIZE), 0)
        assert held("pieces") == -(-SIZE // PAGE) * PAGE
        os.ftruncate(file.fileno(), 3 * UNIT)
        assert held("pieces") == 3 * UNIT
        os.ftruncate(file.fileno(), 6 * UNIT)
        assert held("pieces") == 3 * UNIT
    with (there / "full").open("r+b", buffering=0) as file:
        fallocate(file.fileno(), PUNCH | KEEP, UNIT, 2 * UNIT)
        assert held("full") == 3 * UNIT + PAGE
        fallocate(file.fileno(), 0, UNIT, UNIT)
        assert held("full") == 4 * UNIT + PAGE
        fallocate(file.fileno(), KEEP, 8 * UNIT, UNIT)
        assert held("full") >= 5 * UNIT + PAGE
        os.ftruncate(file.fileno(), UNIT)
        assert held("full") == UNIT
    with (here / "matrix").open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), MIB) as view:
        view[7 * PAGE] = 1
        view.flush()
        assert held("matrix") > 0


# SEMANTICS 62.2, 62.4
def test_a_lane_of_less_than_a_mib_takes_pages_and_a_longer_one_huge_pages(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Where the machine gives huge pages to such memory; else pages always."""
    pool = new_pool(1, 32)
    mount = new_mount(pool)
    huge = "Chunks get huge pages (2 MiB)." in pool.status()[0]["notes"]
    early, late, end = 100 * PAGE, 5 * MIB + 3 * PAGE, 12 * MIB
    with pool.connect() as connected:
        with connected.open("/file", "xb", buffering=0) as file:
            file.truncate(end)
            for offset in (early, late, end - 1):
                assert file.pwrite(b"x", offset) == 1
        unit = 2 * MIB if huge else PAGE
        starts = (early, late // unit * unit, end - unit)
        expected = list(zip(starts, (early + PAGE, starts[1] + unit, end), strict=True))
        with connected.open("/file", "rb", buffering=0) as file:
            assert extents_by_library(file) == expected
        with (mount / "file").open("rb", buffering=0) as reader:
            assert extents(reader.fileno()) == expected
        assert blocks_everywhere(pool, "", "file", [mount.directory]) == PAGE + 2 * unit


# SEMANTICS 62.7
def test_nobody_asks_for_a_files_extents(here: Path) -> None:
    (here / "file").write_bytes(pattern(1, MIB))
    with (here / "file").open("rb") as file:
        fails(errno.EOPNOTSUPP, fcntl.ioctl, file.fileno(), FIEMAP, bytes(32 + 56))


# SEMANTICS 62.5
def test_blocks_of_a_file_that_lives_with_its_inode_are_those_of_its_bytes(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    for size in (0, 1, 512, 513, 4 * KIB):
        (here / str(size)).write_bytes(bytes(size))
        assert -(-blocks_everywhere(shared_pool, place, str(size), [here, there]) // 512) == -(-size // 512)


# SEMANTICS 62.1
def test_cp_and_tar_keep_the_holes_of_a_mounts_files(
    shared_pool: Pool, place: str, here: Path, there: Path, tmp_path: Path
) -> None:
    lay_out(shared_pool, place, 3)
    write_pieces(here / "file")
    whole = (here / "file").read_bytes()
    subprocess.run(["cp", "--sparse=auto", there / "file", tmp_path / "copied"], check=True)
    subprocess.run(["cp", "--sparse=auto", there / "file", there / "again"], check=True)
    subprocess.run(["tar", "-C", there, "-Scf", tmp_path / "tar", "file"], check=True)
    assert (tmp_path / "tar").stat().st_size < SIZE
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "out", "-xf", tmp_path / "tar"], check=True)
    for copy in (tmp_path / "copied", there / "again", tmp_path / "out" / "file"):
        assert copy.read_bytes() == whole, copy
        assert copy.stat().st_blocks * 512 < SIZE, copy


# SEMANTICS 62.4
def test_a_stat_asks_the_lanes_of_no_file_without_holes(new_pool: NewPool, new_mount: NewMount) -> None:
    """A file that was written from its beginning to its end is one request to its home, whatever lanes it has."""
    pool = new_pool(3)
    mount = new_mount(pool)
    lay_out(pool, "/", 3)
    (mount / "full").write_bytes(pattern(1, 7 * UNIT))
    with (mount / "full").open("ab", buffering=0) as file:
        file.write(pattern(2, 2 * UNIT))
    with (mount / "sparse").open("xb", buffering=0) as file:
        os.pwrite(file.fileno(), b"end", 7 * UNIT)

    def asked(name: str) -> int:
        """Return how many requests one stat is."""
        with pool.connect() as connected:
            connected.stat(f"/{name}")
            before = pool.requests()
            for _ in range(50):
                connected.stat(f"/{name}")
            return round((pool.requests() - before) / 50)

    assert asked("sparse") - asked("full") == 3
    before = pool.requests()
    for _ in range(20):
        time.sleep(0.05)
        assert os.stat(mount / "sparse").st_blocks > 0
    assert pool.requests() - before < 20 * 4, "a kernel believes what was counted for as long as the attributes"


# SEMANTICS 62.6
def test_holes_of_a_file_whose_server_is_silent(new_pool: NewPool, new_mount: NewMount) -> None:
    """Its part counts as if it had no holes; where they are is an error."""
    pool = new_pool(3)
    mount = new_mount(pool)
    lay_out(pool, "/", 3)
    write_pieces(mount / "file")
    # Names and what they lead to begin on the first server, as the root does.
    assert os.stat(mount / "file").st_ino >> 48 < 4096 // 3
    assert sorted(pool.lane_servers("/file")) == [0, 1, 2]
    with pool.connect() as connected:
        known = connected.stat("/file").st_blocks * 512
        with frozen(pool.process("child", 1)):
            counted = connected.stat("/file").st_blocks * 512
            assert known < counted <= known + 5 * UNIT
            assert connected.stat("/file").st_blocks * 512 == counted
            with connected.open("/file", "rb", buffering=0) as file, pytest.raises(OSError) as refused:
                extents_by_library(file)
            assert refused.value.errno in (errno.EHOSTDOWN, errno.ETIMEDOUT)
