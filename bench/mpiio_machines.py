"""Two machines that are none, for ranks of MPI: network namespaces with a card and a boot id each.

By that id machines are told apart; a cable that carries 10 Gbit/s each way joins them. So a rank reaches the server of
its own machine by what there is between processes, and the other machine's over TCP.
"""

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pool import BenchError, ramlace_binary

ADDRESSES = ("10.219.77.1", "10.219.77.2")
# The queue takes more than the largest packet that a kernel makes, or it would carry less.
CABLE = ("tbf", "rate", "10gbit", "burst", "4mb", "latency", "20ms")
# Runs a command on the machine with an address, as ssh does, and in its place.
ON = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
machine='{root}'/$1 name={prefix}$1; shift
export XDG_RUNTIME_DIR="$machine"
exec ip netns exec "$name" "$0-there" "$machine" "$@"
"""
# The namespaces of `ip netns exec` have mounts of their own.
THERE = """#!/bin/sh
mount --bind "$1/id" /proc/sys/kernel/random/boot_id && shift && exec sh -c "$*"
"""


class NoMachinesError(Exception):
    """There cannot be two machines here; the text says why."""


@dataclass
class Machines:
    """Two machines with a server each."""

    root: Path

    @property
    def on(self) -> Path:
        """The command that runs others on a machine."""
        return self.root / "on"

    @property
    def prefix(self) -> str:
        """What the names of the namespaces begin with."""
        return f"ramlace-bench-{os.getpid()}-"

    def environment(self) -> dict[str, str]:
        """Return the environment of the machine that starts the pool, where its secret is."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAMLACE_")}
        return {**kept, "XDG_RUNTIME_DIR": str(self.root)}

    def call(self, *words: object, **variables: str) -> str:
        """Run a program in the first machine's network; return what it prints."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.prefix + ADDRESSES[0], *map(str, words)],
            env={**self.environment(), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(f"'{' '.join(map(str, words))}' failed: {done.stderr.strip()}")
        return done.stdout

    def command(self, *words: object) -> dict:
        """Run the command of the machine that starts the pool; return what it reports."""
        return json.loads(self.call(ramlace_binary(), *words, "--json") or "{}")

    def ranks(self, launcher: str, library: str, variables: dict[str, str], *words: object) -> str:
        """Run one rank on each machine, by Open MPI; return what they print."""
        status = self.command("status")["servers"]
        agreed = {
            **variables,
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_btl_tcp_if_include": "card",
            "OMPI_MCA_oob_tcp_if_include": "card",
            "OMPI_MCA_plm_rsh_agent": str(self.on),
            "RAMLACE_MPIIO_LIBRARY": library,
            "RAMLACE_SECRET_FILE": str(next(self.root.glob("ramlace/*/secret"))),
        }
        pids = [pid for server in status for pid in (server["supervisor_pid"], server["pid"])]
        hosts = ",".join(f"{address}:1" for address in ADDRESSES)
        mpirun = (ramlace_binary(), "--pool", status[0]["address"], "mpirun", "--launcher", launcher)
        ranks = ("--host", hosts, "-np", len(ADDRESSES))
        return self.call(self.on, ADDRESSES[0], *mpirun, *ranks, *words, *pids, **agreed)

    def make(self) -> None:
        """Make the machines and their network."""
        first, second = (self.prefix + address for address in ADDRESSES)
        for name in (first, second):
            ip("netns", "add", name)
        ip("-n", first, "link", "add", "card", "type", "veth", "peer", "name", "card", "netns", second)
        for address, name in zip(ADDRESSES, (first, second), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "card")
            ip("-n", name, "link", "set", "card", "up")
            ip("-n", name, "link", "set", "lo", "up")
            run("tc", "-n", name, "qdisc", "add", "dev", "card", "root", *CABLE)
            (self.root / address).mkdir()
            (self.root / address / "id").write_text(f"{uuid.uuid4()}\n")
        texts = {"on": ON.format(root=self.root, prefix=self.prefix), "on-there": THERE}
        for name, text in texts.items():
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o700)

    def remove(self) -> None:
        """Take the network away; the kernel forgets what was not made."""
        for address in ADDRESSES:
            subprocess.run(["ip", "netns", "del", self.prefix + address], capture_output=True, check=False)


@contextmanager
def two_machines(memory: str) -> Iterator[Machines]:
    """Make two machines with a server each, and so much memory, for the block."""
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        raise NoMachinesError(
            f"the command {missing[0]} is missing" if missing else "network namespaces are made by root"
        )
    with tempfile.TemporaryDirectory(prefix="rb-") as root, ExitStack() as undo:
        machines = Machines(Path(root))
        undo.callback(machines.remove)
        try:
            machines.make()
        except subprocess.CalledProcessError as error:
            raise NoMachinesError(error.stderr.strip()) from error
        lines = [f"{address} memory={memory} servers=1 advertise={address}\n" for address in ADDRESSES]
        (machines.root / "nodes").write_text("".join(lines))
        starting = ("--transport", machines.on, "--remote-command", ramlace_binary())
        machines.command("up", "--hosts", machines.root / "nodes", *starting)
        undo.callback(machines.command, "down")
        yield machines


def ip(*words: str) -> None:
    """Run the command that makes networks."""
    run("ip", *words)


def run(*words: str) -> None:
    """Run a step of making a network."""
    subprocess.run(words, capture_output=True, text=True, check=True)
