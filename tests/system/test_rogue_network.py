"""A network that overhears, changes, repeats, leaves out, swaps, reflects and misdirects what is said.

Three servers that know each other, and that everybody else knows, by proxies alone. Whatever those do, nobody reads
what was not written, nothing is done twice, and everything fits together in the end.
"""

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramlace
from conftest import NewPool
from mount import children_of, is_mounted
from pool import KIB, PATIENCE_SECONDS, binary, eventually, pattern

SERVERS = 3
# Bytes that a proxy lets pass before it does something, on average.
BYTES_BETWEEN = 400 * KIB
MISCHIEF = ("flip", "repeat", "leave out", "swap", "reflect", "cut")


class Rogue:
    """A proxy in front of one server."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.server = ""
        # Servers to which a connection is led instead, at times.
        self.others: list[str] = []
        self.is_rogue = False
        self.done: dict[str, int] = {}
        # Everything that passed, if it listens.
        self.heard: list[bytes] | None = None
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """End it, and with it new connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            target = self.server
            if self.is_rogue and self._dice.random() < 0.1:
                target = self._dice.choice(self.others)
                self._note("misdirect")
            try:
                host, port = target.rsplit(":", 1)
                far = socket.create_connection((host, int(port)), 5)
            except OSError:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                seed = self._dice.random()
                threading.Thread(target=self._pass_on, args=(one, other, seed), daemon=True).start()

    def _note(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _pass_on(self, one: socket.socket, other: socket.socket, seed: float) -> None:
        dice = random.Random(seed)
        left = dice.expovariate(1 / BYTES_BETWEEN)
        with contextlib.suppress(OSError):
            while part := one.recv(64 * KIB):
                if self.heard is not None:
                    self.heard.append(part)
                left -= len(part)
                if left <= 0 and self.is_rogue:
                    left = dice.expovariate(1 / BYTES_BETWEEN)
                    what = dice.choice(MISCHIEF)
                    self._note(what)
                    if what == "reflect":
                        one.sendall(part)
                        continue
                    spoiled = spoil(dice, what, part)
                    if spoiled is None:
                        break
                    part = spoiled
                other.sendall(part)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def spoil(dice: random.Random, what: str, part: bytes) -> bytes | None:
    """Return what becomes of some bytes; None: the end."""
    at = dice.randrange(len(part))
    if what == "flip":
        return part[:at] + bytes([part[at] ^ 1 << dice.randrange(8)]) + part[at + 1 :]
    if what == "repeat":
        return part + part[at:]
    if what == "leave out":
        return part[:at]
    if what == "swap":
        return part[at:] + part[:at]
    return None


class Servers:
    """Three servers behind rogues."""

    def __init__(self, runtime: Path, name: str, *words: str) -> None:
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        self.secret = runtime / f"{name}-secret"
        self.secret.write_text(os.urandom(32).hex() + "\n")
        self.secret.chmod(0o600)
        self.rogues = [Rogue(seed) for seed in range(SERVERS)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.host_key = runtime / f"{name}-host-key"
        pool_id = os.urandom(16).hex()
        for server in range(SERVERS):
            command = [binary(), "--pool", name, "serve", "--memory", "96MiB", "--no-reserve", "--pool-id", pool_id]
            command += ["--server", str(server), "--servers", str(SERVERS), "--secret-file", str(self.secret)]
            command += ["--unix", str(runtime / f"{name}-{server}.sock"), "--no-root-squash", *words]
            # Where it listens is what the rogue leads to; a client that reads the map goes to the rogue.
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.rogues[server].server = f"127.0.0.1:{free.getsockname()[1]}"
            command += ["--listen", self.rogues[server].server, "--advertise", self.rogues[server].address]
            if server:
                command += ["--coordinator", self.rogues[0].address]
            output = (runtime / f"{name}-{server}.log").open("wb")
            with output:
                process = subprocess.Popen(command, stdout=output, stderr=output, env=self.environment)
            self.processes.append(process)
        for server, rogue in enumerate(self.rogues):
            rogue.others = [other.server for number, other in enumerate(self.rogues) if number != server]
        self.logs = [runtime / f"{name}-{server}.log" for server in range(SERVERS)]
        assert eventually(lambda: self.run("status", check=False).returncode == 0), self.said()

    def said(self) -> str:
        """What the servers have said."""
        return "\n".join(log.read_text() for log in self.logs)

    def run(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[bytes]":
        """Run a command by the rogues' addresses."""
        environment = {**self.environment, "RAMLACE_SECRET_FILE": str(self.secret), "RAMLACE_LOCAL": "off"}
        command = [binary(), "--pool", self.rogues[0].address, *words]
        return subprocess.run(command, capture_output=True, check=check, env=environment, timeout=PATIENCE_SECONDS)

    def be_rogue(self, rogue: bool) -> None:
        """Begin, or end, all mischief."""
        for one in self.rogues:
            one.is_rogue = rogue

    def close(self) -> None:
        """Stop everything."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_SECONDS)
        for one in self.rogues:
            one.close()


@pytest.fixture
def rogues(planned: NewPool, runtime: Path) -> Iterator[Servers]:
    """Servers that nobody reaches but by rogues."""
    name = planned(SERVERS, 96).name
    servers = Servers(runtime, name)
    try:
        yield servers
    finally:
        servers.close()


def insist(work: Any) -> Any:
    """Do something until it is done; a network that is cut may be an error at any time."""

    def attempt() -> list[Any]:
        try:
            return [work()]
        except OSError:
            return []

    return eventually(attempt, 60)[0]


def library_works(servers: Servers, name: str, errors: list[BaseException]) -> None:
    """Write and read files, and count in a cell, by the library: what it reads is what it has written."""
    try:
        with insist(lambda: ramlace.connect(servers.rogues[1].address, local=False)) as pool:
            for number in range(12):
                bytes_ = pattern(number, 300 * KIB + number)
                path = f"/{name}{number % 4}"

                def write(path: str = path, bytes_: bytes = bytes_) -> None:
                    with pool.open(path, "wb") as file:
                        file.write(bytes_)

                insist(write)
                assert insist(lambda path=path: pool.read_bytes(path)) == bytes_, path
    except BaseException as error:  # told by the test
        errors.append(error)


def mount_works(directory: Path, name: str, errors: list[BaseException]) -> None:
    """The same by a mount."""
    try:
        for number in range(8):
            bytes_ = pattern(100 + number, 200 * KIB + number)
            path = directory / f"{name}{number % 4}"
            insist(lambda path=path, bytes_=bytes_: path.write_bytes(bytes_))
            assert insist(path.read_bytes) == bytes_, path
            insist(lambda path=path, name=name: path.rename(directory / f"{name}moved"))
    except BaseException as error:  # told by the test
        errors.append(error)


@contextlib.contextmanager
def mounted(servers: Servers, directory: Path, *words: str) -> Iterator[Path]:
    """A mount by the rogues' addresses."""
    directory.mkdir()
    servers.run("mount", *words, str(directory))
    try:
        yield directory
    finally:
        servers.run("unmount", str(directory))
        assert not is_mounted(directory)


def kill_servers(servers: Servers, over: threading.Event, killed: list[int]) -> None:
    """Kill the child of one server after the other, until it is over; their supervisors start them again."""
    while not killed or not over.wait(2):
        supervisor = servers.processes[len(killed) % SERVERS].pid
        (child,) = eventually(functools.partial(children_of, supervisor))
        os.kill(child, signal.SIGKILL)
        killed.append(child)


def storm(servers: Servers, directories: list[Path], *, kills: bool = False) -> None:
    """Work by all doors at once while the network is rogue, and perhaps servers die; then everything fits together."""
    errors: list[BaseException] = []
    over = threading.Event()
    killed: list[int] = []
    killer = threading.Thread(target=kill_servers, args=(servers, over, killed))
    os.environ["RAMLACE_SECRET_FILE"] = str(servers.secret)
    workers = [threading.Thread(target=library_works, args=(servers, name, errors)) for name in ("a", "b")]
    workers += [
        threading.Thread(target=mount_works, args=(directory, f"m{number}-", errors))
        for number, directory in enumerate(directories)
    ]
    servers.be_rogue(True)
    for worker in workers:
        worker.start()
    if kills:
        killer.start()
    for worker in workers:
        worker.join()
    over.set()
    if kills:
        killer.join()
        assert killed
    del os.environ["RAMLACE_SECRET_FILE"]
    servers.be_rogue(False)
    assert errors == []
    done = {what for rogue in servers.rogues for what in rogue.done}
    assert len(done) >= len(MISCHIEF) // 2, done
    report = eventually(lambda: json.loads(servers.run("check", "--json", check=False).stdout or "null"))
    assert report.get("clean"), report
    said = servers.said()
    assert "panicked" not in said, said


def test_a_rogue_network_is_noticed_by_clients_servers_and_mounts(rogues: Servers, tmp_path: Path) -> None:
    """The owner's library and mount, and what servers tell each other."""
    with mounted(rogues, tmp_path / "owner", "--secret-file", str(rogues.secret)) as owner:
        storm(rogues, [owner])


def test_a_rogue_network_is_noticed_while_servers_are_killed(rogues: Servers, tmp_path: Path) -> None:
    """The same while servers' logs are read again and again."""
    with mounted(rogues, tmp_path / "owner", "--secret-file", str(rogues.secret)) as owner:
        storm(rogues, [owner], kills=True)


@pytest.mark.needs_root
def test_a_rogue_network_is_noticed_by_hosts_that_act_for_their_users(rogues: Servers, tmp_path: Path) -> None:
    """The same with a host's key."""
    rogues.host_key.write_bytes(rogues.run("host-key", "node7").stdout)
    rogues.host_key.chmod(0o600)
    words = ["--allow-other", "--host-key-file", str(rogues.host_key)]
    with mounted(rogues, tmp_path / "host", *words) as host:
        storm(rogues, [host])


# SEMANTICS 27.4
@pytest.mark.parametrize("words", [(), ("--trust-network",)], ids=["sealed", "trusted"])
def test_who_listens_reads_contents_of_a_pool_that_trusts_its_network_alone(
    planned: NewPool, runtime: Path, words: tuple[str, ...]
) -> None:
    """Names and what servers tell each other are hidden from everybody; contents unless the pool was told otherwise."""
    servers = Servers(runtime, planned(SERVERS, 96).name, *words)
    try:
        for rogue in servers.rogues:
            rogue.heard = []
        name, mark = os.urandom(12).hex(), os.urandom(32)
        os.environ["RAMLACE_SECRET_FILE"] = str(servers.secret)
        with ramlace.connect(servers.rogues[0].address, local=False) as pool:
            pool.mkdir(f"/{name}")
            for length in (1, 100, 1 << 14, 1 << 16):
                path = f"/{name}/{name}{length}"
                with pool.open(path, "wb") as file:
                    file.write(mark * length)
                assert pool.read_bytes(path) == mark * length
        del os.environ["RAMLACE_SECRET_FILE"]
        heard = b"".join(part for rogue in servers.rogues for part in rogue.heard or [])
        assert len(heard) > 2 * len(mark) << 16
        assert heard.count(name.encode()) == 0
        assert (heard.count(mark) > 0) == bool(words)
        # The pool's owner is told.
        assert (b"--trust-network" in servers.run("status").stdout) == bool(words)
        children = [children_of(process.pid)[0] for process in servers.processes]
        found = json.loads(subprocess.run([binary(), "doctor", "--json"], capture_output=True, check=False).stdout)
        (said,) = (one["found"] for one in found["checks"] if one["name"] == "file contents over TCP")
        assert all((f"process {child} neither" in said) == bool(words) for child in children), said
    finally:
        servers.close()
