"""A mount's life: how it begins, what can be in the way, how it ends, and what it does when others die."""

import errno
import json
import mmap
import os
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conftest import NewPool
from mount import DEVICE, Mount, NewMount, Program, fails, is_mounted, mapping
from pool import FAILING_SECONDS_MAX, KIB, MIB, PATIENCE_SECONDS, Pool, binary, eventually, frozen, pattern

UNIT = 64 * KIB
# A session that was not heard for so long has ended.
SESSION_SECONDS = 10
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
# What a server that does not answer is called, through a kernel that has fewer words.
SILENT = (errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EIO)


@pytest.fixture
def empty(runtime: Path, tmp_path: Path, fuse: None) -> Iterator[Path]:
    """An empty directory, on which nothing may be left mounted."""
    directory = tmp_path / "empty"
    directory.mkdir()
    yield directory
    left = is_mounted(directory)
    if left:
        words = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        subprocess.run([*words, directory], check=True)
    assert not left, "a mount was left"


def without(program: str, tmp_path: Path) -> dict[str, str]:
    """Return an environment whose PATH has everything but this program."""
    shelf = tmp_path / "bin"
    shelf.mkdir(exist_ok=True)
    for directory in os.environ["PATH"].split(":"):
        with suppress(OSError):
            for entry in Path(directory).iterdir():
                if entry.name != program and not (shelf / entry.name).exists():
                    (shelf / entry.name).symlink_to(entry)
    return {"PATH": str(shelf)}


# How it begins and ends.


def test_mount_says_what_is_mounted_and_unmount_takes_it_away(shared_pool: Pool, empty: Path) -> None:
    said = shared_pool.run("mount", str(empty)).stdout.decode()
    assert f"ramlace:{shared_pool.name} is mounted on {empty}" in said
    assert f"ramlace unmount {empty}" in said
    (empty / "file").write_bytes(b"content")
    assert shared_pool.run("unmount", str(empty)).stdout.decode().strip() == f"{empty} is unmounted."
    assert os.listdir(empty) == []
    # What the pool holds stays.
    assert shared_pool.run("cat", "/file").stdout == b"content"
    shared_pool.run("rm", "/file")


def test_mount_and_unmount_report_as_json(shared_pool: Pool, empty: Path) -> None:
    source = f"ramlace:{shared_pool.name}"
    assert shared_pool.json("mount", str(empty)) == {"source": source, "directory": str(empty), "mounted": True}
    with Program(f"os.chdir({str(empty)!r})") as program:
        report = shared_pool.json("unmount", str(empty))
        assert (report["directory"], report["source"], report["detached"]) == (str(empty), source, True)
        assert [user["pid"] for user in report["users"]] == [program.pid]
    report = json.loads(shared_pool.refused("unmount", "--json", str(empty)))["error"]
    assert (report["kind"], report["errno"]) == ("NotFound", errno.ENOENT)


def test_a_path_with_links_dots_and_spaces_is_the_directory_it_leads_to(
    shared_pool: Pool, empty: Path, tmp_path: Path
) -> None:
    (tmp_path / "a link").symlink_to(empty)
    shared_pool.run("mount", f"{tmp_path}/./a link")
    assert is_mounted(empty)
    shared_pool.run("unmount", f"{tmp_path}/empty/../a link")
    assert not is_mounted(empty)


def test_a_mount_in_the_foreground_serves_until_it_is_asked_to_end(shared_pool: Pool, empty: Path) -> None:
    words = [binary(), "--pool", shared_pool.name, "mount", "--foreground", str(empty)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(shared_pool.runtime)}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert eventually(lambda: is_mounted(empty))
                (empty / "file").write_bytes(b"x")
                process.send_signal(number)
                out, said = process.communicate(timeout=PATIENCE_SECONDS)
            finally:
                process.kill()
        assert process.returncode == 0, said
        assert b"panicked" not in said + out
        assert not is_mounted(empty)


def test_sigterm_unmounts_and_ends_the_daemon(shared_pool: Pool, new_mount: NewMount) -> None:
    mount = new_mount(shared_pool)
    mount.daemon.send(signal.SIGTERM)
    assert mount.daemon.ends()
    assert not is_mounted(mount.directory)


