"""Several users: mounts that let all of a machine in.

A user here is a child of this process with the user's ids. It works in the mount's directory: those above
are closed to it.
"""

import errno
import os
import pickle
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import NewPool
from mount import Mount, NewMount, fails
from pool import MIB, Pool, binary, eventually
from test_mount_bytes import KEEP, PUNCH, ZERO, fallocate

# Only root can become other users, and let them into a mount without /etc/fuse.conf.
pytestmark = pytest.mark.needs_root

NOBODY = 65_534
SESSION_SECONDS = 10


@dataclass(frozen=True)
class User:
    """Who does something; may not be the one who tests."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def does(self, directory: Path, work: Callable[[], Any], umask: int = 0o022) -> Any:
        """Do it in the directory as this user; return what comes of it, or raise its OSError."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            self._work(directory, work, umask, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            text = answer.read()
        os.waitpid(child, 0)
        assert text, "the user ended without a word"
        word, value = pickle.loads(text)
        if word == "errno":
            raise OSError(value, os.strerror(value))
        assert word == "value", value
        return value

    def _work(self, directory: Path, work: Callable[[], Any], umask: int, writer: int) -> None:
        try:
            os.chdir(directory)
            os.setgroups(self.groups)
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
            os.umask(umask)
            answer: tuple[str, Any] = ("value", work())
        except OSError as error:
            answer = ("errno", error.errno)
        except BaseException as error:
            answer = ("failed", repr(error))
        os.write(writer, pickle.dumps(answer))
        os._exit(0)

    def fails(self, number: int, directory: Path, work: Callable[[], Any]) -> None:
        """Check that it fails with this errno."""
        fails(number, self.does, directory, work)


ROOT = User(0, 0)
ALICE = User(1001, 2001)
BOB = User(1002, 2002)
CAROL = User(1003, 2003, (2001, 3000))


@pytest.fixture(scope="module")
def lab(runtime: Path, fuse: None) -> Iterator[Mount]:
    """A mount for everybody, of a pool that takes root at its word; `lab / 'common'` is as /tmp."""
    pool = Pool(f"u{os.getpid()}", runtime, 96 * MIB, 3)
    try:
        pool.up("--no-root-squash")
        mount = Mount(pool, "--allow-other")
        try:
            (mount / "common").mkdir()
            (mount / "common").chmod(0o1777)
            yield mount
        finally:
            mount.close()
    finally:
        pool.close()


@pytest.fixture
def common(lab: Mount, request: pytest.FixtureRequest) -> Path:
    """A directory for one test where everybody may do everything."""
    lab.daemon.watch()
    directory = lab / f"common/{request.node.name}"[:100]
    directory.mkdir()
    directory.chmod(0o777)
    return directory


def _write(name: str, text: bytes = b"mine") -> Callable[[], None]:
    def work() -> None:
        Path(name).write_bytes(text)

    return work


def _read(name: str) -> Callable[[], bytes]:
    return lambda: Path(name).read_bytes()


def _ids(path: Path) -> tuple[int, int, int]:
    found = os.stat(path, follow_symlinks=False)
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


# SEMANTICS 49.1
def test_what_a_user_makes_is_his(common: Path) -> None:
    ALICE.does(common, _write("file"), umask=0o027)
    ALICE.does(common, lambda: os.mkdir("directory"), umask=0o077)
    ALICE.does(common, lambda: os.symlink("file", "link"))
    ALICE.does(common, lambda: os.link("file", "second"))
    assert _ids(common / "file") == (1001, 2001, 0o640)
    assert _ids(common / "directory") == (1001, 2001, 0o700)
    assert _ids(common / "link")[:2] == (1001, 2001)
    assert _ids(common / "second") == (1001, 2001, 0o640)


