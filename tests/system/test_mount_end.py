"""Mounts that end while they are used, and daemons that die, or sleep too long."""

import ctypes
import errno
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount, Program, fails, is_mounted, mapping
from pool import KIB, MIB, Pool, eventually, pattern

# Root unmounts by a system call, others by fusermount3.
pytestmark = pytest.mark.both

UNIT = 64 * KIB
# A session that sent nothing for so long has ended.
SESSION_SECONDS = 10
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


@contextmanager
def mounted_again(mount: Mount) -> Iterator[None]:
    """Mount the pool once more where an earlier mount was."""
    mount.pool.run("mount", str(mount.directory))
    try:
        yield
    finally:
        mount.pool.run("unmount", str(mount.directory))


def hears_of_the_end(program: Program, mount: Mount, *uses: str) -> None:
    """Kill the daemon; each use by the program is an error then."""
    mount.daemon.send(signal.SIGKILL)
    assert mount.daemon.ends()
    for use in uses:
        with pytest.raises(OSError, match="Errno") as told:
            program.run(use)
        assert told.value.errno in GONE, told.value


# Unmounting what is used.


# SEMANTICS 37.3
@pytest.mark.parametrize("use", ["file", "mapping", "directory"])
def test_an_unmount_detaches_what_is_used_and_names_the_program(
    shared_pool: Pool, place: str, new_mount: NewMount, use: str
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(b"o" * UNIT)
    begin = {
        "file": f"file = os.open({str(path)!r}, os.O_RDWR)",
        "mapping": f"{mapping(path)}; os.close(file)",
        "directory": f"os.chdir({str(mount / place)!r})",
    }
    with Program(begin[use]) as program:
        said = shared_pool.refused("unmount", "--busy-fails", str(mount.directory))
        assert f"(process {program.pid})" in said, said
        assert "nothing was changed" in said, said
        assert is_mounted(mount.directory)
        assert path.read_bytes() == b"o" * UNIT
        said = shared_pool.run("unmount", str(mount.directory)).stdout.decode()
        assert "is detached" in said, said
        assert f"(process {program.pid})" in said, said
        assert not is_mounted(mount.directory)
        # The program goes on with what it has.
        if use == "file":
            program.run("os.pwrite(file, b'new', 0); os.fsync(file)")
        elif use == "mapping":
            program.run("view[0:3] = b'new'; view.flush()")
        else:
            program.run("open('file', 'r+b').write(b'new')")
        assert not mount.daemon.ends(0)
        assert shared_pool.run("cat", f"{place}/file").stdout[:5] == b"newoo"
        assert program.end() == 0
    assert mount.daemon.ends(), "the daemon serves nobody and lives on"


def test_a_directory_can_be_mounted_again_while_an_old_mount_is_still_used(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(b"old")
    with Program(f"file = os.open({str(path)!r}, os.O_RDWR)") as program:
        assert mount.unmount()["detached"]
        with mounted_again(mount):
            program.run("os.pwrite(file, b'new', 0)")
            assert path.read_bytes() == b"new"


# Death of the daemon.


# SEMANTICS 107
def test_a_daemon_that_ends_late_leaves_the_next_mount_alone(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    first = new_mount(pool)
    # It cannot look before the kernel has given its mount's number to the next one.
    first.daemon.send(signal.SIGSTOP)
    # By no program that would look at the directory first, and wait.
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).umount2(os.fsencode(first.directory), 0) == 0
    else:
        subprocess.run(["fusermount3", "-u", first.directory], check=True, timeout=20)
    pool.run("mount", str(first.directory))
    first.daemon.send(signal.SIGCONT)
    assert first.daemon.ends()
    assert is_mounted(first.directory)
    (first / "file").write_bytes(b"content")
    # The pool still knows of it.
    assert [mount["directory"] for mount in pool.json("status")["mounts"]] == [str(first.directory)]
    first.unmount()


# SEMANTICS 107
def test_a_daemon_of_a_detached_mount_that_is_asked_to_end_leaves_the_next_mount_alone(
    shared_pool: Pool, new_mount: NewMount
) -> None:
    first = new_mount(shared_pool)
    with Program(f"os.chdir({str(first.directory)!r})"):
        first.unmount()
        shared_pool.run("mount", str(first.directory))
        first.daemon.send(signal.SIGTERM)
        assert first.daemon.ends()
        assert is_mounted(first.directory)
        first.unmount()


# SEMANTICS 36.1, 36.2
def test_programs_hear_an_error_when_the_daemon_is_killed_and_unmount_clears_up(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(pattern(1, MIB))
    with Program(
        f"file = os.open({str(path)!r}, os.O_RDWR | os.O_DIRECT); os.chdir({str(mount / place)!r})"
    ) as program:
        uses = ("os.pread(file, 5, 0)", "os.pwrite(file, b'x', 0)", "os.fsync(file)", f"os.stat({str(path)!r})")
        hears_of_the_end(program, mount, *uses)
        shared_pool.run("unmount", str(mount.directory))
        assert not is_mounted(mount.directory)
        with mounted_again(mount):
            assert path.read_bytes() == pattern(1, MIB)


# SEMANTICS 36.2, 36.3
def test_a_dead_mount_is_shown_and_mounted_anew_by_one_command(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount, other = new_mount(shared_pool), new_mount(shared_pool)
    (mount / place / "file").write_bytes(b"kept")
    states = {str(mount.directory): "serving", str(other.directory): "serving"}
    assert mounts_in_status(shared_pool) == states
    with Program(f"file = os.open({str(mount / place / 'file')!r}, os.O_RDWR)") as program:
        hears_of_the_end(program, mount, "os.fsync(file)")
        states[str(mount.directory)] = "dead"
        assert mounts_in_status(shared_pool) == states
        said = shared_pool.run("status").stdout.decode()
        assert f"Dead mount on {mount.directory}" in said, said
        assert f"Mounted on {other.directory}." in said, said
        # Also while a program holds what it had open, and is told of errors for ever.
        said = shared_pool.run("mount", str(mount.directory)).stderr.decode()
        assert f"cleared a dead mount of ramlace:{shared_pool.name}" in said, said
        try:
            assert (mount / place / "file").read_bytes() == b"kept"
            with pytest.raises(OSError, match="Errno"):
                program.run("os.fsync(file)")
            states[str(mount.directory)] = "serving"
            assert mounts_in_status(shared_pool) == states
            # A mount that lives is never taken for a dead one.
            assert "already a mount" in shared_pool.refused("mount", str(mount.directory))
            assert "already a mount" in shared_pool.refused("mount", str(other.directory))
        finally:
            shared_pool.run("unmount", str(mount.directory))
    del states[str(mount.directory)]
    assert mounts_in_status(shared_pool) == states


def mounts_in_status(pool: Pool) -> dict[str, str]:
    """Return the state of each mount that `ramlace status` knows."""
    return {mount["directory"]: mount["state"] for mount in pool.json("status")["mounts"]}


# SEMANTICS 36.3
def test_a_mount_whose_daemon_is_stopped_is_shown_as_silent_and_not_cleared(
    shared_pool: Pool, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    mount.daemon.send(signal.SIGSTOP)
    try:
        assert mounts_in_status(shared_pool) == {str(mount.directory): "not answering"}
        said = shared_pool.run("status").stdout.decode()
        assert f"Mounted on {mount.directory}, which does not answer" in said, said
    finally:
        mount.daemon.send(signal.SIGCONT)
    assert mounts_in_status(shared_pool) == {str(mount.directory): "serving"}


# SEMANTICS 36.1
def test_a_program_in_a_mapping_is_told_when_the_daemon_is_killed(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "wb") as file:
        file.write(pattern(1, 8 * MIB))
    with Program(mapping(path)) as program, Program(mapping(path)) as second:
        program.run("view[0:3] = b'new'")
        hears_of_the_end(program, mount, "view.flush()")
        # Pages that are not here cannot come any more.
        assert second.dies_of(f"view[{6 * MIB}]") == signal.SIGBUS
        assert shared_pool.run("unmount", str(mount.directory)).returncode == 0
    with shared_pool.connect() as pool:
        assert pool.stat(f"{place}/file").st_size == 8 * MIB


def test_sessions_of_a_killed_daemon_hold_nothing_for_long(shared_pool: Pool, place: str, new_mount: NewMount) -> None:
    """Another mount goes on at once; the pool needs no care."""
    first, second = new_mount(shared_pool), new_mount(shared_pool)
    (first / place / "file").write_bytes(b"first")
    with Program(f"file = os.open({str(first / place / 'file')!r}, os.O_RDONLY)"):
        first.daemon.send(signal.SIGKILL)
        assert first.daemon.ends()
        (second / place / "file").write_bytes(b"second")
        assert (second / place / "file").read_bytes() == b"second"
        (second / place / "file").unlink()
    assert os.listdir(second / place) == []


# SEMANTICS 40.2
def test_down_names_who_uses_a_mount_and_changes_nothing(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 32)
    mount, idle = new_mount(pool), new_mount(pool)
    (mount / "file").write_bytes(b"kept")
    with Program(f"file = os.open({str(mount / 'file')!r}, os.O_RDWR)") as program:
        said = pool.refused("down")
        assert f"(process {program.pid})" in said, said
        assert "nothing was changed" in said, said
        assert is_mounted(mount.directory)
        assert is_mounted(idle.directory)
        assert (idle / "file").read_bytes() == b"kept"
        said = pool.run("down", "--force").stderr.decode()
        assert f"(process {program.pid})" in said, said
        assert not is_mounted(mount.directory)
        program.kill()
    assert mount.daemon.ends()
    assert idle.daemon.ends()


# SEMANTICS 40.1
def test_down_takes_its_own_mounts_away_and_no_other_pools(new_pool: NewPool, new_mount: NewMount) -> None:
    """Also when the other pool has the same name, as pools of other users and directories may."""
    pool = new_pool(1, 32)
    mount = new_mount(pool)
    # Short, as paths of sockets are.
    with tempfile.TemporaryDirectory(prefix="rl-") as runtime:
        namesake = Pool(pool.name, Path(runtime), 32 * MIB, 1)
        namesake.up()
        namesake.close()
    assert is_mounted(mount.directory)
    (mount / "file").write_bytes(b"alive")
    assert pool.run("cat", "/file").stdout == b"alive"
    said = pool.run("down").stderr.decode()
    assert f"unmounted {mount.directory}" in said, said
    assert not is_mounted(mount.directory)


# SEMANTICS 39
@pytest.mark.long
def test_a_mount_that_slept_for_longer_than_its_session_lives_goes_on(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    """As on a machine that was suspended: what was open is ESTALE, and everything else works."""
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(b"before")
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        mount.daemon.send(signal.SIGSTOP)
        time.sleep(SESSION_SECONDS + 3)
        mount.daemon.send(signal.SIGCONT)
        assert eventually(lambda: names_of(mount / place) == ["file"])
        assert path.read_bytes() == b"before"
        path.write_bytes(b"afterwards")
        assert path.read_bytes() == b"afterwards"
        fails(errno.ESTALE, os.pread, descriptor, 4096, 0)
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"afterwards"


def names_of(directory: Path) -> list[str]:
    """List a directory; nothing while that is an error."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def test_a_namespace_that_begins_meanwhile_does_not_hold_a_mount(shared_pool: Pool, new_mount: NewMount) -> None:
    """As `ip netns exec` makes one, whose mounts follow those it was made from."""
    mount = new_mount(shared_pool)
    words = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo begun; exec sleep 60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        try:
            if not (other.stdout and other.stdout.readline()):
                pytest.skip("this process may not make a namespace of mounts")
            mount.unmount()
            assert mount.daemon.ends()
        finally:
            other.kill()
