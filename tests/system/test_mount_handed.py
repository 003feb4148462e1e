"""Files that the kernel reads and maps without asking (`mount --passthrough`): root alone may have them."""

import errno
import mmap
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import NewPool
from mount import NewMount, Program, fails, is_mounted, mapping
from pool import KIB, MIB, PATIENCE_SECONDS, Pool, binary, eventually, frozen, pattern
from test_mount_bytes import KEEP, PUNCH, ZERO, fallocate

PAGE = 4 * KIB
SIZE = 2 * MIB + 100


@pytest.fixture(autouse=True)
def _root(fuse: None) -> None:
    if os.geteuid() != 0:
        pytest.skip("the kernel lets root alone hand files over")


class Handing:
    """A pool of one server with a mount that hands files over, and one that does not."""

    def __init__(self, pool: Pool, mount: NewMount) -> None:
        self.pool = pool
        self.here = mount(pool, "--passthrough")
        self.there = mount(pool)

    def make(self, name: str = "file", size: int = SIZE) -> bytes:
        """Make a file that can be handed over, and return what is in it."""
        content = pattern(len(name), size)
        with self.pool.connect() as pool, pool.open(name, "wb") as file:
            file.write(content)
        return content

    def bytes_of(self, name: str = "file") -> bytes:
        """Return what the library reads."""
        with self.pool.connect() as pool, pool.open(name) as file:
            return bytes(file.read())

    def used_bytes(self) -> int:
        return int(self.pool.status()[0]["used_bytes"])


@pytest.fixture
def handing(new_pool: NewPool, new_mount: NewMount) -> Handing:
    return Handing(new_pool(1, 64), new_mount)


def reading(path: Path) -> str:
    """Return what a `Program` runs to map a file for reading as `view`."""
    return f"file = os.open({str(path)!r}, os.O_RDONLY); view = mmap.mmap(file, 0, prot=mmap.PROT_READ)"


def test_what_is_open_and_mapped_needs_no_server(handing: Handing) -> None:
    """Only memory answers while the server is silent: so it is handed over, and not served by requests."""
    content = handing.make()
    path = handing.here / "file"
    with Program(reading(path)) as reader, Program(mapping(path)) as writer, frozen(handing.pool.process("child", 0)):
        assert reader.ask("os.pread(file, 1 << 22, 0)") == content
        assert reader.ask("view[:]") == content
        writer.run("view[5:10] = b'store'; view.flush()")
        assert reader.ask("view[:12]") == content[:5] + b"store" + content[10:12]
        assert reader.ask("os.pread(file, 12, 0)") == content[:5] + b"store" + content[10:12]
    assert handing.bytes_of() == content[:5] + b"store" + content[10:]


def test_files_that_are_small_sparse_striped_or_elsewhere_go_the_usual_way(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 64)
    handing = Handing(pool, new_mount)
    with pool.connect() as connected:
        connected.mkdir("wide")
        connected.set_layout("wide", stripe_unit=64 * KIB, width=2)
        connected.mkdir("one")
        connected.set_layout("one", width=1)
        with connected.open("one/sparse", "wb", buffering=0) as file:
            file.truncate(8 * MIB)
            file.pwrite(b"end", 8 * MIB - 3)
        with connected.open("one/ahead", "wb") as file:
            file.write(bytes(SIZE))
    with open(handing.there / "one/ahead", "r+b") as file:
        fallocate(file.fileno(), KEEP, 0, 2 * SIZE)
    for name, size in [("one/inline", 1000), ("one/small", MIB - 1), ("wide/file", SIZE)]:
        handing.make(name, size)
    names = ["one/inline", "one/small", "one/sparse", "one/ahead", "wide/file"]
    with Program("files = []") as program:
        for name in names:
            program.run(f"files.append(os.open({str(handing.here / name)!r}, os.O_RDONLY))")
        with frozen(*(pool.process("child", server) for server in (0, 1))):
            for at in range(len(names)):
                with pytest.raises(OSError, match=r"."):
                    program.ask(f"os.pread(files[{at}], 100, 0)")
    assert (handing.here / "one/sparse").read_bytes()[-5:] == b"\0\0end"


