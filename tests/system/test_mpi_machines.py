"""Ranks and servers on two machines: each block of an array is with a server of the machine whose rank has it.

The machines are network namespaces with a boot id each, which is what machines are told apart by.
"""

import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from c_programs import compile_c, flags
from machines import Lab, Network, joined
from mpi_library import VARIABLES, Mpi, temporary
from pool import MIB, PATIENCE_SECONDS, binary

# Network namespaces are made by root.
pytestmark = pytest.mark.needs_root

# Runs a program on one of the machines.
ON = """#!/bin/sh
host=$1; shift
exec ip netns exec "$host" sh -c 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' '{root}'/$host/id "$@"
"""
# What starts ranks elsewhere, in place of ssh.
AGENT = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
case $1 in {first_address}) host={first} ;; *) host={second} ;; esac
shift
exec '{on}' "$host" sh -c "$*"
"""
# Which rank runs where: neighbours together, or in turns.
TOGETHER, IN_TURNS = "AABB", "ABAB"


@dataclass
class Machines:
    """Two machines with two servers each, numbered in turns."""

    lab: Lab
    network: Network
    on: Path
    agent: Path

    @property
    def hosts(self) -> tuple[str, str]:
        first, second, _ = self.network.names
        return first, second

    def crossed(self) -> int:
        """Bytes that came to the machines by their cards."""
        return sum(self.network.received(host) for host in self.hosts)

    def environment(self) -> dict[str, str]:
        """What a program on a machine needs to reach the pool, over the network alone."""
        file = self.lab.hosts[self.hosts[0]].directory / "secret"
        return {
            **os.environ,
            **VARIABLES,
            "TMPDIR": temporary(),
            "RAMLACE_LOCAL": "off",
            "RAMLACE_SECRET_FILE": str(file),
        }

    def address(self) -> str:
        """Where the first server listens."""
        return str(self.lab.starter.status()[0]["address"])

    def run(self, host: str, *words: str, **variables: str) -> str:
        done = subprocess.run(
            [str(self.on), host, *words],
            capture_output=True,
            check=False,
            text=True,
            env={**self.environment(), **variables},
            timeout=4 * PATIENCE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def agreed(self) -> dict[str, str]:
        """What Open MPI needs to start ranks on both machines."""
        return {
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_btl_tcp_if_include": "card",
            "OMPI_MCA_oob_tcp_if_include": "card",
            "OMPI_MCA_plm_rsh_agent": str(self.agent),
        }

    def ranks(self, mpi: Mpi, order: str, *job: str) -> int:
        """Run four ranks, two on each machine; return how many bytes crossed the network meanwhile."""
        hosts = ",".join(f"{self.network.addresses[host]}:2" for host in self.hosts)
        ways = ["--host", hosts, *([] if order == TOGETHER else ["--map-by", "node"])]
        report = mpi.directory / "report"
        report.unlink(missing_ok=True)
        before = self.crossed()
        self.run(
            self.hosts[0],
            *(binary(), "--pool", self.address(), "mpirun", "--launcher", f"mpirun.{mpi.name}", *ways),
            *("-np", "4", *job),
            RAMLACE_MPIIO_LIBRARY=str(mpi.library),
            RAMLACE_MPIIO_REPORT=str(report),
            **self.agreed(),
        )
        assert report.read_text().count("opens 1 ") == 4
        return self.crossed() - before


@pytest.fixture
def machines() -> Iterator[Machines]:
    with joined(*(f"m{letter}{os.getpid()}" for letter in "abc")) as network:
        *hosts, _ = network.names
        root = Path(tempfile.mkdtemp(prefix="rm-"))
        lab = Lab(root, tuple(hosts))
        made = Machines(lab, network, root / "on", root / "agent")
        words = {"root": root, "on": made.on, "first": hosts[0], "second": hosts[1]}
        made.on.write_text(ON.format(**words))
        made.agent.write_text(AGENT.format(**words, first_address=network.addresses[hosts[0]]))
        for host in network.names:
            (root / host).mkdir(exist_ok=True)
            (root / host / "id").write_text(f"{uuid.uuid4()}\n")
        for script in (made.on, made.agent):
            script.chmod(0o700)
        lab.write_transport(f"'{made.on}' $host")
        lines = [f"{host} memory=192MiB servers=2 advertise={network.addresses[host]}\n" for host in hosts]
        lab.lines = "".join(lines)
        try:
            command = (binary(), "--pool", lab.name, *lab.words)
            made.run(network.names[2], *command, XDG_RUNTIME_DIR=str(lab.starter.runtime))
            yield made
        finally:
            lab.close()
            shutil.rmtree(root)


# With MPICH ranks sometimes wait for ever in MPI_Finalize (UCX), where one machine has several boot ids.
# SEMANTICS 98.18
@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
def test_a_block_is_with_a_server_of_the_machine_whose_rank_has_it(machines: Machines, mpi: Mpi) -> None:
    program = str(mpi.program("blocks"))
    array = ("columns", "1024", "chunked", "4096,1024", "chunked_item", "8", "chunked_size", "1024,1024")
    moved = 2 * 4 * 8 * MIB
    for order in (TOGETHER, IN_TURNS):
        usual = machines.ranks(mpi, order, program, f"ramlace:/usual-{order}", *array)
        near = machines.ranks(mpi, order, program, f"ramlace:/near-{order}", *array, "placement", "local")
        print(f"{mpi.name}, ranks {order}: {usual} bytes crossed of {moved} moved, {near} with placement=local")
        # Written once and read once; what is left is MPI's own, and what ranks say to servers of names.
        assert usual > moved / 4, order
        assert near < moved / 16, order
        said = machines.run(
            machines.hosts[0], binary(), "--pool", machines.address(), "stat", "--json", f"ramlace:/near-{order}"
        )
        # All four servers have a block each.
        assert re.search(r'"width": ?4\b', said), said


# A rank's machine has its own mount: each process that is started on one has its own mounts.
BY_MOUNT = """#!/bin/sh
'{command}' --pool '{address}' mount '{place}' || exit 1
'{program}' '{place}/file' own
code=$?
'{command}' unmount '{place}' && exit $code
"""


# SEMANTICS 97.5
@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
def test_ranks_of_two_machines_reach_a_file_by_a_mount_of_each_without_the_library(
    machines: Machines, mpi: Mpi, tmp_path: Path
) -> None:
    job, place = tmp_path / "job", tmp_path / "mount"
    place.mkdir()
    words = {"command": binary(), "address": machines.address(), "place": place, "program": mpi.program("routines")}
    job.write_text(BY_MOUNT.format(**words))
    job.chmod(0o700)
    before = machines.crossed()
    hosts = ",".join(f"{machines.network.addresses[host]}:1" for host in machines.hosts)
    machines.run(machines.hosts[0], f"mpirun.{mpi.name}", "--host", hosts, "-np", "2", str(job), **machines.agreed())
    assert machines.crossed() > before
    said = machines.run(machines.hosts[0], binary(), "--pool", machines.address(), "stat", "--json", "ramlace:/file")
    # What the last step has left: 60 numbers of each rank.
    assert re.search(r'"size": ?480\b', said), said


LOCAL = """
#include <fcntl.h>
#include <ramlace.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    size_t length = 8 << 20;
    char *bytes = calloc(1, length);
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    ramlace_pool *pool = ramlace_connect(NULL, NULL);
    hints.local = argc > 2;
    ramlace_file *file = pool ? ramlace_open_with(pool, argv[1], O_RDWR | O_CREAT, 0600, &hints) : NULL;
    return file && ramlace_pwrite(file, bytes, length, 0) == (ssize_t)length && ramlace_close(file) == 0 ? 0 : 1;
}
"""


# SEMANTICS 98.17
def test_a_file_that_is_local_crosses_no_network(machines: Machines, tmp_path: Path) -> None:
    source = tmp_path / "local.c"
    source.write_text(LOCAL)
    built = Path(binary()).parent
    program = compile_c(tmp_path / "local", [source], *flags(built / "pkgconfig"))
    for host in machines.hosts:
        crossed = []
        for words in (("/usual-" + host,), ("/local-" + host, "local")):
            before = machines.crossed()
            machines.run(host, str(program), *words, RAMLACE_POOL=machines.address())
            crossed.append(machines.crossed() - before)
        usual, local = crossed
        assert usual > 3 * MIB
        assert local < MIB
