"""One key, or one session, that misbehaves comes to the end of what it may have; everybody else goes on."""

import json
import os
import re
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import wire
from conftest import NewPool
from noise import host_key, host_key_of_line
from pool import MIB, Pool, binary, eventually, pattern

# What `ulimit` leaves to the server of a test, and what of it connections get.
DESCRIPTORS = 256
CONNECTIONS = DESCRIPTORS // 2
# Fewer than one session may have.
SESSION_CONNECTIONS = 32
# What a server holds for the connections of all hosts, beside their buffers.
HELD_BYTES = 64 * MIB


def with_few_descriptors(tmp_path: Path) -> str:
    """Return a program that is `ramlace` where only so many descriptors may be open."""
    program = tmp_path / "few"
    program.write_text(f'#!/bin/sh\nulimit -n {DESCRIPTORS}\nexec "{binary()}" "$@"\n')
    program.chmod(0o700)
    return str(program)


def as_host(pool: Pool) -> wire.Wire:
    """Connect with the host key and open a session of its own."""
    line = wire.Wire(pool.directory / "server-0.sock")
    line.greet(host_key(pool.secret))
    return line


# SEMANTICS 113.1
def test_a_host_that_takes_every_connection_keeps_the_owner_out_of_nothing(planned: NewPool, tmp_path: Path) -> None:
    running = planned(1, 32)
    running.up(program=with_few_descriptors(tmp_path))
    with ExitStack() as stack:
        taken, firsts = 0, list[wire.Wire]()
        for number in range(2 * CONNECTIONS):
            line = stack.enter_context(as_host(running))
            if number % SESSION_CONNECTIONS:
                line.session = firsts[-1].session
            # One too many is closed at once.
            with suppress(AssertionError, OSError):
                assert line.open_session(wire.SESSION_HOST).error == ""
                taken += 1
                if number % SESSION_CONNECTIONS == 0:
                    firsts.append(line)
            # On a busy machine this takes longer than a session lives that says nothing.
            for first in firsts:
                assert first.call(wire.HEARTBEAT, b"").error == ""
        # Of so few they have a half.
        assert CONNECTIONS // 4 < taken <= CONNECTIONS // 2
        for _ in range(3):
            assert running.status()[0]["connections"] <= CONNECTIONS
            with running.connect() as pool, pool.open("/x", "wb", buffering=0) as file:
                file.write(pattern(1, MIB))
        assert running.run("cat", "/x").stdout == pattern(1, MIB)
    assert eventually(lambda: running.status()[0]["connections"] < 5)
    assert (running.directory / "server-0.log").stat().st_size < 10_000


# SEMANTICS 113.5
def test_long_requests_of_one_host_cost_a_bounded_amount_and_another_host_goes_on(new_pool: NewPool) -> None:
    """A host that sends all of a request but its last byte, on as many connections as it likes, loses some of them."""
    running = new_pool(1, 64)
    child = running.process("child", 0)
    names = wire.numbers(20_000, *(1 for _ in range(20_000)))
    with ExitStack() as stack:
        other = stack.enter_context(wire.Wire(running.directory / "server-0.sock"))
        other.greet(host_key_of_line(running.run("host-key", "other").stdout.decode()))
        assert other.open_session(wire.SESSION_HOST).error == ""
        memory, first = child.private_bytes(), as_host(running)
        assert first.open_session(wire.SESSION_HOST).error == ""
        for number in range(HELD_BYTES // MIB + 40):
            line = stack.enter_context(as_host(running))
            if number % SESSION_CONNECTIONS == 0:
                first = line
            line.session = first.session
            assert line.open_session(wire.SESSION_HOST).error == ""
            head = wire.header(wire.GET_ATTRIBUTES_MANY, line.session, MIB)
            with suppress(OSError):
                line.send(head, bytes(MIB - 1))
            # A long request of another host, which is refused for what it says, comes through all the same.
            assert "too many" in other.call(wire.GET_ATTRIBUTES_MANY, names).error
        grown = child.private_bytes() - memory
        print(f"{grown // MIB} MiB are held")
        assert grown < HELD_BYTES * 3 // 2
        with running.connect() as pool, pool.open("/x", "wb", buffering=0) as file:
            file.write(pattern(1, MIB))
        assert running.status()[0]["connections"] < HELD_BYTES // MIB + 20
    assert eventually(lambda: running.status()[0]["connections"] < 5)
    assert running.status()[0]["restarts"] == 0


def test_connections_of_a_session_that_has_ended_are_closed(shared_pool: Pool) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(as_host(shared_pool)) for _ in range(10)]
        for line in lines:
            line.session = lines[0].session
            assert line.open_session(wire.SESSION_HOST).error == ""
        assert lines[0].call(wire.CLOSE_SESSION, b"").error == ""
        assert all(line.is_closed() for line in lines)


