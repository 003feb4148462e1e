"""What servers believe of a request's user, said byte by byte: sessions of the owner, of a host, and for its users."""

import os
import stat

import pytest

import noise
import wire
from conftest import NewPool
from pool import Pool

# The pool's owner is root here: what a host's root may do to what belongs to root is looked at.
pytestmark = pytest.mark.needs_root

NOBODY = 65_534
ROOT_INODE = 1


def host_key(pool: Pool) -> bytes:
    """Work the host key out from the secret, as the protocol's page has it."""
    return noise.host_key(pool.secret)


def user(uid: int, gid: int, *groups: int) -> bytes:
    """For whom a request is made, as it stands before the body."""
    return wire.numbers(uid, gid, len(groups), *groups)


@pytest.fixture
def squashed(new_pool: NewPool) -> Pool:
    """A pool that does not trust the root of its hosts."""
    return new_pool(1, 32)


def enter(pool: Pool, key: bytes, kind: int) -> wire.Wire:
    """Connect, greet and begin a session."""
    line = wire.Wire(pool.addresses[0])
    line.greet(key)
    assert line.open_session(kind).error == ""
    return line


def make_directory(line: wire.Wire, who: bytes, name: bytes, sequence: int) -> wire.Reply:
    """Ask for a directory in the root, for somebody where `who` says so."""
    body = who + wire.numbers(ROOT_INODE, len(name)) + name + wire.numbers(0o755, 0)
    flags = wire.ON_BEHALF if who else 0
    return line.call(wire.MAKE_DIRECTORY, body, sequence=sequence, epoch=1, flags=flags)


def test_the_host_key_is_the_one_in_the_file(squashed: Pool) -> None:
    assert noise.host_key_of_line((squashed.directory / "host-key").read_text()) == host_key(squashed)
    assert stat.S_IMODE((squashed.directory / "host-key").stat().st_mode) == 0o600


# SEMANTICS 54.1
def test_a_user_session_that_claims_another_user_is_refused(squashed: Pool) -> None:
    with enter(squashed, squashed.secret, wire.SESSION_USER) as line:
        for who in (user(1001, 2001), user(0, 0), user(os.geteuid(), os.getegid())):
            assert "only the session of a host may" in make_directory(line, who, b"claimed", 1).error
        assert make_directory(line, b"", b"honest", 2).error == ""
    assert squashed.run("ls", "/").stdout.split() == [b"honest"]


# SEMANTICS 54.2
def test_each_key_opens_its_own_sessions_and_no_others(squashed: Pool) -> None:
    for key, kind, told in [
        (squashed.secret, wire.SESSION_HOST, "a host key of the pool, not with its secret"),
        (host_key(squashed), wire.SESSION_USER, "no others"),
        (host_key(squashed), wire.SESSION_PEER, "no others"),
    ]:
        with wire.Wire(squashed.addresses[0]) as line:
            line.greet(key)
            assert told in line.open_session(kind).error
            assert "needs a session" in line.call(wire.HEARTBEAT, b"").error


def test_the_host_key_stops_and_forgets_no_server(squashed: Pool) -> None:
    with wire.Wire(squashed.addresses[0]) as line:
        line.greet(host_key(squashed))
        assert "needs a session" in line.call(wire.STOP_SERVER, b"").error
        assert line.call(wire.SERVER_STATUS, b"").error == ""
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as line:
        assert "pool's owner" in line.call(wire.STOP_SERVER, b"").error
        assert "pool's owner" in line.call(wire.FORGET_SERVER, wire.numbers(0)).error
        assert (
            "servers of the pool alone"
            in line.call(wire.CUT_LANE, wire.numbers(1, 0, 0, 99, 0) + bytes(16), sequence=1).error
        )
        assert line.call(wire.HEARTBEAT, b"").error == ""
    assert squashed.status()[0]["restarts"] == 0


# SEMANTICS 54.3
def test_a_host_comes_to_no_barrier_of_the_pools_programs(squashed: Pool) -> None:
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as host:
        arrival = wire.numbers(4) + b"name" + wire.numbers(0, 2, 1, 4) + b"host" + wire.numbers(5)
        for sequence, kind in enumerate((wire.ARRIVE_BARRIER, wire.LEAVE_BARRIER), 1):
            assert "pool's owner" in host.call(kind, arrival, sequence=sequence, epoch=1).error


def test_no_slot_is_delegated_to_a_host(squashed: Pool) -> None:
    """A session that has one answers for everybody's names in it."""
    # No delegation, no changes, the root's slot is wanted, nothing is given back, and nothing acknowledged.
    wanted = wire.numbers(0, 0, 1, ROOT_INODE, 0, 0)
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as host:
        assert "to the pool's owner alone" in host.call(wire.CHANGE_MANY, wanted, epoch=1).error
    with enter(squashed, squashed.secret, wire.SESSION_USER) as owner:
        assert owner.call(wire.CHANGE_MANY, wanted, epoch=1).error == ""


