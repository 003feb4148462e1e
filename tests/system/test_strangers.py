"""Nobody is let in by default: strangers are told why, cost next to nothing and delay nobody."""

import os
import random
import socket
import struct
import time
from pathlib import Path

import pytest

import ramlace
import wire
from conftest import NewPool
from noise import TAG_BYTES, Cipher
from pool import KIB, MIB, Pool, eventually, pattern

UNIT = 64 * KIB
DOORS = ["tcp", "unix"]


@pytest.fixture(scope="module")
def one(shared_pool: Pool) -> Pool:
    """The pool whose server 0 the strangers knock at."""
    return shared_pool


def knock(pool: Pool, door: str, timeout: float = 10.0) -> wire.Wire:
    """Connect to server 0."""
    address = pool.addresses[0] if door == "tcp" else pool.directory / "server-0.sock"
    return wire.Wire(address, timeout)


def enter(pool: Pool, door: str = "tcp") -> wire.Wire:
    """Connect with the secret and open a session."""
    line = knock(pool, door)
    line.greet(pool.secret)
    assert line.open_session().error == ""
    return line


# What stands behind a preamble, of somebody without a key.
GREETING = bytes(wire.FIRST_BYTES)

STRANGERS = {
    "web": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not its protocol"),
    "zeros": (bytes(64), "not its protocol"),
    "nearly": (b"ramlace\r" + bytes(60), "not its protocol"),
    "old_version": (wire.preamble(version=0) + GREETING, f"version 0, this side version {wire.VERSION}"),
    "new_version": (wire.preamble(version=700) + GREETING, f"version 700, this side version {wire.VERSION}"),
    "no_secret": (wire.preamble(0), "has a secret and the client brought none"),
    "huge_length": (wire.preamble(0xFFFF_FFFF), "makes no sense"),
    "wrong_secret": (wire.preamble() + GREETING, "secret is not this pool's"),
}


# SEMANTICS 27.1
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_told_why(one: Pool, stranger: str, door: str) -> None:
    said, told = STRANGERS[stranger]
    with knock(one, door) as line:
        line.send(said)
        assert told in line.refusal()


@pytest.mark.parametrize("door", DOORS)
def test_another_pools_secret_does_not_open_this_one(one: Pool, door: str) -> None:
    with knock(one, door) as line, pytest.raises(wire.RefusedError, match="check which pool it was given"):
        line.greet(os.urandom(32))


def test_the_command_says_that_its_secret_is_wrong(one: Pool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32 + "\n")
    secret.chmod(0o600)
    said = one.refused("ls", f"ramlace://{one.addresses[0]}/", variables={"RAMLACE_SECRET_FILE": str(secret)})
    assert "secret" in said, said


def test_half_a_greeting_is_given_up(one: Pool) -> None:
    halves = [b"", b"ram", wire.preamble()[:12], wire.preamble() + bytes(20)]
    lines = [knock(one, door) for door in DOORS for _ in halves]
    try:
        for line, half in zip(lines, halves * len(DOORS), strict=True):
            line.send(half)
        for line in lines:
            assert "was not finished within" in line.refusal()
    finally:
        for line in lines:
            line.socket.close()


def test_a_greeting_in_single_bytes_is_a_greeting(one: Pool) -> None:
    with knock(one, "tcp") as line:
        noise, first = wire.hello(one.secret)
        for byte in first + noise.first():
            line.send(bytes([byte]))
        answer = line.take(16 + wire.SECOND_BYTES)
        assert answer[10] == wire.WELCOME
        line.send(noise.finish(answer[16:]))
        line.sealing, line.opening = (Cipher(key) for key in noise.frames)
        assert line.open_session().error == ""


def test_a_recorded_greeting_lets_nobody_in(one: Pool) -> None:
    noise, first = wire.hello(one.secret)
    hello = first + noise.first()
    with knock(one, "tcp") as line:
        line.send(hello)
        confirmation = noise.finish(line.take(16 + wire.SECOND_BYTES)[16:])
    with knock(one, "tcp") as line:
        line.send(hello)
        assert line.take(16 + wire.SECOND_BYTES)[10] == wire.WELCOME
        # What was right the first time is not this time: the server's half is fresh.
        line.send(confirmation)
        assert "not its own" in line.refusal()


