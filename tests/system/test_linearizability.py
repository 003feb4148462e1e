"""Histories of programs on several machines: some order explains what each of them saw, also beside kills."""

import itertools
import math
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from conftest import NewPool
from histories import RECORDER, Operation, irregular, recorded, unexplained
from litmus import LONG
from mount import Mount, Program
from pool import KIB, Pool, eventually

# Three chunks on three servers: words of one page, of its neighbour, and of other servers.
UNIT = 64 * KIB
LENGTH = 3 * UNIT
WORDS = (0, 8, 4 * KIB, UNIT, 2 * UNIT - 8)
COUNT = 2_000 if LONG else 150
ROUNDS = 5 if LONG else 1


# The checker


def history(*lines: str) -> list[Operation]:
    """Return a history from lines as `w 1 0 5`: what, its value, when it was called and when it returned."""
    operations = []
    for line in lines:
        what, value, called, *returned = line.split()
        over = float(returned[0]) if returned else math.inf
        operations.append(Operation(0, what == "w", int(value), int(called), over))
    return operations


@pytest.mark.parametrize(
    ("lines", "is_linear", "is_regular"),
    [
        (["w 1 0 5", "r 1 6 7"], True, True),
        (["w 1 0 5", "r 0 6 7"], False, False),
        (["w 1 0 5", "r 0 1 7"], True, True),
        (["w 1 0 9", "r 1 1 2", "r 0 3 4"], False, True),
        (["w 1 0 9", "w 2 1 8", "r 1 10 11", "r 2 12 13"], False, True),
        (["w 1 0 9", "w 2 1 8", "r 2 10 11", "r 1 12 13"], False, True),
        (["w 1 0", "r 0 1 2", "r 1 3 4"], True, True),
        (["w 1 0", "r 1 1 2", "r 0 3 4"], False, True),
        (["w 1 0 1", "w 2 2 3", "r 1 4 5"], False, False),
        (["w 1 5", "r 1 1 2"], False, False),
        (["r 7 1"], True, True),
    ],
)
def test_the_checker_knows_what_an_order_explains(lines: list[str], is_linear: bool, is_regular: bool) -> None:
    operations = history(*lines)
    assert (not unexplained(operations)) == is_linear
    assert (not irregular(operations)) == is_regular


@settings(database=None, deadline=None, max_examples=300)
@given(
    some.lists(some.tuples(some.booleans(), some.integers(0, 3), some.integers(0, 9), some.integers(0, 5)), max_size=6)
)
def test_the_checker_says_what_all_orders_say(steps: list[tuple[bool, int, int, int]]) -> None:
    operations = [
        Operation(0, writes, value, called, called + length if length else math.inf)
        for writes, value, called, length in steps
    ]
    assert (not unexplained(operations)) == any(map(explains, orders(operations)))
    writes = [one for one in operations if one.writes]
    reads = [one for one in operations if not one.writes and one.returned < math.inf]
    wrong = [read for read in reads if not any(map(explains, orders([*writes, read])))]
    assert irregular(operations) == sorted(wrong, key=lambda one: one.called)


