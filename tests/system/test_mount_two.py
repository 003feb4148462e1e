"""Two mounts of a pool, as on two machines: what one has closed, the other opens and sees."""

import errno
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mount import Program, fails
from pool import KIB, MIB, Pool, eventually, pattern

UNIT = 64 * KIB


def by_library(pool: Pool, place: str, path: Path, content: bytes) -> None:
    """Write a file as a program would that has no mount."""
    with pool.connect() as connected, connected.open(f"{place}/{path.name}", "wb", buffering=0) as file:
        file.write(content)


def by_mount(pool: Pool, place: str, path: Path, content: bytes) -> None:
    path.write_bytes(content)


WRITERS = [by_mount, by_library]
Writer = Callable[[Pool, str, Path, bytes], None]


# SEMANTICS 30.1
@pytest.mark.parametrize("write", WRITERS)
def test_what_one_has_closed_the_other_opens_and_sees(
    shared_pool: Pool, place: str, here: Path, there: Path, write: Writer
) -> None:
    """Also when the other has the old bytes in its pages: longer, shorter, and of the same length."""
    for turn, size in enumerate([1, UNIT, UNIT, 100, 3 * UNIT + 5, 3 * UNIT + 5, 0, 4096, 4096, 4097, 4095]):
        content = pattern(turn, size)
        write(shared_pool, place, here / "file", content)
        found = (there / "file").stat()
        assert found.st_size == size
        assert (there / "file").read_bytes() == content
        assert (found.st_mtime_ns, found.st_ctime_ns) == (
            (here / "file").stat().st_mtime_ns,
            (here / "file").stat().st_ctime_ns,
        )
        # And again, from the pages.
        assert (there / "file").read_bytes() == content


def holds(path: Path, content: bytes) -> bool:
    return path.read_bytes() == content


def is_later_than(path: Path, before: os.stat_result) -> bool:
    return path.stat().st_mtime_ns > before.st_mtime_ns


# SEMANTICS 30.4
@pytest.mark.parametrize("size", [5, 2 * UNIT])
def test_an_overwrite_is_seen_once_it_is_synced_and_without_that_in_a_while(here: Path, there: Path, size: int) -> None:
    """The other has the old bytes in its pages, and asks again and again for as long as it takes."""
    (here / "file").write_bytes(b"0" * size)
    file = os.open(here / "file", os.O_WRONLY)
    try:
        for turn in range(1, 5):
            before = (there / "file").stat()
            assert (there / "file").read_bytes()[:1] == b"%d" % (turn - 1)
            os.pwrite(file, b"%d" % turn * size, 0)
            if turn % 2:
                os.fsync(file)
                assert (there / "file").read_bytes() == b"%d" % turn * size
            assert eventually(partial(holds, there / "file", b"%d" % turn * size))
            assert eventually(partial(is_later_than, there / "file", before))
        os.pwrite(file, b"9" * size, 0)
    finally:
        os.close(file)
    assert (there / "file").read_bytes() == b"9" * size


# SEMANTICS 30.1
@pytest.mark.parametrize("write", WRITERS)
def test_the_same_size_and_time_of_modification_hide_no_change(
    shared_pool: Pool, place: str, here: Path, there: Path, write: Writer
) -> None:
    times = (10**18, 10**18)
    for turn in range(20):
        write(shared_pool, place, here / "file", pattern(turn, 50_000))
        os.utime(here / "file", ns=times)
        assert (there / "file").stat().st_mtime_ns == times[1]
        assert (there / "file").read_bytes() == pattern(turn, 50_000), turn


