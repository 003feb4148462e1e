"""Locks of programs: two mounts of a pool, as on two machines, and programs that lock files on both."""

import errno
import fcntl
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import h5py
import pytest

from conftest import NewPool
from litmus import LONG
from mount import Mount, NewMount, Program, fails
from pool import Pool, eventually, frozen

# The numbers of fcntl and flock on x86-64 and on arm64.
CALLS = ("72", "73", "25", "32")

START = """
import fcntl, struct
def posix(fd, kind, start=0, length=0, wait=False, ofd=False):
    number = {(0, 0): fcntl.F_SETLK, (0, 1): fcntl.F_SETLKW, (1, 0): 37, (1, 1): 38}[(ofd, wait)]
    fcntl.fcntl(fd, number, struct.pack('hhqqi4x', kind, 0, start, length, 0))
def who(fd, kind, start=0, length=0):
    found = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack('hhqqi4x', kind, 0, start, length, 0))
    kind, _, start, length, pid = struct.unpack('hhqqi4x', found)
    return None if kind == fcntl.F_UNLCK else (kind, start, length, pid)
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
EX, SH, NB, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN
"""


class Locker(Program):
    """A program with a file open, whose descriptor it calls `f`."""

    def __init__(self, path: Path) -> None:
        super().__init__(START)
        self.path = path
        self.run(f"f = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT)")

    def takes(self, call: str) -> bool:
        """Return whether a lock is granted at once."""
        try:
            self.run(call)
        except OSError as error:
            assert error.errno == errno.EAGAIN, error
            return False
        return True

    def waits(self) -> bool:
        """Return whether what was begun is still under way: its thread sleeps in a call that takes locks."""
        words = Path(f"/proc/{self.pid}/syscall").read_text().split()
        return words[0] in CALLS

    def begin_waiting(self, call: str) -> None:
        """Begin to wait for a lock, and return when the call waits."""
        self.begin(call)
        assert eventually(self.waits)


def refused_one(cycle: list[Locker]) -> Locker:
    """Return the one of a cycle that is refused: not always the last, where an earlier one's request is late."""
    refused = eventually(lambda: [program for program in cycle if program.has_answered()])
    assert len(refused) == 1, "one of the cycle is refused"
    fails(errno.EDEADLK, refused[0].hear)
    return refused[0]


def queued(pool: Pool, count: int) -> None:
    """Wait until so many requests wait for locks at the servers: a program may be on its way there."""
    assert eventually(lambda: sum(server["lock_waits"] for server in pool.status()) == count)


@pytest.fixture
def lockers(here: Path, there: Path) -> Iterator[list[Locker]]:
    """Four programs on one file, two of them on each mount."""
    with ExitStack() as stack:
        yield [stack.enter_context(Locker(mount / "file")) for mount in (here, there, here, there)]


# SEMANTICS 65.1
def test_posix_locks_hold_across_mounts(lockers: list[Locker]) -> None:
    """Many read or one writes, byte by byte; a process never stands in its own way."""
    a, b, c, d = lockers
    assert a.takes("posix(f, W, 0, 10)")
    assert a.takes("posix(f, W, 5, 10)"), "one's own lock is in nobody's way but others'"
    for other in (b, c, d):
        assert not other.takes("posix(f, R, 14, 1)")
        assert other.takes("posix(f, W, 15, 1)")
        other.run("posix(f, U, 15, 1)")
    a.run("posix(f, U, 3, 4)")
    assert b.takes("posix(f, W, 3, 4)"), "a hole in the middle"
    assert not b.takes("posix(f, W, 2, 1)")
    assert not b.takes("posix(f, W, 7, 1)")
    a.run("posix(f, R, 0, 3)")
    assert b.takes("posix(f, R, 0, 3)"), "the writer has become a reader"
    assert not a.takes("posix(f, W, 0, 3)"), "and cannot write again while another reads"
    b.run("posix(f, U)")
    assert a.takes("posix(f, W, 0, 3)")
    assert not d.takes("posix(f, R)")
    a.run("posix(f, U)")
    assert d.takes("posix(f, W)")