def test_a_store_is_seen_by_the_library_at_once_and_by_another_mounts_next_open(handing: Handing) -> None:
    content = bytearray(handing.make())
    assert (handing.there / "file").read_bytes() == content
    with Program(mapping(handing.here / "file")) as program:
        for turn in range(20):
            at = turn * 97_003 % SIZE
            # What was told to nobody is seen all the same: the other mount keeps no pages of such a file.
            program.run(f"view[{at}] = {turn + 1}")
            content[at] = turn + 1
            assert handing.bytes_of() == content
            assert (handing.there / "file").read_bytes() == content
    assert (handing.there / "file").read_bytes() == content


@pytest.mark.parametrize("verb", ["os.fsync(file)", "os.close(file)", "os.fstat(file)"])
def test_the_time_of_stores_is_told_by_fsync_close_and_stat(handing: Handing, verb: str) -> None:
    handing.make()
    with handing.pool.connect() as pool, Program(mapping(handing.here / "file")) as program:
        before = pool.stat("file").st_mtime_ns
        assert pool.stat("file").st_mtime_ns == before
        program.run(f"view[7] = 1; {verb}")
        assert pool.stat("file").st_mtime_ns > before


def test_stores_of_a_mapping_whose_file_is_closed_are_seen_by_the_next_open(handing: Handing) -> None:
    content = bytearray(handing.make())
    with handing.pool.connect() as pool, Program(mapping(handing.here / "file")) as program:
        program.run("os.close(file)")
        # The kernel is asked in vain to forget the file.
        time.sleep(1.2)
        assert (handing.there / "file").read_bytes() == content
        before = pool.stat("file")
        for value in (1, 2):
            program.run(f"view[{PAGE}] = {value}")
            content[PAGE] = value
            assert (handing.there / "file").read_bytes() == content
        assert eventually(lambda: pool.stat("file").st_mtime_ns > before.st_mtime_ns)
        # No time tells of a store into a page that was loaded before; that the kernel has let go of the file does.
        before = pool.stat("file")
        program.run("view[PAGE] = 3; view.close()".replace("PAGE", str(PAGE)))
        content[PAGE] = 3
        assert (handing.there / "file").read_bytes() == content
        assert eventually(lambda: pool.stat("file").st_ctime_ns > before.st_ctime_ns)
        assert (handing.there / "file").read_bytes() == content


def test_a_size_that_anybody_changes_counts_for_mappings(handing: Handing) -> None:
    content = handing.make()
    path = handing.here / "file"
    with handing.pool.connect() as pool, Program(mapping(path)) as program:
        pool.truncate("file", MIB + 5)
        assert program.ask(f"view[:{MIB + 5}]") == content[: MIB + 5]
        assert program.ask("os.fstat(file).st_size") == MIB + 5
        # The rest of the last page is zeros, and behind it there is nothing.
        assert program.ask(f"view[{MIB + 5}:{MIB + 9}]") == bytes(4)
        pool.truncate("file", 3 * MIB)
        program.run(f"more = mmap.mmap(file, {3 * MIB})")
        assert program.ask(f"more[{MIB}:]") == content[MIB : MIB + 5] + bytes(2 * MIB - 5)
        program.run(f"more[{3 * MIB - 1}] = 9")
        os.truncate(handing.there / "file", 4 * MIB)
        program.run(f"os.ftruncate(file, {5 * MIB}); last = mmap.mmap(file, {5 * MIB}); last[-1] = 8")
        with pool.open("file", "r+b", buffering=0) as file:
            # Far behind the end: what lies between takes its memory, too.
            file.pwrite(b"x", 9 * MIB)
        program.run(f"far = mmap.mmap(file, 0); far[{7 * MIB}] = 7")
        assert handing.used_bytes() >= 9 * MIB
        found = handing.bytes_of()
        assert (len(found), found[3 * MIB - 1], found[5 * MIB - 1], found[7 * MIB]) == (9 * MIB + 1, 9, 8, 7)
        pool.truncate("file", PAGE)
        assert program.dies_of(f"view[{PAGE}]") == signal.SIGBUS
    assert path.read_bytes() == found[:PAGE]