def test_sigterm_while_a_program_has_unpublished_stores_loses_none(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(bytes(MIB))
    with Program(mapping(path)) as program:
        program.run(f"view[:] = b'n' * {MIB}")
        mount.daemon.send(signal.SIGTERM)
        assert eventually(lambda: not is_mounted(mount.directory))
        # It serves on for as long as the program has the file.
        program.run("view.flush()")
        assert program.ask("view[5:7]") == b"nn"
        assert program.end() == 0
    assert mount.daemon.ends()
    assert shared_pool.run("cat", f"{place}/file").stdout == b"n" * MIB


def test_an_unmount_publishes_what_programs_have_stored(shared_pool: Pool, place: str, new_mount: NewMount) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(bytes(MIB))
    with Program(mapping(path)) as program:
        program.run(f"view[:] = b'n' * {MIB}; view.close(); os.close(file)")
        assert mount.unmount()["users"] == []
    assert shared_pool.run("cat", f"{place}/file").stdout == b"n" * MIB


def test_a_mount_may_be_made_and_taken_away_again_and_again(shared_pool: Pool, place: str, empty: Path) -> None:
    for turn in range(10):
        shared_pool.run("mount", str(empty))
        assert len(os.listdir(f"{empty}{place}")) == turn
        (Path(f"{empty}{place}") / f"file-{turn}").write_bytes(b"x")
        shared_pool.run("unmount", str(empty))


def test_a_mount_for_reading_refuses_every_change(shared_pool: Pool, place: str, new_mount: NewMount) -> None:
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "wb") as file:
        file.write(b"content")
    mount = new_mount(shared_pool, "--read-only")
    here = mount / place
    assert (here / "file").read_bytes() == b"content"
    changes: list[Callable[[], object]] = [
        lambda: os.mkdir(here / "new"),
        lambda: os.unlink(here / "file"),
        lambda: os.symlink("x", here / "link"),
        lambda: os.truncate(here / "file", 0),
        lambda: os.chmod(here / "file", 0o600),
        lambda: os.open(here / "file", os.O_WRONLY),
        lambda: os.open(here / "new", os.O_WRONLY | os.O_CREAT),
        lambda: os.utime(here / "file"),
    ]
    for change in changes:
        fails(errno.EROFS, change)
    # What others change is seen.
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "wb") as file:
        file.write(b"changed")
    assert (here / "file").read_bytes() == b"changed"


# What can be in the way.


