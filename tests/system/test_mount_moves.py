"""Directories that one mount moves and another, whose kernel has them at their old places, moves on at once.

By rename(2) alone: a command such as mv looks the name up first, and its kernel then has it where it is.
"""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mount import Mount, fails
from pool import MIB, Pool
from test_mount_users import ALICE, BOB, User

ROUNDS = 12


class Side:
    """One of two mounts: a directory, and as whom things are done there."""

    def __init__(self, directory: Path, user: User | None) -> None:
        self.directory, self.user = directory, user

    def does(self, work: Callable[[], Any]) -> Any:
        """Do it here; paths may begin with the directory or, for a user, be relative to it."""
        if self.user:
            return self.user.does(self.directory, work, umask=0)
        before = os.getcwd()
        os.chdir(self.directory)
        try:
            return work()
        finally:
            os.chdir(before)

    def mkdir(self, *names: str) -> None:
        """Make directories, one after the other, for everybody."""
        for name in names:
            self.does(partial(os.mkdir, name, 0o777))

    def move(self, old: str, new: str) -> None:
        """Call rename(2)."""
        self.does(lambda: os.rename(old, new))

    def looks(self, *names: str) -> None:
        """Let the kernel have these where they are."""
        self.does(lambda: [os.stat(name).st_ino for name in names])

    def lists(self, name: str) -> list[str]:
        """Return what is in a directory."""
        listed: list[str] = self.does(lambda: os.listdir(name))
        return listed


@pytest.fixture(scope="module")
def everybodys(runtime: Path, fuse: None) -> Iterator[list[Mount]]:
    """Two mounts for everybody, of one pool."""
    pool = Pool(f"m{os.getpid()}", runtime, 96 * MIB, 3)
    mounts: list[Mount] = []
    try:
        pool.up("--no-root-squash")
        mounts += [Mount(pool, "--allow-other") for _ in range(2)]
        yield mounts
    finally:
        for mount in mounts:
            mount.close()
        pool.close()


@pytest.fixture(params=["owner", pytest.param("users", marks=pytest.mark.needs_root)])
def sides(request: pytest.FixtureRequest) -> tuple[Side, Side]:
    """Who moves first, and who moves on: on usual mounts, and users on mounts for everybody."""
    if request.param == "owner":
        here, there = request.getfixturevalue("here"), request.getfixturevalue("there")
        return Side(here, None), Side(there, None)
    first, second = request.getfixturevalue("everybodys")
    first.daemon.watch()
    second.daemon.watch()
    name = request.node.name.replace("[", "-").rstrip("]")
    (first / name).mkdir()
    (first / name).chmod(0o777)
    return Side(first / name, ALICE), Side(second / name, BOB)


