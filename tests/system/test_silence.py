"""Clients that fall silent: a reader that never reads, and a process that is killed.

Both are ended by the clock, after 10 seconds; they are silent together, and the tests wait once.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import clients
import ramlace
import wire
from pool import KIB, MIB, Pool, eventually, pattern

# limits::SESSION_EXPIRY_MILLIS and limits::SEND_STALL_MILLIS_MAX, with time for a busy machine.
EXPIRY_SECONDS = 10.0
PATIENCE = EXPIRY_SECONDS + 20.0
FILE_BYTES = 32 * MIB
READERS = 4
# Replies that one reader asks for: more than any socket buffers.
READS = 64


@dataclass
class Silence:
    """What is silent, and how things were before."""

    pool: Pool
    begun: float
    memory_before: int
    sessions_before: int
    readers: list[wire.Wire]


@pytest.fixture(scope="module")
def silence(shared_pool: Pool) -> Iterator[Silence]:
    """Make a file, let readers ask for it and never read, and kill a client in mid-write."""
    with shared_pool.connect() as connected:
        with connected.open("/file", "wb", buffering=0, width=1) as file:
            file.write(pattern(1, FILE_BYTES))
        server = shared_pool.lane_servers("/file")[0]
        memory = shared_pool.process("child", server).private_bytes()
        sessions = shared_pool.status()[server]["sessions"]
        work = (clients.write_for_ever, shared_pool.name, False, "/file-of-the-dead", 4 * MIB)
        with clients.running(work) as (victim,):
            # It is one session more on this server too, once its bytes come here.
            assert eventually(lambda: shared_pool.status()[server]["sessions"] > sessions)
            victim.process.kill()
        readers = []
        try:
            for _ in range(READERS):
                readers.append(ask_and_never_read(shared_pool, connected, server))
            yield Silence(shared_pool, time.monotonic(), memory, sessions, readers)
        finally:
            for reader in readers:
                reader.socket.close()


def ask_and_never_read(pool: Pool, connected: ramlace.Pool, server: int) -> wire.Wire:
    """Ask for far more than fits between the two ends."""
    found, layout = connected.stat("/file"), connected.layout("/file")
    line = wire.Wire(pool.addresses[server])
    line.greet(pool.secret)
    assert line.open_session().error == ""
    epoch = layout.created_epoch or 1
    for number in range(READS):
        offset = number % 4 * 8 * MIB
        target = (found.st_ino, 0, layout.base_slot or 0, found.generation, epoch, 0)
        body = wire.numbers(*target, offset, 8 * MIB, wire.KEEP_NO, 0)
        line.say(wire.header(wire.READ_CHUNK, line.session, len(body), epoch=epoch, call=number), body)
    # The first reply has begun: the server is sending, and will be stuck.
    head = line.take(wire.HEADER_BYTES)
    assert not int.from_bytes(head[8:10], "little") & wire.ERROR
    return line


def server_of(silence: Silence) -> int:
    return silence.pool.lane_servers("/file")[0]


# SEMANTICS 28.2
def test_readers_that_never_read_cost_no_memory(silence: Silence) -> None:
    child = silence.pool.process("child", server_of(silence))
    grown = child.private_bytes() - silence.memory_before
    print(f"{READERS} readers that wait for {READS * 8} MiB each cost {grown // KIB} KiB")
    assert grown < 4 * MIB


# SEMANTICS 28.1
def test_readers_that_never_read_delay_nobody(silence: Silence) -> None:
    with silence.pool.connect(local=False) as far, silence.pool.connect() as near:
        begun = time.monotonic()
        for connected in (far, near):
            assert connected.open("/file").read() == pattern(1, FILE_BYTES)
            with connected.open("/other", "wb", buffering=0) as file:
                file.write(pattern(2, MIB))
            for _ in range(50):
                assert connected.stat("/other").st_size == MIB
        took = time.monotonic() - begun
    print(f"beside {READERS} silent readers: {took:.2f} s")
    # A server that waited for them would have waited for the stall limit.
    assert took < EXPIRY_SECONDS


def test_a_reader_that_never_reads_is_cut_off(silence: Silence) -> None:
    for reader in silence.readers:
        # Nothing is read before its time, or it would not be silent.
        left = silence.begun + EXPIRY_SECONDS + 2 - time.monotonic()
        time.sleep(max(0.0, left))
        received = 0
        reader.socket.settimeout(PATIENCE)
        while part := reader.take(MIB):
            received += len(part)
        assert received < READS * 8 * MIB, "the server waited for a reader that never read"
        print(f"cut off after {received / MIB:.1f} MiB")


# SEMANTICS 19.2
def test_the_session_of_a_killed_client_ends(silence: Silence) -> None:
    server = server_of(silence)

    def sessions() -> int:
        return int(silence.pool.status()[server]["sessions"])

    # The readers' sessions ended as well; those of finished clients ended when they said so.
    assert eventually(lambda: sessions() <= silence.sessions_before, PATIENCE), sessions()
    with silence.pool.connect() as connected:
        assert connected.exists("/file-of-the-dead")
        connected.remove("/file-of-the-dead")
