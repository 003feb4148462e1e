"""A file's own mode decides on every mount, whatever mode that one has."""

import errno
import itertools
import mmap
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conftest import NewPool
from mount import REFRESH, Mount, NewMount, Program, fails, mapping
from passthrough import SIZE
from pool import KIB, MIB, Pool, eventually
from test_mount_relaxed import LOCKED

PAGE = 4 * KIB
LENGTH = 64 * PAGE
MODE = "user.ramlace.mode"
MODES = ("coherent", "strict", "relaxed")
both = pytest.mark.both
# What is stored next.
_values = itertools.count(1 << 48)


@pytest.fixture(scope="module")
def mounts(fuse: None, shared_pool: Pool) -> Iterator[dict[str, Mount]]:
    """A mount of the shared pool in each mode."""
    mounts: dict[str, Mount] = {}
    try:
        for mode in MODES:
            mounts[mode] = Mount(shared_pool, "--mode", mode)
        yield mounts
    finally:
        for mount in mounts.values():
            mount.close()


@pytest.fixture
def places(mounts: dict[str, Mount], place: str) -> dict[str, Path]:
    """This test's directory, by the mode of the mount."""
    for mount in mounts.values():
        mount.daemon.watch()
    return {mode: mount / place for mode, mount in mounts.items()}


def made(pool: Pool, place: str, mode: str, name: str = "file", length: int = LENGTH) -> None:
    """Make a file of zeros that has a mode."""
    with pool.connect() as connected:
        with connected.open(f"{place}/{name}", "wb") as file:
            file.write(bytes(length))
        connected.set_layout(f"{place}/{name}", mode=mode)  # type: ignore[arg-type]


