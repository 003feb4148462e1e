"""What a mount sends a moment later: files that it makes in directories where nobody else looks."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from conftest import NewPool
from mount import NewMount, fails, fill, stopped
from pool import Pool, eventually, frozen
from test_mount_leases import believes_names
from test_mount_requests import answered

BEHIND = "--metadata=behind"
FILES = 60
SAMPLES = 4
#: A change is not older than this when it is sent, and what was found by a lease is not believed for longer.
SENT_SECONDS = 1.5

needs_names = pytest.mark.skipif(not believes_names(), reason="this kernel cannot be told to forget names (Linux 6.16)")


def make(directory: Path, number: int) -> None:
    """Make a small file as archivers do."""
    descriptor = os.open(directory / f"f{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, f"text {number}".encode())
    os.utime(descriptor, (1, number + 2))
    os.fchmod(descriptor, 0o640)
    os.close(descriptor)


def check_made(directory: Path, number: int) -> None:
    """Check that such a file is as it was made."""
    file = directory / f"f{number}"
    status = file.stat()
    assert file.read_bytes() == f"text {number}".encode()
    assert (status.st_mode & 0o7777, status.st_mtime) == (0o640, number + 2)


def reads(file: Path, text: bytes) -> bool:
    """Return whether a file has these bytes."""
    return file.read_bytes() == text


def messages(pool: Pool, work: Callable[[int], None]) -> int:
    """Return how many messages a work costs: the least of several samples."""
    samples = []
    for sample in range(SAMPLES):
        before = answered(pool)
        work(sample)
        asked = answered(pool) - before
        samples.append(sum(asked.values()) - asked["RenewLeases"] - asked["Listen"])
    return min(samples)


# SEMANTICS 142.1
@needs_names
def test_small_files_that_are_made_one_after_the_other_are_sent_together(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 256)
    mount = new_mount(pool, BEHIND)

    def unpack(sample: int) -> None:
        directory = mount / f"d{sample}"
        directory.mkdir()
        for number in range(FILES):
            make(directory, number)
        os.sync()

    assert messages(pool, unpack) < FILES / 4
    mount.unmount()
    mount = new_mount(pool, BEHIND)
    for sample in range(SAMPLES):
        assert len(os.listdir(mount / f"d{sample}")) == FILES
        for number in range(FILES):
            check_made(mount / f"d{sample}", number)
    assert pool.check() == []


# SEMANTICS 142.1
def test_a_usual_mount_asks_for_each(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    mount = new_mount(pool)

    def unpack(sample: int) -> None:
        directory = mount / f"d{sample}"
        directory.mkdir()
        for number in range(FILES):
            make(directory, number)

    assert messages(pool, unpack) > 4 * FILES
    assert answered(pool)["ChangeMany"] == 0


# SEMANTICS 142.2
def test_what_was_made_is_there_for_everybody_when_the_call_is_back(new_pool: NewPool, new_mount: NewMount) -> None:
    """By another mount, the library, and by this mount's own programs, whatever they ask first."""
    pool = new_pool(2, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool, BEHIND)
    library = pool.connect()
    (here / "d").mkdir()
    looks: list[Callable[[int], object]] = [
        lambda number: check_made(there / "d", number),
        lambda number: check_made(here / "d", number),
        lambda number: len(os.listdir(there / "d")),
        lambda number: os.stat(there / f"d/f{number}"),
        lambda number: os.listdir(here / "d"),
        lambda number: library.read_bytes(f"/d/f{number}"),
        lambda number: os.rename(here / f"d/f{number}", here / f"d/r{number}"),
        lambda number: os.link(here / f"d/f{number}", here / f"d/l{number}"),
        lambda number: os.unlink(there / f"d/f{number}"),
        lambda number: os.rename(there / f"d/f{number}", there / f"t{number}"),
        lambda number: os.truncate(here / f"d/f{number}", 2),
        lambda number: fails(errno.EEXIST, os.open, there / f"d/f{number}", os.O_CREAT | os.O_EXCL),
        lambda number: pool.run("cat", f"ramlace:/d/f{number}"),
        lambda number: os.stat(there / "d").st_mtime_ns,
    ]
    for turn in range(3):
        for at, look in enumerate(looks):
            first = 100 * turn + 5 * at
            for number in range(first, first + 5):
                make(here / "d", number)
            look(first + 4)
            for number in range(first, first + 4):
                check_made(there / "d", number)
        # What others wanted a moment ago rests.
        time.sleep(SENT_SECONDS)
    assert sorted(os.listdir(here / "d")) == sorted(os.listdir(there / "d"))
    assert pool.check() == []