def orders(operations: list[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Return all orders of what was done, with or without what has not returned."""
    over = [one for one in operations if one.returned < math.inf]
    open_writes = [one for one in operations if one.returned == math.inf and one.writes]
    for count in range(len(open_writes) + 1):
        for chosen in itertools.combinations(open_writes, count):
            yield from itertools.permutations([*over, *chosen])


def explains(order: tuple[Operation, ...]) -> bool:
    """Return whether an order fits what was seen, and when."""
    value = 0
    for place, one in enumerate(order):
        if any(later.returned < one.called for later in order[place + 1 :]) or not (one.writes or one.value == value):
            return False
        value = one.value
    return True


def test_the_checker_finds_one_wrong_read_among_thousands() -> None:
    chance = random.Random(5)
    value, clock, operations = 0, 0, []
    free = [0] * 6
    for number in range(1, 1_000):
        # Six programs; each operation has its moment inside its call.
        who = min(range(6), key=free.__getitem__)
        called = free[who] + chance.randrange(1, 5)
        clock = max(clock + 1, called + 1)
        writes = chance.random() < 0.4
        value = number if writes else value
        free[who] = clock + chance.randrange(1, 20)
        operations.append(Operation(0, writes, value, called, free[who]))
    assert not unexplained(operations)
    reads = [place for place, one in enumerate(operations) if not one.writes]
    place = reads[len(reads) // 2]
    old = operations[place]
    operations[place] = Operation(0, False, operations[place - 200].value + 10_000, old.called, old.returned)
    assert unexplained(operations)
    assert irregular(operations) == [operations[place]]


# Mounts


@dataclass
class Scene:
    """One file on several machines, and what their programs write down of it."""

    pool: Pool
    place: str
    logs: Path

    def __post_init__(self) -> None:
        with self.pool.connect() as pool:
            pool.set_layout(self.place, stripe_unit=UNIT, width=3)
            with pool.open(f"{self.place}/file", "w+b", buffering=0) as file:
                file.truncate(LENGTH)
        self.programs: list[Program] = []

    def begin(self, mount: Mount, loads: str, stores: str, share: float = 0.4) -> Path:
        """Begin a program on a mount; return where it writes down what it does."""
        program = Program(RECORDER)
        self.programs.append(program)
        number = len(self.programs)
        log = self.logs / f"{number}"
        words = (str(mount / self.place / "file"), str(log), number, COUNT, WORDS, loads.split(), stores.split(), share)
        program.begin(f"record(*{words!r})")
        return log

    def by_library(self, number: int, stop: threading.Event) -> list[Operation]:
        """Read and write by the library until the others are done."""
        chance, value, operations = random.Random(number), number << 32, list[Operation]()
        with self.pool.connect() as pool, pool.open(f"{self.place}/file", "r+b", buffering=0) as file:
            while not stop.is_set():
                word, writes = chance.choice(WORDS), chance.random() < 0.4
                value += writes
                data = bytearray(value.to_bytes(8, "little"))
                called = time.monotonic_ns()
                done = file.pwrite(data, word) if writes else file.pread_into(data, word)
                assert done == 8
                found = int.from_bytes(data, "little")
                operations.append(Operation(word, writes, found, called, time.monotonic_ns()))
        return operations

    def close(self) -> None:
        for program in self.programs:
            program.kill()


@pytest.fixture
def scene(shared_pool: Pool, place: str, tmp_path: Path) -> Iterator[Scene]:
    """A file in the shared pool."""
    scene = Scene(shared_pool, place, tmp_path)
    yield scene
    scene.close()


@pytest.fixture(scope="module")
def pairs(fuse: None, shared_pool: Pool) -> Iterator[dict[str, list[Mount]]]:
    """Two mounts of each mode."""
    mounts: list[Mount] = []
    try:
        mounts.extend(Mount(shared_pool, "--mode", mode) for mode in ("strict", "strict", "coherent", "coherent"))
        yield {"strict": mounts[:2], "coherent": mounts[2:]}
    finally:
        for mount in mounts:
            mount.close()


def look(operations: list[Operation]) -> None:
    """Check that something was done, and that some order explains it."""
    assert sum(one.returned < math.inf for one in operations) > COUNT // 2
    assert not (wrong := unexplained(operations)), "\n".join(map(str, wrong))


# SEMANTICS 124.3
@pytest.mark.both
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_strict_mounts_and_the_library_are_linearizable(pairs: dict[str, list[Mount]], scene: Scene, turn: int) -> None:
    logs = []
    for mount in pairs["strict"]:
        mount.daemon.watch()
        logs.append(scene.begin(mount, "map call", "map call"))
        logs.append(scene.begin(mount, "map", "map"))
    stop, found = threading.Event(), list[Operation]()
    library = threading.Thread(target=lambda: found.extend(scene.by_library(100 + turn, stop)))
    library.start()
    try:
        for program in scene.programs:
            program.hear()
    finally:
        stop.set()
        library.join()
    look([*found, *(one for log in logs for one in recorded(log))])


# SEMANTICS 114.1
@pytest.mark.both
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_coherent_mounts_show_nothing_that_was_overwritten_before(
    pairs: dict[str, list[Mount]], scene: Scene, turn: int
) -> None:
    logs = []
    for mount in pairs["coherent"]:
        mount.daemon.watch()
        logs += [scene.begin(mount, loads, "call") for loads in ("call map", "map")]
    for program in scene.programs:
        program.hear()
    wrong = irregular([one for log in logs for one in recorded(log)])
    assert not wrong, "\n".join(map(str, wrong))


# SEMANTICS 124.4
@pytest.mark.both
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_strict_mounts_are_linearizable_beside_programs_that_die_and_machines_that_pause(
    pairs: dict[str, list[Mount]], scene: Scene, turn: int
) -> None:
    chance = random.Random(turn)
    logs = []
    for mount in pairs["strict"]:
        mount.daemon.watch()
        logs += [scene.begin(mount, "map call", "map call") for _ in range(3)]
    # One program on each machine dies, whatever it does; each machine pauses, and is waited for.
    for program, mount in zip(scene.programs[::3], pairs["strict"], strict=True):
        time.sleep(chance.random() / 5)
        program.kill()
        mount.daemon.send(signal.SIGSTOP)
        time.sleep(chance.random() / 5)
        mount.daemon.send(signal.SIGCONT)
    for place, program in enumerate(scene.programs):
        if place % 3:
            program.hear()
    look([one for log in logs for one in recorded(log)])


# SEMANTICS 124.4
@pytest.mark.both
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_strict_mounts_are_linearizable_beside_servers_that_are_killed(
    fuse: None, new_pool: NewPool, tmp_path: Path, turn: int
) -> None:
    pool = new_pool(3)
    with pool.connect() as connected:
        connected.mkdir("/files")
    scene = Scene(pool, "/files", tmp_path)
    mounts = [Mount(pool, "--mode", "strict") for _ in range(2)]
    try:
        logs = [scene.begin(mount, doors, doors) for mount in mounts for doors in ("map call", "map")]
        pool.restart_each(1, 0.2)
        for program in scene.programs:
            program.hear()
        look([one for log in logs for one in recorded(log)])
    finally:
        scene.close()
        for mount in mounts:
            mount.close()


# SEMANTICS 124.4
@pytest.mark.both
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_who_is_left_is_linearizable_when_a_machine_dies(
    pairs: dict[str, list[Mount]], scene: Scene, shared_pool: Pool, turn: int
) -> None:
    mount = Mount(shared_pool, "--mode", "strict")
    try:
        left = [scene.begin(other, "map call", "map call") for other in pairs["strict"]]
        lost = [scene.begin(mount, "map call", "map call") for _ in range(2)]
        assert eventually(lambda: all(log.exists() for log in lost))
        time.sleep(random.Random(turn).random() / 5)
        mount.daemon.send(signal.SIGKILL)
        for program in scene.programs[:2]:
            program.hear()
        # What a machine that is gone has seen nobody knows, and what it stored may be lost.
        writes = [one for log in lost for one in recorded(log) if one.writes]
        gone = [Operation(one.word, True, one.value, one.called) for one in writes]
        look([*gone, *(one for log in left for one in recorded(log))])
    finally:
        mount.close()
