"""Small files live with their inode; what grows goes to its lanes, and nobody notices."""

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import clients
import ramlace
import wire
from conftest import NewPool
from pool import KIB, Pool, eventually, pattern

LONG = bool(os.environ.get("RAMLACE_TEST_LONG"))
SIZES = (0, 1, 4095, 4096, 4097, 64 * KIB)


# SEMANTICS 9.1
def test_small_files_cross_the_border_by_every_door(shared_pool: Pool, place: str, here: Path, there: Path) -> None:
    """What one door has written piece by piece, every other reads, whatever side of the border it ends on."""
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        for size in SIZES:
            expected = pattern(size, size)
            for piece in (100, 3000, 64 * KIB):
                names = {door: f"{door}-{size}-{piece}" for door in ("library", "mount", "command")}
                with near.open(f"{place}/{names['library']}", "wb", buffering=0) as file:
                    for at in range(0, size, piece):
                        file.write(expected[at : at + piece])
                with (here / names["mount"]).open("wb", buffering=0) as plain:
                    for at in range(0, size, piece):
                        plain.write(expected[at : at + piece])
                shutil.copy(here / names["mount"], here / names["command"])
                for door, name in names.items():
                    assert far.open(f"{place}/{name}").read() == expected, f"{door}, {size} in pieces of {piece}"
                    assert near.stat(f"{place}/{name}").st_size == size
                    assert (there / name).read_bytes() == expected, f"{door}, {size}, through a mount"


# SEMANTICS 9.1
def test_random_calls_on_both_sides_of_the_border_leave_what_a_bytearray_holds(shared_pool: Pool, place: str) -> None:
    """Writes, appends, truncations and reads of two clients that take turns."""
    rounds = 300 if LONG else 40
    chance = random.Random(4)
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        for number in range(rounds):
            path, model = f"{place}/{number}", bytearray()
            with near.open(path, "w+b", buffering=0) as one, far.open(path, "r+b", buffering=0) as other:
                for step in range(40):
                    file = chance.choice((one, other))
                    offset, length = chance.randrange(6000), chance.randrange(1, 2000)
                    kind = chance.random()
                    if kind < 0.4:
                        data = pattern(step, length)
                        assert file.pwrite(data, offset) == length
                        model.extend(bytes(max(0, offset + length - len(model))))
                        model[offset : offset + length] = data
                    elif kind < 0.6:
                        file.truncate(offset)
                        model[offset:] = bytes(max(0, offset - len(model)))
                    else:
                        buffer = bytearray(b"\xee" * length)
                        read = file.pread_into(buffer, offset)
                        assert buffer[:read] == model[offset : offset + length], f"file {number}, step {step}"
                assert near.open(path).read() == far.open(path).read() == model


# SEMANTICS 9.1
def test_appends_of_several_clients_cross_the_border_once_each(shared_pool: Pool, place: str) -> None:
    """Many short logs, each begun inline and ended in its lanes while four clients append."""
    with shared_pool.connect() as pool:
        for number in range(40 if LONG else 8):
            path = f"{place}/log{number}"
            pool.open(path, "wb", buffering=0).close()
            clients.run_all(
                *((clients.append_lines, shared_pool.name, writer % 2 == 0, path, writer, 30) for writer in range(4))
            )
            lines = pool.open(path).read().splitlines()
            for writer in range(4):
                mine = [line for line in lines if line.startswith(f"{writer} ".encode())]
                assert mine == [clients.line_of(writer, number) for number in range(30)]
            assert len(lines) == 4 * 30


