"""Barriers, cells and waits for changes, by the library."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import clients
import members
import ramlace
from conftest import NewPool
from mount import fails
from pool import FAILING_SECONDS_MAX, KIB, MIB, Pool, eventually, frozen

UNIT = 64 * KIB
# Longer than any test waits for what happens.
LONG = 60.0


def waiting(pool: Pool, what: str, count: int) -> None:
    """Wait until so many wait at the servers."""
    assert eventually(lambda: sum(server[what] for server in pool.status()) == count), pool.status()


def begin(work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    """Run a call in a thread of its own; the test waits for its result."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(work(*arguments))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def number_at(file: ramlace.RawFile, offset: int) -> int:
    """Read a cell as anybody may."""
    return int.from_bytes(bytes_at(file, offset, 8), "little")


def bytes_at(file: ramlace.RawFile, offset: int, length: int) -> bytes:
    """Read some bytes; fewer where the file ends."""
    buffer = bytearray(length)
    return bytes(buffer[: file.pread_into(buffer, offset)])


# Barriers


# SEMANTICS 79.1
def test_a_barrier_opens_when_all_have_come_round_after_round(shared_pool: Pool, place: str) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        pools = [stack.enter_context(shared_pool.connect(local=member % 2 == 0)) for member in range(8)]
        for number in range(1, 6):
            first = [threads.submit(pools[member].barrier, place, 8, member, LONG) for member in range(7)]
            waiting(shared_pool, "barrier_waits", 7)
            assert not any(one.done() for one in first), "one is missing"
            assert pools[7].barrier(place, 8, 7, timeout=0) == number, "the last one does not wait"
            assert [one.result(LONG) for one in first] == [number] * 7
        assert pools[0].barrier(b"\xff\x00/" + place.encode(), 1, 0) == 1, "a name is bytes"
        # Several members of one process.
        both = [threads.submit(pools[0].barrier, place + "2", 2, member, LONG) for member in range(2)]
        assert [one.result(LONG) for one in both] == [1, 1]


# SEMANTICS 79.3
def test_a_round_of_eight_costs_two_exchanges_each(new_pool: NewPool) -> None:
    """The arrival, and the request whose answer is the event; heartbeats and this test's own requests come on top."""
    rounds, parties = 100, 8
    running = new_pool(1)
    with ExitStack() as stack, ThreadPoolExecutor(parties) as threads:
        pools = [stack.enter_context(running.connect()) for _ in range(parties)]

        def meet(member: int, count: int) -> None:
            for _ in range(count):
                pools[member].barrier("eight", parties, member, LONG)

        def all_meet(count: int) -> None:
            for one in [threads.submit(meet, member, count) for member in range(parties)]:
                one.result(LONG)

        all_meet(2)
        tasks = len(list(Path(f"/proc/{running.process('child', 0).pid}/task").iterdir()))
        before = running.requests()
        all_meet(rounds)
        assert running.requests() - before <= 2 * parties * rounds, "two requests for each member and round"
        waits = [threads.submit(pools[member].barrier, "more", parties, member, LONG) for member in range(parties - 1)]
        waiting(running, "barrier_waits", parties - 1)
        assert len(list(Path(f"/proc/{running.process('child', 0).pid}/task").iterdir())) == tasks, "no thread waits"
        pools[-1].barrier("more", parties, parties - 1)
        assert {one.result(LONG) for one in waits} == {1}


