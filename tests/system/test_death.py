"""Servers and clients die; what was acknowledged stays, what is out of reach says so, the rest goes on."""

import errno
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import clients
import ramlace
import wire
from conftest import NewPool
from pool import FAILING_SECONDS_MAX, KIB, MIB, Pool, binary, eventually, frozen, pattern

UNIT = 64 * KIB


def error_of(operation: Callable[[], object]) -> ramlace.Error:
    """Return an operation's error without its frames: they would keep files open until long after."""
    try:
        operation()
    except ramlace.Error as error:
        return error.with_traceback(None)
    raise AssertionError("it did not fail")


def assert_fails_naming(server: int, operation: Callable[[], object]) -> None:
    """Check that an operation fails in time, with an error that names the server."""
    begun = time.monotonic()
    error = error_of(operation)
    took = time.monotonic() - begun
    print(f"failed after {took:.2f} s: {error}")
    assert f"server {server} " in str(error), error
    assert error.errno in (errno.EHOSTDOWN, errno.ETIMEDOUT), error
    assert took < FAILING_SECONDS_MAX, f"the error came after {took:.1f} s"


def make_files(pool: ramlace.Pool, running: Pool, count: int) -> dict[str, list[int]]:
    """Make files of width 1; return their servers."""
    made = {}
    for number in range(count):
        name = f"/file-{number}"
        with pool.open(name, "wb", buffering=0, width=1) as file:
            file.write(pattern(number, 200_000))
        made[name] = running.lane_servers(name)
    return made


# SEMANTICS 16.1
def test_killed_servers_come_back_with_every_acknowledged_byte_and_no_client_notices(new_pool: NewPool) -> None:
    running = new_pool(3, 64)
    with running.connect() as pool:
        with pool.open("/steady", "wb", buffering=0, stripe_unit=UNIT) as file:
            file.write(pattern(5, 2 * MIB))
        works = [
            (clients.keep_writing, running.name, True, "/near", 100_000),
            (clients.keep_writing, running.name, False, "/far", 100_000),
            (clients.keep_reading, running.name, False, "/steady", 5, 2 * MIB),
        ]
        with clients.running(*works) as started:
            running.restart_each(2, 0.05)
            for client in started:
                client.stop()
            near, far, reads = [client.result() for client in started]
        assert len(near) > 5
        assert len(far) > 5
        assert reads > 1
        for local in (True, False):
            with running.connect(local=local) as fresh:
                for paths in (near, far):
                    for number, path in enumerate(paths):
                        clients.check_file(fresh, path, number, 100_000)
        for directory, paths in (("/near", near), ("/far", far)):
            # One effect for each: no record of the journal is missing or doubled.
            journal = pool.open(f"{directory}/journal").read()
            expected = b"".join(number.to_bytes(8, "little") for number in range(len(paths)))
            assert journal == expected, directory
            names = {entry.name for entry in pool.ls(directory)}
            assert names == {"journal", *(str(number) for number in range(len(paths)))}


def test_all_servers_killed_at_once_come_back_with_everything(new_pool: NewPool) -> None:
    running = new_pool(3, 32)
    with running.connect() as pool:
        for number in range(20):
            pool.makedirs(f"/a/{number}/b")
            with pool.open(f"/a/{number}/b/file", "wb", buffering=0, stripe_unit=UNIT) as file:
                file.write(pattern(number, 3 * UNIT + number))
        children = [running.process("child", server) for server in range(3)]
        for child in children:
            child.send(signal.SIGKILL)
        for server in range(3):
            running.await_restart(server, 1)
        for number in range(20):
            assert pool.open(f"/a/{number}/b/file").read() == pattern(number, 3 * UNIT + number)
        values = pool.array("/after", (1000,), "float64")
        assert not values.view().any()


def test_an_array_is_still_mapped_when_its_server_comes_back(new_pool: NewPool) -> None:
    running = new_pool(2, 32)
    with running.connect() as pool, running.connect(local=False) as far:
        array = pool.array("/array", (UNIT * 4,), "uint8", stripe_unit=UNIT)
        view = array.view()
        view[:] = 7
        for server in range(2):
            running.kill_child(server)
        for server in range(2):
            running.await_restart(server, 1)
        view[5] = 8
        array.publish()
        content = far.open("/array").read()
        assert content[5] == 8
        assert set(content[:5] + content[6:]) == {7}