def opened(path: Path) -> mmap.mmap:
    """Map a file for writing."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def stored_at_once(one: mmap.mmap, other: mmap.mmap, turns: int = 40) -> list[bool]:
    """Store, and tell each time whether the other mapping shows it, which has shown the page before."""
    found = []
    for turn in range(1, turns + 1):
        at = turn * 7919 % (len(one) - 8)
        before, new = other[at : at + 8], next(_values).to_bytes(8, "big")
        assert before != new
        one[at : at + 8] = new
        found.append(other[at : at + 8] == new)
    return found


PAIRS = list(itertools.permutations(MODES, 2))


# SEMANTICS 140.1
@both
@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_strict_file_is_one_memory_on_mounts_of_any_mode(
    shared_pool: Pool, place: str, places: dict[str, Path], here: str, there: str
) -> None:
    with shared_pool.connect() as pool:
        pool.set_layout(place, stripe_unit=64 * KIB, width=1 if here < there else 3)
    made(shared_pool, place, "strict")
    with opened(places[here] / "file") as one, opened(places[there] / "file") as other:
        assert all(stored_at_once(one, other))
        assert all(stored_at_once(other, one))
        assert one[:] == other[:]
    # What is written by a call, too, and read by one; and a large piece at once.
    with open(places[here] / "file", "r+b", buffering=0) as writer, opened(places[there] / "file") as view:
        for turn in range(1, 20):
            os.pwrite(writer.fileno(), bytes([turn]) * 3 * PAGE, turn * 5000)
            assert view[turn * 5000 : turn * 5000 + 3 * PAGE] == bytes([turn]) * 3 * PAGE
            view[turn] = 200 + turn
            assert os.pread(writer.fileno(), 1, turn) == bytes([200 + turn])


# SEMANTICS 140.1
@both
@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_coherent_file_shows_what_is_published_and_no_sooner_on_mounts_of_any_mode(
    shared_pool: Pool, place: str, places: dict[str, Path], here: str, there: str
) -> None:
    made(shared_pool, place, "coherent")
    with opened(places[here] / "file") as one, opened(places[there] / "file") as other:
        for turn in range(1, 40):
            writer, reader = (one, other) if turn % 3 else (other, one)
            at = turn * 7919 % (LENGTH - 8)
            writer[at : at + 8] = turn.to_bytes(8, "little")
            writer.flush()
            assert reader[at : at + 8] == turn.to_bytes(8, "little")
        # The kernel may write pages back whenever it likes, but not all at once.
        assert not all(stored_at_once(one, other))
        assert not all(stored_at_once(other, one))


# SEMANTICS 140.1
@both
@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_programs_of_a_relaxed_file_refresh_and_lock_on_mounts_of_any_mode(
    shared_pool: Pool, place: str, places: dict[str, Path], here: str, there: str
) -> None:
    made(shared_pool, place, "relaxed")
    with (
        Program(mapping(places[here] / "file") + LOCKED) as first,
        Program(mapping(places[there] / "file") + LOCKED) as second,
    ):
        for turn in range(30):
            program = second if turn % 3 else first
            assert program.ask(f"count({5 * PAGE}, {5 * PAGE + 100})") == turn
        for turn in range(1, 20):
            first.run(f"view[0:8] = ({turn}).to_bytes(8, 'little'); view.flush()")
            os.setxattr(places[there] / "file", REFRESH, b"1")
            assert second.ask("view[0:8]") == turn.to_bytes(8, "little")
        # Neither a refresh nor a lock there shows what is neither published nor unlocked here.
        seen = []
        for turn in range(20, 40):
            first.run(f"view[0:8] = ({turn}).to_bytes(8, 'little')")
            seen.append(second.ask("view[0:8]") == turn.to_bytes(8, "little"))
        assert not all(seen)


# SEMANTICS 71.2, 140.1
@both
def test_a_lock_publishes_nothing_of_a_coherent_file_on_relaxed_mounts(
    shared_pool: Pool, place: str, places: dict[str, Path]
) -> None:
    made(shared_pool, place, "coherent")
    with (
        Program(mapping(places["relaxed"] / "file") + LOCKED) as first,
        Program(mapping(places["coherent"] / "file") + LOCKED) as second,
    ):
        seen = []
        for _ in range(20):
            counted = first.ask("count(0, 100)")
            seen.append(second.ask("int.from_bytes(view[100:108], 'little')") == counted + 1)
        assert not all(seen)


def mode_by_all_doors(pool: Pool, place: str, name: str, path: Path) -> str | None:
    """Return a file's own mode, of which all doors say the same."""
    locator = f"{place}/{name}"
    with pool.connect() as connected:
        mode = connected.layout(locator).mode
    assert pool.json("layout", "get", locator)["mode"] == mode
    assert pool.json("stat", locator)["layout"]["mode"] == mode
    assert (f", mode {mode}" in pool.run("layout", "get", locator).stdout.decode()) == (mode is not None)
    assert (f", mode {mode}" in pool.run("stat", locator).stdout.decode()) == (mode is not None)
    if mode is None:
        fails(errno.ENODATA, os.getxattr, path, MODE)
    else:
        assert os.getxattr(path, MODE) == mode.encode()
    return mode


# SEMANTICS 140.2, 140.3
@both
def test_a_new_file_has_the_mode_of_its_directory_and_keeps_it(
    shared_pool: Pool, place: str, places: dict[str, Path]
) -> None:
    here = places["coherent"]
    (here / "before").write_bytes(b"before")
    shared_pool.run("layout", "set", place, "--mode", "strict", "--width", "1")
    hints = shared_pool.json("layout", "get", place)
    assert (hints["mode"], hints["width"]) == ("strict", 1)
    assert shared_pool.json("stat", place)["hints"]["mode"] == "strict"
    assert "mode strict" in shared_pool.run("layout", "get", place).stdout.decode()
    (here / "inner").mkdir()
    (places["relaxed"] / "inner" / "after").write_bytes(b"after")
    assert os.getxattr(here / "inner", MODE) == b"strict"
    # The attribute of a directory leaves all else that it hands down as it was.
    os.setxattr(here / "inner", MODE, b"relaxed")
    hints = shared_pool.json("layout", "get", f"{place}/inner")
    assert (hints["mode"], hints["width"]) == ("relaxed", 1)
    with shared_pool.connect() as pool, pool.open(f"{place}/inner/later", "wb") as file:
        file.write(bytes(LENGTH))
    os.removexattr(here / "inner", MODE)
    (here / "inner" / "last").write_bytes(b"last")
    descriptor = os.open(here, os.O_TMPFILE | os.O_RDWR)
    assert os.getxattr(descriptor, MODE) == b"strict"
    os.close(descriptor)
    for name, mode in [
        ("before", None),
        ("inner/after", "strict"),
        ("inner/later", "relaxed"),
        ("inner/last", None),
    ]:
        assert mode_by_all_doors(shared_pool, place, name, here / name) == mode
    (here / "inner" / "after").rename(here / "moved")
    (here / "before").rename(here / "inner" / "before")
    assert mode_by_all_doors(shared_pool, place, "moved", here / "moved") == "strict"
    assert mode_by_all_doors(shared_pool, place, "inner/before", here / "inner" / "before") is None
    with opened(places["coherent"] / "moved") as one, opened(places["relaxed"] / "moved") as other:
        one[0:4] = b"seen"
        assert other[0:4] == b"seen"


