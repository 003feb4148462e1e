"""Clients in another network namespace: over TCP, without any shortcut of the machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import NewPool
from mpi_library import VARIABLES, Mpi, temporary
from pool import MIB, PATIENCE_SECONDS, Pool, binary, pattern

SERVER_ADDRESS = "10.219.77.1"
CLIENT_ADDRESS = "10.219.77.2"
PORT = 7000

# Network namespaces are made by root.
pytestmark = pytest.mark.needs_root


def ip(*words: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["ip", *words], capture_output=True, check=True)


class Net:
    """Two namespaces, joined by a pair of virtual cards."""

    def __init__(self, name: str) -> None:
        self.servers, self.clients = f"{name}-s", f"{name}-c"

    def make(self) -> None:
        for namespace in (self.servers, self.clients):
            ip("netns", "add", namespace)
        ip("-n", self.servers, "link", "add", "veth", "type", "veth", "peer", "name", "veth", "netns", self.clients)
        for namespace, address in ((self.servers, SERVER_ADDRESS), (self.clients, CLIENT_ADDRESS)):
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "veth")
            ip("-n", namespace, "link", "set", "veth", "up")
            ip("-n", namespace, "link", "set", "lo", "up")

    def remove(self) -> None:
        for namespace in (self.servers, self.clients):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def received(self) -> int:
        """Bytes that came to the servers by the card."""
        done = self.run(self.servers, "cat", "/sys/class/net/veth/statistics/rx_bytes")
        return int(done.stdout)

    def run(
        self,
        namespace: str,
        *words: str,
        stdin: bytes = b"",
        check: bool = True,
        variables: dict[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            ["ip", "netns", "exec", namespace, *words],
            input=stdin,
            capture_output=True,
            check=check,
            env={**os.environ, **(variables or {})},
            timeout=PATIENCE_SECONDS,
        )


@pytest.fixture
def net() -> Iterator[Net]:
    if not shutil.which("ip"):
        pytest.skip("the command ip (iproute2) is missing")
    made = Net(f"rl{os.getpid()}")
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
    yield made
    made.remove()


@pytest.fixture
def far_pool(net: Net, planned: NewPool) -> Pool:
    """A pool of 3 servers in the servers' namespace."""
    pool = planned(3, 32)
    sizes = ("--servers", "3", "--memory", str(pool.memory_bytes), "--no-reserve")
    listen = ("--listen", f"{SERVER_ADDRESS}:{PORT}")
    net.run(net.servers, binary(), "--pool", pool.name, "up", *sizes, *listen)
    return pool


def test_a_pool_works_from_another_network_namespace(net: Net, far_pool: Pool, tmp_path: Path) -> None:
    # As on another machine: nothing but an address and the secret's file.
    secret = tmp_path / "secret"
    secret.write_bytes((far_pool.directory / "secret").read_bytes())
    secret.chmod(0o600)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    there = {"XDG_RUNTIME_DIR": str(elsewhere), "RAMLACE_SECRET_FILE": str(secret), "RAMLACE_LOCAL": "off"}
    root = f"ramlace://{SERVER_ADDRESS}:{PORT}"

    def run(*words: str, stdin: bytes = b"", check: bool = True) -> "subprocess.CompletedProcess[bytes]":
        return net.run(net.clients, binary(), *words, stdin=stdin, check=check, variables=there)

    before = net.received()
    content = pattern(3, 30 * MIB + 5)
    run("cp", "-", f"{root}/x", stdin=content)
    assert net.received() - before > len(content), "the bytes took another way than the network"
    assert run("cat", f"{root}/x").stdout == content
    run("mkdir", f"{root}/d")
    assert run("ls", f"{root}/").stdout.decode().split() == ["d", "x"]
    assert b"3 of 3 servers answer" in run("status", "--pool", f"{SERVER_ADDRESS}:{PORT}").stdout
    # The servers' own machine sees the same bytes.
    assert net.run(net.servers, binary(), "--pool", far_pool.name, "cat", "/x").stdout == content
    # Killed and restarted there, read here.
    far_pool.kill_child(1)
    assert run("cat", f"{root}/x").stdout == content
    # Without the secret nobody is let in.
    secret.unlink()
    assert b"secret" in run("ls", f"{root}/", check=False).stderr


