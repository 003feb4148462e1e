"""Stopping a pool of which less is known than `up` has written down."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conftest import NewPool
from pool import MIB, PATIENCE_SECONDS, Pool, binary, eventually, take_away

# Root mounts the store itself, others in a user namespace.
pytestmark = pytest.mark.both


# SEMANTICS 40.3
def test_down_stops_servers_whose_directory_is_gone(new_pool: NewPool) -> None:
    pool = new_pool(2, 16)
    # As systemd does with the last session of a user: the servers live on.
    take_away(pool.directory)
    assert len(pool.processes()) == 4
    done = pool.run("down")
    assert f"Pool '{pool.name}' is down." in done.stdout.decode(), done
    assert not pool.processes()
    assert not pool.directory.exists()
    assert "there is no pool" in pool.refused("down")
    assert not pool.directory.exists()


# SEMANTICS 40.3
def test_up_starts_no_second_pool_beside_one_whose_directory_is_gone(new_pool: NewPool) -> None:
    pool = new_pool(2, 16)
    take_away(pool.directory)
    before = [process.pid for process in pool.processes()]
    assert "is running already (2 servers)" in pool.refused("up", "--memory", "32MiB")
    assert [process.pid for process in pool.processes()] == before
    assert "is down" in pool.run("down").stdout.decode()
    assert not pool.processes()
    assert not pool.directory.exists()


@contextmanager
def served(pool: Pool, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """Run one server in the foreground, and wait until it is ready; end it afterwards, if it has not ended."""
    command = [binary(), "--pool", pool.name, "serve", "--memory", str(16 * MIB), "--no-reserve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert any(line == "ready\n" for line in server.stdout), f"it ended with {server.wait(PATIENCE_SECONDS)}"
            yield server
        finally:
            server.terminate()


# SEMANTICS 40.5
@pytest.mark.parametrize("how", ["plain", "equals"])
def test_down_stops_a_server_that_was_started_by_hand(planned: NewPool, how: str) -> None:
    pool = planned(1, 16)
    words = () if how == "plain" else (f"--secret-file={pool.directory / 'secret'}", "--server=0")
    with served(pool, *words) as server:
        assert (pool.name, "running") in [(one["name"], one["state"]) for one in pool.json("pools")]
        done = pool.run("down")
        assert f"Pool '{pool.name}' is down." in done.stdout.decode(), done
        # It was asked to end, not killed.
        assert done.stderr == b"", done.stderr
        assert server.wait(PATIENCE_SECONDS) == 0
    assert not pool.processes()
    assert not pool.directory.exists()


# SEMANTICS 40.5
def test_down_ends_a_child_of_a_server_by_hand_that_has_lost_its_supervisor(planned: NewPool) -> None:
    pool = planned(1, 16)
    with served(pool) as server:
        child = pool.process("child", 0)
        server.send_signal(signal.SIGKILL)
        assert server.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        done = pool.run("down")
        assert "server 0 had lost its supervisor; it was killed" in done.stderr.decode(), done
        assert eventually(lambda: child.pid not in [process.pid for process in pool.processes()])
    assert not pool.directory.exists()