def test_one_byte_changed_in_place_is_seen_by_the_next_open(here: Path, there: Path) -> None:
    content = bytearray(pattern(1, 3 * UNIT))
    (here / "file").write_bytes(content)
    for turn in range(30):
        at = turn * 6271 % len(content)
        writer, reader = (here, there) if turn % 2 else (there, here)
        assert (reader / "file").read_bytes() == content
        with open(writer / "file", "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"\0", at)
        content[at] = 0
        assert (reader / "file").read_bytes() == content, turn


def test_a_file_that_stays_open_keeps_what_others_open_fresh(here: Path, there: Path) -> None:
    """Pages that a long-open descriptor has brought are dropped by the next open."""
    (here / "file").write_bytes(pattern(0, UNIT))
    with open(there / "file", "rb", buffering=0) as kept:
        for turn in range(1, 20):
            assert set(os.pread(kept.fileno(), UNIT, 0)) <= set(pattern(turn, UNIT)) | set(pattern(turn - 1, UNIT))
            (here / "file").write_bytes(pattern(turn, UNIT))
            os.pread(kept.fileno(), UNIT, 0)
            assert (there / "file").read_bytes() == pattern(turn, UNIT)
            # The old descriptor has no pages of its own: it sees the same.
            assert os.pread(kept.fileno(), UNIT, 0) == pattern(turn, UNIT)


# SEMANTICS 30.1
def test_of_many_that_open_at_once_none_sees_the_past(here: Path, there: Path) -> None:
    """An open that drops the pages must not be overtaken by one that trusts them."""
    readers, turns = 6, 40
    path = there / "file"
    stale: list[tuple[int, int]] = []
    begin, end = threading.Barrier(readers + 1), threading.Barrier(readers + 1)

    def read() -> None:
        for turn in range(turns):
            begin.wait()
            descriptor = os.open(path, os.O_RDONLY)
            letter = os.pread(descriptor, 1, 0)[0]
            os.close(descriptor)
            if letter != turn % 250:
                stale.append((turn, letter))
            end.wait()

    (here / "file").write_bytes(b"\xff" * UNIT)
    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for turn in range(turns):
        path.read_bytes()
        (here / "file").write_bytes(bytes([turn % 250]) * UNIT)
        begin.wait()
        end.wait()
    for thread in threads:
        thread.join()
    assert not stale, f"(turn, what was seen): {stale}"


# SEMANTICS 31
def test_names_that_are_removed_and_made_again_are_the_new_ones(here: Path, there: Path) -> None:
    for turn in range(30):
        writer, reader = (here, there) if turn % 2 else (there, here)
        kind = turn % 3
        if kind == 0:
            (writer / "name").write_bytes(pattern(turn, 1000))
            assert (reader / "name").read_bytes() == pattern(turn, 1000)
            (writer / "name").unlink()
        elif kind == 1:
            (writer / "name").mkdir()
            (reader / "name/below").write_bytes(b"x")
            assert os.listdir(writer / "name") == ["below"]
            (writer / "name/below").unlink()
            (reader / "name").rmdir()
        else:
            (writer / "name").symlink_to(f"target-{turn}")
            assert os.readlink(reader / "name") == f"target-{turn}"
            (writer / "name").unlink()
        for place in (reader, writer):
            fails(errno.ENOENT, os.lstat, place / "name")
            assert os.listdir(place) == []


def test_a_file_made_anew_under_its_name_is_another_file(here: Path, there: Path) -> None:
    (here / "file").write_bytes(pattern(1, UNIT))
    with open(there / "file", "rb", buffering=0) as old:
        assert old.read(10) == pattern(1, 10)
        (here / "file").unlink()
        (here / "file").write_bytes(pattern(2, UNIT))
        assert (there / "file").read_bytes() == pattern(2, UNIT)
        assert (there / "file").stat().st_ino != os.fstat(old.fileno()).st_ino
        assert os.pread(old.fileno(), UNIT, 0) == pattern(1, UNIT)


# SEMANTICS 64.2
def test_a_working_directory_that_another_removes_is_gone(here: Path, there: Path) -> None:
    (here / "directory").mkdir()
    with Program(f"os.chdir({str(there / 'directory')!r}); open('file', 'w').close()") as program:
        (here / "directory/file").unlink()
        (here / "directory").rmdir()
        with pytest.raises(OSError, match=r"No such file|Stale") as told:
            program.run("open('other', 'w')")
        assert told.value.errno in (errno.ENOENT, errno.ESTALE)
    assert os.listdir(there) == []


def test_what_changes_in_a_directory_is_listed_by_the_other(here: Path, there: Path) -> None:
    made: set[str] = set()
    chance = random.Random(1)
    for turn in range(100):
        writer, reader = (here, there) if chance.random() < 0.5 else (there, here)
        if made and chance.random() < 0.4:
            name = chance.choice(sorted(made))
            (writer / name).unlink()
            made.remove(name)
        else:
            (writer / f"name-{turn}").write_bytes(b"x" * turn)
            made.add(f"name-{turn}")
        assert set(os.listdir(reader)) == made
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(reader)}
        assert sizes == {name: int(name[5:]) for name in made}


