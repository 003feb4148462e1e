"""Starting a pool where something is in the way: a clear error, or a fallback that says so."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import NewPool
from pool import MIB, PATIENCE_SECONDS, Pool, binary, eventually, pattern

# Root mounts the store itself, others in a user namespace.
pytestmark = pytest.mark.both


def assert_nothing_left(pool: Pool) -> None:
    assert eventually(lambda: not pool.processes()), f"a failed start left {pool.processes()}"
    assert not pool.directory.exists(), f"a failed start left {pool.directory}"


def server_above_a_free_port() -> socket.socket:
    """Return a server on a port below which there is one that nobody has."""
    while True:
        above = socket.create_server(("127.0.0.1", 0))
        try:
            socket.create_server(("127.0.0.1", above.getsockname()[1] - 1)).close()
        except OSError:
            above.close()
        else:
            return above


def start_fails(pool: Pool, *words: str) -> str:
    sizes = () if "--memory" in words else ("--memory", str(pool.memory_bytes))
    said = pool.refused("up", "--servers", str(pool.servers), *sizes, "--no-reserve", *words)
    assert_nothing_left(pool)
    return said


def test_four_servers_are_up_and_down_again(planned: NewPool) -> None:
    pool = planned(4, 16)
    report = pool.up()
    print(f"up in {report['seconds']:.3f} s")
    assert len(report["servers"]) == 4
    assert [process.role for process in pool.processes()] == ["supervisor"] * 4 + ["child"] * 4
    assert {server["state"] for server in pool.status()} == {"up"}
    pool.run("down")
    assert not pool.processes()
    assert not pool.directory.exists()


def test_a_port_in_use_is_named(planned: NewPool) -> None:
    pool = planned(2, 16)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = start_fails(pool, "--listen", f"127.0.0.1:{port}")
        assert f"127.0.0.1:{port}" in said, said
        assert "another program has the port" in said, said
    # The port of the second server alone.
    with server_above_a_free_port() as other:
        port = other.getsockname()[1] - 1
        said = start_fails(pool, "--listen", f"127.0.0.1:{port}")
        assert f"127.0.0.1:{port + 1}" in said, said


def test_up_twice_says_that_the_pool_is_running_and_harms_nothing(new_pool: NewPool) -> None:
    pool = new_pool(2, 16)
    pool.run("cp", "-", "ramlace:/x", stdin=b"kept")
    before = [process.pid for process in pool.processes()]
    said = pool.refused("up", "--memory", "32MiB")
    assert "is running already (2 servers)" in said, said
    assert "ramlace down" in said, said
    assert [process.pid for process in pool.processes()] == before
    assert pool.run("cat", "/x").stdout == b"kept"


def test_two_ups_at_once_make_one_pool(planned: NewPool) -> None:
    pool = planned(1, 32)
    words = [binary(), "--pool", pool.name, "up", "--memory", "32MiB", "--no-reserve"]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    codes = []
    for one in started:
        _, said = one.communicate(timeout=PATIENCE_SECONDS)
        codes.append(one.returncode)
        assert one.returncode == 0 or b"running already" in said or b"another" in said, said
    assert codes.count(0) == 1, codes
    assert len(pool.processes()) == 2
    # They have the secret that lies there.
    assert [server["state"] for server in pool.status()] == ["up"]


def test_stale_files_of_a_dead_pool_are_cleared(planned: NewPool) -> None:
    pool = planned(2, 16)
    pool.up()
    for process in pool.processes():
        process.send(signal.SIGKILL)
    assert eventually(lambda: not pool.processes())
    assert (pool.directory / "server-0.sock").exists()
    states = [server["state"] for server in pool.status()]
    assert states == ["not answering"] * 2
    report = pool.up()
    assert "no longer running" in report["notes"][0], report
    assert pool.run("ls", "/").stdout == b""


def test_a_dead_pool_can_be_taken_down(planned: NewPool) -> None:
    pool = planned(2, 16)
    pool.up()
    for process in pool.processes():
        process.send(signal.SIGKILL)
    assert eventually(lambda: not pool.processes())
    assert "was not running" in pool.run("down").stdout.decode()
    assert "there is no pool" in pool.refused("down")


@pytest.mark.long
def test_down_ends_servers_that_do_not_listen(new_pool: NewPool) -> None:
    pool = new_pool(2, 16)
    pool.process("child", 1).send(signal.SIGSTOP)
    done = pool.run("down")
    assert "was killed" in done.stderr.decode(), done.stderr
    assert not pool.processes()


def test_there_is_no_pool_says_what_to_do(planned: NewPool) -> None:
    pool = planned()
    for words in (("ls", "/"), ("status",), ("df",), ("cp", "/etc/hostname", "ramlace:/x")):
        said = pool.refused(*words)
        assert "there is no pool" in said, said
        assert "ramlace up" in said, said


# Secrets


def serve(pool: Pool, secret: Path) -> str:
    """Start a server by hand that must refuse to; return what it says."""
    return pool.refused("serve", "--memory", "16MiB", "--secret-file", str(secret), "--unix", f"{secret}.sock")


def test_a_server_without_a_good_secret_does_not_start(planned: NewPool, tmp_path: Path) -> None:
    pool = planned()
    secret = tmp_path / "secret"
    assert f"{secret} is not there" in serve(pool, secret)
    secret.write_text("ab" * 32 + "\n")
    secret.chmod(0o644)
    assert "open to other users" in serve(pool, secret)
    secret.chmod(0o600)
    for text in ("", "secret\n", "ab" * 31 + "\n", "zz" * 32 + "\n", "ab" * 200):
        secret.write_text(text)
        said = serve(pool, secret)
        assert str(secret) in said, said
    secret.unlink()
    (tmp_path / "other").write_text("ab" * 32)
    (tmp_path / "other").chmod(0o600)
    secret.symlink_to(tmp_path / "other")
    assert str(secret) in serve(pool, secret)
    assert not Path(f"{secret}.sock").exists()


def test_a_secret_that_others_can_read_is_not_used_by_clients_either(new_pool: NewPool) -> None:
    pool = new_pool(1, 16)
    secret = pool.directory / "secret"
    secret.chmod(0o640)
    said = pool.refused("ls", "/")
    assert "open to other users" in said
    assert "chmod go-rwx" in said
    secret.chmod(0o600)
    pool.run("ls", "/")
    kept = secret.read_bytes()
    secret.unlink()
    assert "is not there" in pool.refused("ls", "/")
    secret.write_bytes(kept)
    secret.chmod(0o600)


def test_a_pools_directory_that_others_can_enter_is_refused(new_pool: NewPool) -> None:
    pool = new_pool(1, 16)
    pool.directory.chmod(0o711)
    try:
        assert "open to other users" in pool.refused("ls", "/")
        assert "open to other users" in pool.refused("up", "--memory", "16MiB")
    finally:
        pool.directory.chmod(0o700)
    mode = pool.directory.stat().st_mode & 0o777
    assert mode == 0o700
    assert (pool.directory / "secret").stat().st_mode & 0o777 == 0o600


# Memory


def test_a_store_larger_than_memory_is_refused_with_both_numbers(planned: NewPool, tmp_path: Path) -> None:
    pool = planned(2)
    said = start_fails(pool, "--memory", "900TiB")
    assert "900 TiB" in said, said
    assert "available" in said, said
    assert said.count("GiB") + said.count("MiB") >= 1, said
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32 + "\n")
    secret.chmod(0o600)
    said = pool.refused("serve", "--memory", "900TiB", "--secret-file", str(secret), "--unix", f"{secret}.sock")
    assert "900 TiB" in said, said
    assert said.count("GiB") + said.count("MiB") >= 1, said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--memory", "1MiB"), "16 MiB"),
        (("--memory", "much"), "is no size"),
        (("--memory", "32MiB", "--slots", "3"), "slots"),
        (("--memory", "32MiB", "--listen", "127.0.0.1"), "ADDRESS:PORT"),
        (("--memory", "32MiB", "--listen", "0.0.0.0:7000"), "--advertise"),
        (("--memory", "32MiB", "--listen", "203.0.113.7:0"), "203.0.113.7"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(planned: NewPool, words: tuple[str, ...], told: str) -> None:
    assert told in start_fails(planned(1), *words)


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "with space", "x" * 33, ""])
def test_a_pools_name_stays_in_its_directory(planned: NewPool, name: str) -> None:
    done = subprocess.run(
        [binary(), "up", "--pool", name, "--memory", "16MiB"], capture_output=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert b"is no name of a pool" in done.stderr


# Machines that offer less


def shared_memory(pool: Pool) -> set[Path]:
    """Return what lies in the machine's shared memory for a pool."""
    return set(Path("/dev/shm").glob(f"ramlace-*-{pool.name}-*"))