# SEMANTICS 142.2
def test_two_mounts_that_make_files_in_one_directory_lose_none(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool, BEHIND)
    (here / "d").mkdir()
    script = (
        "import os, sys\n"
        "for n in range(150):\n"
        "    for name in (f'{sys.argv[2]}{n}', f'both{n}'):\n"
        "        try:\n"
        "            fd = os.open(os.path.join(sys.argv[1], name), os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n"
        "        except FileExistsError:\n"
        "            continue\n"
        "        os.write(fd, sys.argv[2].encode()); os.close(fd)\n"
        "        print(name, flush=True)\n"
    )
    makers = [
        subprocess.Popen(["python3", "-c", script, mount / "d", who], stdout=subprocess.PIPE, text=True)
        for mount, who in ((here, "a"), (there, "b"))
    ]
    made = [maker.communicate(timeout=120)[0].split() for maker in makers]
    assert all(maker.returncode == 0 for maker in makers)
    both = [{name for name in names if name.startswith("both")} for names in made]
    assert not both[0] & both[1], "an exclusive create succeeds once"
    assert sorted([*made[0], *made[1]]) == sorted(os.listdir(there / "d")) == sorted(os.listdir(here / "d"))
    for who, names in zip("ab", made, strict=True):
        assert all((there / "d" / name).read_bytes() == who.encode() for name in names)
    assert pool.check() == []


# SEMANTICS 142.2
def test_an_editor_s_save_never_shows_an_empty_file(new_pool: NewPool, new_mount: NewMount) -> None:
    """A new file over the old one: a program that reads sees the one or the other, whole."""
    pool = new_pool(2, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool, BEHIND)
    (here / "d").mkdir()
    (here / "d/file").write_bytes(b"0" * 100)
    reader = subprocess.Popen(
        [
            "python3",
            "-c",
            "import errno, sys\nwhile not sys.stdin.closed:\n"
            "    try:\n        file = open(sys.argv[1], 'rb')\n"
            # Replaced twice while it was opened (31).
            "    except OSError as error:\n        assert error.errno == errno.ESTALE, error\n        continue\n"
            "    with file:\n        text = file.read()\n"
            "    assert len(text) == 100 and len(set(text)) == 1, text\n"
            "    if text[:1] == b'9': break\n",
            there / "d/file",
        ],
        stdin=subprocess.PIPE,
    )
    for number in range(1, 30):
        new = here / "d/file.new"
        new.write_bytes((b"9" if number == 29 else b"%d" % (number % 9)) * 100)
        new.rename(here / "d/file")
    assert reader.wait(60) == 0


# SEMANTICS 142.3
def test_what_a_stopped_mount_has_promised_delays_others_for_a_while_and_is_told_lost(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool, BEHIND)
    (here / "d").mkdir()
    make(here / "d", 0)
    time.sleep(SENT_SECONDS)
    make(here / "d", 1)
    descriptor = os.open(here / "d/open", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"bytes")
    with stopped(here):
        names = os.listdir(there / "d")
        assert "f0" in names
        (there / "d/goes on").write_bytes(b"here")
    lost = {"f1", "open"} - set(names)
    if "open" in lost:
        fails(errno.EIO, os.fsync, descriptor)
        assert "what was written last is lost" in eventually(here.log)
        # Its number was told, and is nobody else's: what the other mount has made is not written.
        fails(errno.ESTALE, os.write, descriptor, b"into somebody else's file")
    directory = os.open(here / "d", os.O_RDONLY)
    if lost:
        fails(errno.EIO, os.fsync, directory)
    os.fsync(directory)
    os.close(directory)
    os.close(descriptor)
    for mount in (here, there):
        assert eventually(partial(reads, mount / "d/goes on", b"here"))
        assert set(os.listdir(mount / "d")) == {"f0", "f1", "open", "goes on"} - lost
    make(here / "d", 5)
    check_made(there / "d", 5)
    assert pool.check() == []


# SEMANTICS 142.4
def test_a_server_that_is_killed_loses_nothing_that_was_promised(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool, BEHIND)
    for turn in range(4):
        (here / f"d{turn}").mkdir()
        make(here / f"d{turn}", 0)
        for number in range(1, 20):
            make(here / f"d{turn}", number)
        pool.kill_child(0)
        for number in range(20, 25):
            make(here / f"d{turn}", number)
        names = os.listdir(there / f"d{turn}")
        assert sorted(names) == sorted(f"f{number}" for number in range(25))
        for number in range(25):
            check_made(there / f"d{turn}", number)
    assert pool.check() == []


