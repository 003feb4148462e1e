"""What a mount keeps of names and attributes answers its kernel again, and never what somebody else has changed."""

import mmap
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import ramlace
from conftest import NewPool
from litmus import LONG
from mount import NewMount
from passthrough import PassthroughPool
from pool import Pool, eventually
from test_mount_leases import CHANGES, NAMES, OVER_SECONDS, believes_names, by_library, by_mount, know, told, truth
from test_mount_requests import answered

FILES = 30
SAMPLES = 4
ASKED = ("LeaseName", "LeaseAttributes", "Lookup", "GetAttributes")

needs_names = pytest.mark.skipif(not believes_names(), reason="this kernel cannot be told to forget names (Linux 6.16)")


def least_asked(pool: Pool, work: Callable[[int], None]) -> tuple[int, int]:
    """Return how many names and attributes a work asks for, and renewals: the least of several samples.

    On a busy machine a renewal may come too late in any one.
    """
    samples = []
    for sample in range(SAMPLES):
        before = answered(pool)
        work(sample)
        asked = answered(pool) - before
        samples.append((sum(asked[kind] for kind in ASKED), asked["RenewLeases"]))
    return min(samples)


# SEMANTICS 138.1
@needs_names
def test_what_was_asked_for_once_is_not_asked_for_again(new_pool: NewPool, new_mount: NewMount) -> None:
    """However long ago that was: one request renews all leases of a server."""
    pool = new_pool(2)
    mount = new_mount(pool)
    files = [mount / f"d{number % 3}" / f"f{number}" for number in range(FILES)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"some bytes")
    know(*files)

    def look(_: int) -> None:
        time.sleep(OVER_SECONDS)
        for file in files:
            assert file.stat().st_size == 10

    asked, renewed = least_asked(pool, look)
    assert asked < FILES / 3, "the kernel asks for each"
    assert 1 <= renewed < FILES / 3


# SEMANTICS 138.1
@needs_names
def test_what_is_not_there_is_not_asked_for_again(new_pool: NewPool, new_mount: NewMount) -> None:
    """Nor, in a directory that was made empty, for the first time."""
    pool = new_pool(2)
    mount = new_mount(pool)

    def make_and_look(sample: int) -> None:
        directory = mount / f"d{sample}"
        directory.mkdir()
        for number in range(FILES):
            assert not (directory / f"none{number}").exists()
        (directory / "there").write_bytes(b"some bytes")
        for _ in range(FILES):
            assert not (directory / "none").exists()

    asked, _ = least_asked(pool, make_and_look)
    assert asked < FILES / 3

    (mount / "full").mkdir()
    (mount / "full/there").touch()

    def look(sample: int) -> None:
        for _ in range(FILES):
            assert not (mount / f"full/none{sample}").exists()

    asked, _ = least_asked(pool, look)
    assert asked < FILES / 3


# SEMANTICS 138.6
@needs_names
def test_who_looks_at_one_name_after_the_other_gets_others_with_each(new_pool: NewPool, new_mount: NewMount) -> None:
    """Also in an order of its own; and what came unasked is followed as what was asked for."""
    pool = new_pool(2)
    here, there = new_mount(pool), new_mount(pool)
    names = [f"f{number}" for number in range(100)]
    for sample in range(2 * SAMPLES):
        (here / f"d{sample}").mkdir()
        for name in names:
            (here / f"d{sample}" / name).write_bytes(b"some bytes")
    draw = random.Random(1)

    def walk(sample: int) -> None:
        for found in os.scandir(there / f"d{sample}"):
            assert found.stat().st_size == 10

    def look(sample: int) -> None:
        for name in draw.sample(names, len(names)):
            assert (there / f"d{SAMPLES + sample}" / name).stat().st_size == 10

    # The directory, and of its names the first with few others and the next with all; a program that has not listed it
    # asks for one before.
    assert least_asked(pool, walk)[0] <= 4
    assert least_asked(pool, look)[0] <= 5

    # All names are known: also the ones that are not there.
    directory = f"d{SAMPLES - 1}"

    def miss(_: int) -> None:
        assert not any((there / directory / f"none{name}").exists() for name in names)

    assert least_asked(pool, miss)[0] <= 4
    for turn in range(5):
        (here / directory / f"none{turn}").write_bytes(b"x")
        (here / directory / f"f{turn}").unlink()
        (here / directory / f"f{50 + turn}").write_bytes(b"longer than before")
        assert (there / directory / f"none{turn}").read_bytes() == b"x"
        assert not (there / directory / f"f{turn}").exists()
        assert (there / directory / f"f{50 + turn}").stat().st_size == 18