# SEMANTICS 31
def test_a_directory_that_another_has_just_moved_is_moved_on(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.mkdir("p", "r", "s")
    for number in range(ROUNDS):
        a.mkdir(f"p/{number}", f"p/{number}/below")
        b.looks(f"p/{number}", f"p/{number}/below")
        a.move(f"p/{number}", f"r/{number}")
        b.move(f"r/{number}", f"s/{number}")
        for side in (a, b):
            assert side.lists(f"s/{number}") == ["below"]
            assert side.lists("p") + side.lists("r") == []
        for name in (f"s/{number}/below", f"s/{number}"):
            a.does(partial(os.rmdir, name))
        fails(errno.ENOENT, b.looks, f"s/{number}")


# SEMANTICS 31
def test_two_mounts_move_a_directory_by_turns(sides: tuple[Side, Side]) -> None:
    sides[0].mkdir("0", "1", "2", "3", "0/x")
    sides[1].looks("0/x")
    for turn in range(2 * ROUNDS):
        sides[turn % 2].move(f"{turn % 4}/x", f"{(turn + 1) % 4}/x")
    for side in sides:
        assert [side.lists(str(place)) for place in range(4)] == [["x"], [], [], []]


# SEMANTICS 31
def test_a_directory_that_is_open_and_full_is_moved_on(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.mkdir("p", "r", "s")

    def hold_and_move(number: int) -> tuple[list[str], bool, list[str]]:
        """Have it open and work in it while it is moved; words between the sides are names that they make."""
        base = os.open(".", os.O_RDONLY)
        held = os.open(f"p/{number}", os.O_RDONLY)
        os.chdir(f"p/{number}")
        os.stat("below/further")
        os.mkdir(f"ready{number}", dir_fd=base)
        while f"go{number}" not in os.listdir(base):
            pass
        os.rename(f"r/{number}", f"s/{number}", src_dir_fd=base, dst_dir_fd=base)
        same = os.stat(f"s/{number}", dir_fd=base).st_ino == os.fstat(held).st_ino == os.stat(".").st_ino
        open("made", "w").close()
        listed = sorted(os.listdir(held))
        os.fchdir(base)
        os.close(held)
        os.close(base)
        return listed, same, sorted(os.listdir(f"s/{number}"))

    for number in range(3):
        a.mkdir(f"p/{number}", f"p/{number}/below", f"p/{number}/below/further")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                while f"ready{number}" not in a.lists("."):
                    pass
                a.move(f"p/{number}", f"r/{number}")
                a.mkdir(f"go{number}")
                code = 0
            finally:
                os._exit(code)
        try:
            answer = b.does(partial(hold_and_move, number))
        finally:
            assert os.waitpid(child, 0)[1] == 0
        assert answer == (["below", "made"], True, ["below", "made"])


# SEMANTICS 31
def test_a_target_that_another_has_just_moved_is_replaced(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.mkdir("p", "r", "s")
    for number in range(ROUNDS):
        a.mkdir(f"p/{number}", f"s/{number}", f"s/{number}/below")
        b.looks(f"p/{number}", f"s/{number}/below")
        a.move(f"p/{number}", f"r/{number}")
        b.move(f"s/{number}", f"r/{number}")
        for side in (a, b):
            assert side.lists(f"r/{number}") == ["below"]
    # Both, in one call.
    for number in range(ROUNDS):
        a.mkdir(f"p/t{number}", f"p/f{number}", f"p/f{number}/below")
        b.looks(f"p/t{number}", f"p/f{number}/below")
        a.move(f"p/t{number}", f"r/t{number}")
        a.move(f"p/f{number}", f"s/f{number}")
        b.move(f"s/f{number}", f"r/t{number}")
        for side in (a, b):
            assert side.lists(f"r/t{number}") == ["below"]


# SEMANTICS 31
def test_it_is_moved_on_to_where_it_was_and_by_names_alone(sides: tuple[Side, Side]) -> None:
    """The kernel that moves it back holds the lock of its old place; no path is walked where directories are open."""
    a, b = sides
    a.mkdir("p", "r")

    def by_descriptors(number: int) -> None:
        old, new = os.open("r", os.O_RDONLY), os.open("p", os.O_RDONLY)
        os.rename(str(number), f"again{number}", src_dir_fd=old, dst_dir_fd=new)
        os.close(old)
        os.close(new)

    for number in range(ROUNDS):
        a.mkdir(f"p/{number}")
        b.looks(f"p/{number}")
        a.move(f"p/{number}", f"r/{number}")
        b.does(partial(by_descriptors, number))
        for side in (a, b):
            side.looks(f"p/again{number}")


# SEMANTICS 31
def test_what_cannot_be_is_refused_with_its_own_error(sides: tuple[Side, Side]) -> None:
    a, b = sides
    a.mkdir("p", "r", "s", "s/full", "s/full/entry")
    a.does(lambda: open("s/file", "w").close())
    for number in range(4):
        a.mkdir(f"p/{number}", f"p/{number}/below")
        b.looks(f"p/{number}/below", "s/file", "s/full")
        a.move(f"p/{number}", f"r/{number}")
        refused = [
            (errno.ENOTDIR, f"r/{number}", "s/file"),
            (errno.EISDIR, "s/file", f"r/{number}"),
            (errno.ENOTEMPTY, f"r/{number}", "s/full"),
            (errno.EINVAL, f"r/{number}", f"r/{number}/below/it"),
        ]
        number_, old, new = refused[number]
        fails(number_, b.move, old, new)


# SEMANTICS 31
def test_a_walk_beside_a_rename_finds_what_another_has_moved(sides: tuple[Side, Side]) -> None:
    """Any rename between directories holds the lock that a lookup wants to move an old place along."""
    a, b = sides
    a.mkdir("p", "r", "x", "y", "x/busy")
    renamer = os.fork()
    if renamer == 0:
        code = 1
        try:

            def forth_and_back() -> None:
                while True:
                    os.rename("x/busy", "y/busy")
                    os.rename("y/busy", "x/busy")
                    if os.path.exists("over"):
                        return

            b.does(forth_and_back)
            code = 0
        finally:
            os._exit(code)
    try:
        for number in range(ROUNDS):
            a.mkdir(f"p/{number}")
            b.looks(f"p/{number}")
            a.move(f"p/{number}", f"r/{number}")
            b.looks(f"r/{number}")
    finally:
        a.mkdir("over")
        assert os.waitpid(renamer, 0)[1] == 0
