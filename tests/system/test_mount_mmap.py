"""Files mapped into memory for writing: one memory on one mount, publish and refresh between two."""

import errno
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from conftest import NewPool
from groups import control_group
from mount import REFRESH, Mount, NewMount, Program, fails, fill, mapping
from pool import KIB, MIB, Pool, frozen, pattern
from test_mount_bytes import KEEP, PUNCH, fallocate

UNIT = 64 * KIB
PAGE = 4 * KIB
# Three chunks on each of three servers, and a piece of a page.
LENGTH = 9 * UNIT + 100

PUBLISH = {
    "msync": "view.flush()",
    "fsync": "os.fsync(file)",
    "fdatasync": "os.fdatasync(file)",
    "close": "os.close(os.dup(file))",
    "munmap": "view.close()",
}


@pytest.fixture
def striped(shared_pool: Pool, place: str) -> None:
    """Files that this test makes lie on three servers, in small chunks."""
    with shared_pool.connect() as pool:
        pool.set_layout(place, stripe_unit=UNIT, width=3)


def content(pool: Pool, path: str) -> bytes:
    """Return what the library reads."""
    with pool.connect() as connected:
        found = connected.open(path).read()
    assert isinstance(found, bytes)
    return found


# SEMANTICS 41
def test_a_store_is_seen_at_once_by_every_program_of_the_mount(striped: None, here: Path) -> None:
    path = here / "file"
    path.write_bytes(bytes(LENGTH))
    with Program(mapping(path)) as first, Program(mapping(path)) as second, Program(mapping(path)) as third:
        for turn, at in enumerate([0, 1, PAGE - 1, UNIT - 1, UNIT, 5 * UNIT + 7, LENGTH - 5]):
            writer, *readers = [first, second, third][turn % 3 :] + [first, second, third][: turn % 3]
            data = pattern(turn, 5)
            writer.run(f"view[{at}:{at + 5}] = {data!r}")
            for reader in readers:
                assert reader.ask(f"view[{at}:{at + 5}]") == data
                assert reader.ask(f"os.pread(file, 5, {at})") == data


def test_programs_count_together_in_mapped_memory(striped: None, here: Path) -> None:
    """Each adds to its own words, page by page beside the others' words: no store is lost."""
    path = here / "counters"
    path.write_bytes(bytes(3 * UNIT))
    count = """
import struct
for turn in range(50):
    for page in range(48):
        at = page * 4096 + 8 * mine
        view[at:at + 8] = struct.pack("q", struct.unpack("q", view[at:at + 8])[0] + 1)
    if turn % 10 == mine:
        view.flush()
"""
    programs = [Program(mapping(path) + f"; mine = {mine}") for mine in range(4)]
    try:
        for program in programs:
            program.begin(count)
        for program in programs:
            program.hear()
        for program in programs:
            assert program.end() == 0
    finally:
        for program in programs:
            program.kill()
    words = np.frombuffer(path.read_bytes(), dtype=np.int64).reshape(48, 512)
    assert (words[:, :4] == 50).all()
    assert (words[:, 4:] == 0).all()


# SEMANTICS 29.1
def test_calls_and_mappings_of_one_mount_are_one_memory(striped: None, here: Path) -> None:
    path = here / "file"
    path.write_bytes(bytes(LENGTH))
    with Program(mapping(path)) as program:
        for flags in (os.O_RDWR, os.O_RDWR | os.O_DIRECT):
            descriptor = os.open(path, flags)
            try:
                for turn, at in enumerate([0, UNIT - 2, 3 * UNIT + 5]):
                    data = pattern(turn + flags, 8)
                    program.run(f"view[{at}:{at + 8}] = {data!r}")
                    assert os.pread(descriptor, 8, at) == data
                    os.pwrite(descriptor, data[::-1], at)
                    assert program.ask(f"view[{at}:{at + 8}]") == data[::-1]
            finally:
                os.close(descriptor)
        # Zeros where a truncation has cut and grown it, also in a live mapping.
        os.truncate(path, PAGE)
        os.truncate(path, LENGTH)
        assert program.ask(f"view[{UNIT - 2}:{UNIT}]") == bytes(2)


