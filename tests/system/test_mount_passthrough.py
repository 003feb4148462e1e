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
from passthrough import PAGE, SIZE, PassthroughPool, reading
from pool import KIB, MIB, PATIENCE_SECONDS, binary, eventually, frozen
from test_mount_bytes import KEEP, PUNCH, fallocate

# The kernel lets root alone hand files over.
pytestmark = pytest.mark.needs_root


# SEMANTICS 89.2
def test_what_is_open_and_mapped_needs_no_server(passthrough: PassthroughPool) -> None:
    """Only memory answers while the server is silent: so it is under passthrough, and not served by requests."""
    content = passthrough.make()
    path = passthrough.here / "file"
    with (
        Program(reading(path)) as reader,
        Program(mapping(path)) as writer,
        frozen(passthrough.pool.process("child", 0)),
    ):
        assert reader.ask("os.pread(file, 1 << 22, 0)") == content
        assert reader.ask("view[:]") == content
        writer.run("view[5:10] = b'store'; view.flush()")
        assert reader.ask("view[:12]") == content[:5] + b"store" + content[10:12]
        assert reader.ask("os.pread(file, 12, 0)") == content[:5] + b"store" + content[10:12]
    assert passthrough.bytes_of() == content[:5] + b"store" + content[10:]


# SEMANTICS 89.1
def test_files_that_are_small_sparse_striped_or_elsewhere_go_the_usual_way(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 64)
    passthrough = PassthroughPool(pool, new_mount)
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
    with open(passthrough.there / "one/ahead", "r+b") as file:
        fallocate(file.fileno(), KEEP, 0, 2 * SIZE)
    for name, size in [("one/inline", 1000), ("one/small", MIB - 1), ("wide/file", SIZE)]:
        passthrough.make(name, size)
    names = ["one/inline", "one/small", "one/sparse", "one/ahead", "wide/file"]
    with Program("files = []") as program:
        for name in names:
            program.run(f"files.append(os.open({str(passthrough.here / name)!r}, os.O_RDONLY))")
        with frozen(*(pool.process("child", server) for server in (0, 1))):
            for at in range(len(names)):
                with pytest.raises(OSError, match=r"."):
                    program.ask(f"os.pread(files[{at}], 100, 0)")
    assert (passthrough.here / "one/sparse").read_bytes()[-5:] == b"\0\0end"


# SEMANTICS 90.1, 90.2
def test_a_store_is_seen_by_the_library_at_once_and_by_another_mounts_next_open(passthrough: PassthroughPool) -> None:
    content = bytearray(passthrough.make())
    assert (passthrough.there / "file").read_bytes() == content
    with Program(mapping(passthrough.here / "file")) as program:
        for turn in range(20):
            at = turn * 97_003 % SIZE
            # What was told to nobody is seen all the same: the other mount keeps no pages of such a file.
            program.run(f"view[{at}] = {turn + 1}")
            content[at] = turn + 1
            assert passthrough.bytes_of() == content
            assert (passthrough.there / "file").read_bytes() == content
    assert (passthrough.there / "file").read_bytes() == content


# SEMANTICS 93.1
@pytest.mark.parametrize("verb", ["os.fsync(file)", "os.close(file)", "os.fstat(file)"])
def test_the_time_of_stores_is_told_by_fsync_close_and_stat(passthrough: PassthroughPool, verb: str) -> None:
    passthrough.make()
    with passthrough.pool.connect() as pool, Program(mapping(passthrough.here / "file")) as program:
        before = pool.stat("file").st_mtime_ns
        assert pool.stat("file").st_mtime_ns == before
        program.run(f"view[7] = 1; {verb}")
        assert pool.stat("file").st_mtime_ns > before


# SEMANTICS 93.2, 93.3
def test_the_time_of_stores_is_told_in_a_while_and_by_touch(passthrough: PassthroughPool) -> None:
    passthrough.make()
    path = passthrough.here / "file"

    with passthrough.pool.connect() as pool, Program(mapping(path)) as program:
        before = pool.stat("file").st_mtime_ns
        program.run("view[7] = 1")
        # Nobody asks this mount for anything.
        assert eventually(lambda: pool.stat("file").st_mtime_ns > before)
        # The kernel takes no note of a store into a page that was stored into before: `touch` does.
        before = pool.stat("file").st_mtime_ns
        program.run("view[7] = 2")
        os.utime(path)
        assert pool.stat("file").st_mtime_ns > before