# SEMANTICS 9.2
def test_servers_are_killed_while_files_go_to_their_lanes(new_pool: NewPool) -> None:
    """Every acknowledged byte is there, on whichever side of the border its file was."""
    running = new_pool(2, 64)
    works = [(clients.grow_files, running.name, nth % 2 == 0, f"/grow{nth}") for nth in range(3)]
    with clients.running(*works) as writing:
        for kill in range(1, 9 if LONG else 4):
            running.kill_child(kill % 2)
            running.await_restart(kill % 2, (kill + 1) // 2 if kill % 2 else kill // 2)
        for client in writing:
            client.stop()
        files = [client.result() for client in writing]
    with running.connect(local=False) as pool:
        for nth, sizes in enumerate(files):
            assert sizes, "no file was made between the kills"
            for number, size in enumerate(sizes):
                assert pool.open(f"/grow{nth}/{number}").read() == pattern(number, size)
            pool.rmtree(f"/grow{nth}")
        assert eventually(lambda: all(server["lanes"] == 0 for server in running.status())), "a lane was left behind"


# SEMANTICS 9.3
def test_small_bytes_are_lost_with_their_home_and_never_zeros(new_pool: NewPool) -> None:
    """A file whose home is gone is an error for every call."""
    running = new_pool(2, 32)
    with running.connect() as pool, running.connect(local=False) as far:
        for number in range(16):
            pool.mkdir(f"/{number}")
            with pool.open(f"/{number}/f", "wb", buffering=0) as file:
                file.write(b"small")
        opened = [far.open(f"/{number}/f", "r+b", buffering=0) for number in range(16)]
        running.kill_server(1)
        with wire.Wire(running.addresses[0]) as line:
            line.greet(running.secret)
            assert line.open_session().error == ""
            assert line.call(wire.FORGET_SERVER, wire.numbers(1)).error == ""
        lost = 0
        for number, file in enumerate(opened):
            buffer = bytearray(5)
            try:
                assert file.pread_into(buffer, 0) == 5
                assert buffer == b"small"
            except ramlace.Error as error:
                assert error.kind == "Lost", error
                lost += 1
                calls: list[Callable[[], object]] = [
                    partial(file.pwrite, b"x", 1),
                    partial(far.open, f"/{number}/f"),
                    partial(far.listdir, f"/{number}"),
                ]
                for call in calls:
                    with pytest.raises(ramlace.Error, match="was lost with the server"):
                        call()
        assert 0 < lost < 16
        # Nobody takes it for removed.
        assert "was lost with the server" in running.refused("find", "/")
        for file in opened:
            # What was lost cannot be closed well either.
            with contextlib.suppress(ramlace.Error):
                file.close()


def test_a_small_file_that_grows_after_a_server_was_lost_has_lost_nothing(new_pool: NewPool) -> None:
    """Its bytes were never in lanes there: what was never written is zeros, for files that are open, too."""
    running = new_pool(2, 64)
    end = 6 << 20
    with running.connect() as pool:
        held = []
        for number in range(6):
            held.append(pool.open(f"/{number}", "w+b", buffering=0, width=2, stripe_unit=1 << 20))
            held[-1].write(b"small")
        running.kill_server(1)
        with wire.Wire(running.addresses[0]) as line:
            line.greet(running.secret)
            assert line.open_session().error == ""
            assert line.call(wire.FORGET_SERVER, wire.numbers(1)).error == ""
        grow: list[Callable[[int], object]] = [
            lambda number: held[number].pwrite(b"end", end - 3),
            lambda number: pool.truncate(f"/{number}", end),
            lambda number: held[number].truncate(end),
        ]
        for number, file in enumerate(held):
            grow[number % 3](number)
            tail = b"end" if number % 3 == 0 else bytes(3)
            whole = b"small" + bytes(end - 8) + tail
            assert pool.read_bytes(f"/{number}") == whole
            buffer = bytearray(end)
            assert file.pread_into(buffer, 0) == end
            assert buffer == whole
            file.pwrite(b"middle", end // 2)
            file.close()


def test_a_small_file_costs_no_lane_and_few_requests(new_pool: NewPool) -> None:
    """Create, write and close, and open, read and close: one request for each."""
    running = new_pool(2, 32)
    with running.connect() as pool:
        pool.open("/warm", "wb", buffering=0).close()
        before = running.requests()
        for number in range(100):
            with pool.open(f"/f{number}", "wb", buffering=0) as file:
                file.write(pattern(number, 100))
        made = running.requests() - before
        before = running.requests()
        for number in range(100):
            with pool.open(f"/f{number}", "rb", buffering=0) as file:
                buffer = bytearray(100)
                assert file.pread_into(buffer, 0) == 100
                assert buffer == pattern(number, 100)
        read = running.requests() - before
        print(f"create, write 100 bytes, close: {made / 100} requests; open, read, close: {read / 100}")
        assert 300 <= made <= 304
        assert 300 <= read <= 304
        assert all(server["lanes"] == 0 for server in running.status())
