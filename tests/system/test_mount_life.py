"""A mount's life: how it begins and ends, and what can be in the way."""

import errno
import json
import mmap
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import NewPool
from mount import DEVICE, Mount, NewMount, Program, fails, is_mounted, mapping
from pool import KIB, MIB, PATIENCE_SECONDS, Pool, binary, eventually, frozen

# Root mounts by a system call, others by fusermount3.
pytestmark = pytest.mark.both

UNIT = 64 * KIB


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
    told = {"source": source, "directory": str(empty), "mounted": True, "notes": []}
    assert shared_pool.json("mount", str(empty)) == told
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


# SEMANTICS 37.2
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


# SEMANTICS 37.2
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


# SEMANTICS 35
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


def test_a_dead_pool_that_was_mounted_comes_up_again(planned: NewPool, fuse: None) -> None:
    pool = planned(1, 32)
    pool.up()
    Mount(pool).close()
    for process in pool.processes():
        process.send(signal.SIGKILL)
    assert eventually(lambda: not pool.processes())
    report = pool.up()
    assert "no longer running" in report["notes"][0], report
    assert pool.run("ls", "/").stdout == b""


@pytest.mark.needs_root
def test_a_mount_holds_nothing_of_who_made_it(shared_pool: Pool, fuse: None, tmp_path: Path) -> None:
    """Neither locks nor pipes: a program that waits for their end would wait for the unmount."""
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


# SEMANTICS 43.3
def test_a_mount_for_reading_is_refreshed(shared_pool: Pool, place: str, new_mount: NewMount) -> None:
    writer, reader = new_mount(shared_pool), new_mount(shared_pool, "--read-only")
    (writer / place / "file").write_bytes(b"old!" * KIB)
    with open(reader / place / "file", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:4] == b"old!"
        (writer / place / "file").write_bytes(b"new!" * KIB)
        shared_pool.run("refresh", str(reader / place / "file"))
        assert view[:4] == b"new!"


# SEMANTICS 34
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


# SEMANTICS 38.3
def test_a_mount_that_does_not_answer_is_no_reason_for_others_to_wait(
    shared_pool: Pool, new_mount: NewMount, empty: Path
) -> None:
    mount = new_mount(shared_pool)
    with frozen(mount.daemon):
        said = shared_pool.refused("mount", str(mount.directory))
        assert "does not answer" in said, said
        assert f"ramlace unmount {mount.directory}" in said, said
        shared_pool.run("mount", str(empty))
        shared_pool.run("unmount", str(empty))
        shared_pool.run("doctor", check=False)
    assert os.listdir(mount.directory) is not None


# SEMANTICS 38.4
def test_the_log_of_a_mount_does_not_grow_without_an_end(shared_pool: Pool, new_mount: NewMount) -> None:
    mount = new_mount(shared_pool)
    path = mount.log_path()
    older = path.with_name(f"{path.name}.1")
    with path.open("ab") as log:
        log.write(b"x" * (5 * MIB))
        log.write(b"the latest\n")
    # What the mount says meanwhile comes behind it.
    assert eventually(lambda: path.stat().st_size < MIB), path.read_bytes()[-1000:]
    assert older.stat().st_size == 4 * MIB
    assert b"xthe latest\n" in older.read_bytes()[-MIB:]
    older.unlink()


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


def test_doctor_counts_the_servers_of_a_pool_here(new_pool: NewPool) -> None:
    pool = new_pool(3)

    def found() -> tuple[str, str]:
        checks = json.loads(pool.run("doctor", "--json", check=False).stdout)["checks"]
        (pools,) = (check for check in checks if check["name"] == "pools")
        # Other tests have pools in the same place.
        (ours,) = (part for part in pools["found"].split(", ") if part.startswith(f"{pool.name} "))
        return pools["state"], ours

    assert found()[1] == f"{pool.name} (3 servers running)"
    pool.kill_server(1)
    assert found()[0] == "absent"
    assert "2 of 3 servers running" in found()[1]


@pytest.mark.needs_root
@pytest.mark.parametrize("who", ["root", "user"])
def test_doctor_is_not_healthy_where_the_device_does_not_open(who: str) -> None:
    # A device that is missing, and one that is root's alone.
    steps = """
        mount -t tmpfs tmpfs /mnt
        install -m 755 "$0" /mnt/ramlace
        mount -t tmpfs tmpfs /dev
        mknod -m 666 /dev/null c 1 3
        [ "$1" = root ] && exec /mnt/ramlace doctor --json
        mknod -m 600 /dev/fuse c 10 229
        export HOME=/ XDG_RUNTIME_DIR= TMPDIR=/mnt
        exec setpriv --reuid=65534 --regid=65534 --clear-groups /mnt/ramlace doctor --json
    """
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", steps, binary(), who]
    done = subprocess.run(words, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    report = json.loads(done.stdout)
    assert (done.returncode, report["healthy"]) == (1, False), report
    (fuse,) = (check for check in report["checks"] if check["name"] == "FUSE")
    assert fuse["state"] == "broken"
    assert ("modprobe fuse" if who == "root" else "chmod 666 /dev/fuse") in fuse["found"]