def test_a_request_of_a_future_epoch_asks_the_coordinator_once(new_pool: NewPool) -> None:
    running = new_pool(2, 32)
    with wire.Wire(running.directory / "server-1.sock") as line:
        line.greet(running.secret)
        assert line.open_session().error == ""
        before = running.status()[0]["requests"]
        inodes = [(slot << 48) + 1 for slot in range(1000)]
        line.call(wire.GET_ATTRIBUTES_MANY, wire.numbers(len(inodes), *inodes), epoch=1 << 20)
        # The map once, and this command's own requests.
        assert running.status()[0]["requests"] - before < 20


def test_a_servers_process_has_a_clean_environment_and_leaves_no_core(planned: NewPool) -> None:
    running = planned(1, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOMEBODYS_PASSWORD", "hunter2")
        running.up()
    for role in ("supervisor", "child"):
        about = Path(f"/proc/{running.process(role, 0).pid}")
        try:
            environment = about.joinpath("environ").read_bytes()
        except PermissionError:
            # Nobody but root looks into it.
            assert os.geteuid() != 0, role
        else:
            assert b"hunter2" not in environment
            assert b"PATH=" in environment
        limits = about.joinpath("limits").read_text()
        assert re.search(r"Max core file size +[01] +[01] ", limits), limits
    assert "NoNewPrivs:\t1" in about.joinpath("status").read_text()


def _said_of(pid: int, word: str) -> str:
    """What /proc says of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith(word))


# SEMANTICS 132
def test_servers_serve_in_a_sandbox(planned: NewPool) -> None:
    findings = {finding["name"]: finding for finding in json.loads(_doctor())["checks"]}
    for name in ("system calls of servers", "files of servers"):
        assert findings[name]["state"] in ("ok", "absent")
        assert "server" in findings[name]["found"]
    filtered = "2" if findings["system calls of servers"]["state"] == "ok" else "0"
    running = planned(2, 32)
    running.up()
    assert {_said_of(running.process("child", server).pid, "Seccomp:") for server in range(2)} == {filtered}
    with running.connect() as pool:
        # Lanes, names, the log and the secret's file are all reached.
        with pool.open("/file", "w+b") as file:
            file.write(bytes(range(256)) * 8192)
            file.seek(0)
            assert file.read() == bytes(range(256)) * 8192
        running.run("secret", "rotate")
        running.process("child", 1).send(signal.SIGKILL)
        assert eventually(lambda: running.status()[1]["restarts"] == 1)
        assert pool.stat("/file").st_size == 256 * 8192
    # Nothing that it lacks was said.
    assert all("sandbox" not in log.read_text() for log in running.directory.glob("*.log"))
    running.run("down")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMLACE_SANDBOX", "off")
        running.up()
    assert _said_of(running.process("child", 0).pid, "Seccomp:") == "0"


def _doctor() -> bytes:
    return subprocess.run([binary(), "doctor", "--json"], capture_output=True, check=False).stdout


def test_text_of_others_cannot_steer_the_terminal(shared_pool: Pool) -> None:
    """Names, errors and all else that a command prints passes one place that writes control characters out."""
    escape = "\x1b[31m"
    with shared_pool.connect() as pool:
        pool.mkdir(f"/{escape}red")
    try:
        for words in [("ls", "/"), ("find", "/"), ("stat", f"/{escape}red"), ("du", "/")]:
            done = shared_pool.run(*words)
            assert b"\x1b" not in done.stdout, words
            assert b"\x1b" not in done.stderr, words
            assert b"x1b[31mred" in done.stdout, words
        wrong: list[tuple[str, ...]] = [("ls", f"/{escape}none"), ("ls", f"ramlace://{escape}:1/")]
        for asked in [*wrong, ("status", "--pool", escape)]:
            assert "\x1b" not in shared_pool.refused(*asked), asked
    finally:
        with shared_pool.connect() as pool:
            pool.rmtree(f"/{escape}red")