# SEMANTICS 138.2
@pytest.mark.parametrize("pause", [0.0, OVER_SECONDS])
def test_a_name_that_another_makes_is_there(here: Path, there: Path, pause: float) -> None:
    """Where it was known that it is not: for a moment, or for long, so that nobody waits for the mount that knew."""
    (here / "d").mkdir()
    for number in range(4):
        name = f"d/n{number}"
        for _ in range(3):
            assert not (there / name).exists()
        time.sleep(pause)
        (here / name).write_bytes(b"new")
        assert (there / name).read_bytes() == b"new"
        time.sleep(pause)
        (here / name).rename(here / "d/moved")
        assert not (there / name).exists()
        assert (there / "d/moved").read_bytes() == b"new"
        (there / "d/moved").rename(there / name)
        assert (here / name).exists()
        assert not (here / "d/moved").exists()


# SEMANTICS 138.2
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_when_no_lease_holds_any_more_is_seen(
    shared_pool: Pool, place: str, here: Path, there: Path, change: Callable[[Path], None]
) -> None:
    """Nobody waits then for the mount that keeps what was; it learns of it before it believes it again."""
    for directory in ("d0", "d2"):
        (here / directory).mkdir()
    name = "d0/f0"
    around = [name, "d0", "d2", f"{name}-moved", f"{name}-linked"]
    with shared_pool.connect() as connected:
        (here / name).write_bytes(b"begin")
        know(*(root / path for path in around for root in (here, there)))
        time.sleep(OVER_SECONDS)
        change(here / name)
        for path in around:
            real = truth(connected, f"{place}/{path}")
            assert told(there / path) == real, path
            assert told(here / path) == real, path


# SEMANTICS 138.2
@pytest.mark.parametrize("seed", range(2))
def test_a_storm_with_pauses_leaves_nobody_with_what_was(
    shared_pool: Pool, place: str, here: Path, there: Path, seed: int
) -> None:
    """Leases run out, are renewed, and are recalled in between, in any order."""
    draw, roots = random.Random(seed), (here, there)
    for directory in range(3):
        (here / f"d{directory}").mkdir()
    with shared_pool.connect() as connected:
        for turn in range(80):
            name = draw.choice(NAMES)
            looked = [*draw.sample(NAMES, 4), name, "d0", "d1", "d2"]
            know(*(root / path for root in roots for path in looked))
            time.sleep(draw.choice([0.0, 0.0, 0.1, 0.3, 0.6]))
            if draw.random() < 0.4:
                by_library(connected, place, name, draw)
            else:
                by_mount(draw.choice(roots), name, draw)
            for path in looked:
                real = truth(connected, f"{place}/{path}")
                assert [told(root / path) for root in roots] == [real, real], (turn, path)


def change_here(directory: Path, other: Path, draw: random.Random) -> None:
    """Do something to names of a directory."""
    one, two = (directory / f"n{draw.randrange(4)}" for _ in range(2))
    with suppress(OSError):
        match draw.randrange(9):
            case 0:
                one.write_bytes(b"x" * draw.randrange(9_000))
            case 1:
                one.unlink()
            case 2:
                one.rename(two)
            case 3:
                one.rename(other / two.name)
            case 4:
                os.link(one, two)
            case 5:
                one.mkdir()
            case 6:
                one.rmdir()
            case 7:
                os.symlink("n0", one)
            case _:
                one.chmod(0o600 | draw.randrange(0o100))