# SEMANTICS 27.2
def test_a_greeting_is_for_one_server_and_passing_it_on_gains_nothing(one: Pool) -> None:
    """A stranger who has bound a dead server's port passes the owner's greeting on to a living one."""
    with knock(one, "tcp") as line, pytest.raises(wire.RefusedError, match=r"this is server 0 .* meant for server 1"):
        line.greet(one.secret, wanted=1)
    # To the same server it can be passed on; what the stranger says then has no key, and is not done.
    with knock(one, "tcp") as line:
        line.greet(one.secret, wanted=0)
        line.sealing = None
        line.send(wire.header(wire.STOP_SERVER, bytes(16), 0), bytes(TAG_BYTES))
        assert line.is_closed()
    with knock(one, "tcp") as line:
        line.greet(one.secret)
        assert line.call(wire.SERVER_STATUS, b"").error == ""


# SEMANTICS 27.3
def test_a_frame_said_twice_ends_its_connection(one: Pool) -> None:
    with enter(one) as line:
        head = wire.header(wire.HEARTBEAT, line.session, 0)
        assert line.sealing is not None
        frame = head + line.sealing.seal(head, b"")
        line.send(frame)
        assert line.reply().error == ""
        line.send(frame)
        assert line.is_closed()


def damaged_frames(session: bytes) -> dict[str, bytes]:
    """Frames that no client that speaks the protocol sends."""
    good = wire.header(wire.HEARTBEAT, session, 0)
    flipped = bytes([good[20] ^ 1])
    return {
        "checksum": good[:20] + flipped + good[21:],
        "magic": b"XXXX" + good[4:],
        "version": wire.header(wire.HEARTBEAT, session, 0, version=wire.VERSION + 1),
        "kind": wire.header(0x7777, session, 0),
        "body": wire.header(wire.HEARTBEAT, session, 0xFFFF_FFF0),
        "data": wire.header(wire.WRITE_CHUNK, session, 4, 0xFFFF_FFF0),
        "reply": wire.header(wire.HEARTBEAT, session, 0, flags=wire.REPLY),
        "flags": wire.header(wire.HEARTBEAT, session, 0, flags=0x80),
        "deadline": wire.header(wire.HEARTBEAT, session, 0, deadline_millis=0xFFFF_FFFF),
        "nonsense": wire.header(wire.READ_CHUNK, session, 5) + b"\xff" * 5,
        "too_much": wire.header(wire.HEARTBEAT, session, 100) + bytes(100),
    }


@pytest.mark.parametrize("damage", damaged_frames(bytes(16)))
def test_a_damaged_frame_ends_its_connection_and_nothing_else(one: Pool, damage: str) -> None:
    # Where frames have keys, no damage gets as far as this.
    with enter(one, "unix") as line, enter(one) as other:
        line.send(damaged_frames(line.session)[damage])
        # Told, or closed: never taken for something else.
        head = line.take(wire.HEADER_BYTES)
        if head:
            assert int.from_bytes(head[8:10], "little") & wire.ERROR or damage == "too_much", head
        assert other.call(wire.HEARTBEAT, b"").error == ""
    assert [server["restarts"] for server in one.status()] == [0, 0, 0]


def test_a_session_is_its_connections_own(one: Pool) -> None:
    with enter(one) as line, knock(one, "tcp") as other:
        other.greet(one.secret)
        # No session yet; somebody else's; one that ended or never was.
        assert "needs a session" in other.call(wire.HEARTBEAT, b"").error
        assert other.open_session().error == ""
        other.session = line.session
        assert "not this connection's" in other.call(wire.HEARTBEAT, b"").error
    with knock(one, "tcp") as stale:
        stale.greet(one.secret)
        said = stale.call(wire.OPEN_SESSION, bytes([wire.SESSION_USER, 1, 0])).error
        assert "has ended" in said
        assert "host key" in stale.open_session(wire.SESSION_HOST).error
        stale.session = bytes(16)
        assert "not zero" in stale.open_session().error


def test_what_servers_tell_each_other_no_client_may_say(one: Pool) -> None:
    with enter(one) as line:
        # Cut lane 0 of the root's inode to nothing.
        said = line.call(wire.CUT_LANE, wire.numbers(1, 0, 0, 99, 0) + bytes(16), sequence=1).error
        assert "servers of the pool alone" in said, said


