"""What is left of clients whose sessions ended by silence: holes of their appends, and neither memory nor effects.

They fall silent together, and the tests wait for the end of their sessions once.
"""

import errno
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import clients
import wire
from conftest import NewPool
from pool import KIB, MIB, Pool, eventually, pattern

# limits::SESSION_EXPIRY_MILLIS, with time for a busy machine.
PATIENCE_SECONDS = 60.0
SIZE = 100_000
RESERVED = 50_000
BEHIND = b"behind"
NAMELESS_BYTES = 8 * MIB
SERVERS = 3


def sessions_of(pool: Pool) -> list[int]:
    """Return the number of sessions of each server."""
    return [server["sessions"] for server in pool.status()]


@dataclass
class Left:
    """What is silent, and how things were before."""

    pool: Pool
    appender: wire.Wire
    inode: int
    sleeper: clients.Client
    sessions_before: list[int]
    bytes_before: int
    bytes_held: int

    def home(self) -> tuple[int, int]:
        """The slot of the file's inode, and its server."""
        return self.inode >> 48, (self.inode >> 48) * SERVERS // 4096


@pytest.fixture(scope="module")
def left(shared_pool: Pool) -> Iterator[Left]:
    """One reserves bytes and writes none, one that has a file open is stopped, one that keeps a nameless file dies."""
    with shared_pool.connect() as connected:
        for name in ("/log", "/kept"):
            with connected.open(name, "wb", buffering=0, width=1) as file:
                file.write(pattern(1, SIZE))
        inode = connected.stat("/log").st_ino
        # It has a session with every server from now on.
        assert connected.statfs().silent_servers == 0
        before, sessions = shared_pool.files_bytes(), sessions_of(shared_pool)
        with (
            clients.running((clients.outlive_a_session, shared_pool.name, "/kept")) as (sleeper,),
            clients.running((clients.hold_without_name, shared_pool.name, "/nameless", NAMELESS_BYTES)) as (holder,),
        ):
            held = shared_pool.files_bytes()
            slot = inode >> 48
            with wire.Wire(shared_pool.directory / f"server-{slot * SERVERS // 4096}.sock") as appender:
                appender.greet(shared_pool.secret)
                assert appender.open_session().error == ""
                reserve = wire.numbers(inode, RESERVED)
                assert appender.call(wire.RESERVE_APPEND, reserve, slot=slot, sequence=1, epoch=1).error == ""
                with connected.open("/log", "ab", buffering=0) as file:
                    assert file.write(BEHIND) == len(BEHIND)
                found = connected.stat("/log").st_size, connected.open("/log").read()
                # Its session lives: what was found was so while its append was under way.
                assert appender.call(wire.HEARTBEAT, b"").error == ""
                assert found == (SIZE, pattern(1, SIZE)), "an append is shown behind one that is not finished"
                sleeper.send(signal.SIGSTOP)
                holder.end()
                yield Left(shared_pool, appender, inode, sleeper, sessions, before, held)


# SEMANTICS 7.2, 7.3
def test_the_reservation_of_a_dead_writer_becomes_a_hole(left: Left) -> None:
    with left.pool.connect() as connected:
        size = SIZE + RESERVED + len(BEHIND)
        assert eventually(lambda: connected.stat("/log").st_size == size, PATIENCE_SECONDS)
        assert connected.open("/log").read() == pattern(1, SIZE) + bytes(RESERVED) + BEHIND


# SEMANTICS 20.2
def test_nothing_goes_on_in_the_name_of_a_session_that_has_ended(left: Left) -> None:
    """On its own connection and on another one, whatever it asks for."""
    slot, server = left.home()

    def stale() -> str:
        return left.appender.call(wire.HEARTBEAT, b"").error

    with left.pool.connect() as connected:
        # A heartbeat keeps a session alive: so it is not asked before others see that it has ended.
        ended = eventually(lambda: connected.stat("/log").st_size > SIZE, PATIENCE_SECONDS)
        assert ended
        content = connected.open("/log").read()
        for _ in range(2):
            assert "connect again" in stale()
        finish = wire.numbers(left.inode, SIZE, 0)
        again = left.appender.call(wire.FINISH_APPEND, finish, slot=slot, sequence=2, epoch=1)
        assert "connect again" in again.error
        with wire.Wire(left.pool.directory / f"server-{server}.sock") as other:
            other.greet(left.pool.secret)
            other.session = left.appender.session
            assert "needs a session" in other.call(wire.HEARTBEAT, b"").error
        assert connected.open("/log").read() == content


# SEMANTICS 20.1, 20.2
def test_a_client_that_slept_for_longer_than_its_session_is_told_so_by_every_call(left: Left) -> None:
    def have_ended() -> bool:
        """Whether every server has ended the sessions of all that are silent."""
        return all(now <= then for now, then in zip(sessions_of(left.pool), left.sessions_before, strict=True))

    assert eventually(have_ended, PATIENCE_SECONDS), sessions_of(left.pool)
    left.sleeper.send(signal.SIGCONT)
    left.sleeper.stop()
    assert left.sleeper.result() == [errno.ESTALE] * 4
    with left.pool.connect() as connected:
        assert connected.open("/kept").read() == pattern(1, SIZE)
        assert not connected.exists("/made-after-the-end")


# SEMANTICS 12.2, 19.2
def test_the_memory_of_a_nameless_file_is_free_when_the_session_that_held_it_has_ended(left: Left) -> None:
    assert left.bytes_held >= left.bytes_before + NAMELESS_BYTES
    assert eventually(lambda: left.pool.files_bytes() < left.bytes_before + MIB, PATIENCE_SECONDS)


# SEMANTICS 12.1
@pytest.mark.parametrize("local", [True, False], ids=["local", "tcp"])
def test_the_memory_of_an_unlinked_file_is_free_after_its_last_close(new_pool: NewPool, local: bool) -> None:
    pool = new_pool(2)
    with pool.connect(local=local) as one, pool.connect() as other:
        with one.open("/file", "wb", buffering=0, stripe_unit=64 * KIB) as file:
            file.write(pattern(1, NAMELESS_BYTES))
        first, last = one.open("/file", buffering=0), other.open("/file", buffering=0)
        other.remove("/file")
        first.close()
        # One has it open still.
        assert last.readall() == pattern(1, NAMELESS_BYTES)
        assert pool.files_bytes() >= NAMELESS_BYTES
        last.close()
        assert eventually(lambda: pool.files_bytes() < MIB)