def test_a_descriptor_for_appending_can_be_mapped_and_appended_to(here: Path) -> None:
    path = here / "log"
    path.write_bytes(b"a" * 100)
    with Program(f"file = os.open({str(path)!r}, os.O_RDWR | os.O_APPEND)") as program:
        program.run("view = mmap.mmap(file, 100); view[0:1] = b'B'; os.write(file, b'end'); view[1:2] = b'C'")
        program.run("view.flush()")
        assert program.ask("os.pread(file, 200, 0)") == b"BC" + b"a" * 98 + b"end"
    assert path.read_bytes() == b"BC" + b"a" * 98 + b"end"


def test_a_private_mapping_keeps_its_stores_to_itself(shared_pool: Pool, place: str, here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"a" * UNIT)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        view[5:10] = b"12345"
        assert view[4:11] == b"a12345a"
        assert path.read_bytes() == b"a" * UNIT
    with open(path, "rb") as file:
        fails(errno.EACCES, lambda: mmap.mmap(file.fileno(), 0))
    assert content(shared_pool, f"{place}/file") == b"a" * UNIT


# SEMANTICS 42.1, 42.2
@pytest.mark.parametrize("verb", PUBLISH)
def test_stores_are_old_or_new_before_publish_and_new_after(
    shared_pool: Pool, place: str, striped: None, here: Path, there: Path, verb: str
) -> None:
    path, other = here / "file", there / "file"
    path.write_bytes(b"o" * LENGTH)
    with Program(mapping(path)) as program:
        assert other.read_bytes() == b"o" * LENGTH
        program.run(f"view[:] = b'n' * {LENGTH}")
        assert set(other.read_bytes()) <= set(b"on"), "neither old bytes nor new"
        program.run(PUBLISH[verb])
        assert other.read_bytes() == b"n" * LENGTH
        assert content(shared_pool, f"{place}/file") == b"n" * LENGTH


def test_ramlace_publish_publishes_the_stores_of_every_program(
    shared_pool: Pool, place: str, striped: None, here: Path, there: Path
) -> None:
    paths = [here / "first", here / "second"]
    for path in paths:
        path.write_bytes(b"o" * LENGTH)
    with Program(mapping(paths[0])) as first, Program(mapping(paths[1])) as second:
        first.run("view[0:3] = b'new'")
        second.run(f"view[{LENGTH - 3}:] = b'new'")
        assert shared_pool.json("publish", *map(str, paths)) == {"published": [str(path) for path in paths]}
        assert (there / "first").read_bytes() == b"new" + b"o" * (LENGTH - 3)
        assert (there / "second").read_bytes() == b"o" * (LENGTH - 3) + b"new"
        assert content(shared_pool, f"{place}/first")[:3] == b"new"


def refresh_by_attribute(pool: Pool, path: Path) -> None:
    os.setxattr(path, REFRESH, b"1")


def refresh_by_command(pool: Pool, path: Path) -> None:
    assert pool.json("refresh", str(path)) == {"refreshed": [str(path)]}


REFRESHES = [refresh_by_attribute, refresh_by_command]


# SEMANTICS 43.1
@pytest.mark.parametrize("refresh", REFRESHES)
def test_a_refresh_brings_what_others_have_published_into_live_mappings(
    shared_pool: Pool, striped: None, here: Path, there: Path, refresh: Callable[[Pool, Path], None]
) -> None:
    path, other = here / "file", there / "file"
    path.write_bytes(b"0" * LENGTH)
    with Program(mapping(path)) as writer, Program(mapping(other)) as reader:
        assert reader.ask("view[:]") == b"0" * LENGTH
        for letter in b"12":
            letters = bytes([letter]) * LENGTH
            writer.run(f"view[:] = {letters!r}; view.flush()")
            assert set(reader.ask("view[:]")) <= {letter - 1, letter}
            refresh(shared_pool, other)
            assert reader.ask("view[:]") == letters


# SEMANTICS 43.2
@pytest.mark.parametrize("refresh", REFRESHES)
def test_stores_that_are_not_published_survive_a_refresh(
    shared_pool: Pool, place: str, striped: None, here: Path, there: Path, refresh: Callable[[Pool, Path], None]
) -> None:
    path, other = here / "file", there / "file"
    path.write_bytes(b"0" * LENGTH)
    with Program(mapping(path)) as first, Program(mapping(other)) as second:
        # Pages of their own: of one page that both have changed, the later write-back wins.
        for program, own in ((first, 0), (second, 1)):
            program.run(f"for page in range({own}, 144, 2): view[page * 4096:page * 4096 + 5] = b'own-{own}'")
        first.run("view.flush()")
        refresh(shared_pool, other)
        found = second.ask("view[:]")
        assert content(shared_pool, f"{place}/file") == found, "the refresh did not publish first"
        for page in range(144):
            assert found[page * PAGE :][:6] == f"own-{page % 2}0".encode(), page