# SEMANTICS 49.2
def test_a_mode_gives_each_class_of_users_its_rights(common: Path) -> None:
    ALICE.does(common, _write("file"))

    def read_write() -> None:
        os.close(os.open("file", os.O_RDWR))

    for mode, readers, writers in [
        (0o600, (ALICE,), (ALICE,)),
        (0o640, (ALICE, CAROL), (ALICE,)),
        (0o660, (ALICE, CAROL), (ALICE, CAROL)),
        (0o604, (ALICE, BOB), (ALICE,)),
        (0o066, (CAROL, BOB), (CAROL, BOB)),
        (0o000, (), ()),
    ]:
        (common / "file").chmod(mode)
        for user in (ALICE, BOB, CAROL):
            if user in readers:
                assert user.does(common, _read("file")) == b"mine", (oct(mode), user)
            else:
                user.fails(errno.EACCES, common, _read("file"))
            if user in writers:
                user.does(common, read_write)
            else:
                user.fails(errno.EACCES, common, read_write)
        assert ROOT.does(common, _read("file")) == b"mine"


# SEMANTICS 49.2
def test_only_the_owner_changes_modes_and_owners(common: Path) -> None:
    CAROL.does(common, _write("file"))
    for work in (lambda: os.chmod("file", 0o777), lambda: os.chown("file", 1002, -1), lambda: os.utime("file", (1, 1))):
        BOB.fails(errno.EPERM, common, work)
    CAROL.fails(errno.EPERM, common, lambda: os.chown("file", 1002, -1))
    CAROL.fails(errno.EPERM, common, lambda: os.chown("file", -1, 2002))
    CAROL.does(common, lambda: os.chown("file", -1, 3000))
    CAROL.does(common, lambda: os.chmod("file", 0o2750))
    assert _ids(common / "file") == (1003, 3000, 0o2750)
    ROOT.does(common, lambda: os.chown("file", 1002, 2002))
    assert _ids(common / "file")[:2] == (1002, 2002)
    # A group of which the caller is no member: the bit is dropped in silence, as POSIX has it.
    ROOT.does(common, lambda: os.chown("file", 1002, 4000))
    BOB.does(common, lambda: os.chmod("file", 0o2755))
    assert _ids(common / "file") == (1002, 4000, 0o755)


# SEMANTICS 49.2
def test_a_sticky_directory_keeps_everybodys_entries(common: Path) -> None:
    common.chmod(0o1777)
    ALICE.does(common, _write("file"))
    ALICE.does(common, lambda: os.mkdir("directory"))
    for work in (
        lambda: os.unlink("file"),
        lambda: os.rename("file", "other"),
        lambda: os.rmdir("directory"),
        lambda: os.rename("directory", "other"),
    ):
        BOB.fails(errno.EPERM, common, work)
    BOB.does(common, _write("bobs"))
    BOB.fails(errno.EPERM, common, lambda: os.rename("bobs", "file"))
    ALICE.does(common, lambda: os.rename("file", "other"))
    ALICE.does(common, lambda: os.unlink("other"))
    ALICE.does(common, lambda: os.rmdir("directory"))
    assert sorted(os.listdir(common)) == ["bobs"]


# SEMANTICS 49.2
def test_a_directory_without_rights_lets_nobody_in(common: Path) -> None:
    ALICE.does(common, lambda: os.mkdir("closed", 0o700))
    ALICE.does(common, _write("closed/file"))
    for work in (
        lambda: os.listdir("closed"),
        lambda: os.stat("closed/file"),
        _read("closed/file"),
        _write("closed/new"),
        lambda: os.mkdir("closed/new"),
        lambda: os.unlink("closed/file"),
        lambda: os.rename("closed/file", "mine"),
        lambda: os.link("closed/file", "mine"),
    ):
        BOB.fails(errno.EACCES, common, work)
    # To list and not to enter; to enter and not to list.
    (common / "closed").chmod(0o704)
    assert BOB.does(common, lambda: os.listdir("closed")) == ["file"]
    BOB.fails(errno.EACCES, common, _read("closed/file"))
    (common / "closed").chmod(0o701)
    BOB.fails(errno.EACCES, common, lambda: os.listdir("closed"))
    assert BOB.does(common, _read("closed/file")) == b"mine"