def test_modes_and_times_are_the_others_at_once(here: Path, there: Path) -> None:
    (here / "file").write_bytes(b"x")
    for turn in range(20):
        writer, reader = (here, there) if turn % 2 else (there, here)
        (writer / "file").chmod(0o600 + turn)
        os.utime(writer / "file", ns=(turn, turn * 2))
        found = (reader / "file").stat()
        assert (found.st_mode & 0o777, found.st_atime_ns, found.st_mtime_ns) == (0o600 + turn, turn, turn * 2)


# SEMANTICS 30.2
def test_the_size_of_a_file_that_another_writes_is_seen_without_a_close(here: Path, there: Path) -> None:
    with open(here / "log", "ab", buffering=0) as log, open(there / "log", "rb", buffering=0) as tail:
        seen = b""
        for turn in range(30):
            log.write(pattern(turn, 500))
            assert (there / "log").stat().st_size == 500 * (turn + 1)
            # An open descriptor learns of the size a moment later.
            more = bytearray()
            assert eventually(lambda more=more: more.extend(tail.read(5000)) or len(more) >= 500)  # type: ignore[misc]
            seen += more
            assert more == pattern(turn, 500)
    assert seen == (here / "log").read_bytes()


# SEMANTICS 30.3
@pytest.mark.both
def test_what_another_mount_has_cut_off_is_never_read_as_zeros(here: Path, there: Path) -> None:
    """Also a moment after its size was asked for, by reads ahead of one another behind the new end."""
    with read_ahead(there, 128):
        for _ in range(100):
            with open(here / "file", "w+b", buffering=0) as writer:
                writer.write(pattern(1, 2 * MIB))
                with open(there / "file", "rb", buffering=0) as reader:
                    writer.truncate(MIB)
                    assert reader.read() == pattern(1, 2 * MIB)[:MIB]


# SEMANTICS 30.3
def test_a_file_that_is_replaced_again_and_again_shows_no_zeros_between_two_changes(here: Path, there: Path) -> None:
    """Reads that met the empty file leave nothing behind that is shown when it has bytes again."""
    size, written, read, zeros = 2 * 4096, [0], [0], [0]
    (here / "file").write_bytes(bytes(size))
    over = threading.Event()

    def look() -> None:
        with open(there / "file", "rb", buffering=0) as file:
            while not over.is_set():
                before = written[0]
                found = os.pread(file.fileno(), 2 * size, 0)
                if before and written[0] == before:
                    read[0] += 1
                    zeros[0] += b"\0" in found

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    turn = 0
    while turn < 500 or read[0] < 100:
        turn += 1
        written[0] = 0
        (here / "file").write_bytes(bytes([turn % 250 + 1]) * size)
        written[0] = turn
        time.sleep(0.004)
    over.set()
    for reader in readers:
        reader.join()
    assert zeros == [0], f"of {read[0]} reads"


@contextmanager
def read_ahead(mount: Path, kib: int) -> Iterator[None]:
    """Set the kernel's read-ahead on a mount where this process may; nobody else can raise it above 128."""
    device = mount.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    before = setting.read_text()
    if not os.access(setting, os.W_OK):
        assert int(before) == kib
        yield
        return
    setting.write_text(str(kib))
    yield
    setting.write_text(before)