def test_a_session_keeps_its_kind(squashed: Pool) -> None:
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as host:
        with wire.Wire(squashed.addresses[0]) as line:
            line.greet(squashed.secret)
            line.session = host.session
            assert "with another key" in line.open_session(wire.SESSION_USER).error
        with wire.Wire(squashed.addresses[0]) as line:
            line.greet(host_key(squashed))
            line.session = host.session
            assert line.open_session(wire.SESSION_HOST).error == ""


def test_a_host_acts_for_users_and_its_root_for_nobody(squashed: Pool) -> None:
    squashed.run("chmod", "777", "/")
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as line:
        assert make_directory(line, user(1001, 2001, 2005, 2006), b"user", 1).error == ""
        assert make_directory(line, user(0, 0), b"root", 2).error == ""
        assert make_directory(line, b"", b"nobody", 3).error == ""
        # The root directory belongs to the super-user and to the super-user's group.
        squashed.run("chmod", "775", "/")
        for sequence, who in enumerate((user(1001, 0, 0), user(1001, 2001, 0), user(0, 0), b""), 4):
            assert "may not" in make_directory(line, who, b"refused", sequence).error
        # The number that means "as it is" is no user and no group, and the one for a session with an open file is none.
        for number in (2**32 - 1, 2**32 - 2):
            for who in (user(number, 5), user(5, number)):
                assert "is no user" in make_directory(line, who, b"refused", 8).error
    entries = squashed.json("ls", "-l", "/")
    owned = {entry["name"]: (entry["uid"], entry["gid"]) for entry in entries}
    assert owned == {"user": (1001, 2001), "root": (NOBODY, NOBODY), "nobody": (NOBODY, NOBODY)}


def read_lane(line: wire.Wire, file: tuple[int, int, int, int], permit: bytes) -> wire.Reply:
    """Ask for the first bytes of a file's first lane."""
    inode, slot, generation, epoch = file
    target = wire.numbers(inode, 0, slot, generation, epoch) + (b"\1" + permit if permit else b"\0")
    return line.call(wire.READ_CHUNK, target + wire.numbers(0, 8, wire.KEEP_NO, 0), epoch=epoch)


# SEMANTICS 130.1
def test_a_host_reads_the_bytes_of_files_that_its_users_have_opened_and_of_no_others(squashed: Pool) -> None:
    """Also where servers share no memory but the secret: the home gives the permit, a lane elsewhere checks it."""
    with squashed.connect() as pool:
        with pool.open("/secret", "wb") as file:
            file.write(b"secret" * 100_000)
        found, layout = pool.stat("/secret"), pool.layout("/secret")
    squashed.run("chmod", "600", "/secret")
    file_here = (found.st_ino, layout.base_slot or 0, found.generation, layout.created_epoch or 1)
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as line:
        for permit in (b"", bytes(16), b"\xff" * 16):
            said = read_lane(line, file_here, permit).error
            assert f"has not opened inode {found.st_ino:016x} for reading" in said, said
        opening = wire.numbers(found.st_ino, 1, 0, 0)
        who = user(1001, 2001)
        refused = line.call(wire.OPEN, who + opening, sequence=1, epoch=1, flags=wire.ON_BEHALF)
        assert "may not" in refused.error
        squashed.run("chmod", "604", "/secret")
        opened = line.call(wire.OPEN, who + opening, sequence=2, epoch=1, flags=wire.ON_BEHALF)
        assert opened.error == ""
        # Behind it: two leases and a directory, which are not given.
        permit = opened.body[-19:-3]
        assert permit[8:] == bytes(8), "it was opened for reading alone"
        assert read_lane(line, file_here, permit).data == b"secretse"
        with enter(squashed, host_key(squashed), wire.SESSION_HOST) as other:
            assert "has not opened" in read_lane(other, file_here, permit).error


def test_a_claim_that_makes_no_sense_ends_its_connection_alone(squashed: Pool) -> None:
    for who in (user(5, 5, 7, 6), user(5, 5, 6, 6), wire.numbers(5, 5, 300, *range(300)), b"\xff" * 20):
        with enter(squashed, host_key(squashed), wire.SESSION_HOST) as line:
            assert "makes no sense" in make_directory(line, who, b"refused", 1).error
    with enter(squashed, host_key(squashed), wire.SESSION_HOST) as line:
        body = user(1001, 2001) + wire.numbers(1, 0, 0, 1, 1, 0, 0, 4096, 0, 0)
        assert "for no user" in line.call(wire.READ_CHUNK, body, epoch=1, flags=wire.ON_BEHALF).error
    # What `check` reads of everybody's names is the owner's, also where a host may act for the owner.
    pages = ((wire.CHECK_SLOTS, 0), (wire.CHECK_INODES, 0), (wire.CHECK_ENTRIES, 0))
    for kind, after in pages:
        with enter(squashed, host_key(squashed), wire.SESSION_HOST) as line:
            body = user(os.getuid(), os.getgid()) + wire.numbers(after)
            assert "pool's owner" in line.call(kind, body, epoch=1, flags=wire.ON_BEHALF).error
    assert squashed.run("ls", "/").stdout == b""