def test_a_directory_that_cannot_be_mounted_on_is_refused_with_the_next_step(
    shared_pool: Pool, new_mount: NewMount, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_bytes(b"x")
    mount = new_mount(shared_pool)
    for directory, words in [
        (tmp_path / "none", ["does not exist", f"mkdir -p {tmp_path / 'none'}"]),
        (tmp_path / "full", ["is not empty", "choose an empty directory"]),
        (tmp_path / "full/file", ["is not a directory"]),
        (mount.directory, ["already a mount of", f"ramlace:{shared_pool.name}", "unmount"]),
    ]:
        said = shared_pool.refused("mount", str(directory))
        assert str(directory) in said, said
        for word in words:
            assert word in said, said
    assert (tmp_path / "full/file").read_bytes() == b"x"
    assert os.listdir(mount.directory) is not None


def test_an_unknown_pool_is_refused_and_nothing_is_mounted(shared_pool: Pool, empty: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(shared_pool.runtime)}
    words = [binary(), "--pool", "nobody", "mount", str(empty)]
    done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert "nobody" in said, said
    assert "ramlace up" in said, said
    assert not is_mounted(empty)


def test_a_wrong_secret_is_refused_and_nothing_is_mounted(shared_pool: Pool, empty: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    environment = {**os.environ, "RAMLACE_SECRET_FILE": str(secret)}
    words = [binary(), "--pool", shared_pool.addresses[0], "mount", str(empty)]
    done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert "secret" in said, said
    assert not is_mounted(empty)


def test_a_pool_that_lives_elsewhere_is_mounted_by_its_address(shared_pool: Pool, place: str, empty: Path) -> None:
    environment = {**os.environ, "RAMLACE_SECRET_FILE": str(shared_pool.directory / "secret")}
    words = [binary(), "--pool", shared_pool.addresses[0]]
    subprocess.run([*words, "mount", str(empty)], env=environment, check=True, timeout=PATIENCE_SECONDS)
    try:
        (Path(f"{empty}{place}") / "file").write_bytes(b"from afar")
        assert shared_pool.run("cat", f"{place}/file").stdout == b"from afar"
        shown = subprocess.run(["df", "--output=source", empty], capture_output=True, check=True, text=True).stdout
        assert shown.splitlines()[1] == f"ramlace://{shared_pool.addresses[0]}"
    finally:
        subprocess.run([*words, "unmount", str(empty)], env=environment, check=True, timeout=PATIENCE_SECONDS)


def test_unmount_of_what_is_no_mount_says_where_pools_are_mounted(
    shared_pool: Pool, new_mount: NewMount, tmp_path: Path
) -> None:
    mount = new_mount(shared_pool)
    for directory in (tmp_path, tmp_path / "none", Path("/"), Path("/proc")):
        said = shared_pool.refused("unmount", str(directory))
        assert f"no pool is mounted on {directory}" in said, said
        assert str(mount.directory) in said, said


def test_without_dev_fuse_mount_says_what_to_do(shared_pool: Pool, empty: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can hide a device")
    # A /dev that has /dev/null, which the daemon is started with, and nothing else.
    hide = 'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@"'
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh"]
    command = [*words, binary(), "--pool", shared_pool.name, "mount", str(empty)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(shared_pool.runtime)}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    said = done.stderr.decode()
    if "unshare" in said:
        pytest.skip(f"this machine makes no mount namespaces: {said}")
    assert done.returncode == 1, said
    for words_of_help in (DEVICE, "modprobe fuse", "container"):
        assert words_of_help in said, said


def test_without_fusermount3_an_ordinary_user_is_told_what_to_install(
    shared_pool: Pool, empty: Path, tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root needs no fusermount3; an ordinary user runs this")
    said = shared_pool.refused("mount", str(empty), variables=without("fusermount3", tmp_path))
    assert "fusermount3 is not installed" in said, said
    assert "fuse3" in said, said


def test_doctor_tells_whether_mounts_work_here(shared_pool: Pool, fuse: None) -> None:
    said = shared_pool.run("doctor", check=False).stdout.decode()
    assert "fuse" in said.lower(), said


# Unmounting what is used.


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
        shared_pool.run("mount", str(mount.directory))
        try:
            program.run("os.pwrite(file, b'new', 0)")
            assert path.read_bytes() == b"new"
        finally:
            shared_pool.run("unmount", str(mount.directory))


# Death of the daemon.


def test_programs_hear_an_error_when_the_daemon_is_killed_and_unmount_clears_up(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    path.write_bytes(pattern(1, MIB))
    with Program(
        f"file = os.open({str(path)!r}, os.O_RDWR | os.O_DIRECT); os.chdir({str(mount / place)!r})"
    ) as program:
        mount.daemon.send(signal.SIGKILL)
        assert mount.daemon.ends()
        for use in ("os.pread(file, 5, 0)", "os.pwrite(file, b'x', 0)", "os.fsync(file)", f"os.stat({str(path)!r})"):
            with pytest.raises(OSError, match="Errno") as told:
                program.run(use)
            assert told.value.errno in GONE, told.value
        said = shared_pool.refused("mount", str(mount.directory))
        assert "is a dead mount" in said, said
        assert f"ramlace unmount {mount.directory}" in said, said
        shared_pool.run("unmount", str(mount.directory))
        assert not is_mounted(mount.directory)
        shared_pool.run("mount", str(mount.directory))
        try:
            assert path.read_bytes() == pattern(1, MIB)
        finally:
            shared_pool.run("unmount", str(mount.directory))


def test_a_program_in_a_mapping_is_told_when_the_daemon_is_killed(
    shared_pool: Pool, place: str, new_mount: NewMount
) -> None:
    mount = new_mount(shared_pool)
    path = mount / place / "file"
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "wb") as file:
        file.write(pattern(1, 8 * MIB))
    with Program(mapping(path)) as program, Program(mapping(path)) as second:
        program.run("view[0:3] = b'new'")
        mount.daemon.send(signal.SIGKILL)
        assert mount.daemon.ends()
        with pytest.raises(OSError, match="Errno") as told:
            program.run("view.flush()")
        assert told.value.errno in GONE, told.value
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


def test_up_mounts_as_well_or_does_nothing(planned: NewPool, fuse: None, tmp_path: Path) -> None:
    pool = planned(1, 32)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    for place in ("missing", "full"):
        assert str(tmp_path / place) in pool.refused("up", "--memory", "32MiB", "--mount", str(tmp_path / place))
        assert not pool.directory.exists()
        assert not pool.processes()
    (tmp_path / "empty").mkdir()
    report = pool.up("--mount", str(tmp_path / "empty"))
    assert report["mount"] == str(tmp_path / "empty")
    (tmp_path / "empty" / "file").write_bytes(b"mounted")
    assert pool.run("cat", "/file").stdout == b"mounted"
    pool.run("down")
    assert not is_mounted(tmp_path / "empty")


def test_a_mount_holds_nothing_of_who_made_it(shared_pool: Pool, fuse: None, tmp_path: Path) -> None:
    """Neither locks nor pipes: whoever waits for their end would wait for the unmount."""
    with open(tmp_path / "lock", "w") as lock:
        os.set_inheritable(lock.fileno(), True)
        directory = tmp_path / "mount"
        directory.mkdir()
        command = [binary(), "--pool", shared_pool.name, "mount", str(directory)]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(shared_pool.runtime)}
        subprocess.run(command, check=True, close_fds=False, capture_output=True, env=environment)
        try:
            others = [pid for pid in Path("/proc").iterdir() if pid.name.isdecimal() and int(pid.name) != os.getpid()]
            held = {file for process in others for file in files_of(process)}
            assert any("fuse" in file for file in held), "the daemon was not looked at"
            assert str(tmp_path / "lock") not in held
        finally:
            shared_pool.run("unmount", str(directory))


def files_of(process: Path) -> list[str]:
    """List what a process has open; nothing when it has gone, or is another user's."""
    found = []
    with suppress(OSError):
        found += [os.readlink(entry) for entry in (process / "fd").iterdir()]
    return found


def test_a_mount_for_reading_is_refreshed(shared_pool: Pool, place: str, new_mount: NewMount) -> None:
    writer, reader = new_mount(shared_pool), new_mount(shared_pool, "--read-only")
    (writer / place / "file").write_bytes(b"old!" * KIB)
    with open(reader / place / "file", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:4] == b"old!"
        (writer / place / "file").write_bytes(b"new!" * KIB)
        shared_pool.run("refresh", str(reader / place / "file"))
        assert view[:4] == b"new!"


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


# Death and silence of servers.


def make_files(pool: Pool, mount: Mount, count: int = 12) -> dict[int, list[str]]:
    """Make a directory and small files of width 1; return the names by the server of their bytes."""
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=1)
    by_server: dict[int, list[str]] = {}
    for number in range(count):
        (mount / f"file-{number}").write_bytes(pattern(number, 100_000))
        by_server.setdefault(pool.lane_servers(f"/file-{number}")[0], []).append(f"file-{number}")
    return by_server


def read_direct(path: Path) -> bytes:
    """Read past the pages."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


def test_a_killed_server_comes_back_and_programs_of_the_mount_do_not_notice(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    with Program(f"root = {str(mount.directory)!r}") as program:
        program.run("""
done = False
def work():
    number = 0
    while not done:
        name = f"{root}/{number}"
        with open(name, "xb") as file:
            file.write(bytes([number % 256]) * 70_000)
        assert Path(f"{root}/{number // 2}").read_bytes() == bytes([number // 2 % 256]) * 70_000
        number += 1
    return number
from concurrent.futures import ThreadPoolExecutor
result = ThreadPoolExecutor(1).submit(work)
""")
        for server in range(2):
            pool.kill_child(server)
            pool.await_restart(server, 1)
        program.run("done = True")
        made = program.ask("result.result()")
    assert made > 0
    assert sorted(os.listdir(mount.directory), key=int) == [str(number) for number in range(made)]
    for number in range(made):
        assert (mount / str(number)).read_bytes() == bytes([number % 256]) * 70_000


def test_stores_to_mapped_memory_survive_the_death_of_a_server(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=2)
    (mount / "file").write_bytes(bytes(4 * MIB))
    with Program(mapping(mount / "file")) as program:
        program.run(f"view[:] = b'a' * {4 * MIB}")
        for server in range(2):
            pool.kill_child(server)
        program.run("view.flush()")
    assert pool.run("cat", "/file").stdout == b"a" * (4 * MIB)


def test_a_server_that_died_for_good_is_an_error_in_time_and_the_rest_works(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    files = make_files(pool, mount)
    assert set(files) == {0, 1}
    pool.kill_server(1)
    errors: dict[str, int | None] = {}

    def read(name: str) -> None:
        begun = time.monotonic()
        try:
            assert read_direct(mount / name) == pattern(int(name[5:]), 100_000)
        except OSError as error:
            errors[name] = error.errno
        assert time.monotonic() - begun < 2 * FAILING_SECONDS_MAX

    threads = [threading.Thread(target=read, args=(name,)) for names in files.values() for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a read hangs"
    assert set(errors.values()) <= set(SILENT), errors
    assert set(files[1]) <= set(errors), "bytes of a dead server were read"
    # Names may lie on the dead server too; those that do not are all there.
    works = [name for name in files[0] if name not in errors]
    assert works
    for name in works:
        with open(mount / name, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"changed", 0)
            os.fsync(file.fileno())
        assert read_direct(mount / name)[:7] == b"changed"
    assert mount.unmount()["directory"] == str(mount.directory)


@pytest.mark.parametrize("how", ["dead", pytest.param("frozen", marks=pytest.mark.long)])
def test_every_use_of_what_a_silent_server_holds_is_an_error_in_time(
    new_pool: NewPool, new_mount: NewMount, how: str
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    directories = [mount / f"directory-{number}" for number in range(8)]
    for directory in directories:
        directory.mkdir()
        (directory / "file").write_bytes(b"small")
    # Its name and its inode are on the first server, as the root is; its bytes on the other.
    path = mount / make_files(pool, mount)[1][0]
    uses = [
        "os.pread(file, 4096, 0)",
        "os.pwrite(file, b'x', 5)",
        "os.ftruncate(file, 50_000) or os.pread(file, 5, 0)",
        f"Path({str(path)!r}).read_bytes()",
    ]
    opened = f"file = os.open({str(path)!r}, os.O_RDWR | os.O_DIRECT); view = mmap.mmap(file, 0)"
    with Program(opened) as program, Program(opened) as mapper, silent(pool, how):
        for use in uses:
            assert error_in_time(program, use) in SILENT, use
        begun = time.monotonic()
        assert mapper.dies_of("value = view[0]") == signal.SIGBUS
        assert time.monotonic() - begun < FAILING_SECONDS_MAX
        # What is on the server that answers is all there.
        program.run(f"os.stat({str(path)!r})")
        program.run(f"os.listdir({str(mount.directory)!r})")
        looked = {d: error_in_time(program, f"os.stat({str(d / 'file')!r}).st_size") for d in directories}
        works = next(directory for directory, error in looked.items() if not error)
        assert directory_uses(program, works) == {0}
        silenced = next(directory for directory, error in looked.items() if error)
        assert directory_uses(program, silenced) | {looked[silenced]} <= set(SILENT)


@pytest.mark.long
def test_a_spread_directory_of_which_a_part_is_out_of_reach_says_so(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(3, 32)
    mount = new_mount(pool)
    # Its home is on the second server: slots are dealt out in order, and a number begins with its slot.
    for number in range(64):
        directory = mount / f"large-{number}"
        directory.mkdir()
        if (directory.stat().st_ino >> 48) * 3 // 4096 == 1:
            break
    with pool.connect() as connected:
        for number in range(8_400):
            connected.open(f"/{directory.name}/{number}", "wb", buffering=0).close()
    with Program(f"directory = os.open({str(directory)!r}, os.O_RDONLY)") as program:
        pool.kill_server(2)
        for use in (
            "os.fchmod(directory, 0o700)",
            "os.fchown(directory, os.getuid(), os.getgid())",
            "os.utime(directory)",
            "os.fstat(directory).st_nlink",
            "len(os.listdir(directory))",
            f"os.rmdir({str(directory)!r})",
            f"os.rename({str(directory)!r}, {str(mount / 'other')!r})",
        ):
            # Not EAGAIN: trying again at once would be of no use.
            assert error_in_time(program, use) in SILENT, use


@contextmanager
def silent(pool: Pool, how: str) -> Iterator[None]:
    """Let the second server answer nobody: for good, or for the time of this context."""
    if how == "frozen":
        with frozen(pool.process("child", 1)):
            yield
    else:
        pool.kill_server(1)
        yield


def error_in_time(program: Program, use: str) -> int:
    """Return the number of the error with which something ends in time; 0 for none."""
    program.begin(use, "ask")
    try:
        program.hear(FAILING_SECONDS_MAX)
    except OSError as error:
        return error.errno or -1
    return 0


def directory_uses(program: Program, directory: Path) -> set[int]:
    """Return what listing, making and removing in a directory come to."""
    texts = [
        f"len(os.listdir({str(directory)!r}))",
        f"open({str(directory / 'made')!r}, 'w').close()",
        f"os.unlink({str(directory / 'file')!r})",
    ]
    return {error_in_time(program, text) for text in texts}


def test_a_frozen_server_stops_nobody_who_does_not_need_it(new_pool: NewPool, new_mount: NewMount) -> None:
    """64 readers wait for the frozen server; a listing and files elsewhere go on beside them."""
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    (mount / "directory").mkdir()
    files = make_files(pool, mount, 24)
    # The root, and with it all names, lies on the first server.
    asleep, awake = 1, 0
    names = files[asleep]
    answers: list[object] = []

    def read(number: int) -> None:
        name = names[number % len(names)]
        try:
            answers.append(read_direct(mount / name) == pattern(int(name[5:]), 100_000))
        except OSError as error:
            answers.append(error.errno)

    with Program() as program, frozen(pool.process("child", asleep)):
        threads = [threading.Thread(target=read, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: waiting(mount) >= 32), "nobody waits for the frozen server"
        # Beside them: all of it is on the server that is awake.
        for turn in range(3):
            for name in files[awake][:3]:
                program.begin(f"data = Path({str(mount / name)!r}).read_bytes()")
                program.hear(FAILING_SECONDS_MAX)
                assert not answers, f"a reader elsewhere waited until others had their answer (turn {turn})"
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a read hangs"
    assert len(answers) == 64
    assert set(answers) <= set(SILENT), answers
    # Awake again, everything works.
    for number in range(24):
        assert eventually(lambda number=number: reads(mount / f"file-{number}", pattern(number, 100_000)))  # type: ignore[misc]


def waiting(mount: Mount) -> int:
    """Return how many requests of a mount the kernel has no answer to; many where that is not to be seen."""
    minor = os.minor(os.stat(mount.directory).st_dev)
    try:
        return int(Path(f"/sys/fs/fuse/connections/{minor}/waiting").read_text())
    except OSError:
        time.sleep(0.5)
        return 1 << 20


def reads(path: Path, content: bytes) -> bool:
    """Return whether a file can be read and holds this."""
    try:
        return read_direct(path) == content
    except OSError:
        return False


def test_an_unmount_ends_also_while_a_server_is_frozen(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    (mount / "file").write_bytes(bytes(MIB))
    with Program(mapping(mount / "file")) as program:
        program.run(f"view[:] = b'a' * {MIB}")
        with frozen(pool.process("child", 0), pool.process("child", 1)):
            program.begin("view.flush()")
            said = pool.run("unmount", str(mount.directory)).stdout.decode()
            assert "detached" in said, said
            assert not is_mounted(mount.directory)
            with suppress(OSError):
                program.hear()


def test_a_program_that_waits_for_a_frozen_server_can_be_killed(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 32)
    mount = new_mount(pool)
    (mount / "file").write_bytes(pattern(1, MIB))
    with Program(f"file = os.open({str(mount / 'file')!r}, os.O_RDONLY | os.O_DIRECT)") as program:
        with frozen(pool.process("child", 0)):
            program.begin("os.pread(file, 1 << 20, 0)")
            program.process.kill()
            assert program.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert eventually(lambda: reads(mount / "file", pattern(1, MIB)))


# The pool beneath.


def test_a_pool_that_is_gone_is_an_error_and_the_mount_can_be_taken_away(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 32)
    mount = new_mount(pool)
    (mount / "file").write_bytes(b"x")
    pool.kill_server(0)
    with Program() as program:
        for use in (f"os.stat({str(mount / 'file')!r})", f"os.listdir({str(mount.directory)!r})"):
            with pytest.raises(OSError, match="Errno") as told:
                program.run(use)
            assert told.value.errno in SILENT, told.value
    mount.unmount()
    assert mount.daemon.ends()


def test_nobody_but_the_one_who_mounted_may_look_in(first_mount: Mount) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ls", str(first_mount.directory)]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    found = os.stat(first_mount.directory)
    assert stat.S_ISDIR(found.st_mode)
    assert found.st_uid == os.geteuid()
