"""Pipes, sockets and devices: names in a pool that mean something to the kernel that opens them."""

import errno
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from mount import fails
from pool import Pool

# Root alone makes devices and changes owners.
pytestmark = pytest.mark.both

PRIVILEGED = os.geteuid() == 0


@pytest.fixture
def nodes(here: Path) -> Path:
    """A directory with one of each kind."""
    os.mkfifo(here / "pipe", 0o640)
    with socket.socket(socket.AF_UNIX) as server:
        directory = os.open(here, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{directory}/socket")
        finally:
            os.close(directory)
    if PRIVILEGED:
        os.mknod(here / "character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(here / "block", stat.S_IFBLK | 0o660, os.makedev(0xABC, 0xFEDCB))
    return here


# SEMANTICS 55.1
def test_each_kind_of_node_is_what_it_was_made_on_every_mount(nodes: Path, there: Path) -> None:
    for place in (nodes, there):
        assert stat.S_ISFIFO((place / "pipe").lstat().st_mode)
        assert stat.S_IMODE((place / "pipe").lstat().st_mode) == 0o640
        assert stat.S_ISSOCK((place / "socket").lstat().st_mode)
        if PRIVILEGED:
            character, block = (place / "character").lstat(), (place / "block").lstat()
            assert stat.S_ISCHR(character.st_mode) and stat.S_ISBLK(block.st_mode)
            assert (os.major(character.st_rdev), os.minor(character.st_rdev)) == (1, 3)
            assert (os.major(block.st_rdev), os.minor(block.st_rdev)) == (0xABC, 0xFEDCB)


# SEMANTICS 12.3
@pytest.mark.parametrize("remover", ["here", "there", "rename"])
def test_a_node_that_was_removed_while_it_is_open_is_one_without_links(
    nodes: Path, there: Path, tmp_path: Path, remover: str
) -> None:
    """The kernel opens them without a word to anybody."""

    def remove(path: Path) -> None:
        if remover == "rename":
            os.rename(path.with_name("file"), path)
        else:
            os.unlink(path if remover == "here" else there / path.name)

    for name in ("pipe", "socket", *(("character", "block") if PRIVILEGED else ())):
        (nodes / "file").touch()
        before = (nodes / name).lstat()
        file = os.open(nodes / name, os.O_RDWR if name == "pipe" else os.O_PATH)
        try:
            remove(nodes / name)
            found = os.fstat(file)
            assert (found.st_ino, found.st_mode, found.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
            assert found.st_nlink == 0
            if name == "pipe":
                os.write(file, b"through it")
                assert os.read(file, 99) == b"through it"
        finally:
            os.close(file)
        assert remover == "rename" or not (nodes / name).exists()


# SEMANTICS 12.3
def test_cat_reads_a_pipe_that_has_no_name_any_more(nodes: Path) -> None:
    with (nodes / "pipe").open("r+b", buffering=0) as pipe:
        (nodes / "pipe").unlink()
        pipe.write(b"through it")
        with subprocess.Popen(["cat"], stdin=pipe, stdout=subprocess.PIPE) as reader:
            assert reader.stdout
            assert reader.stdout.read(10) == b"through it"
            reader.kill()


# SEMANTICS 55.2
def test_the_library_and_the_command_show_nodes_and_do_not_open_them(
    nodes: Path, shared_pool: Pool, place: str, tmp_path: Path
) -> None:
    with shared_pool.connect() as pool:
        assert stat.S_ISFIFO(pool.stat(f"{place}/pipe").st_mode)
        assert pool.stat(f"{place}/socket").kind == "socket"
        for name in ("pipe", "socket"):
            error = fails(errno.EOPNOTSUPP, lambda path: pool.open(path), f"{place}/{name}")
            assert "through a mount" in str(error), error
        if PRIVILEGED:
            block = pool.stat(f"{place}/block")
            assert (os.major(block.st_rdev), os.minor(block.st_rdev)) == (0xABC, 0xFEDCB)
    listed = shared_pool.run("ls", "-l", f"ramlace:{place}").stdout.decode()
    assert "prw-r-----" in listed and "\nsrwx" in "\n" + listed
    if PRIVILEGED:
        assert "crw-------" in listed and "2748, 1043915" in listed
    found = shared_pool.run("find", f"ramlace:{place}", "-type", "p").stdout.decode()
    assert found.split() == [f"ramlace:{place}/pipe"]
    assert "kind       fifo" in shared_pool.run("stat", f"ramlace:{place}/pipe").stdout.decode()
    (nodes / "file").write_bytes(b"content")
    copied = shared_pool.run("cp", "-r", f"ramlace:{place}", str(tmp_path / "copy"), check=False)
    assert copied.returncode == 1 and "is not copied" in copied.stderr.decode()
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["file"]


def test_a_pipe_joins_two_programs(nodes: Path) -> None:
    with subprocess.Popen(["cat", nodes / "pipe"], stdout=subprocess.PIPE) as reader:
        (nodes / "pipe").write_bytes(b"through the pipe")
        assert reader.communicate()[0] == b"through the pipe"


def test_a_socket_is_an_address(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nodes)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("address")
        server.listen()
        client.connect("address")
        with server.accept()[0] as served:
            served.sendall(b"hello")
            assert client.recv(5) == b"hello"
    with socket.socket(socket.AF_UNIX) as late:
        fails(errno.ECONNREFUSED, late.connect, "address")
        fails(errno.EADDRINUSE, late.bind, "address")


def test_devices_of_a_mount_are_closed(nodes: Path) -> None:
    if not PRIVILEGED:
        fails(errno.EPERM, os.mknod, nodes / "character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        return
    fails(errno.EACCES, os.open, nodes / "character", os.O_RDONLY)


# SEMANTICS 55.1
def test_nodes_are_named_linked_and_removed_as_files_are(nodes: Path, there: Path) -> None:
    os.link(nodes / "pipe", nodes / "second")
    assert (there / "pipe").lstat().st_nlink == 2
    assert (there / "pipe").lstat().st_ino == (there / "second").lstat().st_ino
    (nodes / "directory").mkdir()
    os.rename(nodes / "pipe", nodes / "directory/moved")
    assert stat.S_ISFIFO((there / "directory/moved").lstat().st_mode)
    os.chmod(there / "second", 0o600)
    assert stat.S_IMODE((nodes / "directory/moved").lstat().st_mode) == 0o600
    fails(errno.EEXIST, os.mkfifo, nodes / "second")
    fails(errno.ENOTDIR, os.mkdir, nodes / "second/below")
    fails(errno.EINVAL, os.truncate, nodes / "second", 0)
    (nodes / "plain").write_bytes(b"x")
    os.rename(nodes / "plain", nodes / "second")
    assert (nodes / "second").read_bytes() == b"x"
    assert (there / "directory/moved").lstat().st_nlink == 1
    for name in ("directory/moved", "socket"):
        (nodes / name).unlink()
        fails(errno.ENOENT, os.lstat, there / name)