# SEMANTICS 8.2
def test_an_array_is_fetched_and_published_over_the_network(net: Net, far_pool: Pool, tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import sys, numpy, ramlace\n"
        "pool = ramlace.connect(sys.argv[1], local=False)\n"
        "array = pool.from_numpy('/a', numpy.arange(1_000_000.0))\n"
        "array.view()[7] = -1\n"
        "array.publish()\n"
        "print(array.view().sum())\n"
    )
    secret = str(far_pool.directory / "secret")
    done = net.run(
        net.clients,
        sys.executable,
        str(script),
        f"ramlace://{SERVER_ADDRESS}:{PORT}/",
        variables={"RAMLACE_SECRET_FILE": secret},
    )
    assert float(done.stdout) == sum(range(1_000_000)) - 8
    content = net.run(net.servers, binary(), "--pool", far_pool.name, "cat", "/a").stdout
    assert len(content) == 8_000_000
    assert content[56:64] == b"\0\0\0\0\0\0\xf0\xbf"


def test_a_network_that_is_cut_is_an_error_that_names_the_server(net: Net, far_pool: Pool) -> None:
    """Not refused, as by a dead process, but silent, as a pulled cable is."""
    there = {"RAMLACE_LOCAL": "off"}
    words = (binary(), "--pool", far_pool.name)
    net.run(net.clients, *words, "cp", "-", "ramlace:/x", stdin=b"x" * MIB, variables=there)
    ip("-n", net.servers, "link", "set", "veth", "down")
    done = net.run(net.clients, *words, "cat", "/x", check=False, variables=there)
    assert done.returncode == 1
    assert SERVER_ADDRESS.encode() in done.stderr, done.stderr
    ip("-n", net.servers, "link", "set", "veth", "up")
    assert net.run(net.clients, *words, "cat", "/x", variables=there).stdout == b"x" * MIB


# What starts ranks elsewhere, in place of ssh: the namespace that has the address.
AGENT = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
case $1 in {server}) namespace={servers} ;; *) namespace={clients} ;; esac
shift
exec ip netns exec "$namespace" sh -c "$*"
"""


def test_ranks_in_two_namespaces_share_a_file(net: Net, far_pool: Pool, mpi: Mpi, tmp_path: Path) -> None:
    agent, report = tmp_path / "agent", tmp_path / "report"
    agent.write_text(AGENT.format(server=SERVER_ADDRESS, servers=net.servers, clients=net.clients))
    agent.chmod(0o700)
    hosts = f"{SERVER_ADDRESS},{CLIENT_ADDRESS}"
    ways = {
        "openmpi": ["--host", hosts],
        "mpich": ["-launcher", "ssh", "-launcher-exec", str(agent), "-iface", "veth", "-hosts", hosts],
    }
    variables = {
        **VARIABLES,
        "TMPDIR": temporary(),
        "RAMLACE_LOCAL": "off",
        "RAMLACE_SECRET_FILE": str(far_pool.directory / "secret"),
        "RAMLACE_MPIIO_LIBRARY": str(mpi.library),
        "RAMLACE_MPIIO_REPORT": str(report),
        "OMPI_MCA_btl": "self,tcp",
        "OMPI_MCA_btl_tcp_if_include": "veth",
        "OMPI_MCA_oob_tcp_if_include": "veth",
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "FI_TCP_IFACE": "veth",
        "FI_SOCKETS_IFACE": "veth",
        "UCX_NET_DEVICES": "veth",
    }
    launch = ("mpirun", "--launcher", f"mpirun.{mpi.name}", *ways[mpi.name], "-np", "2")
    job = (str(mpi.program("routines")), "ramlace:/shared")
    before = net.received()
    pool = ("--pool", f"{SERVER_ADDRESS}:{PORT}")
    done = net.run(net.servers, binary(), *pool, *launch, *job, variables=variables, check=False)
    assert done.returncode == 0, done.stderr
    assert report.read_text().count("opens 1 ") == 2
    assert net.received() > before, "no rank was behind the network"