# SEMANTICS 49.2
def test_a_set_group_id_directory_hands_its_group_to_all_users(common: Path) -> None:
    (common / "team").mkdir()
    os.chown(common / "team", 0, 3000)
    (common / "team").chmod(0o2775)
    CAROL.does(common, _write("team/file"), umask=0o002)
    CAROL.does(common, lambda: os.mkdir("team/below"), umask=0o002)
    assert _ids(common / "team/file") == (1003, 3000, 0o664)
    assert _ids(common / "team/below") == (1003, 3000, 0o2775)
    BOB.fails(errno.EACCES, common, _write("team/file"))
    User(1002, 2002, (3000,)).does(common, _write("team/below/bobs"))
    assert _ids(common / "team/below/bobs")[:2] == (1002, 3000)


# SEMANTICS 50.1
def test_what_is_open_stays_open_whatever_the_mode_says(common: Path) -> None:
    def work() -> bytes:
        file = os.open("file", os.O_RDWR | os.O_CREAT, 0o600)
        os.write(file, b"first")
        os.chmod("file", 0)
        os.write(file, b" second")
        os.ftruncate(file, 9)
        os.fsync(file)
        return os.pread(file, 99, 0)

    assert ALICE.does(common, work) == b"first sec"
    ALICE.fails(errno.EACCES, common, _read("file"))


# SEMANTICS 50.1
def test_a_file_that_another_has_open_is_not_open_to_all(common: Path) -> None:
    ALICE.does(common, _write("file"))
    (common / "file").chmod(0o600)
    with open(common / "file", "r+b") as file:
        BOB.fails(errno.EACCES, common, lambda: os.truncate("file", 0))
        BOB.fails(errno.EACCES, common, _read("file"))
        file.write(b"more than before")
    assert (common / "file").read_bytes() == b"more than before"


def test_an_open_for_reading_that_cuts_needs_the_right_to_write(common: Path) -> None:
    ALICE.does(common, _write("file"))

    def cut() -> int:
        file = os.open("file", os.O_RDONLY | os.O_TRUNC)
        return os.fstat(file).st_size

    BOB.fails(errno.EACCES, common, cut)
    assert (common / "file").read_bytes() == b"mine"
    assert ALICE.does(common, cut) == 0


# SEMANTICS 51
def test_a_writer_who_is_not_the_owner_takes_the_set_id_bits_away(common: Path) -> None:
    CAROL.does(common, _write("file"))
    CAROL.does(common, lambda: os.chown("file", -1, 3000))
    member = User(1002, 2002, (3000,))

    def append() -> None:
        with open("file", "ab") as file:
            file.write(b"more")

    for work in (_write("file"), append, lambda: os.truncate("file", 1)):
        (common / "file").chmod(0o4775)
        member.does(common, work)
        assert _ids(common / "file") == (1003, 3000, 0o775)


# SEMANTICS 51
def test_set_id_bits_that_another_mount_sets_while_a_file_is_written_go_as_well(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 16, "--no-root-squash")
    here, there = (new_mount(pool, "--allow-other") for _ in range(2))
    here.directory.chmod(0o777)
    ALICE.does(here.directory, _write("file", b"x" * 10_000))
    (here / "file").chmod(0o666)
    (opened_in, opened_out), (set_in, set_out) = os.pipe(), os.pipe()

    def writes() -> None:
        file = os.open("file", os.O_RDWR)
        os.write(opened_out, b"!")
        os.read(set_in, 1)
        os.pwrite(file, b"y" * 10, 0)
        os.close(file)

    with ThreadPoolExecutor() as threads:
        bob = threads.submit(BOB.does, here.directory, writes)
        os.read(opened_in, 1)
        ALICE.does(there.directory, lambda: os.chmod("file", 0o4777))
        assert _ids(there / "file")[2] == 0o4777
        os.write(set_out, b"!")
        bob.result()
    assert _ids(there / "file") == (ALICE.uid, ALICE.gid, 0o777)
    for end in (opened_in, opened_out, set_in, set_out):
        os.close(end)