# SEMANTICS 138.3
@pytest.mark.parametrize("seed", range(2))
def test_what_a_mount_keeps_follows_its_own_changes(new_pool: NewPool, new_mount: NewMount, seed: int) -> None:
    """Hard links, removed and replaced files, directories that come and go, of which all names are known."""
    pool = new_pool(2)
    mount, draw = new_mount(pool), random.Random(seed)
    for name in ("a", "b"):
        (mount / name).mkdir()
    with pool.connect() as connected:
        for turn in range(300 if LONG else 100):
            directory, other = (mount / name for name in draw.sample(["a", "b"], 2))
            change_here(directory, other, draw)
            for path in ("a", "b", *(f"{name}/n{number}" for name in "ab" for number in range(4))):
                assert told(mount / path) == truth(connected, f"/{path}"), (turn, path)


# SEMANTICS 138.3
def test_a_file_that_lost_a_name_here_has_one_less(new_pool: NewPool, new_mount: NewMount) -> None:
    """Also for a program that has it open, and where another name of it was looked at before."""
    mount = new_mount(new_pool(1))
    (mount / "one").write_bytes(b"x")
    os.link(mount / "one", mount / "two")
    with (mount / "one").open("rb") as file:
        know(mount / "one", mount / "two")
        (mount / "one").unlink()
        assert ((mount / "two").stat().st_nlink, os.fstat(file.fileno()).st_nlink) == (1, 1)
        (mount / "two").unlink()
        assert os.fstat(file.fileno()).st_nlink == 0


# SEMANTICS 138.2
def test_a_link_that_another_moves_is_gone(here: Path, there: Path) -> None:
    """From a directory whose names the mount knows by the lease on its attributes alone."""
    (here / "f").touch()
    for number in range(3):
        directory = f"d{number}"
        (here / directory).mkdir()
        know(here / directory)
        os.link(here / "f", here / directory / "g")
        know(here / "f", here / directory / "g")
        (there / directory / "g").rename(there / directory / "h")
        assert not (here / directory / "g").exists()
        assert (here / directory / "h").exists()


# SEMANTICS 138.2
def test_what_changes_in_a_servers_new_life_is_seen(new_pool: NewPool, new_mount: NewMount) -> None:
    """It knows no leases of the life before: what was known by those is asked for again, name for name."""
    pool = new_pool(1)
    here, there = new_mount(pool), new_mount(pool)
    (here / "d").mkdir()
    for name in "ab":
        (here / "d" / name).write_bytes(name.encode())
    for turn in range(3):
        know(there / "d", there / "d/a", there / "d/b", there / "d/new")
        pool.kill_child(0)
        (here / "d/b").rename(here / "d/c")
        (here / "d/new").touch()
        assert (there / "d/c").exists(), turn
        assert not (there / "d/b").exists(), turn
        assert (there / "d/new").exists(), turn
        (there / "d/new").unlink()
        (there / "d/c").rename(there / "d/b")


# SEMANTICS 138.3
@pytest.mark.needs_root
def test_the_times_of_the_last_stores_into_a_file_that_the_kernel_had_are_seen(passthrough: PassthroughPool) -> None:
    """Its home learns of them when nobody has it open or mapped, from this mount itself."""
    passthrough.make()
    path = passthrough.here / "file"
    with passthrough.pool.connect() as connected:
        for turn in range(3):
            with path.open("r+b") as file:
                mapped = mmap.mmap(file.fileno(), 0)
            know(path)
            before = truth(connected, "/file")
            mapped[turn] ^= 1
            mapped.close()

            def is_told(before: object = before) -> bool:
                return told(path) == truth(connected, "/file") != before

            assert eventually(is_told), turn


# SEMANTICS 138.2
def test_what_the_library_changes_while_a_mount_is_idle_is_seen(shared_pool: Pool, place: str, here: Path) -> None:
    with shared_pool.connect() as connected:
        for number in range(3):
            (here / "file").write_bytes(b"x" * number)
            know(here / "file", here / "none")
            time.sleep(OVER_SECONDS)
            change(connected, f"{place}/file", f"{place}/none")
            assert told(here / "file") == truth(connected, f"{place}/file")
            assert told(here / "none") == truth(connected, f"{place}/none")
            connected.remove(f"{place}/none")
            assert told(here / "none") is None


def change(connected: ramlace.Pool, file: str, none: str) -> None:
    """Change a file and make another one."""
    connected.truncate(file, 7)
    connected.open(none, "wb", buffering=0).close()
