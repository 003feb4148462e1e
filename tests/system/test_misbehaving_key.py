"""One key that misbehaves in every way at once, and another that works: what the one can take is bounded."""

import multiprocessing
import os
import random
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import wire
from conftest import NewPool
from noise import host_key
from pool import KIB, MIB, eventually, pattern

CONNECTIONS = 150
# Kept replies of a session, buffers of connections, and what the owner's own work takes.
MEMORY_BYTES_MAX = 64 * MIB


def as_host(address: Path, secret: bytes) -> wire.Wire:
    """Connect with the host key and open a session of its own."""
    line = wire.Wire(address)
    line.greet(host_key(secret))
    assert line.open_session(wire.SESSION_HOST).error == ""
    return line


def misbehave(address: Path, secret: bytes, asked: Any) -> None:
    """Do what a host key can, until killed."""
    dice = random.Random(7)
    inodes = wire.numbers(1000, *((slot << 48) + 1 for slot in range(1000)))
    lines: list[wire.Wire] = []
    while True:
        with suppress(AssertionError, OSError, IndexError):
            if len(lines) < CONNECTIONS:
                lines.append(as_host(address, secret))
            line = dice.choice(lines)
            kind = dice.randrange(5)
            asked.value += 1
            if kind == 0:
                # The answer is never read.
                head = wire.header(wire.GET_ATTRIBUTES_MANY, line.session, len(inodes), epoch=1 << 20)
                line.socket.settimeout(0.05)
                line.say(head, inodes)
            elif kind == 1:
                line.send(dice.randbytes(dice.randrange(1, 300)))
            elif kind == 2:
                # It listens, believes things by leases, and acknowledges none of them, or all that will ever be.
                line.socket.settimeout(0.05)
                heard = dice.choice((0, (1 << 64) - 1))
                for asked_for, body in (
                    (wire.LISTEN, b"\1" + wire.numbers(heard, heard, 0)),
                    (wire.LEASE_NAME, wire.numbers(1, 1) + b"x\1"),
                ):
                    line.say(wire.header(asked_for, line.session, len(body), epoch=1), body)
            elif kind == 3:
                line.say(wire.header(dice.randrange(1 << 16), line.session, 20), os.urandom(20))
            else:
                lines.remove(line)
                line.socket.close()


# SEMANTICS 113.4
def test_one_key_misbehaves_and_another_works(new_pool: NewPool) -> None:
    running = new_pool(1, 64)
    child = running.process("child", 0)
    with running.connect() as pool:

        def work(count: int) -> float:
            """Write and read; return the median of how long that took."""
            seconds = []
            for number in range(count):
                began = time.monotonic()
                with pool.open(f"/own{number % 8}", "wb") as file:
                    file.write(pattern(number, 16 * KIB))
                assert pool.read_bytes(f"/own{number % 8}") == pattern(number, 16 * KIB)
                seconds.append(time.monotonic() - began)
            return statistics.median(seconds)

        work(50)
        alone, memory = work(100), child.private_bytes()
        # A process of its own, which the owner's program shares nothing with but the machine.
        spawn = multiprocessing.get_context("spawn")
        asked = spawn.Value("q", 0)
        door = running.directory / "server-0.sock"
        one = spawn.Process(target=misbehave, args=(door, running.secret, asked), daemon=True)
        one.start()
        try:
            assert eventually(lambda: asked.value > 2 * CONNECTIONS)
            together = work(100)
            grown, connections = child.private_bytes() - memory, running.status()[0]["connections"]
        finally:
            one.kill()
            one.join()
        print(
            f"alone {1e3 * alone:.1f} ms, beside {asked.value} requests of the other {1e3 * together:.1f} ms; "
            f"{grown // KIB} KiB, {connections} connections"
        )
        assert grown < MEMORY_BYTES_MAX
        assert connections < 2 * CONNECTIONS
        # What it had is given back with its connections.
        assert eventually(lambda: running.status()[0]["connections"] < 10)
    assert running.status()[0]["restarts"] == 0
    assert "panicked" not in running.log(0)
