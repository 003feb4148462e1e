"""Machines that are none: a runtime directory each, and as root a network card and a boot id each."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mount import Mount
from pool import Pool, Process, binary, eventually

SCRIPT = """#!/bin/sh
host=$1; shift
echo "$host: $*" >> '{root}/words'
env >> '{root}/words'
export XDG_RUNTIME_DIR='{root}'/$host HOME='{root}'/$host
if [ -e '{root}'/$host.sh ]; then exec sh '{root}'/$host.sh "$@"; fi
exec {wrap} "$@"
"""


def version() -> str:
    done = subprocess.run([binary(), "--version"], capture_output=True, check=True)
    return done.stdout.decode().split()[1]


class Lab:
    """Some hosts that are none, and the machine from which they are started."""

    def __init__(self, root: Path, hosts: tuple[str, ...]) -> None:
        self.root = root
        self.name = f"h{os.getpid()}"
        self.transport = root / "via"
        self.transport_words = ""
        self.hosts = {host: self.machine(host) for host in hosts}
        self.starter = self.machine("start")
        self.write_transport("")
        self.lines = "".join(f"{host} memory=32MiB listen=127.0.0.1:0 advertise=127.0.0.1\n" for host in hosts)

    def machine(self, host: str) -> Pool:
        """The pool as it is seen on one machine."""
        runtime = self.root / host
        runtime.mkdir(mode=0o700, exist_ok=True)
        return Pool(self.name, runtime, 0, 0)

    def write_transport(self, wrap: str) -> None:
        self.transport.write_text(SCRIPT.format(root=self.root, wrap=wrap))
        self.transport.chmod(0o755)

    def replace(self, host: str, script: str) -> None:
        """Run this instead of the agent on a host."""
        (self.root / f"{host}.sh").write_text(script.replace("VERSION", version()))

    def restore(self, host: str) -> None:
        (self.root / f"{host}.sh").unlink()

    @property
    def words(self) -> list[str]:
        """The arguments of `up`."""
        (self.root / "nodes").write_text(self.lines)
        transport = ("--transport", self.transport_words or str(self.transport), "--remote-command", binary())
        return ["up", "--hosts", str(self.root / "nodes"), "--no-reserve", *transport]

    def up(self, *words: str) -> Any:
        return json.loads(self.starter.run(*self.words, *words, "--json").stdout)

    def fails(self, *words: str) -> str:
        """Start a pool that cannot be; nothing of it is left anywhere."""
        said = self.starter.refused(*self.words, *words)
        self.assert_nothing_left()
        return said

    def machines(self) -> list[Pool]:
        return [self.starter, *self.hosts.values()]

    def processes(self) -> list[Process]:
        return [process for machine in self.machines() for process in machine.processes()]

    def assert_nothing_left(self) -> None:
        assert eventually(lambda: not self.processes()), f"left running: {self.processes()}"
        left = [machine.directory for machine in self.machines() if machine.directory.exists()]
        assert not left, f"left lying: {left}"
        # The transport commands are gone as well.
        assert eventually(lambda: not self.users()), f"left running: {self.users()}"

    def users(self) -> list[str]:
        """Command lines of processes that run something for these hosts."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    environment = (entry / "environ").read_bytes()
                    if str(self.root).encode() in environment:
                        found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()!r}")
                except OSError:
                    pass
        return found

    def close(self) -> None:
        for host in self.hosts:
            (self.root / f"{host}.sh").unlink(missing_ok=True)
        for machine in self.machines():
            for process in machine.processes():
                process.send(signal.SIGCONT)
            if machine.directory.exists():
                machine.run("down", "--force", check=False)
        self.assert_nothing_left()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)


class Network:
    """Namespaces with a card each, joined by a bridge in a namespace of its own."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.bridge = f"rlan{os.getpid()}"
        self.addresses = {name: f"10.219.79.{number}" for number, name in enumerate(names, 1)}

    def make(self) -> None:
        for name in (self.bridge, *self.names):
            ip("netns", "add", name)
        ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.bridge, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            port = f"port{number}"
            ip("-n", self.bridge, "link", "add", port, "type", "veth", "peer", "name", "card", "netns", name)
            ip("-n", self.bridge, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{self.addresses[name]}/24", "dev", "card")
            ip("-n", name, "link", "set", "card", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def cut(self, name: str) -> None:
        """Pull the cable out of a machine's card."""
        ip("-n", self.bridge, "link", "set", f"port{self.names.index(name)}", "down")

    def mend(self, name: str) -> None:
        ip("-n", self.bridge, "link", "set", f"port{self.names.index(name)}", "up")

    def remove(self) -> None:
        for name in (self.bridge, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def received(self, name: str) -> int:
        words = ["ip", "netns", "exec", name, "cat", "/sys/class/net/card/statistics/rx_bytes"]
        return int(subprocess.run(words, capture_output=True, check=True).stdout)


@contextmanager
def joined(*names: str) -> Iterator[Network]:
    """Machines of these names on one network; where none can be made the test is skipped."""
    for word, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if not shutil.which(word):
            pytest.skip(f"the command {word} ({package}) is missing")
    network = Network(names)
    try:
        try:
            network.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
        yield network
    finally:
        network.remove()


# Runs a command in a network and in all other namespaces of its caller, so that its mounts are everybody's.
INSIDE = """#!/bin/sh
exec nsenter --net=/run/netns/{machine} '{binary}' "$@"
"""


class Reached:
    """A pool with a server on each of some machines, and mounts on others, which reach it by the network alone."""

    def __init__(self, root: Path, network: Network, servers: int, stack: ExitStack) -> None:
        self.network = network
        self.servers, self.machines = network.names[:servers], network.names[servers:]
        self._root, self._stack = root, stack
        self.lab = Lab(root, self.servers)
        stack.callback(self.lab.close)
        self.lab.write_transport("ip netns exec $host")
        lines = [f"{name} memory=64MiB advertise={network.addresses[name]}\n" for name in self.servers]
        self.lab.lines = "".join(lines)
        self.lab.starter.run(*self.lab.words, program=self._inside(self.machines[0]))

    def mount(self, machine: str, *words: str) -> Mount:
        """Mount the pool on a machine, for as long as it is there."""
        mount = Mount(self.lab.starter, *words, variables={"RAMLACE_LOCAL": "off"}, program=self._inside(machine))
        self._stack.callback(mount.close)
        return mount

    def _inside(self, machine: str) -> str:
        """Return the program that is the command on a machine."""
        path = self._root / f"on-{machine}"
        path.write_text(INSIDE.format(machine=machine, binary=binary()))
        path.chmod(0o700)
        return str(path)
