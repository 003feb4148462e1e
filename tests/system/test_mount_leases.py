"""What a mount lets its kernel believe without asking: never what somebody else has changed."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import ramlace
from conftest import NewPool
from litmus import LONG
from mount import NewMount, Program
from pool import FAILING_SECONDS_MAX, KIB, Pool, pattern

STATS = 1_000
NAMES = [f"d{directory}/f{file}" for directory in range(3) for file in range(6)]
# limits::DIRECTORY_WHOLE_ENTRIES_MAX: more are spread over servers.
ENTRIES_WHOLE_MAX = 8192
# Longer than any lease, and than a server waits for one (limits.rs).
OVER_SECONDS = 0.8
STORM_TURNS = 400 if LONG else 150

Told = tuple[int, ...] | None


def told(path: Path) -> Told:
    """Return what a mount tells of a path that others may change."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mode, found.st_nlink, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def truth(connected: ramlace.Pool, path: str) -> Told:
    """Return the same as its home tells it, which believes nothing."""
    try:
        found = connected.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mode, found.st_nlink, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def know(*paths: Path) -> None:
    """Let the kernel believe names and what they lead to, as far as they can be believed now."""
    for path in paths:
        told(path)
        told(path)


# SEMANTICS 76
def test_a_thousand_stats_cost_a_handful_of_requests(new_pool: NewPool, new_mount: NewMount) -> None:
    """By path and by descriptor; a directory that is looked at again is not asked for file by file; nor are pages."""
    pool = new_pool(1)
    mount = new_mount(pool)
    many = mount / "a" / "many"
    many.mkdir(parents=True)
    for number in range(100):
        (many / str(number)).write_bytes(pattern(number, 10_000))
    time.sleep(OVER_SECONDS)
    began, before = time.monotonic(), pool.requests()
    with (many / "7").open("rb", buffering=0) as file:
        for _ in range(STATS):
            os.stat(many / "7")
            os.fstat(file.fileno())
            os.pread(file.fileno(), 4 * KIB, 0)
    asked, halves = pool.requests() - before, 1 + (time.monotonic() - began) / 0.5
    # Four names or inodes on the way are asked for anew in each half second.
    assert asked < 20 + 10 * halves, f"{STATS} stats are {asked} requests"
    before = pool.requests()
    for _ in range(20):
        for entry in os.scandir(many):
            entry.stat()
    assert pool.requests() - before < 20 * 100 / 3


def asked_for(pool: Pool, path: Path) -> tuple[int, int]:
    """Look at a path many times; return how many requests that was, and how many it may be where names are believed."""
    know(path)
    began, before = time.monotonic(), pool.requests()
    for _ in range(STATS):
        os.stat(path)
    asked, halves = pool.requests() - before, 1 + (time.monotonic() - began) / 0.5
    return asked, int(20 + 10 * halves)


# SEMANTICS 78.2
@pytest.mark.needs_root
def test_a_mount_for_several_users_asks_for_each_name(new_pool: NewPool, new_mount: NewMount) -> None:
    """What one user may see another may not: so its kernel believes no names."""
    pool = new_pool(1)
    pool.run("mkdir", "-m", "777", "/all")
    ordinary, for_all = new_mount(pool), new_mount(pool, "--allow-other")
    (ordinary / "all/file").write_bytes(b"1")
    (ordinary / "all/file").chmod(0o666)
    asked, _ = asked_for(pool, for_all / "all/file")
    assert asked >= STATS
    asked, few = asked_for(pool, ordinary / "all/file")
    assert asked < few or not believes_names()


# SEMANTICS 78.3
def test_the_names_of_a_spread_directory_are_asked_for_each_time(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 64)
    mount = new_mount(pool)
    with pool.connect() as connected:
        for directory, entries in (("whole", 100), ("spread", ENTRIES_WHOLE_MAX + 100)):
            connected.mkdir(f"/{directory}")
            for number in range(entries):
                connected.symlink("nowhere", f"/{directory}/{number}")
            connected.open(f"/{directory}/file", "wb", buffering=0).close()
    asked, _ = asked_for(pool, mount / "spread/file")
    assert asked >= STATS
    asked, few = asked_for(pool, mount / "whole/file")
    assert asked < few or not believes_names()