# SEMANTICS 51
def test_a_truncation_on_a_mount_that_reserves_takes_set_id_bits_away(new_pool: NewPool, new_mount: NewMount) -> None:
    mount = new_mount(new_pool(1, 16, "--no-root-squash"), "--allow-other", "--reserve")
    mount.directory.chmod(0o777)
    ALICE.does(mount.directory, _write("file", b"x" * 10_000))
    for size in (100_000, 1):
        (mount / "file").chmod(0o4777)
        BOB.does(mount.directory, partial(os.truncate, "file", size))
        assert _ids(mount / "file") == (ALICE.uid, ALICE.gid, 0o777), size


# cap_net_raw+p, as setcap writes it.
NET_RAW = bytes.fromhex("0000000200200000000000000000000000000000")


# SEMANTICS 57.4
def test_who_may_change_a_file_with_capabilities_does_and_takes_them(common: Path) -> None:
    """Its kernel takes them in the name of the program that writes, before that writes."""
    path = common / "file"
    ALICE.does(common, _write("file", b"program"))

    def changes(work: Callable[[int], Any], flags: int = os.O_RDWR) -> Callable[[], None]:
        def work_open() -> None:
            file = os.open("file", flags)
            work(file)
            os.close(file)

        return work_open

    for who in (ALICE, BOB, ROOT):
        path.chmod(0o755 if who is ALICE else 0o777)
        for work in (
            changes(lambda file: os.pwrite(file, b"P", 0)),
            changes(lambda file: os.write(file, b"P"), os.O_WRONLY | os.O_APPEND),
            changes(lambda file: os.ftruncate(file, 3)),
            changes(lambda file: os.posix_fallocate(file, 0, 5000)),
            changes(lambda file: os.pwrite(file, b"P", 4000)),
            changes(lambda file: None, os.O_WRONLY | os.O_TRUNC),
            lambda: os.truncate("file", 1),
        ):
            os.setxattr(path, "security.capability", NET_RAW)
            who.does(common, work)
            fails(errno.ENODATA, os.getxattr, path, "security.capability")
    # With a descriptor that was opened when the mode allowed it.
    path.chmod(0o666)
    os.setxattr(path, "security.capability", NET_RAW)
    opened, opens = os.pipe()
    closed, closes = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(opened, 1)
        path.chmod(0)
        os.write(closes, b".")
        os._exit(0)

    def write_when_the_mode_says_no() -> None:
        file = os.open("file", os.O_WRONLY)
        os.write(opens, b".")
        os.read(closed, 1)
        os.write(file, b"P")

    BOB.does(common, write_when_the_mode_says_no)
    os.waitpid(child, 0)
    for end in (opened, opens, closed, closes):
        os.close(end)
    fails(errno.ENODATA, os.getxattr, path, "security.capability")
    # A change of the group.
    os.chown(path, CAROL.uid, CAROL.gid)
    os.setxattr(path, "security.capability", NET_RAW)
    CAROL.does(common, lambda: os.chown("file", -1, 3000))
    fails(errno.ENODATA, os.getxattr, path, "security.capability")


# SEMANTICS 57.4
def test_nobody_but_the_super_user_touches_capabilities_by_name(common: Path) -> None:
    ALICE.does(common, _write("file"))
    os.setxattr(common / "file", "security.capability", NET_RAW)
    for who in (ALICE, BOB):
        who.fails(errno.EPERM, common, lambda: os.removexattr("file", "security.capability"))
        who.fails(errno.EPERM, common, lambda: os.setxattr("file", "security.capability", NET_RAW))
        assert who.does(common, lambda: os.getxattr("file", "security.capability")) == NET_RAW
    BOB.fails(errno.EACCES, common, _write("file"))
    assert os.getxattr(common / "file", "security.capability") == NET_RAW
    os.removexattr(common / "file", "security.capability")
    fails(errno.ENODATA, os.removexattr, common / "file", "security.capability")


