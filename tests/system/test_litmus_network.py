"""The races of litmus.c between mounts that reach three servers by a network: each machine has a card of its own.

Network namespaces are made by root: an ordinary user runs the same races on mounts of one machine (test_litmus.py).
"""

import itertools
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from litmus import COHERENT, FORBIDDEN, LONG, MODES, PUBLISHED, RELAXED, STRICT, build, calls_of, forbidden, race
from machines import Lab, Network
from mount import Mount
from pool import KIB, binary

pytestmark = [pytest.mark.needs_root, pytest.mark.lengthy]

PAGE = 4 * KIB
SERVERS, MOUNTS = 3, 3
RUNS = 100 if LONG else 10
# So often; relaxed programs refresh again and again.
TURNS = 30 if LONG else 1
TURNS_RELAXED = 6 if LONG else 1
# Runs a command in a network and in all other namespaces of its caller, so that its mounts are everybody's.
INSIDE = """#!/bin/sh
exec nsenter --net=/run/netns/{machine} '{binary}' "$@"
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The races, compiled."""
    return build(tmp_path_factory.mktemp("litmus"))


class Machines:
    """Three machines with a server each, and three with a mount of each mode each."""

    def __init__(self, root: Path, network: Network, stack: ExitStack) -> None:
        self.network = network
        self.servers, machines = network.names[:SERVERS], network.names[SERVERS:]
        lab = Lab(root, self.servers)
        stack.callback(lab.close)
        lab.write_transport("ip netns exec $host")
        lab.lines = "".join(f"{name} memory=64MiB advertise={network.addresses[name]}\n" for name in self.servers)
        starter = root / "starter"
        self.write(starter, machines[0])
        lab.starter.run(*lab.words, program=str(starter))
        self.mounts: dict[str, list[Mount]] = {}
        for mode, machine in itertools.product((STRICT, COHERENT, RELAXED), machines):
            self.write(root / machine, machine)
            variables = {"RAMLACE_LOCAL": "off"}
            mount = Mount(lab.starter, "--mode", mode, variables=variables, program=str(root / machine))
            stack.callback(mount.close)
            self.mounts.setdefault(mode, []).append(mount)
        self.mounts[PUBLISHED] = self.mounts[COHERENT]

    @staticmethod
    def write(path: Path, machine: str) -> None:
        """Write the program that is the command on a machine."""
        path.write_text(INSIDE.format(machine=machine, binary=binary()))
        path.chmod(0o700)

    def crossed(self) -> int:
        """Bytes that came to the servers by their cards."""
        return sum(self.network.received(name) for name in self.servers)

    def watch(self) -> None:
        """Begin the time of all watchdogs anew."""
        for mount in itertools.chain(*self.mounts.values()):
            mount.daemon.watch()


@pytest.fixture(scope="module")
def machines(fuse: None, runtime: Path) -> Iterator[Machines]:
    for word, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if not shutil.which(word):
            pytest.skip(f"the command {word} ({package}) is missing")
    network = Network(tuple(f"l{number}x{runtime.name[-8:]}" for number in range(SERVERS + MOUNTS)))
    root = runtime / "n"
    root.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        stack.callback(network.remove)
        try:
            network.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
        yield Machines(root, network, stack)


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