# SEMANTICS 140.4
@both
def test_a_mode_changes_only_while_nobody_has_the_file_open(
    shared_pool: Pool, place: str, places: dict[str, Path]
) -> None:
    path = f"{place}/file"
    made(shared_pool, place, "relaxed")

    def is_set(mode: str) -> bool:
        done = shared_pool.run("layout", "set", path, "--mode", mode, check=False)
        assert done.returncode == 0 or b"is open somewhere" in done.stderr
        return done.returncode == 0

    with shared_pool.connect() as pool:
        for mount in MODES:
            view = opened(places[mount] / "file")
            assert not is_set("strict")
            fails(errno.EBUSY, partial(pool.set_layout, path, mode="strict"))
            fails(errno.EBUSY, pool.set_layout, path)
            for other in places.values():
                fails(errno.EBUSY, os.setxattr, other / "file", MODE, b"coherent")
                fails(errno.EBUSY, os.removexattr, other / "file", MODE)
            # To have it so already is no change.
            pool.set_layout(path, mode="relaxed")
            os.setxattr(places[mount] / "file", MODE, b"relaxed")
            view.close()
            # The kernel tells of the end of a mapping when it likes.
            assert eventually(lambda: is_set("strict"))
            assert os.getxattr(places[mount] / "file", MODE) == b"strict"
            assert eventually(lambda: is_set("relaxed"))
        with pool.open(path, "rb"):
            fails(errno.EBUSY, os.setxattr, places["strict"] / "file", MODE, b"coherent")
        os.setxattr(places["strict"] / "file", MODE, b"coherent")


# SEMANTICS 140.4
@both
def test_what_a_kernel_kept_in_one_mode_is_not_shown_in_the_next(
    shared_pool: Pool, place: str, places: dict[str, Path]
) -> None:
    """Each mount has pages of the file from the turn before, and another mode changes it there."""
    path = f"{place}/file"
    made(shared_pool, place, "relaxed")
    with shared_pool.connect() as pool:
        for turn, (here, there) in enumerate(PAIRS * 3):
            for mode in MODES:

                def is_set(mode: str = mode) -> bool:
                    return shared_pool.run("layout", "set", path, "--mode", mode, check=False).returncode == 0

                assert eventually(is_set)
                content = f"{turn} {mode}".encode().ljust(16)
                with opened(places[here] / "file") as one:
                    one[PAGE : PAGE + 16] = content
                    one.flush()
                with opened(places[there] / "file") as other:
                    assert other[PAGE : PAGE + 16] == content
                    assert other[:PAGE] == bytes(PAGE)
                assert (places[here] / "file").read_bytes()[PAGE : PAGE + 16] == content
                with pool.open(path, "rb") as file:
                    assert bytes(file.read())[PAGE : PAGE + 16] == content