def test_a_mount_listens_to_each_server_by_one_thread_and_one_connection(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Recalls, events and signs of life: they had two threads and three connections."""
    pool = new_pool(2, 256)
    before = [server["connections"] for server in pool.status()]
    mount = new_mount(pool)
    for number in range(8):
        (mount / f"directory {number}").mkdir()
        (mount / f"directory {number}").stat()

    def heard() -> int:
        return pool.requests("Listen") - pool.requests()

    with Locker(mount / "file") as holder, Locker(mount / "file") as waiter:
        holder.run("posix(f, W)")
        waiter.begin_waiting("posix(f, W, wait=True)")
        queued(pool, 1)
        # Longer than any pause between two signs of life.
        told = heard()
        assert eventually(lambda: heard() >= told + 3 * pool.servers)
        tasks = Path(f"/proc/{mount.daemon.pid}/task").iterdir()
        threads = Counter((task / "comm").read_text().strip() for task in tasks)
        # Calls that overlap have one more connection at times.
        more = [now["connections"] - was for now, was in zip(pool.status(), before, strict=True)]
        holder.run("posix(f, U)")
        waiter.hear()
    assert threads["ramlace-listens"] == pool.servers, threads
    assert threads["ramlace-heart"] == 1, threads
    assert max(more) <= 3, "one that listens, and those for calls"


# SEMANTICS 65.3
def test_locks_of_the_library_are_those_of_the_mount(shared_pool: Pool, place: str, lockers: list[Locker]) -> None:
    """A lock of an open file, against programs on mounts and against other open files of the same process."""
    a, _, _, _ = lockers
    with shared_pool.connect() as pool, pool.open(f"{place}/file", "r+b", buffering=0) as file:
        with pool.open(f"{place}/file", "r+b", buffering=0) as second, file.lock(10, 5):
            assert not a.takes("posix(f, R, 14, 1)")
            assert a.takes("posix(f, W, 15, 1)")
            assert second.lock(12, 1, exclusive=False, timeout=0) is None
            error = fails(errno.ETIMEDOUT, lambda: second.lock(12, 1, timeout=0.05))
            assert "locked" in str(error)
        assert a.takes("posix(f, W, 10, 5)"), "unlocked at the end of the block"
        with file.lock(0, 10, exclusive=False):
            assert a.takes("posix(f, R, 0, 10)")
            assert not a.takes("posix(f, W, 0, 10)")
            a.run("posix(f, U, 0, 10)")
            a.begin_waiting("posix(f, W, 0, 10, wait=True)")
        a.hear()
        a.run("posix(f, U)")
        assert file.lock() is not None
        assert not a.takes("posix(f, R)")
        with pool.open(f"{place}/file", "rb", buffering=0) as reader:
            fails(errno.EBADF, reader.lock)
    assert a.takes("posix(f, W)"), "a closed file has no locks"


# SEMANTICS 72
def test_getlk_tells_the_lock_and_its_process_on_the_same_mount(lockers: list[Locker]) -> None:
    a, b, c, _ = lockers
    a.run("posix(f, W, 100, 50)")
    assert a.ask("who(f, W)") is None
    assert c.ask("who(f, R, 120, 1)") == (fcntl.F_WRLCK, 100, 50, a.pid)
    assert b.ask("who(f, R, 120, 1)") == (fcntl.F_WRLCK, 100, 50, 0), "a number of another machine means nothing"
    a.run("posix(f, R, 200, 0)")
    assert b.ask("who(f, W, 300, 1)") == (fcntl.F_RDLCK, 200, 0, 0)
    assert b.ask("who(f, R, 300, 1)") is None


# SEMANTICS 65.2
def test_posix_ofd_and_flock_are_three_kinds(lockers: list[Locker]) -> None:
    """flock knows nothing of fcntl; an OFD lock belongs to its open file and stands in the way of POSIX locks."""
    a, b, _, _ = lockers
    assert a.takes("posix(f, W)")
    assert b.takes("fcntl.flock(f, EX | NB)"), "flock and fcntl know nothing of each other"
    assert not a.takes("fcntl.flock(f, SH | NB)")
    b.run("fcntl.flock(f, UN)")
    a.run("posix(f, U)")
    a.run("g = os.open(f'/proc/self/fd/{f}', os.O_RDWR); h = os.dup(f)")
    assert a.takes("posix(f, W, ofd=True)")
    assert not a.takes("posix(g, W, ofd=True)"), "another open file, also in the same process"
    assert a.takes("posix(h, W, ofd=True)"), "the same open file"
    assert not a.takes("posix(f, W)"), "the process's own lock is another's"
    assert not b.takes("posix(f, R)")
    a.run("os.close(g)")
    assert not b.takes("posix(f, R)"), "its other open file is closed, this one is not"
    a.run("os.close(f)")
    assert not b.takes("posix(f, R)"), "a copy of the descriptor is open"
    a.run("os.close(h)")
    assert eventually(lambda: b.takes("posix(f, R)"))


# SEMANTICS 67.1
def test_flock_goes_with_the_open_file_and_posix_locks_with_any_close(lockers: list[Locker]) -> None:
    a, b, _, _ = lockers
    a.run("g = os.open(f'/proc/self/fd/{f}', os.O_RDWR)")
    assert a.takes("fcntl.flock(f, EX | NB)")
    assert a.takes("posix(f, W)")
    a.run("os.close(g)")
    assert not b.takes("fcntl.flock(f, SH | NB)")
    assert b.takes("posix(f, W)"), "POSIX: any close of the file gives the process's locks up"
    a.run("os.close(f)")
    assert eventually(lambda: b.takes("fcntl.flock(f, SH | NB)"))


# SEMANTICS 73
def test_a_flock_is_changed_from_shared_to_exclusive_and_back(shared_pool: Pool, lockers: list[Locker]) -> None:
    a, b, _, _ = lockers
    assert a.takes("fcntl.flock(f, SH | NB)")
    assert b.takes("fcntl.flock(f, SH | NB)")
    assert not a.takes("fcntl.flock(f, EX | NB)")
    a.begin_waiting("fcntl.flock(f, EX)")
    queued(shared_pool, 1)
    assert b.takes("fcntl.flock(f, EX | NB)"), "a program that waits for more has given up what it had"
    b.run("fcntl.flock(f, SH)")
    assert a.waits()
    b.run("fcntl.flock(f, UN)")
    a.hear()
    assert not b.takes("fcntl.flock(f, SH | NB)")
    a.run("fcntl.flock(f, SH)")
    assert b.takes("fcntl.flock(f, SH | NB)")


# SEMANTICS 66.1
def test_waiters_have_their_turns_in_the_order_in_which_they_came(shared_pool: Pool, lockers: list[Locker]) -> None:
    """Also a writer among readers: no program overtakes one with which it conflicts."""
    a, b, c, d = lockers
    a.run("posix(f, R)")
    for count, (program, kind) in enumerate([(b, "W"), (c, "R"), (d, "W")], 1):
        program.begin_waiting(f"posix(f, {kind}, wait=True)")
        queued(shared_pool, count)
    with Locker(a.path) as late:
        assert not late.takes("posix(f, R)"), "not before the writer"
    a.run("posix(f, U)")
    b.hear()
    assert c.waits() and d.waits()
    b.run("posix(f, U)")
    c.hear()
    assert d.waits()
    c.run("posix(f, U)")
    d.hear()


# SEMANTICS 69.1
def test_a_waiting_program_has_its_signal_at_once(lockers: list[Locker]) -> None:
    a, b, c, _ = lockers
    a.run("posix(f, W)")
    for call in ("posix(f, W, wait=True)", "fcntl.flock(f, EX)"):
        if "flock" in call:
            a.run("fcntl.flock(f, EX)")
        b.run("class Alarm(Exception): pass")
        b.run("def ring(*_): raise Alarm")
        b.run("signal.signal(signal.SIGUSR1, ring)")
        b.begin_waiting(f"\ntry:\n {call}\nexcept Alarm: rung = True")
        os.kill(b.pid, signal.SIGUSR1)
        b.hear()
        assert b.ask("rung")
        b.run("rung = False")
    c.begin_waiting("posix(f, W, wait=True)")
    c.process.kill()
    assert c.process.wait(10) == -signal.SIGKILL
    a.run("posix(f, U); fcntl.flock(f, UN)")
    assert b.takes("posix(f, W)"), "neither of the two got it meanwhile"
    assert b.takes("fcntl.flock(f, EX | NB)")


# SEMANTICS 67.2
def test_the_locks_of_a_killed_program_are_free_at_once(lockers: list[Locker]) -> None:
    a, b, _, _ = lockers
    a.run("posix(f, W); fcntl.flock(f, EX)")
    a.run("g = os.open(f'/proc/self/fd/{f}', os.O_RDWR); posix(g, U); posix(g, W, ofd=True)")
    b.begin_waiting("posix(f, W, wait=True)")
    a.process.kill()
    b.hear()
    assert eventually(lambda: b.takes("fcntl.flock(f, EX | NB)"))


# SEMANTICS 67.3
def test_a_killed_daemon_s_locks_are_free_when_its_session_has_ended(
    shared_pool: Pool, here: Path, place: str, new_mount: NewMount
) -> None:
    other = new_mount(shared_pool)
    with Locker(other / place / "file") as a, Locker(here / "file") as b:
        a.run("posix(f, W)")
        assert not b.takes("posix(f, R)")
        b.begin_waiting("posix(f, W, wait=True)")
        other.daemon.send(signal.SIGKILL)
        b.hear(30)


def six_lockers(stack: ExitStack, mount: Mount) -> list[Locker]:
    """Return one program for each of six files of a mount."""
    return [stack.enter_context(Locker(mount / f"file-{number}")) for number in range(6)]


# SEMANTICS 68.1
def test_locks_survive_the_death_of_every_server_and_so_do_those_who_wait(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(3)
    one, two = new_mount(pool), new_mount(pool)
    with ExitStack() as stack:
        holders, waiting = (six_lockers(stack, mount) for mount in (one, two))
        for holder, waiter in zip(holders, waiting, strict=True):
            holder.run("posix(f, W); fcntl.flock(f, EX)")
            waiter.begin_waiting("posix(f, W, wait=True)")
        for server in range(3):
            pool.kill_child(server)
        with Locker(two / "file-0") as third:
            assert not third.takes("posix(f, R)")
            assert not third.takes("fcntl.flock(f, SH | NB)")
        assert all(waiter.waits() for waiter in waiting)
        for number, (holder, waiter) in enumerate(zip(holders, waiting, strict=True)):
            pool.await_restart(number % 3, 1 + number // 3)
            pool.kill_child(number % 3)
            holder.run("posix(f, U)")
            waiter.hear(20)
            assert not holder.takes("posix(f, R)")


# SEMANTICS 68.2
@pytest.mark.parametrize("end", ["goes on", "is killed"])
def test_a_server_that_was_silent_hears_of_unlocks_before_anything_new(
    new_pool: NewPool, new_mount: NewMount, end: str
) -> None:
    """What was given up meanwhile is free afterwards, and what is locked from then on stays locked."""
    pool = new_pool(1)
    one, two = new_mount(pool), new_mount(pool)
    with ExitStack() as stack:
        holders, waiting = (six_lockers(stack, mount) for mount in (one, two))
        for holder in holders:
            holder.run("posix(f, W); g = os.open(f'/proc/self/fd/{f}', os.O_RDWR)")
        (first, kept, *holders), (late, leaving, *waiting) = holders, waiting
        for waiter in waiting:
            waiter.begin_waiting("posix(f, W, wait=True)")
        leaving.run("class Alarm(Exception): pass")
        leaving.run("def ring(*_): raise Alarm")
        leaving.run("signal.signal(signal.SIGUSR1, ring)")
        leaving.begin_waiting("\ntry:\n posix(f, W, wait=True)\nexcept Alarm: pass")
        queued(pool, len(waiting) + 1)
        server = pool.process("child", 0)
        with frozen(server):
            for holder in (first, *holders):
                holder.begin("os.close(g)")
            os.kill(leaving.pid, signal.SIGUSR1)
            for program in (first, *holders, leaving):
                program.hear()
            if end == "is killed":
                # With what it has received and not read.
                server.send(signal.SIGKILL)
        pool.await_restart(0, 1 if end == "is killed" else 0)
        first.run("posix(f, W)")
        for waiter in waiting:
            waiter.hear()
        queued(pool, 0)
        assert not late.takes("posix(f, R)"), "locked since"
        first.run("posix(f, U)")
        assert late.takes("posix(f, W)")
        kept.run("posix(f, U)")
        with Locker(kept.path) as third:
            assert third.takes("posix(f, W)"), "nobody waits there any more"


# SEMANTICS 70.1
def test_a_cycle_of_posix_locks_is_refused_also_across_files_and_servers(
    shared_pool: Pool, here: Path, there: Path
) -> None:
    for parties in (2, 3):
        with ExitStack() as stack:
            ring = [
                stack.enter_context(Locker((here, there)[number % 2] / f"ring-{parties}-{number}"))
                for number in range(parties)
            ]
            for number, program in enumerate(ring):
                following = ring[(number + 1) % parties]
                path = program.path.parent / following.path.name
                program.run("posix(f, W)")
                program.run(f"g = os.open({str(path)!r}, os.O_RDWR)")
            for program in ring[:-1]:
                program.begin_waiting("posix(g, W, wait=True)")
            ring[-1].begin("posix(g, W, wait=True)")
            refused = ring.index(refused_one(ring))
            others = ring[refused + 1 :] + ring[:refused]
            assert all(program.waits() for program in others), "one is refused, the others go on"
            ring[refused].run("posix(f, U)")
            for program in reversed(others):
                program.hear()
                program.run("posix(f, U)")


# SEMANTICS 70.3
def test_a_wait_that_is_short_makes_nobody_look_for_cycles(new_pool: NewPool, new_mount: NewMount) -> None:
    """Two programs that take a lock by turns, and then one of them for long: a search asks the file's home alone."""
    pool = new_pool(3)
    mount = new_mount(pool)
    with Locker(mount / "x") as a, Locker(mount / "x") as b:
        for _ in range(20):
            a.run("posix(f, W)")
            b.begin_waiting("posix(f, W, wait=True)")
            a.run("posix(f, U)")
            b.hear()
            b.run("posix(f, U)")
        assert searches(pool)["FindDeadlock"] < 20, "a wait that lasts for a second is one of a slow machine"
        asked = searches(pool)
        a.run("posix(f, W)")
        b.begin_waiting("posix(f, W, wait=True)")
        assert eventually(lambda: searches(pool)["FindDeadlock"] > asked["FindDeadlock"])
        assert b.waits()
        asked = searches(pool) - asked
        assert asked["ListLockWaits"] <= asked["FindDeadlock"], "of three servers one at the most"
        a.run("posix(f, U)")
        b.hear()


def searches(pool: Pool) -> Counter[str]:
    """Return how many messages of a search for cycles were answered."""
    messages = pool.json("status", "--messages")["messages"]
    return Counter(
        {
            one["message"]: one["answers"]
            for one in messages
            if "Deadlock" in one["message"] or "LockWaits" in one["message"]
        }
    )


# SEMANTICS 70.2
def test_cycles_of_flock_and_ofd_locks_wait_as_on_linux(shared_pool: Pool, here: Path, there: Path) -> None:
    for call in ("posix({}, W, wait=True, ofd=True)", "fcntl.flock({}, EX)"):
        with Locker(here / "x") as a, Locker(there / "y") as b:
            a.run(f"g = os.open({str(here / 'y')!r}, os.O_RDWR)")
            b.run(f"g = os.open({str(there / 'x')!r}, os.O_RDWR)")
            a.run(call.format("f"))
            b.run(call.format("f"))
            a.begin_waiting(call.format("g"))
            b.begin_waiting(call.format("g"))
            queued(shared_pool, 2)
            # A third one that waits in a cycle of POSIX locks would be refused by now.
            with Locker(here / "p") as c, Locker(there / "q") as d:
                c.run(f"g = os.open({str(here / 'q')!r}, os.O_RDWR); posix(f, W)")
                d.run(f"g = os.open({str(there / 'p')!r}, os.O_RDWR); posix(f, W)")
                c.begin("posix(g, W, wait=True)")
                d.begin("posix(g, W, wait=True)")
                refused_one([c, d])
            assert a.waits() and b.waits()
            b.process.kill()
            a.hear()


# SEMANTICS 71.1
def test_a_lock_shows_what_others_wrote_before_they_unlocked(lockers: list[Locker]) -> None:
    """A counter that two mounts raise in turns, in files that stay open, by calls and without fsync."""
    a, b, _, _ = lockers
    a.run("os.pwrite(f, bytes(8), 0); os.pwrite(f, bytes(100_000), 8)")
    raise_it = (
        "posix(f, W, 0, 1, wait=True); n = int.from_bytes(os.pread(f, 8, 0), 'little');"
        " m = int.from_bytes(os.pread(f, 8, 90_000), 'little'); assert n == m, (n, m);"
        " os.pwrite(f, (n + 1).to_bytes(8, 'little'), 0); os.pwrite(f, (n + 1).to_bytes(8, 'little'), 90_000);"
        " posix(f, U, 0, 1)"
    )
    rounds = 60
    for program in lockers:
        program.begin(f"for _ in range({rounds}): exec({raise_it!r})")
    for program in lockers:
        program.hear(60)
    assert b.ask("posix(f, R) or int.from_bytes(os.pread(f, 8, 0), 'little')") == 4 * rounds


def test_uncontended_locks_cost_one_request_and_a_hand_over_two(
    shared_pool: Pool, place: str, lockers: list[Locker]
) -> None:
    """Counted at the servers."""

    def requests() -> int:
        return shared_pool.requests("Listen")

    a, b, _, _ = lockers
    rounds = 40
    a.run("posix(f, W); posix(f, U)")

    def cost() -> int:
        before = requests()
        a.run(f"for n in range({rounds}): posix(f, W); posix(f, U)")
        return requests() - before

    alone = min(cost() for _ in range(5))
    assert 2 * rounds <= alone <= 2 * rounds + 4, "one request for each call"
    # Two programs that pass a lock to and fro: each waits while the other has it.
    a.run("posix(f, W, 0, 1); posix(f, W, 2, 1)")
    b.run("posix(f, W, 1, 1); posix(f, W, 3, 1)")
    costs = []
    for n in range(20):
        # a holds the even bytes, b the odd ones; b waits for one of a's.
        byte = 0 if n % 2 == 0 else 2
        b.begin_waiting(f"posix(f, W, {byte}, 1, wait=True)")
        queued(shared_pool, 1)
        before = requests()
        a.run(f"posix(f, U, {byte}, 1)")
        b.hear()
        costs.append(requests() - before)
        b.run(f"posix(f, U, {byte}, 1)")
        a.run(f"posix(f, W, {byte}, 1)")
    assert sorted(costs)[10] <= 2, f"the unlock, and the event's answer with the next request: {costs}"


# SEMANTICS 68.1
def test_a_storm_of_locks_and_kills_leaves_none_behind(here: Path, there: Path) -> None:
    """Programs that lock and unlock at random are killed; one that holds a byte exclusively holds it alone."""
    storm = """
import random
def run(seed, path, table):
    draw = random.Random(seed)
    mine = os.open(path, os.O_RDWR)
    while True:
        byte = draw.randrange(4)
        try:
            posix(mine, W, byte, 1, wait=draw.random() < 0.7)
        except OSError as error:
            assert error.errno in (errno.EAGAIN, errno.EDEADLK), error
            continue
        seen = os.open(f'{table}-{byte}', os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.close(seen)
        os.unlink(f'{table}-{byte}')
        posix(mine, U, byte, 1)
"""
    (here / "file").write_bytes(b"\0" * 16)
    table = here.parent.parent / f"witness-{os.getpid()}"
    programs: list[Locker] = []
    try:
        for seed in range(24 if LONG else 14):
            mount = (here, there)[seed % 2]
            program = Locker(mount / "file")
            programs.append(program)
            program.run(storm)
            program.begin(f"run({seed}, {str(mount / 'file')!r}, {str(table)!r})")
            if len(programs) > 6:
                time.sleep(0.05)
                victim = programs.pop(0)
                victim.process.kill()
                said = victim.process.stdout.read() if victim.process.stdout else b""
                victim.kill()
                assert b"FileExistsError" not in said and b"failed" not in said, said
                # What the killed one has left is no sign of two holders.
                for left in table.parent.glob(f"{table.name}-*"):
                    with suppress(FileNotFoundError):
                        left.unlink()
    finally:
        for program in programs:
            program.kill()
        for left in table.parent.glob(f"{table.name}-*"):
            left.unlink()
    with Locker(here / "file") as last:
        assert eventually(lambda: last.takes("posix(f, W)"))


# SEMANTICS 71.1
def test_sqlite_uses_a_database_on_two_mounts_at_once(here: Path, there: Path) -> None:
    """With its usual locking and rollback journal: every transaction of four programs counts once."""
    base, other = (sqlite3.connect(mount / "base", isolation_level=None) for mount in (here, there))
    base.execute("create table counter (name text primary key, value integer)")
    base.executemany("insert into counter values (?, 0)", [(name,) for name in "abcd"])
    work = """
import sqlite3
def work(path, name, rounds):
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    for _ in range(rounds):
        base.execute('begin immediate')
        base.execute('update counter set value = value + 1 where name in (?, ?)', (name, 'a'))
        base.execute('commit')
    base.close()
"""
    rounds = 25
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(work)) for _ in range(4)]
        for number, program in enumerate(programs):
            path = (here, there)[number % 2] / "base"
            program.begin(f"work({str(path)!r}, {'bcdb'[number]!r}, {rounds})")
        for program in programs:
            program.hear(120)
    found = dict(other.execute("select name, value from counter"))
    assert found == {"a": 4 * rounds, "b": 2 * rounds, "c": rounds, "d": rounds}
    assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    base.close()
    other.close()


