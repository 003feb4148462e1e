"""POSIX access control lists: set by every door, checked by the servers, seen at once wherever a kernel keeps them."""

import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import noise
import wire
from conftest import NewPool
from mount import Mount, NewMount, fails
from pool import Pool
from test_mount_users import ALICE, BOB, CAROL, User, common, lab
from test_mount_xattrs import name_it

__all__ = ["common", "lab"]

# Users that lists name; nobody has to be one of them.
SOMEBODY, GROUP = 54_321, 54_322
# What `getfacl` says of a list.
RICH = "user::rw-,user:54321:rwx,group::r--,group:54322:-w-,mask::rwx,other::---"
HANDED_DOWN = "user::rwx,user:54321:rwx,group::r-x,mask::rwx,other::---"
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
# Longer than any lease, and than a server waits for one (limits.rs).
OVER_SECONDS = 0.8
# Where files have lists on this machine; /tmp may have none.
LOCAL = "/dev/shm"

pytestmark = pytest.mark.both


def encoded(text: str) -> bytes:
    """Return the attribute that Linux keeps a list in."""
    tags = {"user": (1, 2), "group": (4, 8), "mask": (16, 16), "other": (32, 32)}
    entries = []
    for entry in text.split(","):
        word, number, rights = entry.split(":")
        bits = sum(bit for bit, letter in zip((4, 2, 1), rights, strict=True) if letter != "-")
        entries.append((tags[word][bool(number)], bits, int(number) if number else 2**32 - 1))
    parts = [
        tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + number.to_bytes(4, "little")
        for tag, bits, number in entries
    ]
    return (2).to_bytes(4, "little") + b"".join(parts)


def run(*words: str | Path) -> str:
    """Run a program of the machine; return what it says."""
    done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def getfacl(path: Path, *options: str) -> list[str]:
    """Return the entries that getfacl shows, without remarks on what the mask leaves."""
    said = run("getfacl", "--numeric", "--omit-header", "--absolute-names", "--no-effective", *options, path)
    return [line for line in said.splitlines() if line]


