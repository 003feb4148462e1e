"""LMDB on two machines: a mapped database whose own locks are those of one machine.

They are mutexes in a mapping: a thread that waits for one sleeps in its kernel, and the other kernel wakes nobody
there. So programs of several machines open it without these, and lock a file of their own around transactions.
"""

import sys
from contextlib import ExitStack

import pytest

from litmus import LONG
from mount import Mount, Program
from pool import Pool

lmdb = pytest.importorskip("lmdb", reason="LMDB for Python is not installed")

pytestmark = pytest.mark.both

KEYS = 40
WORKERS = 2

# Each worker adds one to counters of its own and to one of all, and looks whether what it sees is one state.
_WORKS = """
import contextlib, fcntl, os, random, struct, sys, time
import lmdb
env = lmdb.open({path!r}, map_size={map_size}, subdir=True, lock=False, writemap={writemap}, max_dbs=0)
# As long as it will ever be: a kernel hears of a size when it is asked, and a load from a mapping asks nothing.
if os.path.getsize({path!r} + "/data.mdb") < {map_size}:
    os.truncate({path!r} + "/data.mdb", {map_size})
guard = os.open({path!r} + "/guard", os.O_RDWR | os.O_CREAT, 0o644)

@contextlib.contextmanager
def locked(kind):
    fcntl.lockf(guard, kind)
    try:
        yield
    finally:
        fcntl.lockf(guard, fcntl.LOCK_UN)

def number(txn, key):
    return int(txn.get(key) or b"0")

def change(who, turn):
    with locked(fcntl.LOCK_EX), env.begin(write=True) as txn:
        total = number(txn, b"total") + 1
        txn.put(b"total", b"%d" % total)
        own = number(txn, b"of %d" % who) + 1
        assert own == turn + 1, (who, turn, own)
        txn.put(b"of %d" % who, b"%d" % own)
        txn.put(b"entry %d %d" % (who, turn), os.urandom(random.randrange(1, 900)))
        if turn >= {keep}:
            assert txn.delete(b"entry %d %d" % (who, turn - {keep}))
    return total

def look(seen):
    with locked(fcntl.LOCK_SH), env.begin() as txn:
        total = number(txn, b"total")
        assert total >= seen, (total, seen)
        owns = [number(txn, b"of %d" % who) for who in range({workers})]
        assert sum(owns) == total, (owns, total)
        entries = sum(1 for key, _ in txn.cursor() if key.startswith(b"entry"))
        assert entries == sum(min(own, {keep}) for own in owns), (entries, owns)
    return total

def work(who, times):
    seen = 0
    for turn in range(times):
        seen = look(max(seen, change(who, turn)))
    return seen
"""


# SEMANTICS 126.3
@pytest.mark.parametrize(("mode", "writemap"), [("strict", False), ("strict", True), ("coherent", False)])
def test_programs_of_two_machines_share_an_lmdb_database(
    fuse: None, shared_pool: Pool, place: str, mode: str, writemap: bool
) -> None:
    times = 1_000 if LONG else 60
    with ExitStack() as stack:
        mounts = [Mount(shared_pool, "--mode", mode) for _ in range(WORKERS)]
        for mount in mounts:
            stack.callback(mount.close)
        directories = [mount / place / "base" for mount in mounts]
        directories[0].mkdir()
        crew = []
        for directory in directories:
            text = _WORKS.format(path=str(directory), map_size=16 << 20, writemap=writemap, keep=KEYS, workers=WORKERS)
            crew.append(stack.enter_context(Program(text, python=sys.executable)))
        for who, one in enumerate(crew):
            one.begin(f"work({who}, {times})", "ask")
        seen = [one.hear(120.0) for one in crew]
        assert max(seen) == WORKERS * times, seen
        assert [one.ask(f"look({WORKERS * times})") for one in crew] == [WORKERS * times] * 2
        for one in crew:
            one.run("env.close()")
