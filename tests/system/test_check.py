"""`ramlace check` on real pools: clean while a pool is used, and honest about damage."""

import signal
import threading
from pathlib import Path

import pytest

import clients
import ramlace
from conftest import NewPool
from pool import KIB, MIB, Pool, eventually, pattern


def _use(pool: ramlace.Pool, place: str, stop: threading.Event) -> None:
    """Make, write, rename and remove files until told to stop."""
    pool.mkdir(place)
    number = 0
    while not stop.is_set():
        number += 1
        path = f"{place}/f{number % 7}"
        with pool.open(path, "wb") as file:
            file.write(pattern(number, 3 * MIB + number))
        pool.rename(path, f"{place}/g{number % 5}")
        if number % 3 == 0:
            pool.remove(f"{place}/g{number % 5}")


# SEMANTICS 26.1
def test_a_pool_that_is_used_checks_clean(new_pool: NewPool) -> None:
    """Damage is what stays: nothing of what is only under way is reported."""
    pool = new_pool(3, 96)
    stop = threading.Event()
    with pool.connect() as first, pool.connect() as second:
        workers = [
            threading.Thread(target=_use, args=(one, f"/{index}", stop)) for index, one in enumerate((first, second))
        ]
        for worker in workers:
            worker.start()
        try:
            for _ in range(3):
                assert pool.check() == []
        finally:
            stop.set()
            for worker in workers:
                worker.join()
    report = pool.json("check")
    assert report["clean"]
    assert report["inodes"] == report["entries"] + 1
    assert report["lane_bytes"] > 0


def _store_directory(pool: Pool, server: int) -> Path:
    """The store of a server, by a descriptor of its supervisor, into which nobody but root looks."""
    supervisor = pool.process("supervisor", server)
    for entry in Path(f"/proc/{supervisor.pid}/fd").iterdir():
        if (entry / "lanes").is_dir():
            return entry
    raise AssertionError("the supervisor holds no store")


# SEMANTICS 26.2
@pytest.mark.needs_root
def test_check_finds_a_lane_that_is_nobodys(new_pool: NewPool) -> None:
    """A file in a store that no inode knows is leaked memory: it is named, with what it takes."""
    pool = new_pool(1, 32)
    with pool.connect() as connected, connected.open("/kept", "wb") as file:
        file.write(pattern(1, 100 * KIB))
    lanes = _store_directory(pool, 0) / "lanes"
    (lanes / "0003000001000009.0").write_bytes(pattern(2, 20 * KIB))
    pool.kill_child(0)
    pool.await_restart(0, 1)
    said = pool.run("check", check=False)
    assert said.returncode == 1
    assert b"server 0: lane 0 of file 0003000001000009 takes 20480 bytes; the file is gone" in said.stdout
    findings = pool.check()
    assert [finding["kind"] for finding in findings] == ["lane-leaked"]
    (lanes / "0003000001000009.0").unlink()
    pool.kill_child(0)
    pool.await_restart(0, 2)
    assert pool.check() == []


@pytest.mark.needs_root
def test_check_finds_memory_that_the_server_does_not_count(new_pool: NewPool) -> None:
    """The kernel has the last word on what a store takes."""
    pool = new_pool(1, 32)
    stray = _store_directory(pool, 0) / "stray"
    stray.write_bytes(bytes(8 * KIB))
    assert [finding["kind"] for finding in pool.check()] == ["kernel-differs"]
    stray.unlink()
    assert pool.check() == []


def test_check_needs_every_server_and_names_the_one_that_is_silent(new_pool: NewPool) -> None:
    """A part of a pool cannot be checked."""
    pool = new_pool(2, 32)
    pool.process("child", 1).send(signal.SIGSTOP)
    assert "server 1" in pool.refused("check")
    pool.process("child", 1).send(signal.SIGCONT)
    assert eventually(lambda: pool.run("check", check=False).returncode == 0)


def test_what_a_killed_client_had_under_way_is_no_damage(new_pool: NewPool) -> None:
    """Open files without names live as long as their session; nothing is left afterwards."""
    pool = new_pool(2, 64)
    with clients.running((clients.hold_without_name, pool.name, "/f", 5 * MIB)):
        assert eventually(lambda: pool.json("check")["open_without_name"] == 1)
    assert pool.check() == []
    # The client was killed; its session ends when it has been silent for long enough.
    assert eventually(lambda: pool.json("check")["inodes"] == 1, seconds=30)
    assert pool.json("check")["lane_bytes"] == 0