def setfacl(*words: str | Path) -> None:
    """Change a list."""
    run("setfacl", *words)


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Skip where there are no lists to compare with."""
    if shutil.which("setfacl") is None:
        pytest.skip("setfacl and getfacl are not installed")


# SEMANTICS 108.1
def test_a_list_is_set_and_shown_by_every_door(here: Path, there: Path, shared_pool: Pool, place: str) -> None:
    (here / "file").write_bytes(b"content")
    (here / "file").chmod(0o640)
    setfacl("-m", f"u:{SOMEBODY}:rwx,g:{GROUP}:w", here / "file")
    for mount in (here, there):
        assert getfacl(mount / "file") == RICH.split(",")
        assert os.getxattr(mount / "file", ACCESS) == encoded(RICH)
        assert os.listxattr(mount / "file") == [ACCESS]
        assert (mount / "file").stat().st_mode & 0o777 == 0o670
    path = f"ramlace:{place}/file"
    assert shared_pool.run("xattr", "get", path, ACCESS).stdout.decode() == RICH + "\n"
    assert b"-rw-rwx---+" in shared_pool.run("ls", "-l", path).stdout
    with shared_pool.connect() as pool:
        assert pool.getxattr(f"{place}/file", ACCESS) == encoded(RICH)
        # By the library, and seen on both mounts at once.
        other = RICH.replace("user:54321:rwx", "user:54321:r--")
        pool.setxattr(f"{place}/file", ACCESS, encoded(other))
        assert getfacl(there / "file") == getfacl(here / "file") == other.split(",")
    shared_pool.run("xattr", "set", path, ACCESS, "u::rw-,g::---,m::rw-,o::---")
    assert getfacl(here / "file") == ["user::rw-", "group::---", "mask::rw-", "other::---"]
    shared_pool.run("xattr", "remove", path, ACCESS)
    assert getfacl(there / "file") == ["user::rw-", "group::rw-", "other::---"]
    fails(errno.ENODATA, os.getxattr, here / "file", ACCESS)


# SEMANTICS 109.2
def test_a_change_of_the_mode_changes_owner_mask_and_others(here: Path, there: Path) -> None:
    (here / "file").touch()
    os.setxattr(here / "file", ACCESS, encoded(RICH))
    for mode, expected in ((0o604, "user::rw- mask::--- other::r--"), (0o757, "user::rwx mask::r-x other::rwx")):
        (there / "file").chmod(mode)
        shown = getfacl(here / "file")
        assert [entry for entry in shown if entry in expected.split()] == expected.split()
        assert f"user:{SOMEBODY}:rwx" in shown
        assert "group::r--" in shown
    # A list that says no more than a mode is the mode.
    os.setxattr(here / "file", ACCESS, encoded("user::rwx,group::r-x,other::---"))
    assert (there / "file").stat().st_mode & 0o777 == 0o750
    assert os.listxattr(there / "file") == []


def made_by_a_mount(directory: Path) -> list[str]:
    before = os.umask(0o077)
    try:
        (directory / "file").touch()
        (directory / "directory").mkdir()
        os.mkfifo(directory / "pipe")
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o666)
        name_it(descriptor, directory / "unnamed")
        os.close(descriptor)
    finally:
        os.umask(before)
    return ["file", "directory", "pipe", "unnamed"]


def made_by_the_library(pool: Pool, place: str) -> list[str]:
    before = os.umask(0o077)
    try:
        with pool.connect() as connected:
            connected.open(f"{place}/by-library", "wb").close()
            connected.mkdir(f"{place}/directory-by-library")
    finally:
        os.umask(before)
    return ["by-library", "directory-by-library"]


def made_by_the_command(pool: Pool, place: str, source: Path) -> list[str]:
    """Make files by the command; it has a umask that would leave nothing of them."""
    source.mkdir()
    (source / "within").write_bytes(b"copied")
    source.chmod(0o777)
    (source / "within").chmod(0o666)
    before = os.umask(0o077)
    try:
        pool.run("touch", f"ramlace:{place}/touched")
        pool.run("mkdir", f"ramlace:{place}/directory-by-command")
        pool.run("cp", "-r", str(source), f"ramlace:{place}/copied")
    finally:
        os.umask(before)
    return ["touched", "directory-by-command", "copied", "copied/within"]


# SEMANTICS 110.1
def test_what_is_made_below_a_default_list_has_it_by_every_door(
    here: Path, shared_pool: Pool, place: str, tmp_path: Path
) -> None:
    directory = here / "shared"
    directory.mkdir()
    setfacl("-d", "-m", f"u::rwx,u:{SOMEBODY}:rwx,g::rx,o::-", directory)
    assert getfacl(directory, "--default") == HANDED_DOWN.split(",")
    assert os.listxattr(directory) == [DEFAULT]
    made = made_by_a_mount(directory)
    made += made_by_the_library(shared_pool, f"{place}/shared")
    made += made_by_the_command(shared_pool, f"{place}/shared", tmp_path / "source")
    as_file = HANDED_DOWN.replace("user::rwx", "user::rw-").replace("mask::rwx", "mask::rw-")
    for name in made:
        path = directory / name
        expected = HANDED_DOWN if path.is_dir() else as_file
        assert getfacl(path, "--access") == expected.split(","), name
        assert getfacl(path, "--default") == (HANDED_DOWN.split(",") if path.is_dir() else []), name
    # And without one by the umask, as ever.
    setfacl("-k", directory)
    for name in made:
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "source")
    for name in (
        *made_by_a_mount(directory),
        *made_by_the_library(shared_pool, f"{place}/shared"),
        *made_by_the_command(shared_pool, f"{place}/shared", tmp_path / "source"),
    ):
        assert (directory / name).stat().st_mode & 0o077 == 0, name
        assert os.listxattr(directory / name) == [], name


# SEMANTICS 108.3
def test_a_list_that_another_changes_is_seen_at_once(here: Path, there: Path) -> None:
    """By path and by a descriptor that was open before, also when the kernel that looks has not asked for long."""
    (here / "file").touch()
    with (there / "file").open("rb") as file:
        for turn in range(8):
            fails(errno.ENODATA, os.getxattr, there / "file", ACCESS)
            fails(errno.ENODATA, os.getxattr, file.fileno(), ACCESS)
            time.sleep(OVER_SECONDS * (turn % 4) / 3)
            os.setxattr(here / "file", ACCESS, encoded(RICH))
            assert os.getxattr(file.fileno(), ACCESS) == encoded(RICH), turn
            assert os.getxattr(there / "file", ACCESS) == encoded(RICH), turn
            time.sleep(OVER_SECONDS * (turn % 4) / 3)
            os.removexattr(here / "file", ACCESS)


# SEMANTICS 109.1, 109.4
def test_what_cannot_have_a_list_is_refused(here: Path) -> None:
    (here / "file").touch()
    (here / "link").symlink_to("file")
    os.mkfifo(here / "pipe")
    fails(errno.EACCES, os.setxattr, here / "file", DEFAULT, encoded(HANDED_DOWN))
    fails(errno.EOPNOTSUPP, lambda: os.setxattr(here / "link", ACCESS, encoded(RICH), follow_symlinks=False))
    for wrong in ("user::rwx,user:7:rwx,group::rwx,other::rwx", "user::rwx,group::rwx", "user::rwx,other::rwx"):
        fails(errno.EINVAL, os.setxattr, here / "file", ACCESS, encoded(wrong))
    os.setxattr(here / "pipe", ACCESS, encoded(RICH))
    assert getfacl(here / "pipe") == RICH.split(",")
    # As many entries as a page holds, and no more.
    for names, number in ((507, 0), (508, errno.E2BIG)):
        users = ",".join(f"user:{user}:rwx" for user in range(1, names + 1))
        value = encoded(f"user::rwx,{users},group::rwx,mask::rwx,other::rwx")
        if number:
            fails(number, os.setxattr, here / "file", ACCESS, value)
        else:
            os.setxattr(here / "file", ACCESS, value)
        assert len(getfacl(here / "file")) == 511


# SEMANTICS 110.3
def test_an_immutable_file_is_refused_and_never_promised(here: Path) -> None:
    (here / "file").touch()
    for flag in ("+i", "+a"):
        done = subprocess.run(["chattr", flag, here / "file"], capture_output=True, check=False, timeout=60)
        assert done.returncode != 0
        assert b"not supported" in done.stderr or b"Inappropriate ioctl" in done.stderr, done.stderr
    (here / "file").write_bytes(b"changed")


@pytest.fixture
def local() -> Iterator[Path]:
    """A directory of this machine where files have lists."""
    with tempfile.TemporaryDirectory(dir=LOCAL) as directory:
        yield Path(directory)


def tree_with_lists(root: Path) -> list[Path]:
    """Make a tree that has lists of both kinds."""
    (root / "d").mkdir(parents=True)
    (root / "d" / "plain").write_bytes(b"plain")
    (root / "d" / "listed").write_bytes(b"listed")
    os.setxattr(root / "d", DEFAULT, encoded(HANDED_DOWN))
    os.setxattr(root / "d", ACCESS, encoded(HANDED_DOWN))
    os.setxattr(root / "d" / "listed", ACCESS, encoded(RICH))
    return [Path("d"), Path("d/plain"), Path("d/listed")]


def lists(root: Path, paths: list[Path]) -> dict[Path, tuple[list[str], list[str], int]]:
    return {
        path: (getfacl(root / path, "--access"), getfacl(root / path, "--default"), (root / path).stat().st_mode)
        for path in paths
    }


# SEMANTICS 110.2
def test_tar_and_cp_and_mv_keep_lists_into_the_pool_and_out_of_it(here: Path, local: Path) -> None:
    paths = tree_with_lists(local / "source")
    expected = lists(local / "source", paths)
    run("cp", "-a", local / "source", here / "copied")
    assert lists(here / "copied", paths) == expected
    run("cp", "-a", here / "copied", local / "back")
    assert lists(local / "back", paths) == expected
    run("tar", "--acls", "-cf", here / "archive.tar", "-C", here / "copied", ".")
    (here / "unpacked").mkdir()
    run("tar", "--acls", "-xpf", here / "archive.tar", "-C", here / "unpacked")
    assert lists(here / "unpacked", paths) == expected
    run("mv", here / "unpacked" / "d", here / "moved")
    assert lists(here, [Path("moved"), Path("moved/listed")]) == {
        Path("moved"): expected[Path("d")],
        Path("moved/listed"): expected[Path("d/listed")],
    }


# SEMANTICS 108.1
def test_lists_outlive_a_killed_server(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    mount = new_mount(pool)
    paths = tree_with_lists(mount / "source")
    expected = lists(mount / "source", paths)
    pool.kill_child(0)
    assert lists(mount / "source", paths) == expected
    assert pool.check() == []


# ---- several users ----


def reads(name: str) -> Callable[[], bytes]:
    return lambda: Path(name).read_bytes()


def writes(name: str) -> Callable[[], int]:
    return lambda: Path(name).write_bytes(b"changed")


def may(who: User, directory: Path, work: Callable[[], Any]) -> bool:
    """Return whether the user may do it."""
    try:
        who.does(directory, work)
    except PermissionError as error:
        assert error.errno == errno.EACCES
        return False
    return True


def give(who: User, directory: Path, name: str, text: str, kind: str = ACCESS) -> None:
    who.does(directory, lambda: os.setxattr(name, kind, encoded(text)))


# SEMANTICS 108.2
@pytest.mark.needs_root
def test_a_list_gives_named_users_and_groups_their_rights(common: Path) -> None:
    """A named user within the mask, before any group; any group of a user that allows it; others only then."""
    ALICE.does(common, lambda: Path("file").write_bytes(b"content"))
    ALICE.does(common, lambda: os.chmod("file", 0o600))
    for text, bob, carol in (
        ("user::rw-,user:1002:rw-,group::---,mask::rw-,other::---", "rw", ""),
        ("user::rw-,user:1002:rw-,group::---,mask::r--,other::---", "r", ""),
        ("user::rw-,user:1002:---,group::rw-,mask::rw-,other::rw-", "", "rw"),
        ("user::rw-,group::---,group:3000:r--,mask::rw-,other::rw-", "rw", "r"),
        ("user::rw-,group::-w-,group:3000:r--,mask::rw-,other::rw-", "rw", "rw"),
        ("user::rw-,group::---,group:2002:r--,mask::r--,other::---", "r", ""),
    ):
        give(ALICE, common, "file", text)
        for who, rights in ((BOB, bob), (CAROL, carol)):
            assert may(who, common, reads("file")) == ("r" in rights), (who, text)
            assert may(who, common, writes("file")) == ("w" in rights), (who, text)
            asked = who.does(common, lambda: (os.access("file", os.R_OK), os.access("file", os.W_OK)))
            assert asked == ("r" in rights, "w" in rights), (who, text)
        assert may(ALICE, common, writes("file"))


# SEMANTICS 108.2
@pytest.mark.needs_root
def test_a_directory_s_list_counts_for_all_that_is_done_in_it(common: Path) -> None:
    def look() -> os.stat_result:
        return os.stat("inner/file")

    ALICE.does(common, lambda: os.mkdir("inner", 0o700))
    ALICE.does(common, lambda: Path("inner/file").write_bytes(b"content"))
    give(ALICE, common, "inner", "user::rwx,user:1002:--x,group::---,mask::rwx,other::---")
    assert may(BOB, common, look) and not may(BOB, common, lambda: os.listdir("inner"))
    assert not may(BOB, common, lambda: os.mkdir("inner/b")) and not may(CAROL, common, look)
    assert may(BOB, common, lambda: os.chdir("inner")) and not may(CAROL, common, lambda: os.chdir("inner"))
    give(ALICE, common, "inner", "user::rwx,user:1002:rwx,group::---,mask::rwx,other::---")
    assert may(BOB, common, lambda: os.listdir("inner"))
    assert may(BOB, common, lambda: os.rename("inner/file", "inner/renamed"))
    assert may(BOB, common, lambda: os.mkdir("inner/b")) and may(BOB, common, lambda: os.unlink("inner/renamed"))
    # A sticky directory keeps entries for their owners, whatever its list says.
    ALICE.does(common, lambda: os.chmod("inner", 0o1770))
    ALICE.does(common, lambda: os.mkdir("inner/a"))
    BOB.fails(errno.EPERM, common, lambda: os.rmdir("inner/a"))


# SEMANTICS 109.1
@pytest.mark.needs_root
def test_lists_are_the_owners_alone_to_set(common: Path) -> None:
    ALICE.does(common, lambda: Path("file").write_bytes(b"content"))
    give(ALICE, common, "file", "user::rw-,user:1002:rwx,group::---,mask::rwx,other::---")
    BOB.fails(errno.EPERM, common, lambda: os.setxattr("file", ACCESS, encoded(RICH)))
    BOB.fails(errno.EPERM, common, lambda: os.removexattr("file", ACCESS))
    assert CAROL.does(common, lambda: os.getxattr("file", ACCESS))
    # A set-group-id bit stays with whoever is of the group.
    for who, gid, mode in ((CAROL, 3000, 0o2770), (ALICE, 2001, 0o2770), (ALICE, 2009, 0o0770)):
        (common / "bit").unlink(missing_ok=True)
        (common / "bit").touch()
        os.chown(common / "bit", who.uid, gid)
        (common / "bit").chmod(0o2750)
        give(who, common, "bit", "user::rwx,group::r-x,mask::rwx,other::---")
        assert (common / "bit").stat().st_mode & 0o7777 == mode, (who, gid)


# SEMANTICS 108.3
@pytest.mark.needs_root
def test_a_list_that_another_mount_changes_counts_at_once(lab: Mount, new_mount: NewMount, common: Path) -> None:
    """Also where the kernel decides by itself, of what it keeps."""
    other = new_mount(lab.pool, "--allow-other") / str(common.relative_to(lab.directory))
    ALICE.does(common, lambda: os.mkdir("inner", 0o750))
    ALICE.does(common, lambda: Path("inner/file").write_bytes(b"content"))
    ALICE.does(common, lambda: os.chmod("inner/file", 0o640))
    mine, ours = "user::rwx,group::r-x,mask::r-x,other::---", "user::rwx,user:1002:r-x,group::r-x,mask::r-x,other::---"

    def asks(*names: str) -> Any:
        return BOB.does(other, lambda: [os.access(name, os.R_OK) for name in names])

    for turn in range(6):
        for name in ("inner", "inner/file"):
            give(ALICE, common, name, ours)
        assert asks("inner", "inner/file") == [True, True], turn
        assert may(BOB, other, reads("inner/file")), turn
        time.sleep(OVER_SECONDS * (turn % 3) / 2)
        give(ALICE, common, "inner/file", mine)
        assert asks("inner", "inner/file") == [True, False], turn
        assert not may(BOB, other, reads("inner/file")), turn
        give(ALICE, common, "inner/file", ours)
        time.sleep(OVER_SECONDS * (turn % 3) / 2)
        give(ALICE, common, "inner", mine)
        assert asks("inner", "inner/file") == [False, False], turn
        assert not may(BOB, other, reads("inner/file")), turn


# SEMANTICS 109.5
@pytest.mark.needs_root
def test_where_there_is_no_list_nobody_asks_a_server_for_one(lab: Mount, common: Path) -> None:
    """Walking through somebody else's directories costs as many requests as through one's own."""

    def requests() -> int:
        return lab.pool.requests()

    def walk() -> None:
        for _ in range(40):
            os.stat("a/b/c/file")

    ALICE.does(common, lambda: os.makedirs("a/b/c"))
    ALICE.does(common, lambda: Path("a/b/c/file").write_bytes(b"content"))
    counts = {}
    for who in (ALICE, BOB):
        who.does(common, walk)
        # The least of several: daemons and sessions say that they live meanwhile.
        costs = []
        for _ in range(3):
            before = requests()
            who.does(common, walk)
            costs.append(requests() - before)
        counts[who.uid] = min(costs)
    assert counts[BOB.uid] <= counts[ALICE.uid] + 5, counts


# SEMANTICS 108.2
@pytest.mark.needs_root
def test_servers_check_lists_themselves(new_pool: NewPool, new_mount: NewMount) -> None:
    """A host's session says for whom it asks, and no kernel has looked before."""
    pool = new_pool(1, 32)
    directory = new_mount(pool) / "inner"
    directory.mkdir(mode=0o700)
    inode = directory.stat().st_ino
    os.setxattr(directory, ACCESS, encoded("user::rwx,user:1001:rwx,group::---,group:3000:r-x,mask::rwx,other::---"))
    with wire.Wire(pool.addresses[0]) as line:
        line.greet(noise.host_key(pool.secret))
        assert line.open_session(wire.SESSION_HOST).error == ""

        def ask(kind: int, who: tuple[int, ...], name: bytes, rest: bytes = b"", sequence: int = 0) -> wire.Reply:
            body = wire.numbers(*who, inode, len(name)) + name + rest
            return line.call(kind, body, slot=inode >> 48, sequence=sequence, epoch=1, flags=wire.ON_BEHALF)

        for sequence, (user, refused) in enumerate(
            (((1001, 5, 0), False), ((1002, 5, 0), True), ((1003, 5, 1, 3000), True), ((0, 0, 0), True)), 1
        ):
            name = f"by{sequence}".encode()
            made = ask(wire.MAKE_DIRECTORY, user, name, wire.numbers(0o755, 0), sequence)
            assert ("may not" in made.error) == refused, (user, made.error)
            looked = ask(wire.LOOKUP, user, b"by1")
            assert ("may not" in looked.error) == (user[0] in (1002, 0)), (user, looked.error)
