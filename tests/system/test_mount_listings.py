"""What a listing of a directory shows through a mount."""

import ctypes
import os
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from mount import Program
from pool import Pool, eventually


def read_entries(descriptor: int, size: int) -> list[tuple[str, int]]:
    """Read some entries, with their inodes, by the system call itself: the C library would fill a larger buffer."""
    libc = ctypes.CDLL(None, use_errno=True)
    entries = ctypes.create_string_buffer(size)
    length = libc.getdents64(descriptor, entries, size)
    assert length >= 0, os.strerror(ctypes.get_errno())
    got, at = [], 0
    while at < length:
        inode, _, bytes_of_entry, _ = struct.unpack_from("<QqHB", entries, at)
        name = entries.raw[at + 19 : at + bytes_of_entry].split(b"\0")[0].decode()
        got.append((name, inode))
        at += bytes_of_entry
    return got


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_a_listing_names_each_entry_exactly_once(shared_pool: Pool, place: str, here: Path, count: int) -> None:
    with shared_pool.connect() as pool:
        for index in range(count):
            pool.symlink("x", f"{place}/entry-{index}")
    names = Counter(entry.name for entry in os.scandir(here))
    assert names == Counter(f"entry-{index}" for index in range(count))
    kinds = {entry.is_symlink() for entry in os.scandir(here)}
    assert kinds == ({True} if count else set())
    shown = subprocess.run(["ls", "-af", here], capture_output=True, check=True, text=True).stdout.split()
    assert Counter(shown) == names + Counter([".", ".."])
    descriptor = os.open(here, os.O_RDONLY)
    # os.scandir leaves these two out.
    first = dict(read_entries(descriptor, 4096)[:2])
    os.close(descriptor)
    assert first == {".": here.stat().st_ino, "..": here.parent.stat().st_ino}


def test_a_listing_names_what_stays_exactly_once_while_others_come_and_go(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    count = 2000
    with shared_pool.connect() as pool:
        for index in range(count):
            pool.symlink("x", f"{place}/stays-{index}")
    stays = {f"stays-{index}" for index in range(count)}
    work = """
turn = 0
def change():
    global turn
    while not done:
        os.symlink("x", f"{where}/moves-{turn}")
        if turn >= 50:
            os.unlink(f"{where}/moves-{turn - 50}")
        turn += 1
done = False
thread = threading.Thread(target=change)
thread.start()
"""
    with Program(f"where = {str(there)!r}\n{work}") as mover:
        before = mover.ask("turn")

        def lists() -> bool:
            names = Counter(os.listdir(here))
            assert {name for name in names if name.startswith("stays-")} == stays
            assert set(names.values()) == {1}, "an entry was listed twice"
            return bool(mover.ask("turn") > before)

        for _ in range(10):
            lists()
        assert eventually(lists), "nothing came and went"
        mover.run("done = True; thread.join()")


def test_a_listing_goes_on_where_it_stopped(here: Path) -> None:
    names = [f"{index}-{'x' * (index % 200)}" for index in range(300)]
    for name in names:
        os.symlink("x", here / name)
    descriptor = os.open(here, os.O_RDONLY)
    try:
        found: list[str] = []
        places: list[int] = []

        def read() -> list[str]:
            return [name for name, _ in read_entries(descriptor, 600)]

        while some := read():
            found += some
            places.append(os.lseek(descriptor, 0, os.SEEK_CUR))
        assert Counter(found) == Counter([*names, ".", ".."])
        assert len(places) > 20
        # Back to the middle: what follows is what followed.
        middle = len(places) // 2
        os.lseek(descriptor, places[middle], os.SEEK_SET)
        rest: list[str] = []
        while some := read():
            rest += some
        assert rest == found[-len(rest) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        assert read()[:2] == [".", ".."]
    finally:
        os.close(descriptor)