# SEMANTICS 80.1, 80.3
def test_a_timeout_names_who_is_missing_and_takes_the_caller_out(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as one, shared_pool.connect() as two, ThreadPoolExecutor(1) as threads:
        other = threads.submit(two.barrier, place, 2, 1, LONG)
        assert one.barrier(place, 2, 0, LONG) == 1
        assert other.result() == 1
        error = fails(errno.ETIMEDOUT, lambda: one.barrier(place, 3, 0, timeout=0.05))
        assert isinstance(error, TimeoutError)
        assert place in str(error)
        assert "2 of 3 members have not come" in str(error)
        assert f"member 1 (last seen at {os.uname().nodename[:64]}:{os.getpid()})" in str(error)
        assert "member 2 (never came)" in str(error)
        assert "member 0" not in str(error)
        # It is out: with one more the round is not complete, and it counts once when it comes again.
        error = fails(errno.ETIMEDOUT, lambda: two.barrier(place, 2, 1, timeout=0))
        assert "member 0 (last seen" in str(error)
        other = threads.submit(two.barrier, place, 2, 1, LONG)
        assert one.barrier(place, 2, 0, LONG) == 2
        assert other.result() == 2
        error = fails(errno.ETIMEDOUT, lambda: one.barrier(place, 4096, 7, timeout=0))
        assert "4095 of 4096 members" in str(error)
        assert str(error).count("member ") == 64
        assert "and 4031 more" in str(error)


# SEMANTICS 80.2
def test_callers_that_disagree_are_told_what_others_said(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as one, shared_pool.connect() as two:
        wait = begin(one.barrier, place, 3, 0, LONG)
        waiting(shared_pool, "barrier_waits", 1)
        error = fails(errno.EINVAL, lambda: two.barrier(place, 4, 1))
        assert "3 parties, not for 4" in str(error)
        error = fails(errno.EEXIST, lambda: two.barrier(place, 3, 0))
        assert f"process {os.getpid()}" in str(error)
        fails(errno.EEXIST, lambda: one.barrier(place, 3, 0))
        for name, parties, member in (("", 1, 0), ("x" * 256, 1, 0), ("x", 0, 0), ("x", 4097, 0), ("x", 2, 2)):
            with pytest.raises(ramlace.Error) as refused:
                two.barrier(name, parties, member)
            assert refused.value.errno == errno.EINVAL, (name, parties, member)
        # None of this has changed anything.
        others = [begin(two.barrier, place, 3, member, LONG) for member in (1, 2)]
        assert {one.result(LONG) for one in [wait, *others]} == {1}


# SEMANTICS 81.1
def test_a_storm_of_barriers_survives_killed_servers(new_pool: NewPool) -> None:
    running = new_pool(2)
    parties, rounds = 4, 150
    with running.connect() as pool:
        with pool.open("/came", "wb", buffering=0) as file:
            file.truncate(8)
        works = [
            (members.meet, running.name, member != 3, "storm", parties, member, "/came", rounds)
            for member in range(parties)
        ]
        with clients.running(*works) as started:
            running.restart_each(2, 0.05)
            for client in started:
                client.result()
        with pool.open("/came", "rb", buffering=0) as file:
            assert number_at(file, 0) == parties * rounds


# SEMANTICS 81.1
def test_who_waits_at_a_barrier_survives_the_death_of_its_server(new_pool: NewPool) -> None:
    running = new_pool(1)
    with running.connect() as one, running.connect() as two:
        wait = begin(one.barrier, "long", 2, 0, LONG)
        waiting(running, "barrier_waits", 1)
        for restart in (1, 2):
            running.kill_child(0)
            running.await_restart(0, restart)
            waiting(running, "barrier_waits", 1)
        assert not wait.done()
        assert two.barrier("long", 2, 1, LONG) == 1
        assert wait.result(LONG) == 1


# SEMANTICS 81.2
def test_a_killed_member_is_taken_out_when_its_session_has_ended(new_pool: NewPool) -> None:
    running = new_pool(1)
    with running.connect() as pool:
        fails(errno.ETIMEDOUT, lambda: pool.barrier("three", 3, 0, timeout=0))
        with clients.running((members.wait_at, running.name, "three", 3, 1)) as [client]:
            waiting(running, "barrier_waits", 1)
            pid = client.process.pid
            client.end()
            waiting(running, "barrier_waits", 0)
        error = fails(errno.ETIMEDOUT, lambda: pool.barrier("three", 3, 0, timeout=0))
        assert "2 of 3 members" in str(error)
        assert f":{pid}, whose session has ended)" in str(error)


# Cells


def cell_files(pool: ramlace.Pool, place: str) -> list[ramlace.RawFile]:
    """Make a file whose bytes live with its inode, one in one lane, and one in three."""
    files = []
    for name, size, width in (("small", 64, 1), ("one", 3 * UNIT, 1), ("three", 6 * UNIT, 3)):
        file = pool.open(f"{place}/{name}", "w+b", buffering=0, stripe_unit=UNIT, width=width)
        assert isinstance(file, ramlace.RawFile)
        file.write(bytes(size))
        files.append(file)
    return files


# SEMANTICS 82.1
@pytest.mark.parametrize("local", [True, False])
def test_a_cell_is_changed_only_when_it_holds_what_is_expected(shared_pool: Pool, place: str, local: bool) -> None:
    with shared_pool.connect(local=local) as pool:
        for file in cell_files(pool, place):
            with file:
                last = file.size() - 8
                for offset in (0, 8, last):
                    assert file.fetch_add(offset, 5) == 0
                    assert file.fetch_add(offset) == 5
                    assert file.compare_swap(offset, 5, 100) == 6
                    assert number_at(file, offset) == 6
                    assert file.compare_swap(offset, 6, 100) == 6
                    assert number_at(file, offset) == 100
                    assert file.fetch_add(offset, -101) == 100
                    assert file.fetch_add(offset, 0, signed=True) == -1
                    assert file.compare_swap(offset, -1, 1 << 63) == (1 << 64) - 1
                    assert file.fetch_add(offset, 1 << 63) == 1 << 63
                    assert number_at(file, offset) == 0, "modulo 2^64"
                size = file.size()
                with pytest.raises(ValueError, match="64 bits"):
                    file.fetch_add(0, 1 << 64)
                assert file.size() == size


# SEMANTICS 84.1
def test_a_cell_lies_within_its_file(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool, shared_pool.connect() as other:
        for file in cell_files(pool, place):
            with file:
                size = file.size()
                for offset in (size, size - 4, size + (1 << 40), 4, (1 << 62) - 8):
                    error = fails(errno.EINVAL, file.fetch_add, offset)
                    assert "cell" in str(error)
                assert file.size() == size, "a refusal makes nothing longer"
                # Somebody else makes it shorter, and longer: what is known of its size is looked up.
                other.truncate(file.name, 8)
                fails(errno.EINVAL, file.fetch_add, 8)
                other.truncate(file.name, 16)
                assert file.fetch_add(8, 3) == 0
                with pool.open(file.name, "rb", buffering=0) as reader:
                    fails(errno.EBADF, reader.fetch_add, 0)
                with pool.open(file.name, "r+b", buffering=0) as again:
                    assert again.fetch_add(8, 1) == 3
        # Behind the bytes of a small file are zeros, some too far away to live with its inode.
        with pool.open(f"{place}/sparse", "w+b", buffering=0) as file:
            file.truncate(1 << 20)
            assert file.fetch_add(80, 7) == 0
            assert file.fetch_add(1 << 19, 9) == 0
            assert (number_at(file, 80), number_at(file, 1 << 19)) == (7, 9)


# SEMANTICS 82.2
def test_fetch_adds_of_all_clients_count_once_each_while_servers_are_killed(new_pool: NewPool) -> None:
    running = new_pool(3)
    with running.connect() as pool:
        files = cell_files(pool, "")
        paths = [files[0].name, files[1].name, files[2].name, files[2].name]
        offsets = [8, UNIT, 0, 4 * UNIT + 16]
        works = [(members.count_up, running.name, nth % 2 == 0, paths, offsets, 3 + nth) for nth in range(4)]
        with clients.running(*works) as started:
            running.restart_each(2, 0.1)
            for client in started:
                client.stop()
            counts = [client.result() for client in started]
        assert all(counts)
        expected = sum(count * (3 + nth) for nth, count in enumerate(counts))
        for path, offset in zip(paths, offsets, strict=True):
            with pool.open(path, "rb", buffering=0) as file:
                assert number_at(file, offset) == expected, f"{path} at {offset}: {counts}"
        for file in files:
            file.close()


# SEMANTICS 83.1, 83.2
def test_cells_reads_writes_and_views_are_one_memory(shared_pool: Pool, place: str) -> None:
    """One after the other; stores into a view beside changes of the same cell are no part of what is promised."""
    with shared_pool.connect() as pool, shared_pool.connect(local=False) as far:
        array = pool.array(f"{place}/array", (3 * UNIT // 8,), "<u8", stripe_unit=UNIT)
        view = array.view()
        with far.open(f"{place}/array", "r+b", buffering=0) as file:
            for index in (0, 1, UNIT // 8, 3 * UNIT // 8 - 1):
                view[index] = 41
                assert file.fetch_add(8 * index) == 41
                assert view[index] == 42, "a view sees what was changed"
                assert file.pwrite((7).to_bytes(8, "little"), 8 * index) == 8
                assert file.fetch_add(8 * index) == 7
                assert number_at(file, 8 * index) == 8
                assert file.compare_swap(8 * index, 8, 9) == 8
                assert view[index] == 9


# SEMANTICS 84.2
def test_a_cell_on_a_lost_chunk_is_an_error(new_pool: NewPool) -> None:
    running = new_pool(3)
    with running.connect() as pool, pool.open("/three", "w+b", buffering=0, stripe_unit=UNIT, width=3) as file:
        file.write(bytes(3 * UNIT))
        # The root directory's files live with server 0: the bytes alone are lost.
        lost = running.lane_servers("/three").index(1)
        running.kill_server(1)
        running.run("forget", "1")
        error = fails(errno.EIO, lambda: file.fetch_add(lost * UNIT))
        assert "lost" in str(error)
        for lane in {0, 1, 2} - {lost}:
            assert file.fetch_add(lane * UNIT) == 0


# Waiting for changes


def changes(file: ramlace.RawFile, version: Any, act: Callable[[], Any], running: Pool, places: int = 1) -> Any:
    """Wait for a change in another thread, act when it waits at so many places, and return the next version."""
    wait = begin(file.wait_for_change, version, LONG)
    waiting(running, "change_waits", places)
    act()
    return wait.result(LONG)


def is_same(file: ramlace.RawFile, version: Any) -> None:
    """Nothing has changed."""
    with pytest.raises(TimeoutError, match="nothing has changed"):
        file.wait_for_change(version, 0)


# SEMANTICS 85.1
@pytest.mark.parametrize("local", [True, False])
def test_a_change_of_a_range_is_told_and_one_beside_it_is_not(shared_pool: Pool, place: str, local: bool) -> None:
    with shared_pool.connect(local=local) as pool, shared_pool.connect() as other:
        for file in cell_files(pool, place):
            with file, other.open(file.name, "r+b", buffering=0) as theirs:
                size = file.size()
                version = file.change_version(16, 8)
                is_same(file, version)
                theirs.pwrite(b"x", 15)
                theirs.pwrite(b"x", 24)
                theirs.pwrite(b"x", size - 1)
                is_same(file, version)
                # The bytes have changed before it waits.
                theirs.pwrite(b"y", 23)
                version = file.wait_for_change(version, 0)
                is_same(file, version)
                # They change while it waits, by whatever changes bytes.
                acts: list[Callable[[], Any]] = [
                    partial(theirs.pwrite, b"z", 16),
                    partial(theirs.fetch_add, 16),
                    partial(file.pwrite, b"own", 17),
                ]
                for act in acts:
                    version = changes(file, version, act, shared_pool)
                    is_same(file, version)
                changes(file, version, partial(theirs.truncate, 20), shared_pool)
                waiting(shared_pool, "change_waits", 0)


# SEMANTICS 85.2
def test_what_is_written_behind_the_end_is_told_when_it_can_be_read(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool, shared_pool.connect() as other:
        for file in cell_files(pool, place):
            with file, other.open(file.name, "ab", buffering=0) as writer:
                size = file.size()
                version = file.change_version(size, 100)
                is_same(file, version)
                for number in range(20):
                    record = bytes([number + 1]) * 5
                    wait = begin(file.wait_for_change, version, LONG)
                    writer.write(record)
                    version = wait.result(LONG)
                    # A client that is notified of the bytes before the file is longer is notified of that, too.
                    while not (read := bytes_at(file, size + 5 * number, 5)):
                        version = file.wait_for_change(version, LONG)
                    assert read == record


# SEMANTICS 85.1
def test_a_file_that_goes_to_its_lanes_is_watched_there(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool, shared_pool.connect() as other:
        with pool.open(f"{place}/small", "w+b", buffering=0, stripe_unit=UNIT) as file:
            file.write(b"small")
            with other.open(f"{place}/small", "r+b", buffering=0) as theirs:
                version = file.change_version(0, 5)
                theirs.pwrite(b"x" * 10_000, 5000)
                version = file.wait_for_change(version, LONG)
                is_same(file, version)
                changes(file, version, lambda: theirs.pwrite(b"S", 0), shared_pool, places=2)
                # One that believes that the file is small asks in the right place.
        with pool.open(f"{place}/late", "w+b", buffering=0, stripe_unit=UNIT) as file:
            file.write(b"small")
            with other.open(f"{place}/late", "r+b", buffering=0) as theirs:
                theirs.pwrite(b"x" * 10_000, 5000)
                version = file.change_version(0, 5)
                changes(file, version, lambda: theirs.pwrite(b"S", 0), shared_pool, places=2)


# SEMANTICS 85.1
def test_all_of_a_striped_file_is_watched_at_once(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool, shared_pool.connect() as other:
        file = cell_files(pool, place)[2]
        with file, other.open(file.name, "r+b", buffering=0) as theirs:
            version = file.change_version()
            for chunk in range(6):
                write = partial(theirs.pwrite, b"x", chunk * UNIT + 7)
                version = changes(file, version, write, shared_pool, places=4)
                is_same(file, version)
            waiting(shared_pool, "change_waits", 0)


# SEMANTICS 87
def test_a_publish_of_a_view_is_told(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool, shared_pool.connect(local=False) as far:
        array = pool.array(f"{place}/array", (3 * UNIT,), "uint8", stripe_unit=UNIT)
        view = array.view()
        copy = far.array(f"{place}/array", (3 * UNIT,), "uint8")
        theirs = copy.view()
        version = copy.change_version()
        view[2 * UNIT] = 7
        with pytest.raises(TimeoutError):
            copy.wait_for_change(version, 0)
        wait = begin(copy.wait_for_change, version, LONG)
        waiting(shared_pool, "change_waits", 3)
        array.publish()
        version = wait.result(LONG)
        copy.refresh()
        assert theirs[2 * UNIT] == 7
        # And the other way.
        before = array.change_version()
        theirs[UNIT] = 9
        copy.publish()
        array.wait_for_change(before, LONG)
        assert view[UNIT] == 9


# SEMANTICS 85.1
def test_no_change_is_missed_while_servers_are_killed(new_pool: NewPool) -> None:
    running = new_pool(2)
    last = 600
    with running.connect() as pool, running.connect(local=False) as far:
        for name, size in (("/small", 8), ("/large", 5000)):
            with pool.open(name, "w+b", buffering=0, width=1) as file:
                file.write(bytes(size))
        for number, name in enumerate(("/small", "/large")):
            with clients.running((members.count_slowly, running.name, True, name, last)) as [writer]:
                killer = begin(_kill_each, running, number)
                with far.open(name, "rb", buffering=0) as file:
                    seen = 0
                    while seen < last:
                        version = file.change_version(0, 8)
                        now = number_at(file, 0)
                        assert now >= seen
                        seen = now
                        if seen < last:
                            file.wait_for_change(version, LONG)
                writer.result()
                killer.result()


def _kill_each(running: Pool, before: int) -> None:
    for server in range(2):
        running.kill_child(server)
        running.await_restart(server, before + 1)


# SEMANTICS 86
def test_who_waits_for_a_change_hears_of_it_after_its_server_was_killed(new_pool: NewPool) -> None:
    running = new_pool(1)
    with ExitStack() as stack:
        pool, other = stack.enter_context(running.connect()), stack.enter_context(running.connect())
        file = stack.enter_context(pool.open("/file", "w+b", buffering=0))
        theirs = stack.enter_context(other.open("/file", "r+b", buffering=0))
        file.write(bytes(5000))
        version = file.change_version(0, 8)
        wait = begin(file.wait_for_change, version, LONG)
        waiting(running, "change_waits", 1)
        running.kill_child(0)
        running.await_restart(0, 1)
        # What happened meanwhile nobody knows: the waiter is told to look.
        version = wait.result(LONG)
        wait = begin(file.wait_for_change, version, LONG)
        waiting(running, "change_waits", 1)
        theirs.pwrite(b"x", 0)
        wait.result(LONG)


# SEMANTICS 85.1
def test_versions_of_the_same_moment_are_equal(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "w+b", buffering=0) as file:
        file.write(bytes(10 * MIB))
        version = file.change_version()
        assert version == file.change_version()
        file.pwrite(b"x", 0)
        assert version != file.change_version()


# Waiting


# SEMANTICS 88.1
def test_waits_end_in_time_while_a_server_is_frozen(new_pool: NewPool) -> None:
    running = new_pool(1)
    # Also on a busy machine a server that runs answers in this time.
    with running.connect(deadline_seconds=4) as pool, pool.open("/file", "w+b", buffering=0) as file:
        file.write(bytes(5000))
        fails(errno.ETIMEDOUT, lambda: pool.barrier("b", 2, 0, timeout=0))
        version = file.change_version(0, 8)
        with frozen(running.process("child", 0)):
            for call in (
                lambda: pool.barrier("b", 2, 0, timeout=0.1),
                lambda: file.wait_for_change(version, 0.1),
                lambda: file.fetch_add(0),
            ):
                began = time.monotonic()
                with pytest.raises(ramlace.Error) as error:
                    call()
                assert error.value.errno in (errno.ETIMEDOUT, errno.EHOSTDOWN)
                assert time.monotonic() - began < FAILING_SECONDS_MAX
        # Begun before it froze.
        waits = [begin(pool.barrier, "c", 2, 0, 3), begin(file.wait_for_change, file.change_version(0, 8), 3)]
        waiting(running, "barrier_waits", 1)
        waiting(running, "change_waits", 1)
        with frozen(running.process("child", 0)):
            for wait in waits:
                assert isinstance(wait.exception(3 + FAILING_SECONDS_MAX), TimeoutError)
        # Nothing is left of them, and what was not certain counts once.
        waiting(running, "barrier_waits", 0)
        assert file.fetch_add(0) in (0, 1)
        wait = begin(pool.barrier, "b", 2, 0, LONG)
        waiting(running, "barrier_waits", 1)
        assert pool.barrier("b", 2, 1, LONG) == wait.result(LONG)


# SEMANTICS 88.2
@pytest.mark.parametrize("call", ["pool.barrier('ctrl-c', 2, 0)", "file.wait_for_change(file.change_version())"])
def test_a_signal_ends_a_wait(shared_pool: Pool, place: str, call: str) -> None:
    program = f"""
import ramlace
pool = ramlace.connect({shared_pool.name!r})
file = pool.open({place + "/file"!r}, "w+b", buffering=0)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            what = "barrier_waits" if "barrier" in call else "change_waits"
            waiting(shared_pool, what, 1)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=LONG)
            assert out == "interrupted\n"
        finally:
            process.kill()
    waiting(shared_pool, what, 0)