# SEMANTICS 90.2, 93.5
def test_stores_of_a_mapping_whose_file_is_closed_are_seen_by_the_next_open(passthrough: PassthroughPool) -> None:
    content = bytearray(passthrough.make())
    with passthrough.pool.connect() as pool, Program(mapping(passthrough.here / "file")) as program:
        program.run("os.close(file)")
        # The kernel is asked in vain to forget the file.
        time.sleep(1.2)
        assert (passthrough.there / "file").read_bytes() == content
        before = pool.stat("file")
        for value in (1, 2):
            program.run(f"view[{PAGE}] = {value}")
            content[PAGE] = value
            assert (passthrough.there / "file").read_bytes() == content
        assert eventually(lambda: pool.stat("file").st_mtime_ns > before.st_mtime_ns)
        # No time tells of a store into a page that was loaded before; that the kernel has let go of the file does.
        before = pool.stat("file")
        program.run("view[PAGE] = 3; view.close()".replace("PAGE", str(PAGE)))
        content[PAGE] = 3
        assert (passthrough.there / "file").read_bytes() == content
        assert eventually(lambda: pool.stat("file").st_ctime_ns > before.st_ctime_ns)
        assert (passthrough.there / "file").read_bytes() == content


# SEMANTICS 93.4
def test_times_that_were_chosen_stay(passthrough: PassthroughPool) -> None:
    passthrough.make()
    path = passthrough.here / "file"
    with open(path, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as view:
        file.write(b"written")
        view[PAGE] = 1
        os.utime(file.fileno(), ns=(1000, 1000))
        assert os.fstat(file.fileno()).st_mtime_ns == 1000
        os.pwrite(file.fileno(), b"again", 0)
        # The home learns of the time of this write now, and not later than of the next.
        os.fsync(file.fileno())
        with open(passthrough.there / "file", "r+b") as other:
            other.write(b"other")
        os.utime(passthrough.there / "file", ns=(2000, 2000))
        assert os.fstat(file.fileno()).st_mtime_ns == 2000
        os.fsync(file.fileno())
    assert path.stat().st_mtime_ns == 2000
    with open(path, "rb") as reader:
        reader.read(1)
        with open(path, "r+b"):
            pass
    assert path.stat().st_mtime_ns == 2000


# SEMANTICS 95.1
def test_a_removed_file_lives_while_it_is_mapped_and_its_memory_is_free_afterwards(
    passthrough: PassthroughPool,
) -> None:
    before = passthrough.used_bytes()
    content = passthrough.make(size=8 * MIB)
    with Program(mapping(passthrough.here / "file")) as program:
        (passthrough.there / "file").unlink()
        program.run("os.close(file); view[3:6] = b'abc'")
        time.sleep(1.2)
        assert program.ask("view[:8]") == content[:3] + b"abc" + content[6:8]
        assert passthrough.used_bytes() >= before + 8 * MIB
    assert eventually(lambda: passthrough.used_bytes() <= before + MIB)


# SEMANTICS 94
def test_who_may_write_reads_and_maps_one_memory_and_cannot_splice(
    passthrough: PassthroughPool, tmp_path: Path
) -> None:
    content = passthrough.make()
    path = passthrough.here / "file"
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
            with open(passthrough.here / "other", "wb") as other:
                assert os.copy_file_range(reader, other.fileno(), 9, 0, 0) == 9
        assert os.pread(target, SIZE + 5, 0) == b"other" + content[5:]
        assert (passthrough.here / "other").read_bytes() == b"third" + content[5:9]
    finally:
        for descriptor in (reader, writer, target):
            os.close(descriptor)


# SEMANTICS 89.1
def test_a_file_that_has_grown_while_it_was_open_goes_one_way(passthrough: PassthroughPool) -> None:
    """The kernel refuses to go two ways at once with one file."""
    path = passthrough.here / "grows"
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
    with Program(reading(path)) as program, frozen(passthrough.pool.process("child", 0)):
        assert program.ask("view[:5]") == b"large"
        assert program.ask(f"len(os.pread(file, {MIB}, {MIB}))") == MIB


# SEMANTICS 91.2
def test_appends_and_growing_writes_are_in_mappings_at_once(passthrough: PassthroughPool) -> None:
    content = passthrough.make()
    path = passthrough.here / "file"
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
    assert passthrough.bytes_of() == content


# SEMANTICS 89.2
def test_servers_that_die_and_return_cost_no_store(passthrough: PassthroughPool) -> None:
    content = bytearray(passthrough.make())
    path = passthrough.here / "file"
    with Program(mapping(path)) as program:
        for turn in range(1, 4):
            program.run(f"view[{turn}] = {turn}")
            passthrough.pool.kill_child(0)
            program.run(f"view[{turn + PAGE}] = {turn}")
            passthrough.pool.await_restart(0, turn)
            content[turn] = content[turn + PAGE] = turn
            assert passthrough.bytes_of() == content
        # It has not forgotten that there must be no holes.
        used = passthrough.used_bytes()
        with open(passthrough.there / "file", "r+b") as file:
            fallocate(file.fileno(), PUNCH | KEEP, 0, MIB)
        assert passthrough.used_bytes() == used
        assert program.ask(f"view[:{MIB}]") == bytes(MIB)


# SEMANTICS 96.1
def test_a_mapping_that_outlives_its_daemon_shows_nobody_the_past_and_keeps_its_memory(
    passthrough: PassthroughPool,
) -> None:
    content = bytearray(passthrough.make())
    other = passthrough.make("read")
    with Program(mapping(passthrough.here / "file")) as program, Program(reading(passthrough.here / "read")) as reader:
        assert (passthrough.there / "file").read_bytes() == content
        passthrough.here.daemon.send(signal.SIGKILL)
        assert passthrough.here.daemon.ends()
        for turn in range(1, 4):
            # Its session ends after ten seconds, and nobody can ask this kernel any more.
            program.run(f"view[{turn}] = {turn}")
            content[turn] = turn
            assert (passthrough.there / "file").read_bytes() == content
            time.sleep(6)
            assert (passthrough.there / "file").read_bytes() == content
        used = passthrough.used_bytes()
        for name in ("file", "read"):
            with open(passthrough.there / name, "r+b") as file:
                fallocate(file.fileno(), PUNCH | KEEP, 0, MIB)
        assert passthrough.used_bytes() == used
        assert reader.ask("view[:]") == bytes(MIB) + other[MIB:]


def test_who_may_write_alone_opens_what_the_kernel_has_on_a_mount_for_everybody(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Such a program has no right to its memory, and needs none."""
    pool = new_pool(1, 64)
    pool.run("mkdir", "-m", "777", "/all")
    mount = new_mount(pool, "--passthrough", "--allow-other")
    content = bytearray(os.urandom(MIB) * 2)
    path = mount / "all/file"
    path.write_bytes(content)
    for _ in range(2):
        with Program(mapping(path)) as program:
            program.run("view[1] = 7")
            content[1] = 7
            descriptor = os.open(path, os.O_WRONLY)
            try:
                assert os.pwrite(descriptor, b"written", 4096) == 7
            finally:
                os.close(descriptor)
            content[4096:4103] = b"written"
            assert program.ask("view[:]") == content
        with path.open("r+b", buffering=0) as file:
            assert file.read() == content
    assert pool.run("cat", "/all/file").stdout == content


# SEMANTICS 96.2
@pytest.mark.long
def test_a_mount_that_slept_for_longer_than_its_session_goes_on_with_what_its_kernel_has(
    passthrough: PassthroughPool,
) -> None:
    content = bytearray(passthrough.make())
    path = passthrough.here / "file"
    with Program(mapping(path)) as program:
        passthrough.here.daemon.send(signal.SIGSTOP)
        time.sleep(13)
        passthrough.here.daemon.send(signal.SIGCONT)
        program.run("view[1] = 1")
        content[1] = 1
        assert (passthrough.there / "file").read_bytes() == content
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
            assert (passthrough.there / "file").read_bytes() == content
            with open(passthrough.there / "file", "r+b") as file:
                used = passthrough.used_bytes()
                fallocate(file.fileno(), PUNCH | KEEP, 0, MIB)
                assert passthrough.used_bytes() == used


# SEMANTICS 96.3
def test_what_was_lost_with_a_server_is_an_error_though_the_kernel_has_it(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 64)
    passthrough = PassthroughPool(pool, new_mount)
    with pool.connect() as connected:
        connected.set_layout("/", width=1)
    # The inode is with server 0, which has the root directory; its bytes with the other.
    names = [f"file-{index}" for index in range(16)]
    for name in names:
        passthrough.make(name)
    name = next(name for name in names if pool.lane_servers(f"/{name}") == [1])
    path = passthrough.here / name
    with Program(reading(path)) as program:
        pool.kill_server(1)
        pool.run("forget", "1")
        # As the server's own memory it is still there for programs that have it.
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


# SEMANTICS 89.1
@pytest.mark.long
def test_more_files_than_a_mount_may_pass_through_go_through_pages(new_pool: NewPool, new_mount: NewMount) -> None:
    passthrough = PassthroughPool(new_pool(1, 1200), new_mount)
    names = [f"file-{index}" for index in range(1030)]
    contents = {len(name): passthrough.make(name, MIB) for name in names}
    with Program("files = []") as program:
        for name in names:
            program.run(f"files.append(os.open({str(passthrough.here / name)!r}, os.O_RDONLY))")
        with frozen(passthrough.pool.process("child", 0)):
            for at, name in enumerate(names[:1024]):
                assert program.ask(f"os.pread(files[{at}], {MIB}, 0)") == contents[len(name)]
            with pytest.raises(OSError, match=r"."):
                program.ask("os.pread(files[1024], 1, 0)")
        for at, name in enumerate(names[1024:], 1024):
            assert program.ask(f"os.pread(files[{at}], {MIB}, 0)") == contents[len(name)]


# SEMANTICS 89.1
def test_files_that_nobody_has_open_are_let_go_of(new_pool: NewPool, new_mount: NewMount) -> None:
    """The kernel is asked to forget them."""
    passthrough = PassthroughPool(new_pool(1, 64), new_mount)
    names = [f"file-{index}" for index in range(30)]
    contents = {name: passthrough.make(name, MIB) for name in names}
    for _ in range(3):
        for name in names:
            assert (passthrough.here / name).read_bytes() == contents[name]
    with passthrough.pool.connect() as pool:
        for name in names:
            pool.remove(name)
    assert eventually(lambda: passthrough.used_bytes() < 4 * MIB)


# SEMANTICS 95.2
def test_nothing_is_left_of_a_mount_that_was_taken_away(passthrough: PassthroughPool) -> None:
    """A clean unmount says that no kernel has the file: punching frees memory again."""
    passthrough.make(size=8 * MIB)
    used = passthrough.used_bytes()
    with Program(mapping(passthrough.here / "file")) as program:
        program.run("view[0] = 1")
    passthrough.here.unmount()
    assert passthrough.here.daemon.ends()
    with open(passthrough.there / "file", "r+b") as file:
        fallocate(file.fileno(), PUNCH | KEEP, 0, 4 * MIB)
    assert passthrough.used_bytes() <= used - 4 * MIB


# SEMANTICS 95.2
def test_a_mount_that_is_taken_away_while_a_program_maps_goes_on_for_it(passthrough: PassthroughPool) -> None:
    content = passthrough.make()
    with Program(mapping(passthrough.here / "file")) as program:
        passthrough.here.unmount()
        assert not is_mounted(passthrough.here.directory)
        program.run("os.close(file); view[1] = 1; view.flush()")
        assert passthrough.bytes_of() == content[:1] + b"\1" + content[2:]
    assert passthrough.here.daemon.ends(PATIENCE_SECONDS)


# SEMANTICS 89.1
def test_only_root_may_pass_files_through(passthrough: PassthroughPool) -> None:
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", binary(), "mount"]
    done = subprocess.run([*words, "--passthrough", "/tmp"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "only root may" in done.stderr
    assert "passthrough" in done.stderr