# SEMANTICS 57.2
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_writer_who_is_not_of_the_group_takes_its_set_id_bit(common: Path, size: int) -> None:
    """Where the group may not run the file, the bit is its members' to keep."""
    path = common / "file"
    path.write_bytes(bytes(size))
    os.chown(path, ALICE.uid, 3000)

    def after(who: User, work: Callable[[int], Any]) -> int:
        path.chmod(0o2666)

        def change() -> None:
            file = os.open("file", os.O_RDWR)
            work(file)
            os.close(file)

        who.does(common, change)
        return stat.S_IMODE(path.stat().st_mode)

    for work in (
        lambda file: os.pwrite(file, b"x", 0),
        lambda file: os.pwrite(file, b"x", size),
        lambda file: os.ftruncate(file, size // 2),
        lambda file: os.posix_fallocate(file, 0, size),
        lambda file: fallocate(file, PUNCH | KEEP, 0, size // 2),
        lambda file: fallocate(file, ZERO, 0, size // 2),
    ):
        assert after(ROOT, work) == 0o2666
        assert after(CAROL, work) == 0o2666, "Carol is in the group"
        assert after(ALICE, work) == 0o666, "the owner is not"
        assert after(BOB, work) == 0o666


# SEMANTICS 53
def test_a_user_in_more_groups_than_a_pool_takes_is_refused(common: Path) -> None:
    (common / "file").write_bytes(b"for all")
    assert User(1004, 2004, tuple(range(5000, 5256))).does(common, _read("file")) == b"for all"
    User(1004, 2004, tuple(range(5000, 5257))).fails(errno.EACCES, common, _read("file"))


def test_a_mount_for_all_trusts_no_set_id_bits_and_no_devices_unless_told(lab: Mount, new_mount: NewMount) -> None:
    def options(mount: Mount) -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        words = [line.split() for line in lines]
        return next(w[5].split(",") for w in words if w[4].replace("\\040", " ") == str(mount.directory))

    assert {"nosuid", "nodev"} <= set(options(lab))
    told = new_mount(lab.pool, "--allow-other", "--suid", "--dev")
    assert not {"nosuid", "nodev"} & set(options(told))


# Programs

PROGRAM = Path("/bin/true")


def _run(name: str) -> Callable[[], int]:
    return lambda: subprocess.run([f"./{name}"], check=False).returncode


# SEMANTICS 50.2
def test_a_program_is_run_by_whom_its_mode_lets_run_it_and_read_by_nobody_else(common: Path) -> None:
    ALICE.does(common, _write("program", PROGRAM.read_bytes()))
    os.chown(common / "program", ALICE.uid, 3000)
    for mode, runners in [
        (0o111, (ALICE, BOB, CAROL)),
        (0o100, (ALICE,)),
        (0o010, (CAROL,)),
        (0o001, (ALICE, BOB)),
        (0o666, ()),
        (0o511, (ALICE, BOB, CAROL)),
    ]:
        (common / "program").chmod(mode)
        if mode == 0o001:
            os.chown(common / "program", 0, 3000)
            (common / "program").chmod(mode)
        for user in (ALICE, BOB, CAROL):
            if user in runners:
                assert user.does(common, _run("program")) == 0, (oct(mode), user)
            else:
                user.fails(errno.EACCES, common, _run("program"))
            if mode == 0o111:
                user.fails(errno.EACCES, common, _read("program"))
        if mode & 0o111:
            assert ROOT.does(common, _run("program")) == 0
        os.chown(common / "program", ALICE.uid, 3000)


# SEMANTICS 50.2
def test_a_program_that_runs_shows_its_bytes_to_nobody_who_may_not_read_them(common: Path) -> None:
    ALICE.does(common, _write("sleep", Path("/bin/sleep").read_bytes()))
    (common / "sleep").chmod(0o111)

    def look_at_it() -> None:
        program = subprocess.Popen(["./sleep", "60"])
        try:
            Path(f"/proc/{program.pid}/exe").read_bytes()
        finally:
            program.kill()
            program.wait()

    ALICE.fails(errno.EACCES, common, look_at_it)
    BOB.fails(errno.EACCES, common, look_at_it)


# Root squash


# SEMANTICS 52
def test_root_is_nobody_unless_the_pool_takes_it_at_its_word(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    pool.run("mkdir", "/common")
    pool.run("chmod", "1777", "/common")
    mount = new_mount(pool, "--allow-other")
    ROOT.fails(errno.EACCES, mount.directory, _write("file"))
    ROOT.does(mount / "common", _write("file"))
    assert _ids(mount / "common/file") == (NOBODY, NOBODY, 0o644)
    ALICE.does(mount / "common", lambda: os.mkdir("closed", 0o700))
    ROOT.fails(errno.EACCES, mount / "common", _write("closed/file"))
    ROOT.fails(errno.EPERM, mount / "common", lambda: os.chmod("closed", 0o777))
    # The group of the super-user is no better: the root directory's.
    pool.run("chmod", "775", "/")
    User(1001, 0, (0,)).fails(errno.EACCES, mount.directory, _write("file"))
    # As the pool's owner, by its secret, nothing is closed to root.
    ordinary = new_mount(pool)
    (ordinary / "common/closed/file").write_bytes(b"the owner's")
    assert ALICE.does(mount / "common", _read("closed/file")) == b"the owner's"


# SEMANTICS 34
def test_an_ordinary_mount_acts_as_the_owner_for_whoever_is_root(new_pool: NewPool, new_mount: NewMount) -> None:
    mount = new_mount(new_pool(1, 32))
    ROOT.does(mount.directory, _write("file"))
    assert _ids(mount / "file") == (os.geteuid(), os.getegid(), 0o644)
    (mount / "file").chmod(0o666)
    ALICE.fails(errno.EACCES, mount.directory, _read("file"))


# What the command says


def test_only_root_lets_set_id_bits_and_devices_count() -> None:
    # By its descriptor: the way to the command may be closed to other users.
    command = os.open(binary(), os.O_RDONLY)

    def work() -> str:
        words = [f"/proc/self/fd/{command}", "mount", "--suid", "/"]
        done = subprocess.run(words, pass_fds=[command], capture_output=True, check=False, text=True)
        assert done.returncode != 0
        return done.stderr

    try:
        assert "only root may" in ALICE.does(Path("/"), work)
    finally:
        os.close(command)


def by_address(pool: Pool) -> Pool:
    """The pool as another machine knows it: by a server's address."""
    return Pool(pool.addresses[0], pool.runtime, 0, 0)


# SEMANTICS 57.1
@pytest.mark.parametrize("size", [10, 100_000])
def test_set_id_bits_stay_with_those_whom_the_kernel_lets_keep_them(lab: Mount, size: int) -> None:
    """The super-user keeps all, who is in the group that of a group that does not run it, others none."""
    path = lab.directory / f"set-id-{size}"
    path.write_bytes(bytes(size))
    os.chown(path, ALICE.uid, ALICE.gid)

    def after(who: User, mode: int, work: Callable[[int], Any]) -> int:
        path.chmod(mode)

        def change() -> None:
            file = os.open(path.name, os.O_RDWR)
            work(file)
            os.close(file)

        who.does(lab.directory, change)
        return stat.S_IMODE(path.stat().st_mode)

    for work in (
        lambda file: os.pwrite(file, b"x", 0),
        lambda file: os.pwrite(file, b"x", size),
        lambda file: os.ftruncate(file, size // 2),
        lambda file: os.posix_fallocate(file, 0, size),
    ):
        assert after(ROOT, 0o6777, work) == 0o6777
        assert after(ALICE, 0o2766, work) == 0o2766
        assert after(ALICE, 0o6777, work) == 0o777


def test_a_host_without_the_host_key_is_told_so(lab: Mount, tmp_path: Path) -> None:
    wrong = tmp_path / "host-key"
    wrong.write_text("default 1 " + "ab" * 72 + "\n")
    wrong.chmod(0o600)
    directory = tmp_path / "directory"
    directory.mkdir()
    elsewhere = by_address(lab.pool)
    words = ("mount", "--allow-other", str(directory))
    said = elsewhere.refused(*words, variables={"RAMLACE_HOST_KEY_FILE": str(wrong)})
    assert "check which pool it was given" in said, said
    # The secret is not the host key, nor the other way round.
    wrong.write_text(lab.pool.secret.hex() + "\n")
    said = elsewhere.refused(*words, variables={"RAMLACE_HOST_KEY_FILE": str(wrong)})
    assert "ramlace host-key NAME" in said, said
    key = {"RAMLACE_SECRET_FILE": str(lab.pool.directory / "host-key")}
    said = elsewhere.refused("ls", "/", variables=key)
    assert "64 hexadecimal digits" in said, said


def test_a_host_with_the_host_key_alone_mounts_for_its_users(lab: Mount, tmp_path: Path) -> None:
    key = tmp_path / "copied"
    key.write_bytes((lab.pool.directory / "host-key").read_bytes())
    key.chmod(0o600)
    directory = tmp_path / "directory"
    directory.mkdir()
    words = ("mount", "--allow-other", str(directory))
    by_address(lab.pool).run(*words, variables={"RAMLACE_HOST_KEY_FILE": str(key)})
    try:
        ALICE.does(directory / "common", _write("from-elsewhere"))
    finally:
        lab.pool.run("unmount", str(directory))
    assert _ids(lab / "common/from-elsewhere") == (1001, 2001, 0o644)


# SEMANTICS 130.1
@pytest.mark.parametrize("size", [100, MIB])
def test_who_may_write_alone_finds_where_the_bytes_end(new_pool: NewPool, new_mount: NewMount, size: int) -> None:
    """By lseek, which shows no byte."""
    pool = new_pool(1, 32)
    pool.run("mkdir", "-m", "777", "/all")
    mount = new_mount(pool, "--allow-other")
    (mount / "all/file").write_bytes(b"x" * size)
    descriptor = os.open(mount / "all/file", os.O_WRONLY)
    try:
        assert os.lseek(descriptor, 5, os.SEEK_DATA) == 5
        assert os.lseek(descriptor, 5, os.SEEK_HOLE) == size
        fails(errno.ENXIO, os.lseek, descriptor, size, os.SEEK_DATA)
    finally:
        os.close(descriptor)


# SEMANTICS 130.5
@pytest.mark.long
@pytest.mark.parametrize("words", [[], ["--mode", "strict"]], ids=["coherent", "strict"])
def test_what_was_open_for_writing_before_a_sleep_keeps_no_reader_out(
    new_pool: NewPool, new_mount: NewMount, words: list[str]
) -> None:
    """The new session has the file open for reading alone: it asks for no pages to store into."""
    pool = new_pool(1, 32)
    pool.run("mkdir", "-m", "777", "/all")
    mount = new_mount(pool, "--allow-other", *words)
    content = bytes(range(256)) * 256
    (mount / "all/file").write_bytes(content)
    with (mount / "all/file").open("r+b", buffering=0) as before:
        os.ftruncate(before.fileno(), MIB)
        mount.daemon.send(signal.SIGSTOP)
        time.sleep(SESSION_SECONDS + 3)
        mount.daemon.send(signal.SIGCONT)

        def read() -> bytes:
            try:
                return (mount / "all/file").read_bytes()
            except OSError as error:
                assert error.errno == errno.ESTALE, error
                return b""

        assert eventually(lambda: read() != b"")
        assert read() == content.ljust(MIB, b"\0")
        fails(errno.ESTALE, os.pwrite, before.fileno(), b"x", 0)
