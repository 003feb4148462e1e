"""Each machine has a key of its own: one is put out at every server, and the others do not notice."""

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

import wire
from conftest import NewPool
from mount import NewMount, fails
from noise import host_key, host_key_of_line
from pool import Pool, eventually, frozen, pattern


def key_of(pool: Pool, name: str) -> bytes:
    """Have a key made for a host."""
    return host_key_of_line(pool.run("host-key", name).stdout.decode())


def enter(pool: Pool, key: bytes, server: int, session: bytes | None = None) -> wire.Wire:
    """Begin a host's session at one server."""
    line = wire.Wire(pool.addresses[server])
    line.greet(key)
    line.session = session or line.session
    said = line.open_session(wire.SESSION_HOST).error
    assert said == "", said
    return line


def is_refused(pool: Pool, key: bytes, name: str, server: int) -> bool:
    """Whether a server lets nobody in with this key, and says why."""
    with wire.Wire(pool.addresses[server]) as line:
        try:
            line.greet(key)
        except wire.RefusedError as refused:
            assert f"the host key '{name}' was revoked" in str(refused), refused
            return True
    return False


def states(pool: Pool) -> dict[str, tuple[int, bool, int]]:
    """Return the number of each key, whether it was revoked, and its sessions."""
    keys = pool.json("host-key", "--list")["keys"]
    return {key["name"]: (key["serial"], key["revoked"] is not None, key["sessions"]) for key in keys}


# SEMANTICS 121.1, 121.3
def test_a_revoked_host_is_put_out_at_every_server_at_once_and_the_others_go_on(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    bad, good = key_of(pool, "node7"), key_of(pool, "node8")
    assert (bad, good) == (host_key(pool.secret, "node7"), host_key(pool.secret, "node8"))
    with ExitStack() as stack:
        lines = {}
        for key in (bad, good):
            session = os.urandom(16)
            lines[key] = [stack.enter_context(enter(pool, key, server, session)) for server in range(3)]
        assert states(pool) == {"default": (1, False, 0), "node7": (1, False, 1), "node8": (1, False, 1)}
        assert pool.json("host-key", "--revoke", "node7")["untold"] == []
        assert all(line.is_closed() for line in lines[bad])
        assert all(line.call(wire.HEARTBEAT, b"").error == "" for line in lines[good])
        assert states(pool) == {"default": (1, False, 0), "node7": (1, True, 0), "node8": (1, False, 1)}
        assert [server["sessions"] for server in pool.status()] == [2, 2, 2], "the good one's, and status's own"
    for server in range(3):
        assert is_refused(pool, bad, "node7", server)
        enter(pool, good, server).socket.close()
    table = pool.run("host-key", "--list").stdout.decode()
    assert [line.split()[0] for line in table.splitlines()] == ["NAME", "default", "node7", "node8"]
    assert "revoked" in table.splitlines()[2]


# SEMANTICS 121.1
def test_a_revocation_outlives_every_server_that_is_killed(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    bad, good = key_of(pool, "node7"), key_of(pool, "node8")
    pool.run("host-key", "--revoke", "node7")
    pool.restart_each(2, 0)
    assert all(is_refused(pool, bad, "node7", server) for server in range(3))
    for server in range(3):
        enter(pool, good, server).socket.close()
    assert states(pool)["node7"][:2] == (1, True)


# SEMANTICS 121.2
def test_a_server_that_does_not_answer_is_named_and_hears_of_a_revocation_later(new_pool: NewPool) -> None:
    pool = new_pool(3, 32)
    bad = key_of(pool, "node7")
    with enter(pool, bad, 2) as line:
        with frozen(pool.process("child", 2)):
            assert pool.json("host-key", "--revoke", "node7")["untold"] == [2]
            assert is_refused(pool, bad, "node7", 1)
        assert line.is_closed()
    assert eventually(lambda: is_refused(pool, bad, "node7", 2))


# SEMANTICS 121.4
def test_a_name_gets_another_key_after_a_revocation(new_pool: NewPool) -> None:
    pool = new_pool(2, 32)
    first = key_of(pool, "node7")
    assert key_of(pool, "node7") == first, "a key that counts is given again"
    pool.run("host-key", "--revoke", "node7")
    pool.run("host-key", "--revoke", "node7")
    second = key_of(pool, "node7")
    assert second == host_key(pool.secret, "node7", 2)
    for server in range(2):
        assert is_refused(pool, first, "node7", server)
        enter(pool, second, server).socket.close()


def test_what_cannot_be_a_host_key_is_said(shared_pool: Pool) -> None:
    assert "'ramlace host-key --list' shows" in shared_pool.refused("host-key", "--revoke", "nobody")
    for name in ("../x", "", "-x", "a" * 61, "a b", "ä"):
        assert "host key" in shared_pool.refused("host-key", "--", name)
    assert "required" in shared_pool.refused("host-key")
    assert "cannot be used with" in shared_pool.refused("host-key", "a", "--list")


# SEMANTICS 122
def test_a_host_key_changes_no_keys_and_takes_no_session_of_another_host(new_pool: NewPool) -> None:
    pool = new_pool(1, 32)
    one, other = key_of(pool, "node7"), key_of(pool, "node8")
    with enter(pool, one, 0) as line:
        revoke = wire.numbers(1, 5) + b"node8"
        for kind, body in [(wire.CHANGE_KEYS, revoke), (wire.LIST_KEYS, b"")]:
            assert "pool's owner" in line.call(kind, body).error
        for kind, body in [(wire.GET_KEY_BOOK, b""), (wire.ADOPT_KEY_BOOK, wire.numbers(99, 0))]:
            assert "servers of the pool alone" in line.call(kind, body).error
        with wire.Wire(pool.addresses[0]) as thief:
            thief.greet(other)
            thief.session = line.session
            assert "with another key" in thief.open_session(wire.SESSION_HOST).error
    # Nor does it make the key of another: what it says it is, it has to prove.
    with wire.Wire(pool.addresses[0]) as thief, pytest.raises(wire.RefusedError, match="secret is not this pool's"):
        thief.greet(other[:72] + one[72:])
    assert states(pool)["node8"][:2] == (1, False)


# SEMANTICS 121.3
@pytest.mark.needs_root
def test_a_mount_of_a_revoked_host_ends_and_that_of_another_goes_on(
    new_pool: NewPool, new_mount: NewMount, tmp_path: Path
) -> None:
    pool = new_pool(2, 32)
    pool.run("mkdir", "-m", "777", "/all")
    mounts = {}
    for name in ("node7", "node8"):
        path = tmp_path / name
        path.write_bytes(pool.run("host-key", name).stdout)
        path.chmod(0o600)
        mounts[name] = new_mount(pool, "--allow-other", "--host-key-file", str(path))
        (mounts[name] / f"all/{name}").write_bytes(pattern(7, 100_000))
    pool.run("host-key", "--revoke", "node7")
    with pytest.raises(OSError, match="Errno") as refused:
        (mounts["node7"] / "all/more").write_bytes(b"more")
    assert refused.value.errno in (errno.EACCES, errno.ESTALE)
    assert (mounts["node8"] / "all/node7").read_bytes() == pattern(7, 100_000)
    (mounts["node8"] / "all/more").write_bytes(b"more")
    fails(errno.ENOENT, (mounts["node8"] / "all/none").read_bytes)