# SEMANTICS 140.6
@both
def test_a_mode_outlives_the_server_s_process_and_what_is_open_keeps_it(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    one, other = new_mount(pool), new_mount(pool, "--mode", "relaxed")
    (one / "below").mkdir()
    pool.run("layout", "set", "/below", "--mode", "strict")
    made(pool, "", "strict")
    with opened(one / "file") as first, opened(other / "file") as second:
        assert all(stored_at_once(first, second, 10))
        pool.kill_child(0)
        pool.await_restart(0, 1)
        assert all(stored_at_once(second, first, 10))
        fails(errno.EBUSY, os.setxattr, one / "file", MODE, b"relaxed")
    (other / "below" / "new").write_bytes(b"new")
    for name in ("file", "below/new"):
        assert pool.json("layout", "get", f"/{name}")["mode"] == "strict"
    with opened(one / "below" / "new") as first, opened(other / "below" / "new") as second:
        first[0] = 88
        assert second[0] == 88


# SEMANTICS 140.7
@both
def test_what_is_no_mode_is_refused_and_changes_nothing(shared_pool: Pool, place: str, places: dict[str, Path]) -> None:
    made(shared_pool, place, "strict")
    path, on_mount = f"{place}/file", places["coherent"] / "file"
    for wrong in ("", "Strict", "strictly", "strict ", "\x07"):
        said = shared_pool.refused("layout", "set", path, "--mode", wrong)
        assert "coherent, strict or relaxed" in said
        fails(errno.EINVAL, os.setxattr, on_mount, MODE, wrong.encode())
        fails(errno.EINVAL, os.setxattr, places["coherent"], MODE, wrong.encode())
        with shared_pool.connect() as pool, pytest.raises(ValueError, match="coherent, strict or relaxed"):
            pool.set_layout(path, mode=wrong)  # type: ignore[arg-type]
    assert "fixed" in shared_pool.refused("layout", "set", path, "--mode", "relaxed", "--width", "1")
    with shared_pool.connect() as pool:
        with pytest.raises(NotADirectoryError):
            pool.set_layout(path, mode="relaxed", width=1)
        with pytest.raises(NotADirectoryError):
            pool.set_layout(path, width=1)
        with pytest.raises(FileNotFoundError):
            pool.set_layout(f"{place}/none", mode="relaxed")
        os.mkfifo(places["coherent"] / "pipe")
        with pytest.raises(NotADirectoryError):
            pool.set_layout(f"{place}/pipe", mode="relaxed")
    fails(errno.EEXIST, os.setxattr, on_mount, MODE, b"relaxed", os.XATTR_CREATE)
    assert os.getxattr(on_mount, MODE) == b"strict"
    os.removexattr(on_mount, MODE)
    fails(errno.ENODATA, os.removexattr, on_mount, MODE)
    fails(errno.ENODATA, os.setxattr, on_mount, MODE, b"relaxed", os.XATTR_REPLACE)
    fails(errno.EOPNOTSUPP, os.setxattr, on_mount, MODE + "d", b"relaxed")
    assert mode_by_all_doors(shared_pool, place, "file", on_mount) is None


# SEMANTICS 140.5
@pytest.mark.needs_root
def test_a_strict_file_is_not_handed_to_the_kernel(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 64)
    passthrough, other = new_mount(pool, "--passthrough"), new_mount(pool)
    for mode in ("strict", "coherent"):
        made(pool, "", mode, mode, SIZE // PAGE * PAGE)
    with opened(passthrough / "strict") as one, opened(other / "strict") as two:
        assert all(stored_at_once(one, two))
        assert all(stored_at_once(two, one))
    with opened(passthrough / "coherent") as one, opened(other / "coherent") as two:
        # The kernel has its memory: no call is needed here, and it may not be shown elsewhere.
        one[MIB] = 1
        with pool.connect() as connected, connected.open("coherent", "rb") as file:
            assert bytes(file.read())[MIB] == 1
        two[0] = 1
        two.flush()
        assert one[0] == 1
    # The kernel may have it mapped for a while after the last close: until then it is open.
    assert eventually(lambda: pool.run("layout", "set", "/coherent", "--mode", "strict", check=False).returncode == 0)
    with opened(passthrough / "coherent") as one, opened(other / "coherent") as two:
        assert all(stored_at_once(one, two))