def test_strangers_cost_next_to_nothing_while_clients_go_on(new_pool: NewPool) -> None:
    running = new_pool(1, 32)
    chance = random.Random(7)
    with running.connect() as pool:
        with pool.open("/x", "wb", buffering=0, stripe_unit=UNIT) as file:
            file.write(pattern(1, MIB))
        child = running.process("child", 0)
        for _ in range(50):
            _knock_badly(running, chance)
        memory, cpu = child.private_bytes(), child.cpu_seconds()
        count = 600
        for number in range(count):
            _knock_badly(running, chance)
            if number % 50 == 0:
                assert pool.open("/x").read() == pattern(1, MIB)
        grown, spent = child.private_bytes() - memory, child.cpu_seconds() - cpu
        print(f"{count} strangers: {grown // KIB} KiB, {1e6 * spent / count:.0f} µs of CPU each")
        assert grown < 2 * MIB
        assert spent / count < 0.005
        assert eventually(lambda: running.status()[0]["connections"] < 10)
        assert running.status()[0]["restarts"] == 0


def _knock_badly(pool: Pool, chance: random.Random) -> None:
    """Say something wrong and go, often without listening."""
    with knock(pool, chance.choice(DOORS)) as line:
        kind = chance.randrange(4)
        if kind == 0:
            line.send(chance.randbytes(chance.randrange(1, 2000)))
        elif kind == 1:
            line.send((wire.preamble() + bytes(wire.FIRST_BYTES))[: chance.randrange(1, 140)])
        elif kind == 2:
            line.send(wire.preamble(chance.choice([0, wire.FIRST_BYTES, 512, 1 << 31])))
        else:
            line.send(wire.preamble() + chance.randbytes(wire.FIRST_BYTES))
        if chance.random() < 0.3 and isinstance(line.socket, socket.socket):
            # Gone with a reset.
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_two_hundred_silent_connections_lock_nobody_out(new_pool: NewPool) -> None:
    running = new_pool(1, 32)
    silent = []
    try:
        for number in range(200):
            silent.append(knock(running, DOORS[number % 2]))
        with running.connect(local=False) as far, running.connect() as near:
            begun = time.monotonic()
            with far.open("/x", "wb", buffering=0) as file:
                file.write(pattern(1, MIB))
            assert near.open("/x").read() == pattern(1, MIB)
            print(f"beside 200 silent connections: {time.monotonic() - begun:.3f} s")
        running.run("ls", "/")
        # The silent ones are sent away, one and all.
        for line in silent:
            line.socket.settimeout(10)
            assert line.take(1 << 16) is not None
        assert eventually(lambda: running.status()[0]["connections"] <= 3)
    finally:
        for line in silent:
            line.socket.close()


def test_proven_connections_are_limited_and_one_too_many_is_closed(new_pool: NewPool) -> None:
    """A process may hold 8 connections to a server; even one that takes far more harms nobody."""
    running = new_pool(1, 32)
    lines = []
    try:
        for _ in range(40):
            lines.append(enter(running, "unix"))
        for line in lines:
            assert line.call(wire.HEARTBEAT, b"").error == ""
        with running.connect() as pool:
            pool.mkdir("/d")
        assert running.status()[0]["connections"] >= 40
    finally:
        for line in lines:
            line.socket.close()
    assert eventually(lambda: running.status()[0]["connections"] < 10)


def test_a_client_that_lies_about_its_lane_reads_nothing(one: Pool) -> None:
    """A lane, a slot or a file that does not exist is an error or a hole, never another's bytes."""
    with one.connect() as pool, enter(one) as line:
        epoch = pool.layout(_some_file(pool)).created_epoch or 1
        for inode, lane, slot, generation in [
            (1 << 48, 0, 0, 1),
            (3, 70, 0, 1),
            (2**64 - 1, 65_535, 65_535, 2**64 - 1),
            (1, 0, 4095, 0),
        ]:
            for take in (0, 1):
                body = wire.numbers(inode, lane, slot, generation, epoch, 0, 0, 4096, wire.KEEP_NO, take)
                reply = line.call(wire.READ_CHUNK, body, epoch=epoch)
                assert reply.error or not any(reply.data)
                assert reply.error or not take, "it takes no memory for what is nobody's"
        # More than a message may carry.
        body = wire.numbers(3, 0, 0, 1, epoch, 0, 0, 0xFFFF_FFFF, wire.KEEP_NO, 1)
        reply = line.call(wire.READ_CHUNK, body, epoch=epoch)
        assert reply.error
        body = wire.numbers(3, 0, 0, 1, epoch, 0, 2**64 - 1, 4096, wire.KEEP_NO, 0)
        reply = line.call(wire.READ_CHUNK, body, epoch=epoch)
        assert "beyond the largest file" in reply.error


def _some_file(pool: ramlace.Pool) -> str:
    with pool.open("/strangers-file", "wb", buffering=0) as file:
        file.write(b"secret")
    return "/strangers-file"