def test_a_hole_is_zeros_with_memory_while_a_kernel_has_the_file_and_none_afterwards(handing: Handing) -> None:
    content = bytearray(handing.make(size=8 * MIB))
    path = handing.here / "file"
    used = handing.used_bytes()
    with Program(mapping(path)) as program:
        for door, start in ((handing.here, MIB), (handing.there, 3 * MIB + 5)):
            with open(door / "file", "r+b") as file:
                fallocate(file.fileno(), PUNCH | KEEP, start, MIB)
            content[start : start + MIB] = bytes(MIB)
        assert program.ask("view[:]") == content
        assert handing.used_bytes() == used
        program.run(f"view[{MIB}] = 5")
        content[MIB] = 5
        assert handing.used_bytes() == used
    with open(handing.there / "file", "r+b") as file:

        def is_freed() -> bool:
            # A whole huge page: of a part of one the kernel may keep the rest.
            fallocate(file.fileno(), PUNCH | KEEP, 4 * MIB, 2 * MIB)
            return handing.used_bytes() <= used - 2 * MIB

        # The kernel lets go of it a moment later.
        assert eventually(is_freed)
    content[4 * MIB : 6 * MIB] = bytes(2 * MIB)
    assert path.read_bytes() == content


def test_a_full_pool_ends_no_program_that_stores(handing: Handing) -> None:
    """What is mapped has its memory, and what would have none is refused."""
    handing.make(size=8 * MIB)
    path = handing.here / "file"
    with Program(mapping(path)) as program, handing.pool.connect() as pool:
        with pool.open("file", "r+b", buffering=0) as file:
            fails(errno.ENOSPC, file.truncate, 500 * MIB)
            fails(errno.ENOSPC, file.pwrite, b"x", 500 * MIB)
        fails(errno.ENOSPC, os.truncate, path, 500 * MIB)
        assert path.stat().st_size == 8 * MIB
        with open(handing.there / "file", "r+b") as punched:
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
        assert handing.bytes_of() == b"\7" * 8 * MIB
        pool.remove("filler")


def test_a_write_that_finds_no_room_behind_the_end_takes_none(handing: Handing) -> None:
    """There would be room for what lies between, and not for the write."""
    handing.make()
    path = handing.here / "file"
    with open(path, "r+b", buffering=0) as file, open(path, "rb", buffering=0) as reader:
        used = handing.used_bytes()
        fails(errno.ENOSPC, os.pwrite, file.fileno(), bytes(MIB), SIZE + 64 * MIB - used - 1600 * KIB)
        assert handing.used_bytes() <= used + 2 * MIB
        assert len(reader.read(4 * MIB)) == path.stat().st_size == SIZE


@pytest.mark.parametrize("mode", [0, ZERO], ids=["allocate", "zero"])
@pytest.mark.parametrize("door", ["here", "there", "library"])
def test_room_that_is_taken_far_behind_the_end_leaves_no_gap(handing: Handing, door: str, mode: int) -> None:
    handing.make()
    path = handing.here / "file"
    if door == "library" and mode:
        pytest.skip("the library has no call for this")
    with Program(mapping(path)) as program:
        used = handing.used_bytes()
        if door == "library":
            with handing.pool.connect() as pool, pool.open("file", "r+b", buffering=0) as file:
                file.truncate(12 * MIB)
        else:
            with open(getattr(handing, door) / "file", "r+b") as opened:
                fallocate(opened.fileno(), mode, 11 * MIB, MIB)
        assert path.stat().st_size == 12 * MIB
        assert handing.used_bytes() >= used + 9 * MIB
        before = handing.used_bytes()
        program.run(f"more = mmap.mmap(file, 0); more[{4 * MIB}:{10 * MIB}] = bytes([7]) * {6 * MIB}")
        assert handing.used_bytes() == before


