"""What servers count: by `status`, `top --clients` and `top --messages`, and as text for Prometheus."""

import re
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import NewPool
from pool import MIB, Pool, eventually, pattern

OPERATIONS = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"


def free_ports(count: int) -> int:
    """Return the first of so many neighbouring ports that nobody has at this moment."""
    for first in range(20000, 30000, count):
        with suppress(OSError):
            sockets = [socket.create_server(("127.0.0.1", first + number)) for number in range(count)]
            for one in sockets:
                one.close()
            return first
    raise AssertionError("there are no free ports")


def started(planned: NewPool, servers: int) -> tuple[Pool, int]:
    """Start a pool that tells metrics; somebody else may take a port first, then others are tried."""
    for _ in range(5):
        port, pool = free_ports(servers), planned(servers, 32)
        with suppress(AssertionError):
            pool.up("--metrics", f"127.0.0.1:{port}")
            return pool, port
    raise AssertionError("no pool could be started")


def page(port: int, path: str = "/metrics") -> str:
    """Return what a server tells."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = reply.read().decode()
        assert isinstance(text, str)
        return text


def values(text: str, name: str) -> dict[str, float]:
    """Return the values of a family by their labels."""
    found = re.findall(rf"^ramlace_{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def test_what_was_asked_is_counted_and_told_to_prometheus(planned: NewPool) -> None:
    pool, port = started(planned, 2)
    data = pattern(1, 3 * MIB)
    with pool.connect(local=False) as connected:
        with connected.open("/a", "wb") as file:
            file.write(data)
        assert connected.read_bytes("/a") == data
        texts = [page(port + number) for number in range(2)]
        sent = sum(values(text, "sent_bytes_total").get('message="ReadChunk"', 0) for text in texts)
        received = [values(text, "received_bytes_total") for text in texts]
        came = sum(one.get(f'message="{kind}"', 0) for one in received for kind in ("WriteChunk", "ExtendChunk"))
        # And the bodies around the bytes; a client may take the last bytes from memory that it shares.
        assert len(data) <= came < len(data) + 4096
        assert len(data) <= sent < len(data) + 4096
        with pytest.raises(FileNotFoundError):
            connected.read_bytes("/nothing")
        errors = sum(sum(values(page(port + number), "request_errors_total").values()) for number in range(2))
        assert errors >= 1
    for text in texts:
        counts = values(text, "request_seconds_count")
        buckets = values(text, "request_seconds_bucket")
        for message, count in counts.items():
            mine = [value for labels, value in buckets.items() if labels.startswith(message + ",")]
            assert mine == sorted(mine)
            assert mine[-1] == count
        assert values(text, "store_bytes") == {"": 32 * MIB}
        assert data[:100].hex() not in text
        assert "/a" not in text


def test_every_metric_is_explained(planned: NewPool) -> None:
    pool, port = started(planned, 1)
    pool.status()
    families = set(re.findall(r"^# TYPE (ramlace_\w+)", page(port), re.MULTILINE))
    told = set(re.findall(r"^\| `(ramlace_\w+)`", OPERATIONS.read_text(), re.MULTILINE))
    assert families == told


def test_who_asks_badly_or_not_at_all_harms_nobody(planned: NewPool) -> None:
    pool, port = started(planned, 1)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    try:
        for words in [b"\r\n\r\n", b"GET /../secret HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n"]:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as bad:
                bad.sendall(words)
                assert bad.makefile("rb").readline() == b"HTTP/1.1 404 Not Found\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as endless:
            with suppress(OSError):
                endless.sendall(b"x" * 100_000)
            with suppress(ConnectionResetError):
                assert endless.recv(1) == b""
        # Forty clients that say nothing keep the seats for a while only.
        assert eventually(lambda: page(port), 60)
        assert pool.status()[0]["restarts"] == 0
    finally:
        for one in silent:
            one.close()
    with pytest.raises(urllib.error.HTTPError):
        page(port, "/status")


def test_an_address_that_is_taken_is_named(planned: NewPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = planned(1, 32).refused("up", "--memory", "32MiB", "--metrics", address)
    assert address in refused
    assert "ADDRESS:PORT" in planned(1, 32).refused("up", "--metrics", "9464")


def test_clients_are_shown_with_what_they_move(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect(local=False) as connected:
        with connected.open(f"{place}/a", "wb") as file:
            file.write(pattern(2, 5 * MIB))
        clients = shared_pool.json("top", "--clients", "--once", "--interval", "100")["clients"]
        most = max(clients, key=lambda client: client["sent_bytes"])
        assert most["sent_bytes"] >= 5 * MIB
        assert most["servers"] == shared_pool.servers
        assert not most["for_users"]
        table = shared_pool.run("top", "--clients", "--once", "--interval", "100").stdout.decode()
        assert most["session"] in table
    # A client that has gone is none any more.
    ended = shared_pool.json("top", "--clients", "--once", "--interval", "100")["clients"]
    assert most["session"] not in [client["session"] for client in ended]


def test_status_tells_messages(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as connected:
        connected.mkdir(f"{place}/d")
    for words in ([], ["--messages"]):
        messages = {one["message"]: one for one in shared_pool.json("status", *words)["messages"]}
        made = messages["MakeDirectory"]
        assert made["answers"] >= 1
        assert sum(time["answers"] for time in made["times"]) == made["answers"]
    assert "MakeDirectory" in shared_pool.run("status", "--messages").stdout.decode()
    assert "MakeDirectory" not in shared_pool.run("status").stdout.decode()


def test_messages_are_shown_with_their_rates(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as connected, ThreadPoolExecutor(1) as beside:
        top = beside.submit(shared_pool.json, "top", "--messages", "--once", "--interval", "2000")
        made = 0
        while not top.done():
            # One at a time: a directory of thousands is spread meanwhile, and answers that it is.
            connected.mkdir(f"{place}/e")
            connected.rmdir(f"{place}/e")
            made += 1
        messages = {one["message"]: one for one in top.result()["messages"]}
    shown = messages["MakeDirectory"]
    assert 0 < shown["calls_per_second"] * 2 <= made
    assert shown["errors_per_second"] == 0
    assert 0 < shown["p50_micros_max"] <= shown["p99_micros_max"]
    # What both tell of all time is the same.
    told = {one["message"]: one for one in shared_pool.json("status")["messages"]}
    assert shown["calls"] <= told["MakeDirectory"]["answers"]
    assert "MakeDirectory" in shared_pool.run("top", "--messages", "--once", "--interval", "100").stdout.decode()


def test_a_request_has_one_name_at_both_ends(planned: NewPool, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = planned(1, 32)
    quiet.up()
    assert quiet.run("ls", "ramlace:/").stderr == b""
    assert "ramlace::" not in quiet.log(0)
    monkeypatch.setenv("RAMLACE_LOG", "debug")
    pool = planned(2, 32)
    pool.up()
    told = pool.run("stat", "ramlace:/").stderr.decode()
    asked = re.findall(r"ramlace::client: asks request=([0-9a-f]{8}\.\d+) kind=(\w+) server=(\d)", told)
    assert asked
    for request, kind, server in asked:
        answered = rf"ramlace::server: is answered request={re.escape(request)} kind={kind} micros=\d+"
        assert eventually(lambda: re.search(answered, pool.log(int(server))), 10), (request, kind)  # noqa: B023
    refused = pool.run("stat", "ramlace:/nothing", check=False).stderr.decode()
    assert re.search(r"ramlace::client: .*nothing", refused)
    monkeypatch.setenv("RAMLACE_LOG", "a=b=c")
    assert "RAMLACE_LOG='a=b=c' cannot be read" in pool.run("ls", "ramlace:/").stderr.decode()


def test_what_servers_ask_each_other_names_the_request_that_made_it_necessary(
    planned: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMLACE_LOG", "debug")
    pool = planned(3, 32)
    pool.up()
    asked: set[str] = set()
    # Directories lie in slots of all servers: most of these make two servers do something together.
    for number in range(12):
        told = pool.run("mkdir", f"ramlace:/d{number}").stderr.decode()
        asked.update(re.findall(r"ramlace::client: asks request=(\S+) kind=MakeDirectory", told))
    logs = [pool.log(server) for server in range(3)]
    asking = r"ramlace::peers: asks request=(\S+) cause=(\S+) kind=(Prepare|Decide) server=(\d)"
    found = [(server, *line) for server, log in enumerate(logs) for line in re.findall(asking, log)]
    assert {kind for _, _, cause, kind, _ in found if cause in asked} == {"Prepare", "Decide"}
    assert len({request for _, request, *_ in found}) == len(found), "a name is one request's"
    for server, request, cause, kind, other in found:
        assert re.search(rf"ramlace::server: is answered request={re.escape(cause)} ", pool.log(server)), cause
        answered = rf"ramlace::server: is answered request={re.escape(request)} kind={kind} "
        assert eventually(lambda: re.search(answered, pool.log(int(other))), 10), request  # noqa: B023