# SEMANTICS 142.4
def test_of_a_killed_mount_there_is_a_beginning_of_what_it_made_and_all_that_was_synced(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 256)
    there = new_mount(pool, BEHIND)
    for turn in range(4):
        here = new_mount(pool, BEHIND)
        (here / f"d{turn}").mkdir()
        for number in range(10):
            make(here / f"d{turn}", number)
        descriptor = os.open(here / f"d{turn}", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        for number in range(10, 30):
            make(here / f"d{turn}", number)
        here.daemon.send(signal.SIGKILL)
        assert here.daemon.ends()
        names = eventually(partial(os.listdir, there / f"d{turn}"))
        assert sorted(names) == sorted(f"f{number}" for number in range(len(names)))
        assert len(names) >= 10
        for number in range(len(names) - 1):
            check_made(there / f"d{turn}", number)
    assert pool.check() == []


# SEMANTICS 142.4
def test_what_is_written_by_o_sync_is_there_when_the_call_is_back(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    here = new_mount(pool, BEHIND)
    (here / "d").mkdir()
    make(here / "d", 0)
    descriptor = os.open(here / "d/synced", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DSYNC)
    os.write(descriptor, b"bytes")
    here.daemon.send(signal.SIGKILL)
    assert here.daemon.ends()
    assert pool.run("cat", "ramlace:/d/synced").stdout == b"bytes"


# SEMANTICS 142.4
def test_an_unmount_says_what_could_not_be_sent(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    here = new_mount(pool, BEHIND)
    (here / "d").mkdir()
    for attempt in range(10):
        # The first one asks for the slot, and its close is a message; of those that follow all is promised, unless this
        # machine is too slow for that.
        for number in range(5):
            make(here / "d", 10 * attempt + number)
        name = f"last{attempt}"
        descriptor = os.open(here / "d" / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        with frozen(pool.process("child", 0)):
            try:
                os.write(descriptor, b"bytes")
            except TimeoutError:
                os.close(descriptor)
                continue
            said = pool.run("unmount", str(here.directory)).stderr.decode()
        break
    else:
        raise AssertionError("no write was promised")
    assert "could not be sent to the pool before the unmount" in said
    # Its daemon sends it all the same.
    os.close(descriptor)
    assert here.daemon.ends()
    assert pool.run("cat", f"ramlace:/d/{name}").stdout == b"bytes"


# SEMANTICS 142.4
def test_an_unmount_sends_what_was_promised(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    for turn in range(3):
        mount = new_mount(pool, BEHIND)
        (mount / f"d{turn}").mkdir()
        for number in range(20):
            make(mount / f"d{turn}", number)
        mount.unmount()
        mount.daemon.send(signal.SIGKILL)
        for number in range(20):
            assert pool.run("cat", f"ramlace:/d{turn}/f{number}").stdout == f"text {number}".encode()


# SEMANTICS 142.5
def test_want_of_room_is_told_by_the_call(new_pool: NewPool, new_mount: NewMount) -> None:
    """A file that was told to be made is there, and so are its bytes."""
    pool = new_pool(1)
    mount = new_mount(pool, BEHIND)
    (mount / "d").mkdir()
    fill(mount)
    made: list[Path] = []
    full = 0
    for number in range(3000):
        file = mount / f"d/f{number}"
        try:
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            full += 1
            if full > 3:
                break
            continue
        try:
            os.write(descriptor, b"x" * 4000)
            made.append(file)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            full += 1
        os.close(descriptor)
        if full > 3:
            break
    else:
        pytest.fail("the pool was never full")
    os.sync()
    mount.unmount()
    again = new_mount(pool, BEHIND)
    for file in made:
        assert (again / "d" / file.name).read_bytes() == b"x" * 4000
    assert "lost" not in mount.log()


# SEMANTICS 142.6
def test_times_of_what_was_promised_are_those_that_were_told(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    mount = new_mount(pool, BEHIND)
    (mount / "d").mkdir()
    told: list[tuple[int, os.stat_result]] = []
    for number in range(20):
        descriptor = os.open(mount / f"d/f{number}", os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"bytes")
        told.append((number, os.fstat(descriptor)))
        os.close(descriptor)
    mount.unmount()
    again = new_mount(pool, BEHIND)
    for number, status in told:
        now = (again / f"d/f{number}").stat()
        assert (now.st_ino, now.st_mtime_ns, now.st_size) == (status.st_ino, status.st_mtime_ns, status.st_size)
        assert (now.st_mode, now.st_uid, now.st_gid, now.st_nlink, now.st_blocks) == (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_nlink,
            status.st_blocks,
        )
    assert "lost" not in mount.log()


# SEMANTICS 142.5
def test_what_a_directory_hands_down_is_not_guessed(new_pool: NewPool, new_mount: NewMount) -> None:
    """Groups, access lists, layouts and rights."""
    pool = new_pool(2, 256)
    mount = new_mount(pool, BEHIND)
    for name in ("setgid", "layout", "locked"):
        (mount / name).mkdir()
        (mount / name / "first").write_bytes(b"1")
    os.chmod(mount / "setgid", 0o2755)
    pool.run("layout", "set", "--stripe-unit", "64KiB", "--width", "1", "ramlace:/layout")
    for name in ("setgid", "layout"):
        for number in range(5):
            (mount / name / f"f{number}").write_bytes(b"bytes")
    layout = pool.json("layout", "get", "ramlace:/layout/f4")
    assert (layout["stripe_unit"], layout["width"]) == (65536, 1)
    assert (mount / "setgid/f4").stat().st_gid == (mount / "setgid").stat().st_gid
    if os.geteuid() != 0:
        os.chmod(mount / "locked", 0o555)
        fails(errno.EACCES, os.open, mount / "locked/second", os.O_CREAT | os.O_WRONLY)


# SEMANTICS 142.2
def test_two_directories_of_one_slot_do_not_know_each_other_s_inodes(new_pool: NewPool, new_mount: NewMount) -> None:
    """They share the numbers of new inodes; programs make files in both at once."""
    pool = new_pool(1, 256)
    mount = new_mount(pool, BEHIND)
    by_slot: dict[int, list[Path]] = {}
    for number in range(6000):
        directory = mount / f"d{number}"
        directory.mkdir()
        of_slot = by_slot.setdefault(directory.stat().st_ino >> 48, [])
        of_slot.append(directory)
        if len(of_slot) == 2 and number > 10:
            break
    pair = next(of_slot for of_slot in by_slot.values() if len(of_slot) == 2)
    script = (
        "import os, sys\n"
        "for n in range(200):\n"
        "    mode = 0o4711 if n % 5 == 0 else 0o644\n"
        "    fd = os.open(f'{sys.argv[1]}/f{n}', os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)\n"
        "    os.write(fd, f'{sys.argv[1]} {n}'.encode()); os.close(fd)\n"
    )
    makers = [subprocess.Popen(["python3", "-c", script, directory]) for directory in pair]
    assert [maker.wait(120) for maker in makers] == [0, 0]
    mount.unmount()
    assert "lost" not in mount.log()
    again = new_mount(pool)
    for directory in pair:
        for number in range(200):
            assert (again / directory.name / f"f{number}").read_text() == f"{directory} {number}"
    assert pool.check() == []


# SEMANTICS 142.6
def test_what_becomes_of_a_directory_counts_for_what_is_made_in_it(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool)
    for number, mode in enumerate((0o700, 0o711, 0o2755, 0o755)):
        directory = here / f"d{number}"
        directory.mkdir()
        for file in range(4):
            make(directory, file)
        directory.chmod(mode)
        for file in range(4, 8):
            make(directory, file)
        for looked in (directory, there / f"d{number}", directory):
            assert looked.stat().st_mode & 0o7777 == mode
        assert (there / f"d{number}/f7").stat().st_gid == (there / f"d{number}").stat().st_gid
    assert pool.check() == []


# SEMANTICS 142.3
def test_a_layout_that_a_directory_hands_down_keeps_nobody_waiting(new_pool: NewPool, new_mount: NewMount) -> None:
    """The server believes that the mount has the directory; the mount does not use that."""
    pool = new_pool(1, 256)
    mount = new_mount(pool, BEHIND)
    pool.run("layout", "set", "--width", "1", "ramlace:/")
    for number in range(6):
        (mount / f"f{number}").write_bytes(b"bytes")
        assert pool.run("cat", f"ramlace:/f{number}").stdout == b"bytes"
    assert "did not give" not in pool.log(0)
