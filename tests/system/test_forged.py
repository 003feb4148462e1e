"""Whoever has a server's key can say what could be true in another server's name. `check` tells, and mends it."""

import itertools
import json
import os

import pytest

import wire
from conftest import NewPool
from noise import PEER, host_key
from pool import KIB, Pool, pattern

SLOTS = 32
SLOT_BITS = 48
RAISE_LINKS = 2


def forge(pool: Pool, server: int, kind: int, body: bytes) -> str:
    """Say something to a server as another server of its pool would; what it answers, empty when it is content."""
    with wire.Wire(pool.addresses[server]) as line:
        line.greet(pool.secret, role=PEER)
        assert line.open_session(wire.SESSION_PEER).error == ""
        return line.call(kind, body).error


def stamp(coordinator: int, number: int, open_from: int) -> bytes:
    """A client's mutation, and its place among the operations of a slot."""
    return os.urandom(16) + wire.numbers(1, coordinator, number, open_from)


def forge_at_home(pool: Pool, inode: int, kind: int, body: bytes) -> None:
    """Tell the server that has the inode."""
    said = [forge(pool, server, kind, body) for server in range(len(pool.addresses))]
    assert said.count("") == 1, (inode >> SLOT_BITS, said)


def hold_links(pool: Pool, inode: int, coordinator: int, number: int, open_from: int) -> None:
    """Have the inode kept for an operation that nobody has begun."""
    slot = inode >> SLOT_BITS
    who_and_when = wire.numbers(0, 0, 0) + bytes(1)
    part = wire.numbers(RAISE_LINKS, inode)
    body = stamp(coordinator, number, open_from) + wire.numbers(slot, 1) + who_and_when + part
    forge_at_home(pool, inode, wire.PREPARE, body)


def decide(pool: Pool, inode: int, coordinator: int, number: int, open_from: int) -> None:
    """Say that an operation is over, and was given up."""
    slot = inode >> SLOT_BITS
    body = stamp(coordinator, number, open_from) + wire.numbers(slot, 0, 0)
    forge_at_home(pool, inode, wire.DECIDE, body)


def repair(pool: Pool) -> list[str]:
    """Mend; what was mended, and nothing is wrong afterwards."""
    report = pool.json("check", "--repair")
    assert report["clean"], report
    return [str(mended["text"]) for mended in report["mended"]]


def inode_of(pool: Pool, path: str) -> int:
    """The number of a file."""
    return int(pool.json("stat", path)["inode"], 16)


@pytest.fixture
def forged(new_pool: NewPool) -> Pool:
    """Two servers, and a file of two lanes."""
    pool = new_pool(2, 64, "--slots", str(SLOTS))
    with pool.connect() as connected, connected.open("/file", "wb") as file:
        file.write(pattern(1, 3 * 1024 * KIB))
    return pool


# SEMANTICS 133.1
def test_a_part_that_is_held_for_nobody_is_let_go(forged: Pool) -> None:
    # In the name of slots of both servers.
    paths = [f"/held{number}" for number in range(3)]
    for number, path in enumerate(paths):
        forged.run("touch", path)
        inode = inode_of(forged, path)
        hold_links(forged, inode, (inode >> SLOT_BITS) ^ (1 << number), 900 + number, 1)
    found = forged.check()
    assert [finding["kind"] for finding in found] == ["held-by-nobody"] * 3, found
    assert all("check --repair" in finding["advice"] for finding in found)
    assert len(repair(forged)) == 3
    assert repair(forged) == []
    for path in paths:
        forged.run("rm", path)


# SEMANTICS 133.2
def test_a_pair_of_slots_whose_numbers_were_moved_ahead_is_of_use_again(forged: Pool) -> None:
    inode = inode_of(forged, "/file")
    slot = inode >> SLOT_BITS
    far = 1 << 61
    for other in (slot ^ 1, slot ^ 2):
        decide(forged, inode, other, far, far)
    found = forged.check()
    assert [finding["kind"] for finding in found] == ["numbers-ahead"] * 2, found
    assert len(repair(forged)) == 2
    # It is for ever: also for the next life of the servers.
    for server in range(2):
        forged.kill_child(server)
        forged.await_restart(server, 1)
    assert forged.check() == []