# SEMANTICS 30.1
def test_200_rounds_of_random_writes_are_seen_by_every_open(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    with shared_pool.connect() as pool:
        pool.set_layout(place, stripe_unit=UNIT, width=3)
    chance = random.Random(7)
    model = bytearray(pattern(0, 4 * UNIT))
    (here / "file").write_bytes(model)
    for turn in range(200):
        writer, reader = (here, there) if chance.random() < 0.7 else (there, here)
        with open(writer / "file", "r+b", buffering=0) as file:
            for _ in range(chance.randrange(1, 4)):
                offset, length = chance.randrange(6 * UNIT), chance.randrange(1, 2 * UNIT)
                if chance.random() < 0.15:
                    os.ftruncate(file.fileno(), offset)
                    model.extend(bytes(max(offset - len(model), 0)))
                    del model[offset:]
                    continue
                data = pattern(turn, length)
                os.pwrite(file.fileno(), data, offset)
                model.extend(bytes(max(offset - len(model), 0)))
                model[offset : offset + length] = data
        with open(reader / "file", "rb", buffering=0) as file:
            assert os.fstat(file.fileno()).st_size == len(model), turn
            offset = chance.randrange(len(model) + 1)
            assert os.pread(file.fileno(), 3 * UNIT, offset) == model[offset : offset + 3 * UNIT], turn
            if turn % 10 == 0:
                assert file.read() == model, turn
    with shared_pool.connect() as pool:
        assert pool.open(f"{place}/file").read() == model


def test_programs_on_both_mounts_build_one_tree(here: Path, there: Path) -> None:
    """Each makes, writes, reads back and removes its own; both look at everything."""
    work = """
for turn in range(40):
    directory = f"{root}/{own}-{turn % 4}"
    Path(directory).mkdir(exist_ok=True)
    Path(f"{directory}/file-{turn}").write_bytes(bytes([turn]) * (turn * 997))
    assert Path(f"{directory}/file-{turn}").read_bytes() == bytes([turn]) * (turn * 997)
    for name in os.listdir(root):
        try:
            os.listdir(f"{root}/{name}")
        except FileNotFoundError:
            pass
"""
    programs = [Program(f"root, own = {str(root)!r}, {own}") for own, root in enumerate([here, there, here, there])]
    try:
        for program in programs:
            program.begin(work)
        for program in programs:
            program.hear()
    finally:
        for program in programs:
            program.kill()
    for root in (here, there):
        assert {path.name for path in root.glob("*/*")} == {f"file-{turn}" for turn in range(40)}
        for own in range(4):
            for turn in range(40):
                assert (root / f"{own}-{turn % 4}/file-{turn}").read_bytes() == bytes([turn]) * (turn * 997)


def test_large_files_go_from_mount_to_mount(here: Path, there: Path) -> None:
    (here / "large").write_bytes(pattern(5, 24 * MIB))
    assert (there / "large").read_bytes() == pattern(5, 24 * MIB)


# SEMANTICS 8.3
def test_what_an_array_view_has_stored_and_published_is_seen_by_the_next_open(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    """An array view stores past the servers: its publish, and its end, are what mounts go by."""
    with shared_pool.connect() as pool:
        array = pool.array(f"{place}/array", (1000, 3), "f8", order="F")
        for turn in range(1, 6):
            mounts_have = [np.fromfile(mount / "array") for mount in (here, there)]
            assert all((numbers == turn - 1).all() for numbers in mounts_have)
            array.view()[:] = turn
            array.publish()
            assert all((np.fromfile(mount / "array") == turn).all() for mount in (here, there)), turn
        array.view()[:] = 99
        array.close()
        del array
        gc.collect()
        assert all((np.fromfile(mount / "array") == 99).all() for mount in (here, there))
