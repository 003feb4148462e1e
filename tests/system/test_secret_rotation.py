"""A pool gets a new secret while it runs: nobody who reads it anew notices, and the owner ends the old one."""

import json
import mmap
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

import wire
from conftest import NewPool
from mount import NewMount
from noise import host_key, host_key_of_line
from pool import MIB, Pool, binary, eventually, frozen, pattern


def lets_in(pool: Pool, server: int, key: bytes) -> bool:
    """Whether a server lets somebody in with a secret or a host key."""
    with wire.Wire(pool.addresses[server]) as line:
        try:
            line.greet(key)
        except wire.RefusedError as refused:
            assert "secret is not this pool's" in str(refused), refused
            return False
    return True


def who_lets_in(pool: Pool, key: bytes) -> list[bool]:
    """Return for each server whether it lets somebody in with this."""
    return [lets_in(pool, server, key) for server in range(pool.servers)]


def is_private(path: Path) -> bool:
    """Whether nobody else may read it."""
    return stat.S_IMODE(path.stat().st_mode) == 0o600


# SEMANTICS 123.1
def test_whoever_runs_goes_on_while_the_secret_changes(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(3, 64)
    old, secret = pool.secret, pool.directory / "secret"
    mount = new_mount(pool)
    data = pattern(5, 2 * MIB)
    with pool.connect(local=False) as far, pool.connect() as near:
        files: list[Any] = [
            client.open(f"/{name}", "w+b", buffering=0) for name, client in (("far", far), ("near", near))
        ]
        files.append((mount / "mounted").open("w+b", buffering=0))

        def all_work(at: int) -> None:
            for file in files:
                file.seek(at * len(data))
                file.write(data)
                file.seek(at * len(data))
                assert file.read(len(data)) == data
            far.open(f"/far-{at}", "wb").close()
            (mount / f"mount-{at}").write_bytes(data)

        all_work(0)
        report = pool.json("secret", "rotate")
        assert report == {"state": "in use", "untold": [], "file": str(secret), "file_error": None}
        new = pool.secret
        assert new != old
        assert is_private(secret)
        assert is_private(pool.directory / "host-key")
        assert host_key_of_line((pool.directory / "host-key").read_text()) == host_key(new)
        assert sorted(path.name for path in pool.directory.glob("*secret*")) == ["secret"], "nothing is left"
        for key in (old, new, host_key(old), host_key(new, "node7")):
            assert who_lets_in(pool, key) == [True] * 3
        all_work(1)
        # Servers call each other, and come back, by the new one.
        pool.restart_each(1, 0)
        all_work(2)
        with wire.Wire(pool.addresses[1]) as line:
            line.greet(old)
            assert line.open_session().error == ""
            assert pool.json("secret", "rotate", "--finish")["state"] == "finished"
            assert line.is_closed()
        for key, let_in in ((old, False), (host_key(old), False), (new, True), (host_key(new), True)):
            assert who_lets_in(pool, key) == [let_in] * 3
        all_work(3)
        pool.restart_each(2, 0)
        all_work(4)
        assert who_lets_in(pool, old) == [False] * 3
        for file in files:
            file.close()
    assert pool.json("secret", "rotate", "--finish")["state"] == "finished", "there is nothing to end, and all is well"


# SEMANTICS 123.4
def test_a_rotation_that_servers_die_in_goes_on_by_itself(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    old = pool.secret
    with frozen(pool.process("child", 2)):
        report = pool.json("secret", "rotate")
        assert (report["state"], report["untold"]) == ("coming", [2])
        # Until every server knows the new one, the old one is what everybody finds and uses.
        assert pool.secret == old
        assert "not in use yet" in pool.refused("secret", "rotate", "--finish")
        for server in (0, 1):
            pool.kill_child(server)
            assert eventually(lambda server=server: pool.status()[server]["restarts"] >= 1)  # type: ignore[misc]
        assert pool.secret == old
        assert lets_in(pool, 0, old)
    assert eventually(lambda: pool.secret != old)
    for server in range(3):
        assert eventually(lambda server=server: lets_in(pool, server, pool.secret))  # type: ignore[misc]
        assert lets_in(pool, server, old)
    assert "--finish" in pool.refused("secret", "rotate"), "one after the other"
    assert eventually(lambda: pool.run("secret", "rotate", "--finish", check=False).returncode == 0)
    assert who_lets_in(pool, old) == [False] * 3


# SEMANTICS 123.4
def test_a_server_killed_at_any_moment_of_a_rotation_knows_the_new_secret(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    for round_ in range(3):
        old = pool.secret
        victim = pool.process("child", round_ % 2)
        done = pool.run("secret", "rotate", "--json", check=False) if round_ else None
        victim.send(signal.SIGKILL)
        if done is None:
            pool.run("secret", "rotate", "--json", check=False)
        assert eventually(lambda old=old: pool.secret != old)  # type: ignore[misc]
        for server in range(2):
            assert eventually(lambda server=server: lets_in(pool, server, pool.secret))  # type: ignore[misc]
        assert eventually(lambda: pool.run("secret", "rotate", "--finish", check=False).returncode == 0)
        assert eventually(lambda old=old: who_lets_in(pool, old) == [False] * 2)  # type: ignore[misc]
    with pool.connect() as client:
        client.open("/after", "wb").write(b"all is well")


# SEMANTICS 123.3
def test_a_server_that_hears_of_the_end_late_is_named_and_shuts_the_old_secret_out_then(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    old = pool.secret
    pool.run("secret", "rotate")
    with frozen(pool.process("child", 1)):
        report = pool.json("secret", "rotate", "--finish")
        assert (report["state"], report["untold"]) == ("finished", [1])
        assert not lets_in(pool, 2, old)
    assert eventually(lambda: not lets_in(pool, 1, old))


def test_an_owner_on_another_machine_is_not_shut_out_by_a_change_of_the_secret(
    new_pool: NewPool, tmp_path: Path
) -> None:
    pool = new_pool(3, 32)
    here, copy = pool.directory / "secret", tmp_path / "secret"
    old = here.read_bytes()

    def put_old() -> None:
        copy.write_bytes(old)
        copy.chmod(0o600)

    def rotate(*words: str) -> str:
        """Do it as a program that has a file of its own, and return how far it has come."""
        environment = {**os.environ, "RAMLACE_SECRET_FILE": str(copy)}
        command = [binary(), "--pool", pool.addresses[0], "--json", "secret", "rotate", *words]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=True)
        return str(json.loads(done.stdout)["state"])

    put_old()
    with frozen(pool.process("child", 2)):
        assert rotate() == "coming"
    assert eventually(lambda: here.read_bytes() != old)
    assert copy.read_bytes() == old
    assert rotate() == "in use"
    assert copy.read_bytes() == here.read_bytes()
    put_old()
    assert eventually(lambda: rotate("--finish") == "finished")
    assert copy.read_bytes() == here.read_bytes()
    assert who_lets_in(pool, bytes.fromhex(old.decode().strip())) == [False] * 3
    assert rotate("--finish") == "finished"


# SEMANTICS 130.3
def test_a_change_whose_answer_was_lost_is_done_once_also_by_a_permit_of_the_new_secret(new_pool: NewPool) -> None:
    """The lane refuses the old permit before it looks at the number, and answers by the new one what it did."""
    pool = new_pool(1, 32)
    with pool.connect() as client:
        with client.open("/cells", "wb") as file:
            file.write(bytes(8192))
        found, layout = client.stat("/cells"), client.layout("/cells")
    inode, generation = found.st_ino, found.generation
    pool.run("chmod", "666", "/cells")

    def count(line: wire.Wire, permit: bytes) -> wire.Reply:
        """Add 5 to the first cell, always by the same number."""
        target = wire.numbers(inode, 0, layout.base_slot or 0, generation, layout.created_epoch or 1)
        body = target + b"\1" + permit + wire.numbers(0, 0, 5)
        return line.call(wire.CHANGE_CELL, body, sequence=2, epoch=1, slot=layout.base_slot or 0)

    with wire.Wire(pool.addresses[0]) as line:
        line.greet(host_key(pool.secret))
        session = line.session
        assert line.open_session(wire.SESSION_HOST).error == ""
        opened = line.call(wire.OPEN, wire.numbers(inode, 1, 1, 0), sequence=1, epoch=1)
        assert opened.error == ""
        before = opened.body[-19:-3]
        assert count(line, before).body[:1] == b"\0"
    pool.run("secret", "rotate")
    pool.run("secret", "rotate", "--finish")
    with wire.Wire(pool.addresses[0]) as line:
        line.session = session
        line.greet(host_key(pool.secret))
        assert line.open_session(wire.SESSION_HOST).error == ""
        assert "has not opened" in count(line, before).error
        renewed = line.call(wire.GET_PERMIT, wire.numbers(inode), epoch=1).body[-16:]
        assert renewed != before
        assert count(line, renewed).body[:1] == b"\0", "what the cell held the first time"
    with pool.connect() as client, client.open("/cells") as file:
        assert file.read(8) == bytes([5, 0, 0, 0, 0, 0, 0, 0])


# SEMANTICS 123.1, 130.2
@pytest.mark.needs_root
def test_a_mount_for_everybody_goes_on_when_its_key_was_renewed(
    new_pool: NewPool, new_mount: NewMount, tmp_path: Path
) -> None:
    pool = new_pool(2, 32)
    pool.run("mkdir", "-m", "777", "/all")
    key = tmp_path / "host-key"
    key.write_bytes(pool.run("host-key", "node7").stdout)
    key.chmod(0o600)
    mount = new_mount(pool, "--allow-other", "--host-key-file", str(key))
    large = bytes(range(256)) * 8192
    (mount / "all/large").write_bytes(large)
    # What was opened before proves its right to bytes by the secret of then: of pages that the kernel has not yet, too.
    with (mount / "all/file").open("w+b", buffering=0) as file, (mount / "all/large").open("r+b", buffering=0) as lanes:
        file.write(b"before")
        assert lanes.read(4096) == large[:4096]
        pool.run("secret", "rotate")
        key.write_bytes(pool.run("host-key", "node7").stdout)
        pool.run("secret", "rotate", "--finish")
        file.write(b" and after")
        file.seek(0)
        assert file.read() == b"before and after"
        with mmap.mmap(lanes.fileno(), 0) as mapped:
            mapped[-1:] = b"!"
            assert mapped[:] == large[:-1] + b"!"
            mapped.flush()
        lanes.seek(0)
        assert lanes.write(large[::-1]) == len(large)
    assert pool.run("cat", "/all/large").stdout == large[::-1]
    assert (mount / "all/file").read_bytes() == b"before and after"


# SEMANTICS 123.5
def test_only_the_owner_changes_the_secret(new_pool: NewPool) -> None:
    pool = new_pool(1, 32)
    with wire.Wire(pool.addresses[0]) as line:
        line.greet(host_key(pool.secret))
        assert line.open_session(wire.SESSION_HOST).error == ""
        assert "pool's owner" in line.call(wire.ROTATE_SECRET, b"\0").error
    assert os.environ.get("RAMLACE_SECRET_FILE") is None
    before = pool.secret
    assert pool.json("secret", "rotate")["state"] == "in use", "one server needs nobody's answer"
    assert pool.secret != before