# SEMANTICS 133.3
def test_a_lane_that_was_cut_by_nobody_serves_its_file_again(forged: Pool) -> None:
    inode = inode_of(forged, "/file")
    # In one of the slots the lane is; where it is not, nothing happens. It has the first generation, or the second.
    for slot in range(SLOTS):
        for generation in (2, 3):
            body = wire.numbers(inode, 0, slot, generation, 0) + bytes(16)
            said = [forge(forged, server, wire.CUT_LANE, body) for server in range(2)]
            assert said.count("") == 1, said
    found = forged.check()
    assert [finding["kind"] for finding in found] == ["generations-differ"], found
    # A true truncation that the lane took for an old one.
    with forged.connect() as connected, connected.open("/file", "r+b") as file:
        file.truncate(KIB)
    assert len(repair(forged)) == 1
    with forged.connect() as connected:
        with connected.open("/file", "r+b") as file:
            file.truncate(3 * 1024 * KIB)
        with connected.open("/file", "rb") as file:
            assert not any(file.read()[KIB:]), "what was cut off is back"
        with connected.open("/file", "r+b") as file:
            file.write(pattern(2, 3 * 1024 * KIB))
        with connected.open("/file", "rb") as file:
            assert file.read() == pattern(2, 3 * 1024 * KIB)


# SEMANTICS 133.4
def test_lanes_whose_home_was_lost_are_given_back(new_pool: NewPool) -> None:
    pool = new_pool(3)
    with pool.connect() as connected:
        # Each server holds bytes of each file.
        connected.set_layout("/", stripe_unit=1024 * KIB, width=3)
        # A file's home is where its directory is.
        for number in range(12):
            connected.mkdir(f"/{number}")
            with connected.open(f"/{number}/file", "wb") as file:
                file.write(pattern(number, 3 * 1024 * KIB))
    inodes = [inode_of(pool, f"/{number}/file") for number in range(12)]
    with wire.Wire(pool.addresses[2]) as line:
        line.greet(pool.secret)
        assert line.open_session().error == ""
        lost = [inode for inode in inodes if has_home_at(line, inode)]
    pool.kill_server(2)
    pool.run("forget", "2")
    # Nobody has told the other server yet that those homes are elsewhere.
    epochs = [status["epoch"] for status in pool.status()]
    assert epochs[1] < epochs[0]
    with wire.Wire(pool.addresses[1]) as line:
        line.greet(pool.secret)
        assert line.open_session().error == ""
        for inode, lane in itertools.product(lost, range(3)):
            assert line.call(wire.MEND_LANES, wire.numbers(1, inode, lane), epoch=epochs[0]).error == ""
    assert leaked_lanes(pool), "no file had its home there"
    done = pool.run("check", "--repair", "--json", check=False)
    assert json.loads(done.stdout)["mended"], done
    assert leaked_lanes(pool) == 0


def has_home_at(line: wire.Wire, inode: int) -> bool:
    """Whether the inode lives with the server on this line."""
    error = line.call(wire.LOOKUP, wire.numbers(inode, 1) + b"z", slot=inode >> SLOT_BITS, epoch=1).error
    print(error)
    return "belongs to" not in error


def leaked_lanes(pool: Pool) -> int:
    """How many lanes `check` finds without a file."""
    findings = json.loads(pool.run("check", "--json", check=False).stdout)["findings"]
    return sum(finding["kind"] == "lane-leaked" for finding in findings)


def test_only_the_owner_has_a_server_mend(forged: Pool) -> None:
    with wire.Wire(forged.addresses[0]) as line:
        line.greet(host_key(forged.secret))
        assert line.open_session(wire.SESSION_HOST).error == ""
        assert line.call(wire.MEND, wire.numbers(1, 0)).error != ""
        assert line.call(wire.MEND_LANES, wire.numbers(1, 1, 0)).error != ""
    assert forged.json("check", "--repair")["mended"] == []