@pytest.mark.skipif(not shutil.which("flock"), reason="no flock(1) here")
def test_the_command_flock_keeps_two_mounts_apart(here: Path, there: Path) -> None:
    (here / "lock").touch()
    add = 'n=$(cat "$1/count"); echo $((n + 1)) > "$1/count"'
    (here / "count").write_text("0\n")
    words = [["flock", str(mount / "lock"), "sh", "-c", add, "sh", str(mount)] for mount in (here, there)]
    running = [subprocess.Popen(words[number % 2]) for number in range(16)]
    assert [one.wait(60) for one in running] == [0] * 16
    assert (there / "count").read_text() == "16\n"
    held = subprocess.Popen(["flock", "--no-fork", str(here / "lock"), "sleep", "60"])
    try:
        busy = ["flock", "--nonblock", str(there / "lock"), "true"]
        assert eventually(lambda: subprocess.run(busy, check=False).returncode == 1)
        slow = ["flock", "--timeout", "0.2", str(there / "lock"), "true"]
        assert subprocess.run(slow, check=False).returncode == 1
    finally:
        held.kill()
        held.wait()


# SEMANTICS 67.1
def test_hdf5_locks_its_files(here: Path, there: Path) -> None:
    with h5py.File(here / "data.h5", "w") as file:
        file["numbers"] = list(range(100))
        with Program("import h5py", python=sys.executable) as other:
            fails(errno.EAGAIN, other.run, f"h5py.File({str(there / 'data.h5')!r}, 'r+')")

    def read() -> list[int] | None:
        try:
            with h5py.File(there / "data.h5", "r") as file:
                return list(file["numbers"])
        except BlockingIOError:
            return None

    # The kernel tells of an open file's end after `close` has returned.
    assert eventually(read) == list(range(100))


