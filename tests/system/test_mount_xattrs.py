"""Extended attributes, set-id bits, times, and files without a name, through a mount."""

import ctypes
import errno
import json
import mmap
import os
import stat
from pathlib import Path

import pytest

from conftest import NewPool
from mount import REFRESH, NewMount, fails
from pool import KIB, Pool, eventually

# Root alone sets capabilities and trusted attributes.
pytestmark = pytest.mark.both

PRIVILEGED = os.geteuid() == 0
VALUE_BYTES_MAX = 64 * KIB
CAPABILITY = "security.capability"
# cap_net_raw+p, as setcap writes it.
NET_RAW = bytes.fromhex("0000000200200000000000000000000000000000")
STATX_BTIME = 0x800
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400


def make(path: Path, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    return path


def birth(path: Path) -> float:
    """Return the time of creation that statx tells."""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.statx(AT_FDCWD, os.fsencode(path), 0x100, STATX_BTIME, buffer) == 0, os.strerror(ctypes.get_errno())
    assert int.from_bytes(buffer.raw[0:4], "little") & STATX_BTIME
    seconds, nanos = int.from_bytes(buffer.raw[80:88], "little"), int.from_bytes(buffer.raw[88:92], "little")
    return seconds + nanos / 1e9


def name_it(descriptor: int, path: Path) -> None:
    """Give an open file a name, as linkat does with AT_SYMLINK_FOLLOW."""
    libc = ctypes.CDLL(None, use_errno=True)
    link = f"/proc/self/fd/{descriptor}".encode()
    if libc.linkat(AT_FDCWD, link, AT_FDCWD, os.fsencode(path), AT_SYMLINK_FOLLOW) != 0:
        raise OSError(ctypes.get_errno(), "linkat")


# SEMANTICS 56.1
def test_extended_attributes_are_set_listed_and_removed_on_every_mount(here: Path, there: Path) -> None:
    path = make(here / "file")
    (here / "directory").mkdir()
    for name in ("file", "directory"):
        changed = (here / name).stat().st_ctime_ns
        os.setxattr(here / name, "user.a", b"one\0\xff")
        assert (there / name).stat().st_ctime_ns > changed
        assert os.getxattr(there / name, "user.a") == b"one\0\xff"
        os.setxattr(there / name, "user.b", b"")
        assert sorted(os.listxattr(here / name)) == ["user.a", "user.b"]
        fails(errno.EEXIST, os.setxattr, here / name, "user.a", b"x", os.XATTR_CREATE)
        fails(errno.ENODATA, os.setxattr, here / name, "user.c", b"x", os.XATTR_REPLACE)
        os.setxattr(there / name, "user.a", b"two", os.XATTR_REPLACE)
        assert os.getxattr(here / name, "user.a") == b"two"
        os.removexattr(here / name, "user.a")
        fails(errno.ENODATA, os.getxattr, there / name, "user.a")
        fails(errno.ENODATA, os.removexattr, there / name, "user.a")
        assert os.listxattr(there / name) == ["user.b"]
    os.getxattr(path, REFRESH)
    assert os.listxattr(path) == ["user.b"]
    assert path.read_bytes() == b"content"


# SEMANTICS 56.2
def test_extended_attributes_have_limits_and_refusals_change_nothing(here: Path) -> None:
    path = make(here / "file")
    os.setxattr(path, "user.large", b"x" * VALUE_BYTES_MAX)
    assert os.getxattr(path, "user.large") == b"x" * VALUE_BYTES_MAX
    fails(errno.E2BIG, os.setxattr, path, "user.larger", b"x" * (VALUE_BYTES_MAX + 1))
    fails(errno.ENOSPC, os.setxattr, path, "user.more", b"x" * VALUE_BYTES_MAX)
    os.setxattr(path, "user." + "n" * 250, b"longest")
    fails(errno.ERANGE, os.setxattr, path, "user." + "n" * 251, b"longer")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(4)
    assert libc.getxattr(os.fsencode(path), b"user.large", None, 0) == VALUE_BYTES_MAX
    assert libc.getxattr(os.fsencode(path), b"user.large", buffer, 4) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert libc.listxattr(os.fsencode(path), buffer, 4) == -1
    assert ctypes.get_errno() == errno.ERANGE
    fails(errno.EOPNOTSUPP, os.getxattr, path, "system.other")
    fails(errno.EOPNOTSUPP, os.setxattr, path, "other.name", b"x")
    fails(errno.EINVAL, os.setxattr, path, "user.", b"x")
    assert sorted(os.listxattr(path)) == sorted(["user.large", "user." + "n" * 250])


def test_user_attributes_are_for_files_and_directories_alone(here: Path) -> None:
    os.mkfifo(here / "pipe")
    (here / "link").symlink_to("nowhere")
    for name in ("pipe", "link"):
        fails(errno.EPERM, lambda name=name: os.setxattr(here / name, "user.a", b"x", follow_symlinks=False))
        if PRIVILEGED:
            os.setxattr(here / name, "trusted.a", b"x", follow_symlinks=False)
            assert os.listxattr(here / name, follow_symlinks=False) == ["trusted.a"]


def test_the_library_and_the_command_know_extended_attributes(here: Path, shared_pool: Pool, place: str) -> None:
    make(here / "file")
    with shared_pool.connect() as pool:
        pool.setxattr(f"{place}/file", "user.a", b"by the library")
        assert os.getxattr(here / "file", "user.a") == b"by the library"
        fails(errno.EEXIST, pool.setxattr, f"{place}/file", "user.a", b"x", os.XATTR_CREATE)
        fails(errno.ENODATA, pool.getxattr, f"{place}/file", "user.b")
        fails(errno.EOPNOTSUPP, pool.setxattr, f"{place}/file", REFRESH, b"1")
        os.setxattr(here / "file", "user.b", b"\xff")
        assert pool.listxattr(f"{place}/file") == ["user.a", "user.b"]
        pool.removexattr(f"{place}/file", "user.a")
    path = f"ramlace:{place}/file"
    shared_pool.run("xattr", "set", path, "user.c", "by the command")
    assert shared_pool.run("xattr", "get", path, "user.c").stdout == b"by the command\n"
    assert shared_pool.run("xattr", "list", path).stdout == b"user.b\nuser.c\n"
    told = shared_pool.json("xattr", "get", path, "user.b")
    assert told["value_hex"] == "ff" and told["name"] == "user.b"
    refused = shared_pool.run("xattr", "set", "--create", path, "user.c", "x", check=False)
    assert refused.returncode == 1 and b"already" in refused.stderr
    shared_pool.run("xattr", "remove", path, "user.c")
    assert [entry["name"] for entry in shared_pool.json("xattr", "list", path)] == ["user.b"]


def test_extended_attributes_outlive_a_killed_server(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    path = make(new_mount(pool) / "file")
    for number in range(20):
        os.setxattr(path, f"user.{number}", bytes([number]) * 1000)
    pool.kill_child(0)
    assert sorted(os.listxattr(path)) == sorted(f"user.{number}" for number in range(20))
    assert os.getxattr(path, "user.7") == b"\7" * 1000


def test_a_write_through_a_mount_costs_one_request(here: Path, shared_pool: Pool) -> None:
    path = make(here / "file", bytes(64 * KIB))
    with path.open("r+b", buffering=0) as file:
        before = shared_pool.requests()
        for _ in range(200):
            os.pwrite(file.fileno(), b"x" * 4096, 0)
        after = shared_pool.requests()
    # Beside the writes: the times that are told each second.
    assert after - before < 200 + 60


# SEMANTICS 57.1, 57.3, 57.4
@pytest.mark.skipif(not PRIVILEGED, reason="only root sets capabilities and changes owners")
def test_capabilities_and_set_id_bits_go_when_a_file_is_written_or_changes_hands(here: Path, there: Path) -> None:
    path = make(here / "file")
    os.setxattr(path, CAPABILITY, NET_RAW)
    assert os.getxattr(there / "file", CAPABILITY)
    with path.open("r+b") as file:
        file.write(b"changed")
    fails(errno.ENODATA, os.getxattr, there / "file", CAPABILITY)
    os.setxattr(path, CAPABILITY, NET_RAW)
    os.chown(path, 0, 0)
    fails(errno.ENODATA, os.getxattr, there / "file", CAPABILITY)
    path.chmod(0o6755)
    path.write_bytes(b"by the super-user")
    assert stat.S_IMODE((there / "file").stat().st_mode) == 0o6755
    os.chown(path, 0, 0)
    assert stat.S_IMODE((there / "file").stat().st_mode) == 0o755
    (here / "directory").mkdir()
    (here / "directory").chmod(0o6755)
    os.chown(here / "directory", 0, 0)
    assert stat.S_IMODE((there / "directory").stat().st_mode) == 0o6755


# SEMANTICS 60
def test_a_program_that_runs_is_not_emptied(here: Path) -> None:
    path = here / "program"
    path.write_bytes(Path("/bin/sleep").read_bytes())
    path.chmod(0o755)
    size = path.stat().st_size
    process = os.posix_spawn(path, ["sleep", "60"], {})
    try:
        assert eventually(lambda: os.readlink(f"/proc/{process}/exe") == str(path))
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC):
            fails(errno.ETXTBSY, os.open, path, flags)
        assert path.stat().st_size == size
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


def test_an_open_that_truncates_empties_the_file(here: Path, there: Path) -> None:
    path = make(here / "file", b"x" * 10_000)
    assert (there / "file").read_bytes() == b"x" * 10_000
    with (there / "file").open("wb") as file:
        assert path.stat().st_size == 0
        file.write(b"new")
    assert path.read_bytes() == b"new"
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    assert (there / "file").read_bytes() == b""


# SEMANTICS 58.2
def test_times_are_exact_to_the_nanosecond_and_may_lie_far_away(here: Path, there: Path) -> None:
    path = make(here / "file")
    for moment in (-1, 0, 1, 999_999_999, 1_000_000_001, -(2**62), 2**62 + 7):
        os.utime(path, ns=(moment, moment + 1))
        for seen in (path.stat(), (there / "file").stat()):
            assert (seen.st_atime_ns, seen.st_mtime_ns) == (moment, moment + 1)


# SEMANTICS 58.3
def test_the_time_of_creation_is_told_by_statx_and_stays(here: Path, there: Path) -> None:
    path = make(here / "file")
    made = birth(path)
    assert abs(made - path.stat().st_mtime) < 10
    os.utime(path, ns=(5, 5))
    path.write_bytes(b"later")
    assert birth(path) == birth(there / "file") == made


# SEMANTICS 58.5
def test_reading_sets_no_time_of_access(here: Path, there: Path) -> None:
    for size in (10, 10_000):
        path = here / f"file-{size}"
        path.write_bytes(b"x" * size)
        os.utime(path, ns=(5, path.stat().st_mtime_ns))
        for mount in (here, there):
            assert len((mount / path.name).read_bytes()) == size
            with (mount / path.name).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                assert view[size - 1] == ord("x")
        assert (there / path.name).stat().st_atime_ns == path.stat().st_atime_ns == 5


# SEMANTICS 59
def test_a_file_without_a_name_is_nowhere_until_it_is_linked(here: Path, there: Path) -> None:
    descriptor = os.open(here, os.O_TMPFILE | os.O_RDWR, 0o640)
    try:
        os.write(descriptor, b"complete")
        assert os.pread(descriptor, 100, 0) == b"complete"
        assert (os.fstat(descriptor).st_nlink, stat.S_IMODE(os.fstat(descriptor).st_mode)) == (0, 0o640)
        assert os.listdir(here) == []
        name_it(descriptor, here / "named")
        assert (there / "named").read_bytes() == b"complete"
        fails(errno.EEXIST, name_it, descriptor, here / "named")
    finally:
        os.close(descriptor)
    assert (there / "named").stat().st_nlink == 1
    assert os.listdir(there) == ["named"]
    excluded = os.open(here, os.O_TMPFILE | os.O_EXCL | os.O_WRONLY)
    try:
        fails(errno.ENOENT, name_it, excluded, here / "never")
    finally:
        os.close(excluded)


def test_files_without_a_name_take_no_room_when_they_are_closed(shared_pool: Pool, here: Path) -> None:
    with shared_pool.connect() as pool:
        before = pool.statfs().inodes
        for _ in range(20):
            os.close(os.open(here, os.O_TMPFILE | os.O_WRONLY))
        assert eventually(lambda: pool.statfs().inodes <= before)


def test_names_and_paths_that_are_too_long_are_refused(here: Path) -> None:
    assert os.pathconf(here, "PC_NAME_MAX") == 255
    for operation in (os.mkdir, os.stat, os.unlink, os.mkfifo):
        fails(errno.ENAMETOOLONG, operation, here / ("n" * 256))
        fails(errno.ENAMETOOLONG, operation, here / "/".join(["d" * 200] * 21))
    assert json.dumps(os.listdir(here)) == "[]"