def reads(pool: Pool) -> int:
    """Return how many bytes the servers have sent."""
    return sum(server["read_bytes"] for server in pool.status())


# SEMANTICS 43.5
def test_a_refresh_of_what_has_not_changed_moves_no_bytes(
    new_pool: NewPool, new_mount: NewMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = new_pool(3, 64)
    # Servers are not asked for what is read from this machine's memory.
    monkeypatch.setenv("RAMLACE_LOCAL", "off")
    writer, reader = new_mount(pool), new_mount(pool)
    size = 12 * MIB
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=3)
    (writer / "file").write_bytes(bytes(size))
    with (
        open(reader / "file", "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
        open(writer / "file", "r+b", buffering=0) as changed,
    ):
        assert view[:] == bytes(size)
        for turn in range(1, 4):
            moved = reads(pool)
            for refresh in REFRESHES:
                refresh(pool, reader / "file")
            assert view[:] == bytes([turn - 1]) + bytes(size - 1)
            # The kernel may have dropped a page by itself.
            assert reads(pool) - moved < size // 16, "nothing had changed"
            os.pwrite(changed.fileno(), bytes([turn]), 0)
            os.setxattr(reader / "file", REFRESH, b"1")
            assert view[0] == turn
            # What is brought anew for one page is brought once.
            assert view[:] == bytes([turn]) + bytes(size - 1)


# SEMANTICS 43.4
def test_some_bytes_of_a_file_are_refreshed(shared_pool: Pool, striped: None, here: Path, there: Path) -> None:
    path, other = here / "file", there / "file"
    path.write_bytes(b"0" * LENGTH)
    with Program(mapping(path)) as writer, Program(mapping(other)) as reader:
        assert reader.ask("view[:]") == b"0" * LENGTH
        writer.run(f"view[:] = b'1' * {LENGTH}; view.flush()")
        for door in (lambda name: os.setxattr(other, name, b"1"), lambda name: os.getxattr(other, name)):
            door(f"{REFRESH}.{PAGE}.{2 * PAGE}")
            assert reader.ask(f"view[{PAGE}:{3 * PAGE}]") == b"1" * 2 * PAGE
            door(f"{REFRESH}.0.0")
        shared_pool.run("refresh", "--offset", "64K", "--length", "1M", str(other))
        assert reader.ask(f"view[{UNIT}:]") == b"1" * (LENGTH - UNIT)
    for wrong in ("1", "-1.5", "1.x"):
        fails(errno.EINVAL, os.getxattr, other, f"{REFRESH}.{wrong}")


# SEMANTICS 43.2
def test_a_refresh_while_programs_store_and_load_loses_nothing(
    shared_pool: Pool, place: str, striped: None, here: Path, there: Path
) -> None:
    path, other = here / "file", there / "file"
    path.write_bytes(bytes(9 * UNIT))
    work = """
done = False
count = 0
def store():
    global count
    while not done:
        count += 1
        for page in range(own, 144, 2):
            view[page * 4096:page * 4096 + 8] = count.to_bytes(8, 'little')
thread = threading.Thread(target=store)
thread.start()
"""
    with Program(mapping(path) + "; own = 0") as first, Program(mapping(other) + "; own = 1") as second:
        for program in (first, second):
            program.run(work)
        for _ in range(30):
            for one in (path, other):
                os.setxattr(one, REFRESH, b"1")
        counts = []
        for program in (first, second):
            program.run("done = True; thread.join(); view.flush()")
            counts.append(program.ask("count"))
    assert min(counts) > 0
    found = content(shared_pool, f"{place}/file")
    for page in range(144):
        assert int.from_bytes(found[page * PAGE :][:8], "little") == counts[page % 2], page


def test_what_only_a_mount_knows_is_refused_elsewhere(shared_pool: Pool, here: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for verb in ("publish", "refresh"):
        assert "lies on no mount of a pool" in shared_pool.refused(verb, str(tmp_path / "file"))
        assert "No such file" in shared_pool.refused(verb, str(here / "none"))
        assert "No such file" in shared_pool.refused(verb, "ramlace:/none")


# SEMANTICS 42.1
@pytest.mark.parametrize("how", ["munmap", "exit", "killed"])
def test_stores_arrive_without_msync(shared_pool: Pool, place: str, striped: None, here: Path, how: str) -> None:
    path = here / "file"
    path.write_bytes(b"o" * LENGTH)
    with Program(mapping(path) + "; os.close(file)") as program:
        program.run(f"view[:] = b'n' * {LENGTH}")
        if how == "munmap":
            program.run("view.close()")
        elif how == "exit":
            assert program.end() == 0
        else:
            program.kill()
    assert content(shared_pool, f"{place}/file") == b"n" * LENGTH


# SEMANTICS 45
def test_stores_into_a_file_without_a_name_are_kept_while_it_is_mapped(here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"o" * LENGTH)
    with Program(mapping(path)) as program:
        path.unlink()
        program.run("view[0:3] = b'new'; view.flush(); os.fsync(file)")
        assert program.ask("os.pread(file, 5, 0)") == b"newoo"
        program.run("os.close(file); view[3:6] = b'NEW'")
        assert program.ask("view[:8]") == b"newNEWoo"
        assert program.end() == 0


# SEMANTICS 44.3
def test_stores_beyond_the_end_within_the_last_page_stay_out_of_the_file(
    shared_pool: Pool, place: str, here: Path
) -> None:
    path = here / "file"
    path.write_bytes(b"x" * 100)
    with Program(mapping(path)) as program:
        program.run("import ctypes; base = ctypes.addressof(ctypes.c_char.from_buffer(view))")
        program.run("ctypes.memset(base + 90, ord('y'), 100)")
        program.run("os.fsync(file)")
        assert content(shared_pool, f"{place}/file") == b"x" * 90 + b"y" * 10
        # What lies behind the end is zeros when the file grows over it.
        os.truncate(path, 200)
        assert path.read_bytes() == b"x" * 90 + b"y" * 10 + bytes(100)


# SEMANTICS 44.2
def test_a_load_beyond_the_end_is_sigbus(here: Path) -> None:
    path = here / "file"
    path.write_bytes(b"x" * LENGTH)
    for verb in ("value = view[8192]", "view[8192] = 1"):
        with Program(mapping(path)) as program:
            program.run(f"os.ftruncate(file, {PAGE})")
            assert program.dies_of(verb) == signal.SIGBUS
        os.truncate(path, LENGTH)


# SEMANTICS 44.1, 44.2
def test_what_another_mount_has_cut_off_does_not_come_back_from_a_mapping(
    shared_pool: Pool, place: str, striped: None, here: Path, there: Path
) -> None:
    for size in (0, 100, PAGE, UNIT + 1):
        path, other = here / f"file-{size}", there / f"file-{size}"
        path.write_bytes(b"o" * LENGTH)
        with Program(mapping(other)) as program:
            assert program.ask("view[:]") == b"o" * LENGTH
            program.run(f"view[:] = b'n' * {LENGTH}")
            os.truncate(path, size)
            with suppress(OSError):
                program.run("view.flush(); os.fsync(file)")
            found = content(shared_pool, f"{place}/file-{size}")
            assert len(found) == size, "a page has made the file longer again"
            assert set(found) <= set(b"on")
            assert path.stat().st_size == other.stat().st_size == size
            assert path.read_bytes() == other.read_bytes() == found
            # Now it knows.
            assert program.dies_of(f"view[{2 * UNIT}]") == signal.SIGBUS
        assert len(content(shared_pool, f"{place}/file-{size}")) == size
        os.truncate(path, LENGTH)
        assert content(shared_pool, f"{place}/file-{size}") == found + bytes(LENGTH - size)


def test_a_removed_file_does_not_come_back_from_a_mapping(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    path = here / "file"
    path.write_bytes(b"o" * LENGTH)
    with Program(mapping(there / "file")) as program:
        path.unlink()
        path.write_bytes(b"another")
        program.run(f"view[:] = b'n' * {LENGTH}; view.flush()")
        assert program.ask("view[:5]") == b"nnnnn"
        assert program.end() == 0
    assert content(shared_pool, f"{place}/file") == b"another"
    assert (there / "file").read_bytes() == b"another"


# SEMANTICS 47.2
def test_what_another_mount_punches_takes_stores_along_also_in_a_full_pool(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """The stores came before the hole. Those beside it are published, though others have the memory of the hole."""
    pool = new_pool(2, 16)
    mount, other = new_mount(pool), new_mount(pool)
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=2)
    (mount / "kept").write_bytes(pattern(1, MIB))
    (mount / "mapped").write_bytes(b"o" * (8 * MIB))
    with Program(mapping(mount / "mapped")) as program:
        program.run(f"view[:] = b'b' * {8 * MIB}")
        with open(other / "mapped", "r+b") as file:
            fallocate(file.fileno(), PUNCH | KEEP, MIB, 6 * MIB)
        fill(other)
        program.run("view.flush(); os.fsync(file)")
    expected = b"b" * MIB + bytes(6 * MIB) + b"b" * MIB
    assert content(pool, "/mapped") == expected
    assert (mount / "mapped").read_bytes() == (other / "mapped").read_bytes() == expected
    assert (mount / "kept").read_bytes() == pattern(1, MIB)
    for path in other.directory.glob("fills-*"):
        path.unlink()
    (mount / "mapped").unlink()
    (mount / "again").write_bytes(pattern(2, 4 * MIB))
    assert content(pool, "/again") == pattern(2, 4 * MIB)


def test_numpy_maps_the_same_matrix_in_two_programs(
    shared_pool: Pool, place: str, striped: None, here: Path, there: Path
) -> None:
    rows, columns = 200, 300
    path = here / "matrix.bin"
    matrix = np.memmap(path, dtype=np.float64, mode="w+", shape=(rows, columns))
    matrix[:] = np.arange(rows * columns).reshape(rows, columns)
    opened = f"import numpy as np; m = np.memmap({{!r}}, dtype=np.float64, mode='r+', shape=({rows}, {columns}))"
    near, far = str(path), str(there / "matrix.bin")
    with Program(opened.format(near), python=sys.executable) as program:
        assert program.ask("m.sum(axis=0).tolist()") == matrix.sum(axis=0).tolist()
        program.run("m[:, 0] = -1")
        assert (matrix[:, 0] == -1).all(), "one mount is one memory"
        matrix.flush()
    with Program(opened.format(far), python=sys.executable) as program:
        assert program.ask("m.sum(axis=0).tolist()") == matrix.sum(axis=0).tolist()
        program.run("m += 1; m.flush()")
    os.setxattr(path, REFRESH, b"1")
    assert (matrix[:, 0] == 0).all()
    expected = np.frombuffer(content(shared_pool, f"{place}/matrix.bin")).reshape(rows, columns)
    assert (matrix == expected).all()


def test_threads_and_programs_fault_many_files_at_once(
    shared_pool: Pool, place: str, striped: None, here: Path
) -> None:
    """More mapped files than the mount has threads, all faulted side by side."""
    with shared_pool.connect() as pool:
        for index in range(48):
            with pool.open(f"{place}/{index}", "wb", buffering=0) as file:
                file.write(pattern(index, LENGTH))
    wrong: list[int] = []

    def scan(index: int) -> None:
        with open(here / str(index), "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            if view[:] != pattern(index, LENGTH):
                wrong.append(index)
            view[0:1] = b"\0"

    threads = [threading.Thread(target=scan, args=(index,)) for index in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for index in range(48):
        assert content(shared_pool, f"{place}/{index}") == b"\0" + pattern(index, LENGTH)[1:]


def may_use_reserves() -> bool:
    """Return whether a daemon of this user gets memory before those that wait for it (CAP_SYS_RESOURCE)."""
    status = Path("/proc/self/status").read_text()
    rights = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(rights, 16) >> 24 & 1)


def scan_and_fill(program: Program, length: int) -> None:
    """Read every page of a mapping, check it, and store into each."""
    program.run(f"found = sum(view[at] == at // 4096 % 251 for at in range(0, {length}, 4096))")
    assert program.ask("found") == length // PAGE
    program.run(f"for at in range(0, {length}, 4096): view[at + 1] = at // 4096 % 249")
    program.run("view.flush()")
    program.run(f"found = sum(view[at + 1] == at // 4096 % 249 for at in range(0, {length}, 4096))")
    assert program.ask("found") == length // PAGE


# SEMANTICS 48.2
@pytest.mark.needs_root
def test_servers_daemon_and_program_share_less_memory_than_the_mapping_needs(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """The servers' memory counts in the same group: what is left is less than the mapping."""
    length = 80 * MIB
    with control_group(160 * MIB) as group:
        # Taken before it is used, so that the group pays for what is written below.
        pool = new_pool(2, 56)
        mount = new_mount(pool)
        for process in pool.processes():
            group.processes.write_text(str(process.pid))
        if group.is_fair or may_use_reserves():
            group.processes.write_text(str(mount.daemon.pid))
        fill_pages(pool, length)
        enter = ("sh", "-c", f'echo $$ > {group.processes} && exec "$@"', "sh")
        with Program(mapping(mount / "large"), prefix=enter) as program:
            scan_and_fill(program, length)
            assert program.end() == 0
        assert group.killed() == 0
        assert group.was_short(), "the group had room for everything, and the test shows nothing"
        check_pages(pool, mount, length)
        mount.unmount()
        assert mount.daemon.ends()
        pool.close()


# SEMANTICS 48.1
@pytest.mark.needs_root
def test_a_mapping_larger_than_the_memory_it_may_use_is_scanned_and_written(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    length = 160 * MIB
    with control_group(64 * MIB) as group:
        pool = new_pool(2, 128)
        mount = new_mount(pool)
        fill_pages(pool, length)
        if group.is_fair or may_use_reserves():
            group.processes.write_text(str(mount.daemon.pid))
        enter = ("sh", "-c", f'echo $$ > {group.processes} && exec "$@"', "sh")
        with Program(mapping(mount / "large"), prefix=enter) as program:
            scan_and_fill(program, length)
            assert program.end() == 0
        assert group.killed() == 0
        check_pages(pool, mount, length)
        mount.unmount()
        assert mount.daemon.ends()


def fill_pages(pool: Pool, length: int) -> None:
    """Make the file: each page begins with its number."""
    pages = np.zeros((length // PAGE, PAGE), dtype=np.uint8)
    pages[:, 0] = np.arange(length // PAGE) % 251
    with pool.connect() as connected, connected.open("/large", "wb", buffering=0) as file:
        assert file.write(pages.data.cast("B")) == length


def check_pages(pool: Pool, mount: Mount, length: int) -> None:
    """Check that both numbers of each page are in the pool."""
    numbers = np.arange(length // PAGE)
    pages = np.frombuffer(content(pool, "/large"), dtype=np.uint8).reshape(-1, PAGE)
    assert (pages[:, 0] == numbers % 251).all()
    assert (pages[:, 1] == numbers % 249).all()
    assert not pages[:, 2:].any()


# SEMANTICS 47.1
@pytest.mark.parametrize("verb", ["msync", "fsync", "close"])
def test_stores_that_one_server_takes_and_another_does_not_are_told_of(
    new_pool: NewPool, new_mount: NewMount, verb: str
) -> None:
    """One request of the kernel reaches over chunks of both: what is half done is no success."""
    pool = new_pool(2, 16)
    mount = new_mount(pool)
    length = 2 * MIB
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=2)
    (mount / "mapped").write_bytes(b"o" * length)
    words = {"msync": "view.flush()", "fsync": "os.fsync(file)", "close": "os.close(file)"}[verb]
    with Program(mapping(mount / "mapped")) as program:
        program.run(f"view[:] = b'b' * {length}")
        with frozen(*(process for process in pool.processes() if process.server == 1)):
            program.begin(words)
            with pytest.raises(OSError, match=r"error|down|timed out"):
                program.hear()
        program.kill()
    assert content(pool, "/mapped") != b"b" * length, "both servers answered, and the test shows nothing"


# SEMANTICS 43.2, 47.1
def test_who_stored_hears_of_a_failure_although_others_have_heard_of_it(new_pool: NewPool, new_mount: NewMount) -> None:
    """The kernel reports it to the first that comes: a reader, or a refresh."""
    pool = new_pool(1, 16)
    mount = new_mount(pool)
    path = mount / "mapped"
    path.write_bytes(b"o" * (4 * MIB))
    with Program(mapping(path)) as program, Program(mapping(path)) as other:
        program.run(f"view[:] = b's' * {4 * MIB}")
        descriptor = os.open(path, os.O_RDONLY)
        with frozen(*pool.processes()), pytest.raises(OSError, match=r"error|down|timed out"):
            os.setxattr(descriptor, REFRESH, b"1")
        # It was open, too.
        with pytest.raises(OSError, match=r"error|down|timed out"):
            os.close(descriptor)
        for one in (program, other):
            one.begin("os.close(os.dup(file))")
            with pytest.raises(OSError, match=r"error|down|timed out"):
                one.hear()
        program.kill()
        other.kill()