# SEMANTICS 17.1, 17.3
def test_a_server_that_died_for_good_is_named_and_the_rest_works(new_pool: NewPool) -> None:
    running = new_pool(3, 32)
    with running.connect() as pool:
        made = make_files(pool, running, 12)
        assert [1] in made.values()
        gone = next(name for name, servers in made.items() if servers == [1])
        with (
            running.connect(deadline_seconds=1) as hasty,
            pool.open(gone, "r+b", buffering=0) as opened,
            hasty.open(gone, "r+b", buffering=0) as hasty_opened,
        ):
            running.kill_server(1)
            assert_fails_naming(1, lambda: opened.pread_into(bytearray(100), 0))
            assert_fails_naming(1, lambda: hasty_opened.pread_into(bytearray(100_000), 0))
            assert_fails_naming(1, lambda: hasty_opened.pwrite(b"x" * 100_000, 0))
        for name, servers in made.items():
            if servers != [1]:
                assert pool.open(name).read() == pattern(int(name.split("-")[1]), 200_000)
        # New files find lanes on the servers that are left.
        for number in range(8):
            with pool.open(f"/new-{number}", "wb", buffering=0, stripe_unit=UNIT) as file:
                file.write(pattern(number, 5 * UNIT))
            assert 1 not in running.lane_servers(f"/new-{number}")
            assert pool.open(f"/new-{number}").read() == pattern(number, 5 * UNIT)
    with running.connect(deadline_seconds=1) as fresh:
        assert_fails_naming(1, lambda: fresh.open(gone).read())
    said = running.refused("cat", gone)
    assert "server 1 " in said, said
    states = [server["state"] for server in running.status()]
    assert states == ["up", "not answering", "up"]
    with running.connect(deadline_seconds=1) as fresh:
        assert fresh.statfs().silent_servers == 1


# SEMANTICS 17.1, 17.3
def test_a_frozen_server_is_named_and_goes_on_when_it_wakes(new_pool: NewPool) -> None:
    running = new_pool(3, 32)
    with running.connect() as pool:
        made = make_files(pool, running, 12)
        asleep = [name for name, servers in made.items() if servers == [2]]
        with pool.open(asleep[0], "r+b", buffering=0) as opened, frozen(running.process("child", 2)):
            assert_fails_naming(2, lambda: opened.pread_into(bytearray(200_000), 0))
            for name, servers in made.items():
                if servers != [2]:
                    assert pool.open(name).read() == pattern(int(name.split("-")[1]), 200_000)
        for name in made:
            assert pool.open(name).read() == pattern(int(name.split("-")[1]), 200_000)


# SEMANTICS 17.2
def test_a_long_transfer_takes_its_time_as_long_as_it_comes_on(new_pool: NewPool) -> None:
    """Its server is stopped again and again, each time after some of the bytes, until more than 5 seconds are over."""
    running = new_pool(1, 128)
    # A piece of 8 MiB comes with each step: that is progress.
    length, step, longer_seconds = 96 * MIB, 10 * MIB, 6.0
    with running.connect() as near, running.connect(local=False) as far:
        with near.open("/long", "wb", buffering=0) as file:
            file.write(b"x" * length)
        server = running.process("child", 0)
        with far.open("/long", buffering=0) as file, ThreadPoolExecutor(1) as reader:
            buffer, seen, begun = bytearray(length), 0, time.monotonic()
            with frozen(server):
                read = reader.submit(file.pread_into, buffer, 0)
                while not read.done() and time.monotonic() - begun < longer_seconds:
                    time.sleep(1.0)
                    server.send(signal.SIGCONT)
                    wanted = min(seen + step, length)
                    assert eventually(lambda wanted=wanted: buffer[wanted - 1] or read.done())  # type: ignore[misc]
                    server.send(signal.SIGSTOP)
                    seen = buffer.count(b"x")
            assert read.result() == length
            print(f"{length // MIB} MiB in {time.monotonic() - begun:.1f} s")
        assert buffer == b"x" * length


