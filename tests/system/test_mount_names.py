"""Names through a mount: what leads where, what is listed, and what each refusal is called."""

import errno
import os
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

import ramlace
from mount import Program, fails, mapping
from pool import KIB, MIB, Pool, binary, eventually, pattern

LONGEST = "n" * 255
STRANGE = [b"\xff\xfe", b"caf\xe9", b"new\nline", b" ", b"-rf", b"\\", b"..x", b"...", "日本".encode(), b"\x01\x7f"]


def make(path: Path, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    return path


# SEMANTICS 101.2
def test_a_path_on_a_mount_is_that_place_in_the_pool_for_every_command(
    here: Path, there: Path, place: str, shared_pool: Pool, tmp_path: Path
) -> None:
    (here / "dir").mkdir()
    make(here / "dir/file")
    inside = f"{place if place.startswith('/') else '/' + place}/dir/file"
    link = tmp_path / "link"
    link.symlink_to(here / "dir")
    for path in (here / "dir/file", there / "dir/file", link / "file", here / "dir/../dir/file"):
        assert shared_pool.json("stat", str(path))["path"] == inside
    assert shared_pool.json("layout", "get", str(here / "dir/file"))["path"] == inside
    # In the working directory, and with a pool of no meaning named: the mount says which one it is.
    program = subprocess.run(
        [binary(), "cat", "file"], cwd=here / "dir", env={**os.environ, "RAMLACE_POOL": "none"}, capture_output=True
    )
    assert (program.stdout, program.returncode) == (b"content", 0), program.stderr
    shared_pool.run("cp", str(here / "dir/file"), str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"content"
    shared_pool.run("cp", str(tmp_path / "out"), str(there / "dir/in"))
    shared_pool.run("mv", str(here / "dir/in"), f"ramlace:{inside}2")
    shared_pool.run("mkdir", "-p", str(here / "new/deep"))
    shared_pool.run("ln", str(here / "dir/file"), str(there / "new/deep/name"))
    assert (there / "new/deep/name").read_bytes() == (there / "dir/file2").read_bytes() == b"content"
    shared_pool.run("rm", "-r", str(here / "new"))
    assert shared_pool.run("ls", str(there) + "/").stdout == b"dir\n"
    assert "is a file of this machine" in shared_pool.refused("mv", str(here / "dir/file"), str(tmp_path / "x"))
    assert "lies on no mount" in shared_pool.refused("stat", "nowhere/file")
    # Somebody else's pool may have the same name: what lies on this mount is never looked for there.
    elsewhere = shared_pool.refused("stat", str(here / "dir/file"), variables={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert "no pool of yours" in elsewhere, elsewhere


# Every command that takes places: PLACE is what is looked at, NEW what is made, and OUT a file here.
COMMANDS = {
    "ls": "ls PLACE",
    "stat": "stat PLACE",
    "cat": "cat PLACE",
    "find": "find PLACE",
    "du": "du PLACE",
    "df": "df PLACE",
    "chmod": "chmod 640 PLACE",
    "chown": "chown OWNER PLACE",
    "touch": "touch PLACE",
    "layout get": "layout get PLACE",
    "layout set": "layout set DIRECTORY --width 1",
    "xattr set": "xattr set PLACE user.x 1",
    "xattr list": "xattr list PLACE",
    "xattr get": "xattr get PLACE user.there",
    "xattr remove": "xattr remove PLACE user.there",
    "publish": "publish PLACE",
    "refresh": "refresh PLACE",
    "warm": "warm PLACE",
    "cp out": "cp PLACE OUT",
    "cp within": "cp PLACE NEW",
    "mv": "mv PLACE NEW",
    "ln": "ln PLACE NEW",
    "mkdir": "mkdir NEW",
    "rm": "rm PLACE",
}


# SEMANTICS 101.2, 101.3
@pytest.mark.parametrize("door", ["mount", "pool", "name", "address", "root"])
def test_every_command_that_takes_places_takes_every_name_of_them(
    here: Path, place: str, shared_pool: Pool, tmp_path: Path, door: str
) -> None:
    prefix = {
        "mount": str(here),
        "pool": f"ramlace:{place}",
        "name": f"ramlace://{shared_pool.name}{place}",
        "address": f"ramlace://{shared_pool.addresses[0]}{place}",
        "root": place,
    }[door]
    for name, line in COMMANDS.items():
        if door == "root" and name in ("cp out", "cp within", "mv"):
            # There a path without a pool is a file of this machine.
            continue
        if door == "address" and name in ("publish", "refresh", "warm"):
            # It is mounted by its name.
            assert "mounts it" in shared_pool.refused(name, f"{prefix}/file")
            continue
        (here / "file").write_bytes(b"content")
        os.setxattr(here / "file", "user.there", b"1")
        words = {
            "PLACE": f"{prefix}/file",
            "NEW": f"{prefix}/new",
            "OUT": str(tmp_path / "out"),
            "DIRECTORY": prefix,
            "OWNER": str(os.geteuid()),
        }
        shared_pool.run(*(words.get(word, word) for word in line.split()))
        for entry in here.iterdir():
            entry.rmdir() if entry.is_dir() else entry.unlink()


# SEMANTICS 101.4
def test_files_are_refreshed_by_each_mount_of_their_pool(
    here: Path, there: Path, place: str, shared_pool: Pool, tmp_path: Path
) -> None:
    make(here / "file")
    assert shared_pool.json("warm", f"ramlace:{place}") == {"files": 2, "bytes": 2 * len(b"content")}
    name = f"ramlace:{place}/mapped"
    (here / "mapped").write_bytes(b"o" * 12_288)
    with Program(mapping(here / "mapped")) as one, Program(mapping(there / "mapped")) as other:
        one.run("view[:3] = b'one'")
        other.run("view[8192:8195] = b'two'")
        assert shared_pool.json("publish", name) == {"published": [name]}
        with shared_pool.connect() as connected:
            found = connected.open(f"{place}/mapped").read()
        assert (found[:4], found[8192:8196]) == (b"oneo", b"twoo")
        assert shared_pool.json("refresh", name) == {"refreshed": [name]}
    assert "No such file" in shared_pool.refused("refresh", f"ramlace:{place}/none")
    elsewhere = {"XDG_RUNTIME_DIR": str(tmp_path)}
    for verb in ("publish", "refresh", "warm"):
        said = shared_pool.refused(verb, f"ramlace:{place}/file", variables=elsewhere)
        assert "is not mounted" in said, said


def test_a_copy_with_a_layout_that_it_cannot_have_is_refused(shared_pool: Pool, place: str, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(bytes(100_000))
    for words in (("--width", "99", str(source), f"ramlace:{place}/x"), ("--width", "4", "-", f"ramlace:{place}/x")):
        assert "the pool has 3 servers" in shared_pool.refused("cp", *words)
    assert "the pool has 3 servers" in shared_pool.refused("layout", "set", place, "--width", "99")
    shared_pool.run("cp", "--width", "3", str(source), f"ramlace:{place}/x")
    assert len(shared_pool.lane_servers(f"{place}/x")) == 3
    said = shared_pool.refused("cp", "--width", "1", f"ramlace:{place}/x", str(tmp_path / "out"))
    assert "no stripes" in said


def test_what_is_made_is_found_and_what_is_not_there_is_enoent(here: Path, there: Path) -> None:
    make(here / "file")
    (here / "directory").mkdir()
    (here / "link").symlink_to("file")
    for place in (here, there):
        assert stat.S_ISREG((place / "file").lstat().st_mode)
        assert stat.S_ISDIR((place / "directory").lstat().st_mode)
        assert stat.S_ISLNK((place / "link").lstat().st_mode)
        assert (place / "link").read_bytes() == b"content"
        assert (place / "directory/../file").read_bytes() == b"content"
        for operation in (os.stat, os.lstat, os.unlink, os.rmdir, os.readlink, os.listdir, os.open):
            arguments = [os.O_RDONLY] if operation is os.open else []
            fails(errno.ENOENT, operation, place / "none", *arguments)
            fails(errno.ENOENT, operation, place / "none/below", *arguments)


def test_the_numbers_of_inodes_are_the_pools_and_the_same_on_every_mount(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    make(here / "file")
    with shared_pool.connect() as pool:
        number = pool.stat(f"{place}/file").st_ino
    assert (here / "file").stat().st_ino == (there / "file").stat().st_ino == number
    assert {entry.inode() for entry in os.scandir(here)} == {number}


def test_mkdir_and_rmdir_refuse_what_posix_refuses(here: Path) -> None:
    (here / "full").mkdir()
    make(here / "full/file")
    make(here / "file")
    (here / "link").symlink_to("full")
    for name in ("full", "file", "link"):
        fails(errno.EEXIST, os.mkdir, here / name)
    fails(errno.ENOENT, os.mkdir, here / "none/below")
    fails(errno.ENOTDIR, os.mkdir, here / "file/below")
    fails(errno.ENOTEMPTY, os.rmdir, here / "full")
    for name in ("file", "link"):
        fails(errno.ENOTDIR, os.rmdir, here / name)
    fails(errno.EINVAL, os.rmdir, f"{here}/full/.")
    fails(errno.ENOTEMPTY, os.rmdir, f"{here}/full/..")
    assert (here / "full/file").read_bytes() == b"content"
    (here / "full/file").unlink()
    (here / "full").rmdir()
    fails(errno.ENOENT, os.stat, here / "full")


# SEMANTICS 64.1
def test_a_directory_that_is_removed_while_it_is_open_is_empty(here: Path) -> None:
    (here / "directory").mkdir()
    descriptor = os.open(here / "directory", os.O_RDONLY)
    try:
        (here / "directory").rmdir()
        fails(errno.ENOENT, lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        fails(errno.ENOENT, lambda: os.mkdir("new", dir_fd=descriptor))
        assert os.listdir(descriptor) == []
    finally:
        os.close(descriptor)


# SEMANTICS 64.1
def test_a_directory_that_is_replaced_while_it_is_open_is_empty(here: Path) -> None:
    for rounds in range(3):
        (here / "old").mkdir(mode=0o750)
        (here / "other").mkdir(exist_ok=True)
        (here / f"other/new{rounds}").mkdir(mode=0o700)
        number = (here / "old").stat().st_ino
        descriptor = os.open(here / "old", os.O_RDONLY)
        try:
            os.rename(here / f"other/new{rounds}", here / "old")
            found = os.fstat(descriptor)
            assert (found.st_ino, found.st_mode, found.st_nlink) == (number, stat.S_IFDIR | 0o750, 0)
            assert os.listdir(descriptor) == []
            fails(errno.ENOENT, lambda opened=descriptor: os.mkdir("new", dir_fd=opened))
        finally:
            os.close(descriptor)
        assert stat.S_IMODE((here / "old").stat().st_mode) == 0o700
        (here / "old").rmdir()


# SEMANTICS 64.1
def test_a_rename_that_fails_leaves_an_open_directory_as_it_is(here: Path) -> None:
    (here / "old").mkdir()
    (here / "old/full").mkdir()
    (here / "new").mkdir()
    descriptor = os.open(here / "old", os.O_RDONLY)
    try:
        fails(errno.ENOTEMPTY, os.rename, here / "new", here / "old")
        assert os.fstat(descriptor).st_nlink == 3
        assert os.listdir(descriptor) == ["full"]
    finally:
        os.close(descriptor)


# SEMANTICS 64.1
def test_a_working_directory_that_was_removed_is_a_directory_without_links(here: Path) -> None:
    (here / "directory").mkdir(mode=0o750)
    number = (here / "directory").stat().st_ino
    with Program(f"os.chdir({str(here / 'directory')!r})") as program:
        (here / "directory").rmdir()
        found = "(lambda s: (s.st_ino, s.st_mode, s.st_nlink))(os.stat('.'))"
        assert program.ask(found) == (number, stat.S_IFDIR | 0o750, 0)
        for use in (
            "os.stat('name')",
            "os.mkdir('name')",
            "open('name', 'w')",
            "os.getcwd()",
            "os.rmdir('../directory')",
        ):
            with pytest.raises(OSError, match="No such file"):
                program.run(use)
        # Another of its name is another directory.
        (here / "directory").mkdir()
        assert (here / "directory").stat().st_ino != number
        assert program.ask(found) == (number, stat.S_IFDIR | 0o750, 0)
    # One that could not be removed is what it was.
    (here / "directory/file").touch()
    fails(errno.ENOTEMPTY, (here / "directory").rmdir)
    assert (here / "directory").stat().st_nlink == 2


def test_unlink_takes_files_and_links_and_refuses_directories(here: Path) -> None:
    make(here / "file")
    (here / "link").symlink_to("file")
    (here / "directory").mkdir()
    fails(errno.EISDIR, os.unlink, here / "directory")
    fails(errno.ENOTDIR, os.unlink, here / "file/below")
    (here / "link").unlink()
    assert (here / "file").read_bytes() == b"content"
    (here / "file").unlink()
    assert os.listdir(here) == ["directory"]


def test_open_refuses_what_posix_refuses(here: Path) -> None:
    make(here / "file")
    (here / "directory").mkdir()
    (here / "link").symlink_to("file")
    (here / "nowhere").symlink_to("none")
    new = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    for name in ("file", "directory", "link", "nowhere"):
        fails(errno.EEXIST, os.open, here / name, new)
    fails(errno.EISDIR, os.open, here / "directory", os.O_WRONLY)
    fails(errno.EISDIR, os.open, here / "directory", os.O_CREAT | os.O_RDWR)
    fails(errno.ENOTDIR, os.open, here / "file", os.O_DIRECTORY)
    fails(errno.ENOTDIR, os.open, f"{here}/file/", os.O_RDONLY)
    fails(errno.ELOOP, os.open, here / "link", os.O_NOFOLLOW)
    # A link that leads nowhere is made into a file where it points, without O_EXCL.
    os.close(os.open(here / "nowhere", os.O_CREAT | os.O_WRONLY))
    assert (here / "none").stat().st_size == 0


def test_symbolic_links_hold_any_text_and_loops_are_eloop(shared_pool: Pool, place: str, here: Path) -> None:
    for index, target in enumerate([b"x", b"../..", b"/absolute/none", b"caf\xe9 \n", b"t" * 4095]):
        path = os.fsencode(here / f"link-{index}")
        os.symlink(target, path)
        assert os.readlink(path) == target
        assert os.lstat(path).st_size == len(target)
        with shared_pool.connect() as pool:
            assert os.fsencode(pool.readlink(f"{place}/link-{index}")) == target
    fails(errno.ENAMETOOLONG, os.symlink, "t" * 4096, here / "longer")
    fails(errno.EEXIST, os.symlink, "x", here / "link-0")
    fails(errno.EINVAL, os.readlink, make(here / "file"))
    (here / "a").symlink_to("b")
    (here / "b").symlink_to("a")
    for operation in (os.stat, os.listdir):
        fails(errno.ELOOP, operation, here / "a")
    fails(errno.ELOOP, os.open, here / "a/below", os.O_RDONLY)


def test_names_of_255_bytes_work_and_longer_ones_are_enametoolong(here: Path) -> None:
    make(here / LONGEST)
    (here / LONGEST.upper()).mkdir()
    assert sorted(os.listdir(here)) == sorted([LONGEST, LONGEST.upper()])
    assert (here / LONGEST).read_bytes() == b"content"
    (here / LONGEST).unlink()
    (here / LONGEST.upper()).rmdir()
    for longer in (LONGEST + "n", "n" * 1024, "n" * 4000):
        for operation in (os.stat, os.mkdir, os.unlink, os.rmdir, os.readlink):
            fails(errno.ENAMETOOLONG, operation, here / longer)
        fails(errno.ENAMETOOLONG, os.open, here / longer, os.O_CREAT | os.O_WRONLY)
        fails(errno.ENAMETOOLONG, os.symlink, "x", here / longer)
    assert os.listdir(here) == []


def test_names_are_bytes_and_the_same_by_every_door(shared_pool: Pool, place: str, here: Path, there: Path) -> None:
    root, other = os.fsencode(here), os.fsencode(there)
    for name in STRANGE:
        with open(os.path.join(root, name), "wb") as file:
            file.write(name)
    with shared_pool.connect() as pool:
        assert {os.fsencode(name) for name in pool.listdir(place)} == set(STRANGE)
        pool.open(os.fsencode(place) + b"/by \xfe library", "wb").close()
    assert set(os.listdir(other)) == {*STRANGE, b"by \xfe library"}
    for name in STRANGE:
        with open(os.path.join(other, name), "rb") as file:
            assert file.read() == name
        os.unlink(os.path.join(other, name))
    assert os.listdir(root) == [b"by \xfe library"]


def test_a_file_that_is_unlinked_while_open_lives_until_its_last_close(
    shared_pool: Pool, place: str, here: Path, there: Path
) -> None:
    path = make(here / "file", pattern(1, 3 * MIB))
    with open(path, "r+b", buffering=0) as first, open(path, "rb", buffering=0) as second:
        with open(there / "file", "rb") as elsewhere:
            path.unlink()
            fails(errno.ENOENT, os.stat, path)
            fails(errno.ENOENT, os.stat, there / "file")
            assert os.fstat(first.fileno()).st_nlink == 0
            assert first.write(b"after") == 5
            os.fsync(first.fileno())
            os.ftruncate(first.fileno(), 2 * MIB)
            os.fchmod(first.fileno(), 0o600)
            make(path, b"another")
            first.close()
            expected = b"after" + pattern(1, 2 * MIB)[5:]
            assert second.read() == expected
            assert elsewhere.read() == expected
        assert os.fstat(second.fileno()).st_size == 2 * MIB
        assert path.read_bytes() == b"another"

    def held() -> int:
        return sum(server["used_bytes"] for server in shared_pool.status())

    full = held()
    with open(make(here / "big", bytes(MIB)), "r+b", buffering=0) as file:
        file.write(pattern(1, 8 * MIB))
        (here / "big").unlink()
        assert held() >= full + 7 * MIB
    assert eventually(lambda: held() < full + MIB), "the last close did not free the memory"


def test_modes_are_kept_and_changed(shared_pool: Pool, place: str, here: Path, there: Path) -> None:
    old = os.umask(0o027)
    try:
        os.close(os.open(here / "file", os.O_CREAT | os.O_WRONLY, 0o666))
        (here / "directory").mkdir(0o777)
    finally:
        os.umask(old)
    assert stat.S_IMODE((there / "file").stat().st_mode) == 0o640
    assert stat.S_IMODE((there / "directory").stat().st_mode) == 0o750
    for mode in (0o000, 0o400, 0o777, 0o4755, 0o2755, 0o1777):
        (here / "file").chmod(mode)
        assert stat.S_IMODE((there / "file").stat().st_mode) == mode
        with shared_pool.connect() as pool:
            assert stat.S_IMODE(pool.stat(f"{place}/file").st_mode) == mode
    if os.geteuid() != 0:
        (here / "file").chmod(0o400)
        fails(errno.EACCES, os.open, here / "file", os.O_WRONLY)
        (here / "file").chmod(0o000)
        fails(errno.EACCES, os.open, here / "file", os.O_RDONLY)
    found = (here / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_nlink) == (os.geteuid(), os.getegid(), 1)
    os.chown(here / "file", os.geteuid(), -1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root's writes keep set-user-id bits; an ordinary user runs this")
def test_a_write_takes_the_set_id_bits_away(here: Path) -> None:
    for change in (lambda path: path.write_bytes(b"x"), lambda path: os.truncate(path, 1)):
        path = make(here / "program")
        path.chmod(0o6755)
        change(path)
        assert stat.S_IMODE(path.stat().st_mode) & stat.S_ISUID == 0


def test_times_are_kept_to_the_nanosecond(shared_pool: Pool, place: str, here: Path, there: Path) -> None:
    path = make(here / "file")
    for times in ((1_000_000_001, 2_000_000_002), (0, 1), (-1_000_000_001, -1), (7_258_118_400 * 10**9 + 7, 5)):
        os.utime(path, ns=times)
        for found in (path.stat(), (there / "file").stat()):
            assert (found.st_atime_ns, found.st_mtime_ns) == times
        with shared_pool.connect() as pool:
            known = pool.stat(f"{place}/file")
            assert (known.st_atime_ns, known.st_mtime_ns) == times
    before = time.time_ns() - 10**9
    os.utime(path)
    assert path.stat().st_mtime_ns >= before
    # What is omitted stays.
    os.utime(path, ns=(5, 6))
    subprocess.run(["touch", "-m", path], check=True)
    assert path.stat().st_atime_ns == 5
    assert path.stat().st_mtime_ns >= before
    # On an open file, and what was written before the time was set does not change it any more.
    with open(path, "r+b", buffering=0) as file:
        file.write(b"more")
        os.utime(file.fileno(), ns=(7, 8))
    found = (there / "file").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (7, 8)
    (here / "link").symlink_to("file")
    os.utime(here / "link", ns=(9, 10), follow_symlinks=False)
    assert (here / "link").lstat().st_mtime_ns == 10
    assert path.stat().st_mtime_ns == 8


def test_changes_move_the_times_of_files_and_directories(here: Path) -> None:
    path = make(here / "file")
    os.utime(path, ns=(1, 1))
    changed = path.stat().st_ctime_ns
    path.write_bytes(b"other")
    assert path.stat().st_mtime_ns > 1
    assert path.stat().st_ctime_ns > changed
    (here / "directory").mkdir()
    for change in (
        lambda: make(here / "directory/new"),
        lambda: (here / "directory/new").unlink(),
        lambda: (here / "directory/below").mkdir(),
        lambda: (here / "directory/below").rmdir(),
        lambda: (here / "directory/link").symlink_to("x"),
    ):
        os.utime(here / "directory", ns=(1, 1))
        change()
        assert (here / "directory").stat().st_mtime_ns > 1


def test_a_directory_counts_its_subdirectories_in_its_links(here: Path) -> None:
    assert here.stat().st_nlink == 2
    (here / "a").mkdir()
    (here / "b").mkdir()
    make(here / "file")
    assert here.stat().st_nlink == 4
    (here / "a").rmdir()
    assert here.stat().st_nlink == 3
    found = subprocess.run(["find", here], capture_output=True, check=True, text=True).stdout.split("\n")
    assert {Path(line).name for line in found if line} == {here.name, "b", "file"}


def test_truncate_shrinks_grows_with_zeros_and_refuses(here: Path, there: Path) -> None:
    path = make(here / "file", pattern(1, 300_000))
    for size in (299_999, 65_536, 65_535, 0, 4096, 200_001):
        kept = min(size, path.stat().st_size)
        expected = path.read_bytes()[:kept] + bytes(size - kept)
        os.truncate(path, size)
        assert path.stat().st_size == (there / "file").stat().st_size == size
        assert path.read_bytes() == (there / "file").read_bytes() == expected
    with open(path, "r+b", buffering=0) as file:
        file.truncate(10)
        assert os.fstat(file.fileno()).st_size == 10
        file.truncate(MIB)
        assert file.read() == bytes(MIB)
    fails(errno.EINVAL, os.truncate, path, -1)
    fails(errno.EISDIR, os.truncate, here, 0)
    fails(errno.ENOENT, os.truncate, here / "none", 0)
    fails(errno.EFBIG, os.truncate, path, (1 << 62) + 1)
    with open(path, "rb") as file:
        fails(errno.EINVAL, os.ftruncate, file.fileno(), 0)
    assert path.stat().st_size == MIB


def test_statvfs_tells_the_pools_room(shared_pool: Pool, here: Path) -> None:
    found = os.statvfs(here)
    assert found.f_namemax == 255
    with shared_pool.connect() as pool:
        assert found.f_blocks * found.f_frsize == pool.statfs().total_bytes
    assert 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
    assert found.f_ffree > 0
    make(here / "file", pattern(1, 16 * MIB))
    wanted = found.f_bfree - 15 * MIB // found.f_frsize
    assert eventually(lambda: os.statvfs(here).f_bfree < wanted), "16 MiB were written and no room was taken"
    shown = subprocess.run(["df", "--output=source,fstype", here], capture_output=True, check=True, text=True).stdout
    assert shown.splitlines()[1].split() == [f"ramlace:{shared_pool.name}", "fuse.ramlace"]


# SEMANTICS 31
def test_rename_moves_and_replaces_at_once_for_every_mount(here: Path, there: Path) -> None:
    (here / "a").mkdir()
    (here / "b").mkdir()
    make(here / "a/file", b"first")
    make(here / "b/other", b"second")
    number = (here / "a/file").stat().st_ino
    os.rename(here / "a/file", here / "b/file")
    assert (os.listdir(there / "a"), sorted(os.listdir(there / "b"))) == ([], ["file", "other"])
    assert (there / "b/file").stat().st_ino == number
    with open(there / "b/other", "rb") as replaced:
        os.rename(here / "b/file", here / "b/other")
        assert os.listdir(there / "b") == ["other"]
        assert (there / "b/other").read_bytes() == b"first"
        assert replaced.read() == b"second", "a file that is replaced while it is open lives until its last close"
    # A directory with all that is in it, also over an empty one.
    (here / "empty").mkdir()
    os.rename(there / "b", there / "empty")
    assert (here / "empty/other").read_bytes() == b"first"
    os.rename(here / "empty", here / "a/below")
    assert (there / "a/below/other").read_bytes() == b"first"
    assert (here / "a").stat().st_nlink == 3


def test_rename_refuses_what_posix_refuses(here: Path) -> None:
    make(here / "file")
    for name in ("directory", "directory/below", "full", "full/below"):
        (here / name).mkdir()
    fails(errno.ENOENT, os.rename, here / "none", here / "new")
    fails(errno.ENOENT, os.rename, here / "file", here / "none/new")
    fails(errno.ENOTDIR, os.rename, here / "directory", here / "file")
    fails(errno.EISDIR, os.rename, here / "file", here / "directory")
    fails(errno.ENOTEMPTY, os.rename, here / "directory", here / "full")
    fails(errno.EINVAL, os.rename, here / "directory", here / "directory/below/deeper")
    fails(errno.ENAMETOOLONG, os.rename, here / "file", here / (LONGEST + "n"))
    assert sorted(os.listdir(here)) == ["directory", "file", "full"]
    os.rename(here / "file", here / "file")
    assert (here / "file").read_bytes() == b"content"


def test_an_open_file_is_the_same_after_its_name_was_moved(here: Path, there: Path) -> None:
    with open(make(here / "file"), "r+b", buffering=0) as file:
        os.rename(there / "file", there / "moved")
        file.write(b"CONTENT")
        assert (there / "moved").read_bytes() == b"CONTENT"
        fails(errno.ENOENT, os.stat, here / "file")
        assert os.fstat(file.fileno()).st_nlink == 1


# SEMANTICS 31
def test_a_second_name_leads_to_the_same_file(here: Path, there: Path) -> None:
    make(here / "file")
    (here / "directory").mkdir()
    os.link(here / "file", here / "directory/other")
    for place in (here, there):
        first, second = (place / "file").stat(), (place / "directory/other").stat()
        assert (first.st_ino, first.st_nlink) == (second.st_ino, second.st_nlink)
        assert first.st_nlink == 2
    (there / "directory/other").write_bytes(b"by the other name")
    assert (here / "file").read_bytes() == b"by the other name"
    fails(errno.EEXIST, os.link, here / "file", here / "directory")
    fails(errno.EEXIST, os.link, here / "file", here / "directory/other")
    fails(errno.EPERM, os.link, here / "directory", here / "linked")
    fails(errno.ENOENT, os.link, here / "none", here / "linked")
    (here / "file").unlink()
    assert (there / "directory/other").stat().st_nlink == 1
    assert (there / "directory/other").read_bytes() == b"by the other name"


def test_mknod_makes_a_plain_file(here: Path) -> None:
    os.mknod(here / "plain", stat.S_IFREG | 0o640)
    assert stat.S_IMODE((here / "plain").stat().st_mode) == 0o640
    assert os.listdir(here) == ["plain"]


def test_of_many_that_make_one_name_one_wins(here: Path, there: Path) -> None:
    winners: list[int] = []

    def race(number: int) -> None:
        directory = (here, there)[number % 2]
        for turn in range(20):
            try:
                descriptor = os.open(directory / f"name-{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            os.write(descriptor, b"%d" % number)
            os.close(descriptor)
            winners.append(turn)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(winners) == list(range(20))
    assert {(there / f"name-{turn}").stat().st_size for turn in range(20)} == {1}


def test_threads_make_and_remove_side_by_side(here: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(25):
                directory = here / f"{number}-{turn}"
                directory.mkdir()
                assert make(directory / "file", pattern(turn, 5000)).read_bytes() == pattern(turn, 5000)
                assert os.listdir(directory) == ["file"]
                (directory / "file").unlink()
                directory.rmdir()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert os.listdir(here) == []


def test_trees_are_copied_and_removed_by_the_usual_programs(here: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    make(source / "a/file", pattern(1, 100_000))
    make(source / "a/b/empty", b"")
    (source / "a/link").symlink_to("b/empty")
    (source / "a/b/empty").chmod(0o604)
    os.utime(source / "a/file", ns=(10**18 + 1, 10**18 + 2))

    def run(*words: str | Path) -> None:
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert (done.returncode, done.stderr) == (0, ""), words

    run("cp", "-a", source, here / "copy")
    run("diff", "-r", "--no-dereference", source, here / "copy")
    assert (here / "copy/a/file").stat().st_mtime_ns == 10**18 + 2
    run("tar", "-C", here / "copy", "-cf", here / "tree.tar", "a")
    (here / "unpacked").mkdir()
    run("tar", "-C", here / "unpacked", "-xpf", here / "tree.tar")
    run("diff", "-r", "--no-dereference", source, here / "unpacked")
    assert stat.S_IMODE((here / "unpacked/a/b/empty").stat().st_mode) == 0o604
    run("rm", "-r", here / "copy", here / "unpacked", here / "tree.tar")
    assert os.listdir(here) == []


# SEMANTICS 31
def test_a_library_and_a_mount_see_each_others_names_at_once(shared_pool: Pool, place: str, here: Path) -> None:
    with shared_pool.connect() as pool:
        for turn in range(50):
            name = f"name-{turn % 3}"
            pool.open(f"{place}/{name}", "xb").close()
            assert os.listdir(here) == [name]
            fails(errno.EEXIST, os.mkdir, here / name)
            (here / name).unlink()
            assert not pool.exists(f"{place}/{name}")
            (here / name).mkdir()
            assert pool.stat(f"{place}/{name}").kind == "directory"
            pool.rmdir(f"{place}/{name}")
            fails(errno.ENOENT, os.stat, here / name)
            # Also a name that the kernel knows as missing is found as soon as it is there.
            pool.symlink("x" * 64 * (turn + 1) if turn < 60 else "x", f"{place}/{name}")
            assert (here / name).lstat().st_size == 64 * (turn + 1)
            pool.remove(f"{place}/{name}")


def test_the_library_is_told_what_the_mount_is_told(here: Path, shared_pool: Pool, place: str) -> None:
    make(here / "file")
    with shared_pool.connect() as pool:
        with pytest.raises(ramlace.Error):
            pool.mkdir(f"{place}/file")
        with open(here / "file", "r+b", buffering=0) as file:
            file.write(pattern(1, 64 * KIB))
            # Sizes need no close.
            assert pool.stat(f"{place}/file").st_size == 64 * KIB