# Takes from this process, and from the servers that it starts, the means to make namespaces.
WITHOUT_NAMESPACES = (
    "echo 0 > /proc/sys/user/max_user_namespaces && echo 0 > /proc/sys/user/max_mnt_namespaces && "
    'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
)


def without_namespaces(*words: str) -> list[str]:
    return ["unshare", "--user", "--map-root-user", "sh", "-c", WITHOUT_NAMESPACES, "sh", *words]


def can_take_namespaces_away() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "setpriv"))
    if not tools:
        return False
    proof = subprocess.run(
        without_namespaces("sh", "-c", "! unshare --user true && ! unshare --mount true"),
        capture_output=True,
        check=False,
    )
    return proof.returncode == 0


def test_a_machine_without_user_namespaces_gets_a_store_that_works_and_a_line_that_says_so(
    planned: NewPool,
) -> None:
    if not can_take_namespaces_away():
        pytest.skip("this machine does not let a test take user namespaces away (unshare or setpriv failed)")
    pool = planned(2, 32)

    def run(*words: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            without_namespaces(binary(), "--pool", pool.name, *words),
            input=stdin,
            capture_output=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        ).stdout

    run("up", "--servers", "2", "--memory", str(pool.memory_bytes), "--no-reserve")
    try:
        assert shared_memory(pool)
        notes = " ".join(pool.status()[0]["notes"])
        assert "No private memory file system could be made" in notes, notes
        content = pattern(1, 20 * MIB)
        run("cp", "-", "ramlace:/x", stdin=content)
        assert run("cat", "/x") == content
        # Both processes are gone, and come back: the bytes are in shared memory.
        pool.kill_child(0)
        pool.await_restart(0, 1)
        assert run("cat", "/x") == content
        with pool.connect() as connected:
            assert connected.open("/x").read() == content
        assert pool.refused("cp", "/dev/zero", "ramlace:/full")
        assert run("cat", "/x") == content
    finally:
        pool.run("down")
    assert not shared_memory(pool), "the store was left in shared memory"


def test_shared_memory_that_killed_servers_left_is_given_back(planned: NewPool) -> None:
    pool = planned(1, 32)
    pool.up("--backing", "shared-memory")
    pool.run("cp", "-", "ramlace:/x", stdin=pattern(1, 5 * MIB))
    for process in pool.processes():
        process.send(signal.SIGKILL)
    assert eventually(lambda: not pool.processes())
    assert shared_memory(pool)
    report = pool.up("--backing", "shared-memory")
    assert any("shared memory" in note for note in report["notes"]), report
    pool.run("down")
    assert not shared_memory(pool)