def test_the_death_of_the_coordinator_stops_only_its_own_bytes(new_pool: NewPool) -> None:
    running = new_pool(3, 32)
    with running.connect(deadline_seconds=1) as pool:
        opened = {}
        for number in range(16):
            name = f"/directory-{number}/file"
            pool.mkdir(f"/directory-{number}")
            file = pool.open(name, "w+b", buffering=0, width=1)
            file.write(pattern(number, 100_000))
            home = (pool.stat(name).st_ino >> 48) % 3
            if 0 in (home, *running.lane_servers(name)):
                file.close()
            else:
                opened[number] = file
        assert opened, "no file has both its home and its bytes beside server 0"
        running.kill_server(0)
        for number, file in opened.items():
            buffer = bytearray(100_000)
            assert file.pread_into(buffer, 0) == 100_000
            assert buffer == pattern(number, 100_000)
            # Beyond the end: the file's home grows it.
            assert file.pwrite(pattern(number, 1000), 100_000) == 1000
            assert file.size() == 101_000
            file.close()
        # The root lives on server 0.
        assert_fails_naming(0, lambda: pool.stat("/"))


# SEMANTICS 19.1
def test_a_client_killed_in_mid_write_disturbs_nobody(new_pool: NewPool) -> None:
    running = new_pool(2, 32)

    def another_writes(content: bytes) -> None:
        """It connects anew: a session that lasts has more connections after a while, for its signs of life."""
        with running.connect() as pool, pool.open("/shared", "r+b", buffering=0) as file:
            file.pwrite(content, 0)
            buffer = bytearray(len(content))
            assert file.pread_into(buffer, 0) == len(content)
        assert buffer == content

    def connections() -> int:
        return sum(server["connections"] for server in running.status())

    def are_no_more_than(before: int) -> bool:
        return connections() <= before

    with running.connect() as pool:
        pool.open("/shared", "wb", buffering=0, stripe_unit=UNIT).close()
    # From here on the servers are connected to each other.
    another_writes(pattern(49, 4 * MIB))
    for number in range(6):
        have_heard = partial(are_no_more_than, min(connections() for _ in range(3)))
        work = (clients.write_for_ever, running.name, number % 2 == 0, "/shared", 4 * MIB + 17)
        with clients.running(work) as (victim,):
            time.sleep(0.02 * number)
            victim.process.kill()
        assert eventually(have_heard), "the servers hear of its end"
        # Late bytes of the dead must not land on what another writes then.
        another_writes(pattern(number + 50, 4 * MIB))
    assert [server["restarts"] for server in running.status()] == [0, 0]