def believes_names() -> bool:
    """Whether this kernel can be told to forget the names of a directory (Linux 6.16)."""
    return tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 16)


# SEMANTICS 76
def test_a_lease_that_nobody_recalls_is_asked_for_again_in_time(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    """What is believed is over by itself: then the kernel asks its mount, and this one cannot answer."""
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(b"1")
    know(path)
    asks = threading.Thread(target=os.stat, args=(path,))
    mount.daemon.send(signal.SIGSTOP)
    try:
        time.sleep(OVER_SECONDS)
        asks.start()
        asks.join(OVER_SECONDS)
        assert asks.is_alive()
    finally:
        mount.daemon.send(signal.SIGCONT)
        asks.join()


# SEMANTICS 75
def test_a_change_at_the_end_of_a_lease_is_seen(here: Path, there: Path) -> None:
    """The kernel counts from when it takes an answer in, and in ticks: it believes a little longer than was said."""
    (here / "file").touch()
    (here / "name").touch()
    for turn in range(10):
        time.sleep(OVER_SECONDS)
        began = time.monotonic()
        know(there / "file", there / "name")
        time.sleep(max(0.0, began + 0.5 + (turn % 5 - 1) / 1000 - time.monotonic()))
        (here / "file").chmod(0o600 + turn)
        seen = told(there / "file")
        (here / "name").rename(here / "other")
        gone = told(there / "name")
        assert seen == told(here / "file"), turn
        assert gone is None, turn
        (here / "other").rename(here / "name")


def change_size(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def change_bytes(path: Path) -> None:
    path.write_bytes(b"other bytes, and more of them than an inode keeps" * 200)


def cut(path: Path) -> None:
    os.truncate(path, 3)


def change_mode(path: Path) -> None:
    path.chmod(path.stat().st_mode & 0o777 ^ 0o100)


def change_times(path: Path) -> None:
    os.utime(path, ns=(1_000_000_007, path.stat().st_mtime_ns + 1))


def change_xattr(path: Path) -> None:
    os.setxattr(path, "user.a", str(time.monotonic_ns()).encode())


def link(path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-linked")
    os.link(path, f"{path}-linked")


def move_away(path: Path) -> None:
    path.rename(f"{path}-moved")


def move_elsewhere(path: Path) -> None:
    path.rename(path.parent.parent / "d2" / f"{path.name}-elsewhere")


def replace(path: Path) -> None:
    new = path.with_name(f"{path.name}-new")
    new.write_bytes(b"new")
    new.rename(path)


def make_again(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"made again")


def into_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES = [
    change_size,
    change_bytes,
    cut,
    change_mode,
    change_times,
    change_xattr,
    link,
    move_away,
    move_elsewhere,
    replace,
    make_again,
    into_a_directory,
    Path.unlink,
]


@pytest.fixture
def tree(here: Path, there: Path) -> tuple[Path, Path]:
    """The same small tree on both mounts."""
    for directory in range(3):
        (here / f"d{directory}").mkdir()
    for name in NAMES:
        (here / name).write_bytes(b"begin")
    return here, there


# SEMANTICS 75
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_answered_is_seen_by_every_stat(
    shared_pool: Pool, place: str, tree: tuple[Path, Path], change: Callable[[Path], None]
) -> None:
    """On the mount that made it, on another, which believes what was before, and by descriptors that are open there."""
    here, there = tree
    with shared_pool.connect() as connected:
        for name in NAMES[:6]:
            around = [name, name.partition("/")[0], "d2", f"{name}-moved", f"{name}-linked"]
            with (there / name).open("rb") as file, (here / name).open("rb") as own:
                know(*(here / path for path in around), *(there / path for path in around))
                descriptors = [file.fileno(), own.fileno()]
                before = [os.fstat(one).st_ctime_ns for one in descriptors]
                change(here / name)
                after = [os.fstat(one).st_ctime_ns for one in descriptors]
                assert before[0] == before[1]
                assert after[0] == after[1] != before[0]
            for path in around:
                real = truth(connected, f"{place}/{path}")
                assert told(there / path) == real, path
                assert told(here / path) == real, path


def by_library(connected: ramlace.Pool, place: str, name: str, draw: random.Random) -> None:
    """Change something as a program would that has no mount."""
    path, other = f"{place}/{name}", f"{place}/{draw.choice(NAMES)}"
    with suppress(FileNotFoundError, FileExistsError):
        match draw.randrange(6):
            case 0:
                with connected.open(path, "wb", buffering=0) as file:
                    file.write(b"l" * draw.randrange(9_000))
            case 1:
                connected.truncate(path, draw.randrange(9_000))
            case 2:
                connected.rename(path, other)
            case 3:
                connected.remove(path)
            case 4:
                connected.setxattr(path, "user.b", b"c" * draw.randrange(5))
            case _:
                connected.link(path, other)


def by_mount(root: Path, name: str, draw: random.Random) -> None:
    """Change something through a mount."""
    path, other = root / name, root / draw.choice(NAMES)
    with suppress(FileNotFoundError, FileExistsError):
        match draw.randrange(9):
            case 0:
                path.write_bytes(b"m" * draw.randrange(9_000))
            case 1:
                os.truncate(path, draw.randrange(9_000))
            case 2:
                path.rename(other)
            case 3:
                path.unlink()
            case 4:
                # Ordinary users shall be able to go on with it.
                path.chmod(0o600 | draw.randrange(0o1000))
            case 5:
                os.utime(path, ns=(1, draw.randrange(10**12)))
            case 6:
                os.link(path, other)
            case 7:
                with path.open("ab") as file:
                    file.write(b"appended")
            case _:
                os.setxattr(path, "user.a", b"b" * draw.randrange(5))


# SEMANTICS 75
@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_changes_from_all_sides_leaves_nobody_with_what_was(
    shared_pool: Pool, place: str, tree: tuple[Path, Path], seed: int
) -> None:
    """After each change both mounts tell what its home tells, of all that it may have touched."""
    draw = random.Random(seed)
    with shared_pool.connect() as connected:
        for turn in range(STORM_TURNS):
            name = draw.choice(NAMES)
            looked = [*draw.sample(NAMES, 4), name, "d0", "d1", "d2"]
            know(*(root / path for root in tree for path in looked))
            if draw.random() < 0.4:
                by_library(connected, place, name, draw)
            else:
                by_mount(draw.choice(tree), name, draw)
            for path in looked:
                real = truth(connected, f"{place}/{path}")
                assert [told(root / path) for root in tree] == [real, real], (turn, path)


# SEMANTICS 75
def test_mounts_that_change_one_directory_at_once_do_not_wait_for_each_other(tree: tuple[Path, Path]) -> None:
    """Each holds its kernel's lock of the directory and believes names that the other changes."""
    wrong: list[str] = []

    def work(root: Path, who: str, seed: int) -> None:
        draw = random.Random(seed)
        for turn in range(120):
            mine = root / "d0" / f"{who}-{turn % 5}"
            mine.write_bytes(b"x" * turn)
            if os.stat(mine).st_size != turn:
                wrong.append(f"{mine} in turn {turn}")
            for name in draw.sample(NAMES[:6], 2):
                told(root / name)
            by_mount(root, draw.choice(NAMES[:6]), draw)
            mine.unlink()
            if told(mine):
                wrong.append(f"{mine} lives on in turn {turn}")

    workers = [
        threading.Thread(target=work, args=(tree[number % 2], f"w{number}", number), daemon=True) for number in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert not wrong
    for name in [*NAMES, "d0"]:
        assert told(tree[0] / name) == told(tree[1] / name)


# SEMANTICS 75
def test_a_name_that_was_moved_is_not_believed_when_another_moves_it_on(tree: tuple[Path, Path]) -> None:
    """The kernel takes what it believes of a name along to the new directory, of which it may know nothing."""
    here, there = tree
    for name in NAMES[:6]:
        know(here / name)
        (here / name).rename(here / "d2" / "moved")
        # It lives on: an inode that is gone would be looked up anew whatever is believed of its names.
        (there / "d2" / "moved").rename(there / "d1" / Path(name).name)
        assert told(here / "d2" / "moved") is None
        assert told(here / name) is None


# SEMANTICS 77.1, 77.2
def test_a_mount_that_says_nothing_delays_a_change_and_does_not_believe_the_old(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    """Its daemon is stopped; its kernel goes on believing for the rest of its lease and no longer."""
    mount = new_mount(shared_pool)
    paths = [mount / place / "written", mount / place / "removed"]
    for turn in range(3):
        with shared_pool.connect() as connected, Program() as program:
            for path in paths:
                path.write_bytes(b"old")
            know(*paths)
            program.run(
                f"know = lambda: [os.path.lexists(path) and os.stat(path).st_size for path in {[*map(str, paths)]!r}]"
            )
            assert program.ask("know()") == [3, 3]
            mount.daemon.send(signal.SIGSTOP)
            try:
                with connected.open(f"{place}/written", "wb", buffering=0) as file:
                    file.write(pattern(turn, 100 + turn))
                begun = time.monotonic()
                connected.remove(f"{place}/removed")
                # Far from the time that a session takes to end; the tests of leases in crates/namespace have the bound.
                assert time.monotonic() - begun < FAILING_SECONDS_MAX
                program.begin("know()", "ask")
            finally:
                mount.daemon.send(signal.SIGCONT)
            assert program.hear() == [100 + turn, False]


# SEMANTICS 77.1
def test_a_mount_that_was_killed_delays_a_change_and_no_more(
    shared_pool: Pool, place: str, here: Path, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    (here / "file").write_bytes(b"old")
    know(mount / place / "file", here / "file")
    mount.daemon.send(signal.SIGKILL)
    begun = time.monotonic()
    (here / "file").chmod(0o600)
    assert time.monotonic() - begun < FAILING_SECONDS_MAX
    (here / "file").write_bytes(b"newer")
    with shared_pool.connect() as connected:
        assert told(here / "file") == truth(connected, f"{place}/file")
        assert connected.read_bytes(f"{place}/file") == b"newer"


# SEMANTICS 77.3
def test_a_server_that_starts_again_lets_nobody_believe_what_it_has_forgotten(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Its new life does not know which sessions hold leases of the old one."""
    pool = new_pool(1)
    mount = new_mount(pool)
    paths = [mount / "written", mount / "removed"]
    with pool.connect() as connected:
        for turn in range(6):
            for path in paths:
                path.write_bytes(b"old")
            know(*paths)
            pool.kill_child(0)
            with connected.open("/written", "wb", buffering=0) as file:
                file.write(pattern(turn, 100 + turn))
            assert os.stat(paths[0]).st_size == 100 + turn
            know(*paths)
            connected.remove("/removed")
            assert told(paths[1]) is None
            pool.await_restart(0, turn + 1)


# SEMANTICS 77.3
def test_a_storm_with_servers_that_are_killed_leaves_nobody_with_what_was(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2)
    roots = [new_mount(pool).directory, new_mount(pool).directory]
    for directory in range(3):
        (roots[0] / f"d{directory}").mkdir()
    draw = random.Random(7)
    with pool.connect() as connected:
        for turn in range(160):
            name = draw.choice(NAMES)
            know(*(root / path for root in roots for path in (name, "d0", "d1", "d2")))
            if turn % 20 == 10:
                pool.kill_child(draw.randrange(2))
            if draw.random() < 0.4:
                by_library(connected, "", name, draw)
            else:
                by_mount(draw.choice(roots), name, draw)
            for path in (name, "d0", "d1", "d2"):
                real = truth(connected, f"/{path}")
                assert [told(root / path) for root in roots] == [real, real], (turn, path)


# SEMANTICS 75
def test_what_a_mount_believes_follows_its_own_changes(tree: tuple[Path, Path], place: str, shared_pool: Pool) -> None:
    """Also where the kernel takes no note of them itself: set-id bits that a write takes, memory that is reserved."""
    here = tree[0]
    path = here / NAMES[0]
    with shared_pool.connect() as connected:
        path.chmod(0o6777)
        know(path)
        with path.open("r+b", buffering=0) as file:
            file.write(b"x")
            assert told(path) == truth(connected, f"{place}/{NAMES[0]}")
            os.posix_fallocate(file.fileno(), 0, 50_000)
            assert os.fstat(file.fileno()).st_size == 50_000
        for step in (change_xattr, link, change_times, replace, change_bytes, cut):
            know(path, here / "d0")
            step(path)
            for name in (NAMES[0], "d0"):
                assert told(here / name) == truth(connected, f"{place}/{name}"), step
