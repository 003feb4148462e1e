"""The races of litmus.c between mounts that reach three servers by a network: each machine has a card of its own.

Network namespaces are made by root: an ordinary user runs the same races on mounts of one machine (test_litmus.py).
"""

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from litmus import COHERENT, FORBIDDEN, LONG, MODES, PUBLISHED, RELAXED, STRICT, build, calls_of, forbidden, race
from machines import Reached, joined
from mount import Mount
from pool import KIB

pytestmark = [pytest.mark.needs_root, pytest.mark.lengthy]

PAGE = 4 * KIB
SERVERS, MOUNTS = 3, 3
RUNS = 100 if LONG else 10
# So often; relaxed programs refresh again and again.
TURNS = 30 if LONG else 1
TURNS_RELAXED = 6 if LONG else 1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The races, compiled."""
    return build(tmp_path_factory.mktemp("litmus"))


class Machines:
    """Three machines with a server each, and three with a mount of each mode each."""

    def __init__(self, pool: Reached) -> None:
        self.pool = pool
        self.mounts: dict[str, list[Mount]] = {}
        for mode, machine in itertools.product((STRICT, COHERENT, RELAXED), pool.machines):
            self.mounts.setdefault(mode, []).append(pool.mount(machine, "--mode", mode))
        self.mounts[PUBLISHED] = self.mounts[COHERENT]

    def crossed(self) -> int:
        """Bytes that came to the servers by their cards."""
        return sum(self.pool.network.received(name) for name in self.pool.servers)

    def watch(self) -> None:
        """Begin the time of all watchdogs anew."""
        for mount in itertools.chain(*self.mounts.values()):
            mount.daemon.watch()


@pytest.fixture(scope="module")
def machines(fuse: None, runtime: Path) -> Iterator[Machines]:
    root = runtime / "n"
    root.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        names = [f"l{number}x{runtime.name[-8:]}" for number in range(SERVERS + MOUNTS)]
        network = stack.enter_context(joined(*names))
        yield Machines(Reached(root, network, SERVERS, stack))


# SEMANTICS 124.1, 136.4
@pytest.mark.parametrize("count", [2, 3] if LONG else [3])
@pytest.mark.parametrize("mode", MODES)
def test_nor_is_one_seen_over_a_network(machines: Machines, program: Path, mode: str, count: int) -> None:
    mounts = machines.mounts[mode][:count]
    before = machines.crossed()
    for test in FORBIDDEN:
        place = f"{test}-{MODES.index(mode)}-{count}"
        (mounts[0] / place).mkdir()
        paths = [mount / place / "file" for mount in mounts]
        seen = Counter[str]()
        for _ in range(TURNS_RELAXED if mode == RELAXED else TURNS):
            machines.watch()
            seen.update(race(program, test, RUNS, *paths, calls=calls_of(mode)))
        print(f"litmus | {count} machines | {test} | {mode} | {dict(seen)}")
        assert not forbidden(test, mode) & set(seen), f"{mode} forbids {sorted(forbidden(test, mode))}, and saw {seen}"
    crossed = machines.crossed() - before
    print(f"litmus | {count} machines | {mode} | {crossed} bytes came to the servers")
    assert crossed > RUNS * len(FORBIDDEN) * PAGE, "the machines share their pages by another way"