# SEMANTICS 18.1, 18.2
def test_what_a_forgotten_server_held_is_an_error_that_says_so_and_never_zeros(new_pool: NewPool) -> None:
    running = new_pool(3, 32)
    with running.connect() as pool, running.connect(local=False) as far:
        with pool.open("/stripe", "wb", buffering=0, stripe_unit=UNIT, width=3) as file:
            file.write(pattern(1, 6 * UNIT))
        with pool.open("/cut", "wb", buffering=0, stripe_unit=UNIT, width=3) as file:
            file.write(pattern(2, 6 * UNIT))
        with pool.open("/grown", "wb", buffering=0, stripe_unit=UNIT, width=3) as file:
            file.write(pattern(4, 6 * UNIT))
        lane = running.lane_servers("/stripe").index(1)
        first = running.lane_servers("/cut").index(1) * UNIT
        gone = running.lane_servers("/grown").index(1) * UNIT
        running.kill_server(1)
        with wire.Wire(running.addresses[0]) as line:
            line.greet(running.secret)
            assert line.open_session().error == ""
            assert line.call(wire.FORGET_SERVER, wire.numbers(1)).error == ""
        for client in (pool, far):
            with client.open("/stripe", "r+b", buffering=0) as file:
                for chunk in range(6):
                    buffer = bytearray(b"\xee" * UNIT)
                    if chunk % 3 != lane:
                        assert file.pread_into(buffer, chunk * UNIT) == UNIT
                        assert buffer == pattern(1, 6 * UNIT)[chunk * UNIT : (chunk + 1) * UNIT]
                        continue
                    for length in (1, UNIT):
                        with pytest.raises(ramlace.Error) as lost:
                            file.pread_into(bytearray(length), chunk * UNIT)
                        assert lost.value.errno == errno.EIO
                        assert lost.value.kind == "Lost"
                        assert "lost" in str(lost.value), lost.value
                    # Part of a lost chunk cannot be written: the rest of it would be zeros.
                    with pytest.raises(ramlace.Error) as refused:
                        file.pwrite(b"x" * 100, chunk * UNIT + 5)
                    assert refused.value.errno == errno.EIO
        assert "lost" in running.refused("cat", "/stripe")
        with pool.open("/stripe", "r+b", buffering=0) as file:
            for chunk in (lane, lane + 3):
                assert file.pwrite(pattern(40 + chunk, UNIT), chunk * UNIT) == UNIT
                assert file.pwrite(b"part", chunk * UNIT + 9) == 4
        whole = bytearray(pattern(1, 6 * UNIT))
        for chunk in (lane, lane + 3):
            whole[chunk * UNIT : (chunk + 1) * UNIT] = pattern(40 + chunk, UNIT)
            whole[chunk * UNIT + 9 : chunk * UNIT + 13] = b"part"
        assert far.open("/stripe").read() == whole
        # What is cut off is in nobody's way.
        far.truncate("/cut", first)
        assert pool.open("/cut").read() == pattern(2, 6 * UNIT)[:first]
        with pool.open("/cut", "ab", buffering=0) as file:
            assert file.write(pattern(3, 6 * UNIT - first)) == 6 * UNIT - first
        assert far.open("/cut").read() == pattern(2, 6 * UNIT)[:first] + pattern(3, 6 * UNIT - first)
        # Where it grows over what was cut off it has zeros as any file, and any part of that can be written.
        far.truncate("/grown", gone + 100)
        far.truncate("/grown", 6 * UNIT)
        with pool.open("/grown", "r+b", buffering=0) as file:
            with pytest.raises(ramlace.Error) as lost:
                file.pread_into(bytearray(100), gone)
            assert lost.value.errno == errno.EIO
            buffer = bytearray(b"\xee" * 4 * UNIT)
            assert file.pread_into(memoryview(buffer)[: 6 * UNIT - gone - UNIT], gone + UNIT) == 5 * UNIT - gone
            assert not any(buffer[: 5 * UNIT - gone])
            assert file.pwrite(b"part", gone + 3 * UNIT + 7) == 4
        far.truncate("/grown", gone)
        far.truncate("/grown", 6 * UNIT)
        assert pool.open("/grown").read() == pattern(4, 6 * UNIT)[:gone] + bytes(6 * UNIT - gone)
        # New files, names and arrays work, on the servers that are left.
        for number in range(12):
            with pool.open(f"/new-{number}", "wb", buffering=0, stripe_unit=UNIT) as file:
                file.write(pattern(number, 4 * UNIT))
            assert far.open(f"/new-{number}").read() == pattern(number, 4 * UNIT)
            assert 1 not in running.lane_servers(f"/new-{number}")
        assert not pool.array("/array", (UNIT * 4,), "uint8", stripe_unit=UNIT).view().any()
        pool.remove("/stripe")
        assert [server["state"] for server in running.status()] == ["up", "up"]


def test_a_supervisor_whose_program_was_replaced_still_restarts_its_child(planned: NewPool, runtime: Path) -> None:
    """An upgrade replaces the file of the program that runs."""
    program = runtime / "ramlace-old"
    shutil.copy(binary(), program)
    running = planned(1, 32)
    running.up(program=str(program))
    with running.connect() as pool:
        with pool.open("/x", "wb", buffering=0) as file:
            file.write(pattern(1, 100_000))
        program.unlink()
        running.kill_child(0)
        running.await_restart(0, 1)
        assert pool.open("/x").read() == pattern(1, 100_000)


def test_a_server_without_its_supervisor_serves_on(new_pool: NewPool) -> None:
    running = new_pool(2, 32)
    with running.connect() as pool:
        with pool.open("/x", "wb", buffering=0, stripe_unit=UNIT) as file:
            file.write(pattern(1, MIB))
        running.process("supervisor", 1).send(signal.SIGKILL)
        assert eventually(lambda: "supervisor is gone" in running.log(1))
        assert pool.open("/x").read() == pattern(1, MIB)
        with pool.open("/y", "wb", buffering=0, stripe_unit=UNIT) as file:
            file.write(pattern(2, MIB))
        assert pool.open("/y").read() == pattern(2, MIB)