def test_stores_behind_the_end_within_the_last_page_never_enter_the_file(handing: Handing) -> None:
    content = handing.make()
    path = handing.here / "file"

    def cut_longer() -> None:
        os.truncate(path, SIZE + 60)

    def write_behind() -> None:
        with open(handing.there / "file", "r+b") as file:
            file.seek(SIZE + 50)
            file.write(b"end")

    def append() -> None:
        with open(handing.there / "file", "ab") as file:
            file.write(b"appended")

    for grow in (cut_longer, write_behind, append):
        with Program(mapping(path)) as program:
            program.run("import ctypes; base = ctypes.addressof(ctypes.c_char.from_buffer(view))")
            program.run(f"ctypes.memset(base + {SIZE}, ord('y'), 100)")
            grow()
            found = handing.bytes_of()
            assert found[:SIZE] == content
            assert b"y" not in found[SIZE:]
            assert program.ask(f"ctypes.string_at(base + {SIZE}, 100)").count(b"y") == 0 or grow is append
        os.truncate(path, SIZE)


def test_times_that_were_chosen_stay(handing: Handing) -> None:
    handing.make()
    path = handing.here / "file"
    with open(path, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as view:
        file.write(b"written")
        view[PAGE] = 1
        os.utime(file.fileno(), ns=(1000, 1000))
        assert os.fstat(file.fileno()).st_mtime_ns == 1000
        os.pwrite(file.fileno(), b"again", 0)
        # The home hears of the time of this write now, and not later than of the next.
        os.fsync(file.fileno())
        with open(handing.there / "file", "r+b") as other:
            other.write(b"other")
        os.utime(handing.there / "file", ns=(2000, 2000))
        assert os.fstat(file.fileno()).st_mtime_ns == 2000
        os.fsync(file.fileno())
    assert path.stat().st_mtime_ns == 2000
    with open(path, "rb") as reader:
        reader.read(1)
        with open(path, "r+b"):
            pass
    assert path.stat().st_mtime_ns == 2000


def test_a_file_with_holes_is_no_kernels_and_goes_on_having_holes(handing: Handing) -> None:
    with handing.pool.connect() as pool, pool.open("sparse", "wb", buffering=0) as file:
        file.pwrite(b"end", 8 * MIB - 3)
    path = handing.here / "sparse"
    used = handing.used_bytes()
    with open(path, "r+b") as file, open(path, "rb") as reader:
        assert reader.read()[-5:] == b"\0\0end"
        os.ftruncate(file.fileno(), 500 * MIB)
        os.truncate(handing.there / "sparse", 600 * MIB)
        fallocate(file.fileno(), KEEP, 0, PAGE)
    # Memory of a large file comes in pieces of 2 MiB.
    assert handing.used_bytes() <= used + 3 * MIB


def test_a_removed_file_lives_while_it_is_mapped_and_its_memory_is_free_afterwards(handing: Handing) -> None:
    before = handing.used_bytes()
    content = handing.make(size=8 * MIB)
    with Program(mapping(handing.here / "file")) as program:
        (handing.there / "file").unlink()
        program.run("os.close(file); view[3:6] = b'abc'")
        time.sleep(1.2)
        assert program.ask("view[:8]") == content[:3] + b"abc" + content[6:8]
        assert handing.used_bytes() >= before + 8 * MIB
    assert eventually(lambda: handing.used_bytes() <= before + MIB)


def test_who_may_write_reads_and_maps_one_memory_and_cannot_splice(handing: Handing, tmp_path: Path) -> None:
    content = handing.make()
    path = handing.here / "file"
    reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
    target = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    try:
        with mmap.mmap(writer, 0) as view:
            os.pwrite(writer, b"first", 0)
            assert view[:5] == os.pread(reader, 5, 0) == os.pread(writer, 5, 0) == b"first"
            view[:5] = b"other"
            assert os.pread(reader, 5, 0) == os.pread(writer, 5, 0) == b"other"
            # Pages that `splice` fills would show these bytes for ever.
            fails(errno.EINVAL, os.sendfile, target, writer, 0, SIZE)
            assert os.sendfile(target, reader, 0, SIZE) == SIZE
            view[:5] = b"third"
            with open(handing.here / "other", "wb") as other:
                assert os.copy_file_range(reader, other.fileno(), 9, 0, 0) == 9
        assert os.pread(target, SIZE + 5, 0) == b"other" + content[5:]
        assert (handing.here / "other").read_bytes() == b"third" + content[5:9]
    finally:
        for descriptor in (reader, writer, target):
            os.close(descriptor)


def test_a_file_that_has_grown_while_it_was_open_goes_one_way(handing: Handing) -> None:
    """The kernel refuses to go two ways at once with one file."""
    path = handing.here / "grows"
    with open(path, "w+b", buffering=0) as first:
        first.write(b"small")
        first.seek(0, os.SEEK_END)
        first.write(bytes(SIZE))
        for mode in ("rb", "r+b", "ab"):
            with open(path, mode) as later, open(path, "rb") as reader:
                later.flush()
                assert reader.read(5) == b"small"
        with mmap.mmap(first.fileno(), 0) as view, open(path, "rb") as reader:
            view[:5] = b"large"
            assert reader.read(5) == b"large"
    with Program(reading(path)) as program, frozen(handing.pool.process("child", 0)):
        assert program.ask("view[:5]") == b"large"
        assert program.ask(f"len(os.pread(file, {MIB}, {MIB}))") == MIB


def test_appends_and_growing_writes_are_in_mappings_at_once(handing: Handing) -> None:
    content = handing.make()
    path = handing.here / "file"
    with (
        open(path, "ab", buffering=0) as appender,
        open(path, "r+b", buffering=0) as writer,
        open(path, "rb") as reader,
    ):
        for _ in range(3):
            assert appender.write(b"appended") == 8
            content += b"appended"
            with mmap.mmap(writer.fileno(), 0) as view:
                assert view[-8:] == b"appended"
                assert view[:] == content
            writer.seek(len(content) + 10)
            assert writer.write(b"x") == 1
            content += bytes(10) + b"x"
        reader.seek(0)
        assert reader.read() == content
    assert handing.bytes_of() == content


def test_servers_that_die_and_return_cost_no_store(handing: Handing) -> None:
    content = bytearray(handing.make())
    path = handing.here / "file"
    with Program(mapping(path)) as program:
        for turn in range(1, 4):
            program.run(f"view[{turn}] = {turn}")
            handing.pool.kill_child(0)
            program.run(f"view[{turn + PAGE}] = {turn}")
            handing.pool.await_restart(0, turn)
            content[turn] = content[turn + PAGE] = turn
            assert handing.bytes_of() == content
        # It has not forgotten that there must be no holes.
        used = handing.used_bytes()
        with open(handing.there / "file", "r+b") as file:
            fallocate(file.fileno(), PUNCH | KEEP, 0, MIB)
        assert handing.used_bytes() == used
        assert program.ask(f"view[:{MIB}]") == bytes(MIB)


def test_a_mapping_that_outlives_its_daemon_shows_nobody_the_past_and_keeps_its_memory(handing: Handing) -> None:
    content = bytearray(handing.make())
    other = handing.make("read")
    with Program(mapping(handing.here / "file")) as program, Program(reading(handing.here / "read")) as reader:
        assert (handing.there / "file").read_bytes() == content
        handing.here.daemon.send(signal.SIGKILL)
        assert handing.here.daemon.ends()
        for turn in range(1, 4):
            # Its session ends after ten seconds, and nobody can ask this kernel any more.
            program.run(f"view[{turn}] = {turn}")
            content[turn] = turn
            assert (handing.there / "file").read_bytes() == content
            time.sleep(6)
            assert (handing.there / "file").read_bytes() == content
        used = handing.used_bytes()
        for name in ("file", "read"):
            with open(handing.there / name, "r+b") as file:
                fallocate(file.fileno(), PUNCH | KEEP, 0, MIB)
        assert handing.used_bytes() == used
        assert reader.ask("view[:]") == bytes(MIB) + other[MIB:]


@pytest.mark.long
def test_a_mount_that_slept_for_longer_than_its_session_goes_on_with_what_its_kernel_has(handing: Handing) -> None:
    content = bytearray(handing.make())
    path = handing.here / "file"
    with Program(mapping(path)) as program:
        handing.here.daemon.send(signal.SIGSTOP)
        time.sleep(13)
        handing.here.daemon.send(signal.SIGCONT)
        program.run("view[1] = 1")
        content[1] = 1
        assert (handing.there / "file").read_bytes() == content
        with Program(f"view = 0; path = {str(path)!r}") as later:

            def is_open() -> bool:
                try:
                    later.run(mapping(path))
                except OSError as error:
                    assert error.errno == errno.ESTALE
                    return False
                return True

            assert eventually(is_open)
            later.run("view[2] = 2")
            content[2] = 2
            assert program.ask("view[:]") == content
            assert (handing.there / "file").read_bytes() == content
            with open(handing.there / "file", "r+b") as file:
                used = handing.used_bytes()
                fallocate(file.fileno(), PUNCH | KEEP, 0, MIB)
                assert handing.used_bytes() == used


def test_what_was_lost_with_a_server_is_an_error_though_the_kernel_has_it(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 64)
    handing = Handing(pool, new_mount)
    with pool.connect() as connected:
        connected.set_layout("/", width=1)
    # The inode is with server 0, which has the root directory; its bytes with the other.
    names = [f"file-{index}" for index in range(16)]
    for name in names:
        handing.make(name)
    name = next(name for name in names if pool.lane_servers(f"/{name}") == [1])
    path = handing.here / name
    with Program(reading(path)) as program:
        pool.kill_server(1)
        pool.run("forget", "1")
        # As the server's own memory it is still there for those who have it.
        assert program.ask("len(view[:])") == SIZE
        with Program() as other, pytest.raises(OSError, match=r"."):
            other.run(f"os.pread(os.open({str(path)!r}, os.O_RDONLY), {SIZE}, 0)")
    assert eventually(lambda: fails_with_eio(path))


def fails_with_eio(path: Path) -> bool:
    """Return whether reading a file fails with EIO."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno == errno.EIO
    raise AssertionError("lost bytes were read")


def test_more_files_than_a_mount_may_hand_over_go_the_usual_way(new_pool: NewPool, new_mount: NewMount) -> None:
    """The kernel is asked to forget what nobody has open, so there is room again."""
    handing = Handing(new_pool(1, 64), new_mount)
    names = [f"file-{index}" for index in range(30)]
    contents = {name: handing.make(name, MIB) for name in names}
    for _ in range(3):
        for name in names:
            assert (handing.here / name).read_bytes() == contents[name]
    with handing.pool.connect() as pool:
        for name in names:
            pool.remove(name)
    assert eventually(lambda: handing.used_bytes() < 4 * MIB)


def test_nothing_is_left_of_a_mount_that_was_taken_away(handing: Handing) -> None:
    """A clean unmount says that no kernel has the file: punching frees memory again."""
    handing.make(size=8 * MIB)
    used = handing.used_bytes()
    with Program(mapping(handing.here / "file")) as program:
        program.run("view[0] = 1")
    handing.here.unmount()
    assert handing.here.daemon.ends()
    with open(handing.there / "file", "r+b") as file:
        fallocate(file.fileno(), PUNCH | KEEP, 0, 4 * MIB)
    assert handing.used_bytes() <= used - 4 * MIB


def test_a_mount_that_is_taken_away_while_a_program_maps_goes_on_for_it(handing: Handing) -> None:
    content = handing.make()
    with Program(mapping(handing.here / "file")) as program:
        handing.here.unmount()
        assert not is_mounted(handing.here.directory)
        program.run("os.close(file); view[1] = 1; view.flush()")
        assert handing.bytes_of() == content[:1] + b"\1" + content[2:]
    assert handing.here.daemon.ends(PATIENCE_SECONDS)


def test_only_root_may_hand_files_over(handing: Handing) -> None:
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", binary(), "mount"]
    done = subprocess.run([*words, "--passthrough", "/tmp"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "only root may" in done.stderr
    assert "--passthrough" in done.stderr