# SEMANTICS 33.1
def test_locks_that_are_switched_off_are_refused_and_never_quietly_local(
    shared_pool: Pool, place: str, here: Path, new_mount: NewMount
) -> None:
    without = new_mount(shared_pool, "--no-locks")
    with Locker(without / place / "file") as a:
        for call in ("posix(f, W)", "posix(f, R, wait=True)", "fcntl.flock(f, EX)", "fcntl.flock(f, SH | NB)"):
            fails(errno.ENOSYS, a.run, call)


# SEMANTICS 33.2
def test_a_directory_is_locked_for_the_programs_of_its_mount_alone(here: Path, there: Path) -> None:
    with ExitStack() as stack:
        first, second, far = (os.open(path, os.O_RDONLY) for path in (here, here, there))
        for descriptor in (first, second, far):
            stack.callback(os.close, descriptor)
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fails(errno.EWOULDBLOCK, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(far, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_cannot_be_locked_is_refused_and_changes_nothing(here: Path) -> None:
    (here / "file").touch()
    reader = os.open(here / "file", os.O_RDONLY)
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    fails(errno.EBADF, fcntl.fcntl, reader, fcntl.F_SETLK, lock)
    fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(reader)


# SEMANTICS 74
def test_a_file_has_room_for_so_many_locks(here: Path) -> None:
    with Locker(here / "file") as a, Locker(here / "file") as b:
        a.run("for n in range(4096): posix(f, R, 2 * n, 1)")
        fails(errno.ENOLCK, a.run, "posix(f, R, 10_000, 1)")
        fails(errno.ENOLCK, b.run, "posix(f, R, 10_000, 1)")
        assert not b.takes("posix(f, W, 8190, 1)")
        a.run("posix(f, U)")
        assert b.takes("posix(f, W)")


# SEMANTICS 69.2
def test_a_hundred_waiting_programs_stop_nobody(lockers: list[Locker], here: Path) -> None:
    """More wait than the mount has threads, and the mount goes on."""
    a = lockers[0]
    a.run("posix(f, W)")
    count = 120
    waiter = Program(
        START + f"f = [os.open({str(here / 'file')!r}, os.O_RDWR) for _ in range({count})]\n"
        "def wait(n): posix(f[n], W, wait=True, ofd=True); done.append(n); posix(f[n], U, ofd=True)\n"
        f"done = []; threads = [threading.Thread(target=wait, args=(n,)) for n in range({count})]\n"
        "for thread in threads: thread.start()\n"
    )
    with waiter:
        tasks = Path(f"/proc/{waiter.pid}/task")
        assert eventually(
            lambda: sum((task / "syscall").read_text().split()[0] in CALLS for task in tasks.iterdir()) == count
        )
        (here / "other").write_bytes(b"x" * 100_000)
        assert (here / "other").read_bytes() == b"x" * 100_000
        a.run("posix(f, U)")
        waiter.run("for thread in threads: thread.join()")
        assert sorted(waiter.ask("done")) == list(range(count))
