"""A full pool says so, and how far it came; everything else goes on, and deleting frees."""

import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clients
import ramlace
from conftest import NewPool
from mount import NewMount
from pool import KIB, MIB, Pool, eventually, pattern

UNIT = 64 * KIB


def fill(pool: ramlace.Pool, path: str, **layout: Any) -> int:
    """Write a file until not even a page more fits; return its acknowledged bytes."""
    done, piece = 0, MIB
    with pool.open(path, "wb", buffering=0, stripe_unit=UNIT, **layout) as file:
        while True:
            try:
                done += file.pwrite(pattern(done // MIB, MIB)[done % MIB :][:piece], done)
            except ramlace.Error as error:
                assert error.errno == errno.ENOSPC, error
                if piece == 4096:
                    return done
                piece //= 16


def kernel_usage(pool: Pool, server: int) -> int:
    """Return what the kernel says is taken of a server's store."""
    child, supervisor = (pool.process(role, server) for role in ("child", "supervisor"))
    config = json.loads(Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")[2])
    # Nobody but root looks into these.
    found = os.statvfs(f"/proc/{supervisor.pid}/fd/{config['store_fd']}")
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def used(pool: Pool) -> list[int]:
    return [server["used_bytes"] for server in pool.status()]


def test_a_copy_that_does_not_fit_says_how_much_was_written_and_is_removed(new_pool: NewPool, tmp_path: Path) -> None:
    pool = new_pool(3, 16)
    big = tmp_path / "big"
    big.write_bytes(pattern(1, 64 * MIB))
    small = tmp_path / "small"
    small.write_bytes(pattern(2, 3 * MIB))
    pool.run("cp", "--stripe-unit", "64KiB", str(small), "ramlace:/small")
    before = sum(used(pool))
    said = pool.refused("cp", "--stripe-unit", "64KiB", str(big), "ramlace:/big")
    for words in ("/big", "server ", "is full", "remove something", "had been written", "the partial copy was removed"):
        assert words in said, said
    written = int(said.split("(")[-1].split(" bytes")[0])
    assert 10 * MIB < written < 48 * MIB, said
    assert "big" not in pool.run("ls", "/").stdout.decode().split()
    assert eventually(lambda: sum(used(pool)) <= before + MIB), "the partial copy's memory was not freed"
    report = json.loads(pool.refused("cp", "--json", str(big), "ramlace:/big").splitlines()[0])["error"]
    assert (report["errno"], report["errno_name"]) == (errno.ENOSPC, "ENOSPC"), report
    # Everything else goes on.
    assert pool.run("cat", "/small").stdout == pattern(2, 3 * MIB)
    pool.run("cp", "--stripe-unit", "64KiB", str(small), "ramlace:/again")
    assert pool.run("cat", "/again").stdout == pattern(2, 3 * MIB)


def test_a_stream_that_does_not_fit_says_how_much_was_written(new_pool: NewPool) -> None:
    pool = new_pool(1, 16)
    done = pool.run("cp", "-", "ramlace:/stream", check=False, stdin=pattern(1, 24 * MIB))
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "had been written" in said, said


# SEMANTICS 22
@pytest.mark.parametrize("local", [True, False], ids=["local", "tcp"])
def test_a_full_pool_keeps_what_it_acknowledged_and_frees_what_is_deleted(new_pool: NewPool, local: bool) -> None:
    running = new_pool(3, 16)
    with running.connect(local=local) as pool:
        pool.open("/kept", "wb", buffering=0, stripe_unit=UNIT).write(pattern(9, MIB))
        empty = sum(used(running))
        first = fill(pool, "/full")
        # Whole chunks of a stripe may be missing, but nothing that was acknowledged.
        expected = b"".join(pattern(number, MIB) for number in range(first // MIB + 1))[:first]
        assert first > 36 * MIB
        assert pool.open("/full", buffering=0).read(first) == expected
        # What has its memory can be written again; what is there can be read; names can be made.
        with pool.open("/full", "r+b", buffering=0) as file:
            assert file.pwrite(pattern(77, 3 * UNIT), 0) == 3 * UNIT
            assert file.readall()[: 3 * UNIT] == pattern(77, 3 * UNIT)
        assert pool.open("/kept").read() == pattern(9, MIB)
        pool.mkdir("/directory")
        pool.open("/directory/empty", "xb", buffering=0).close()
        with pytest.raises(ramlace.Error) as full:
            pool.array("/array", (8 * MIB,), "uint8")
        assert full.value.errno == errno.ENOSPC
        for round_number in range(3):
            pool.remove("/full")
            assert eventually(lambda: sum(used(running)) <= empty + MIB), "deleting did not free"
            again = fill(pool, "/full")
            assert again >= first - MIB, f"round {round_number}: {again} bytes fit where {first} did"


# SEMANTICS 23
def test_a_write_that_meets_a_full_server_reports_what_it_wrote(new_pool: NewPool) -> None:
    """One of three servers is full: a stripe over all three stops in its middle."""
    running = new_pool(3, 16)
    with running.connect() as pool:
        filler = make_file_on(running, pool, "one", {1})
        fill(pool, filler)
        with pool.open("/stripe", "w+b", buffering=0, stripe_unit=UNIT, width=3) as file:
            lanes = running.lane_servers("/stripe")
            chunks_before = lanes.index(1)
            data = pattern(3, 9 * UNIT)
            try:
                count = file.pwrite(data, 0)
            except ramlace.Error as error:
                assert error.errno == errno.ENOSPC
                count = 0
            assert count == chunks_before * UNIT, f"{count} bytes reported, lanes on {lanes}"
            with pytest.raises(ramlace.Error) as full:
                file.pwrite(data[count:], count)
            assert full.value.errno == errno.ENOSPC
            assert "server 1" in str(full.value), full.value
            assert file.size() >= count
            file.seek(0)
            assert file.read(count) == data[:count]
        # The other servers take what does not need the full one.
        free = make_file_on(running, pool, "free", {0, 2})
        with pool.open(free, "r+b", buffering=0) as file:
            assert file.pwrite(data, 0) == len(data)
        pool.remove(filler)
        with pool.open("/stripe", "r+b", buffering=0) as file:
            assert file.pwrite(data, 0) == len(data)
            assert file.readall() == data


def make_file_on(running: Pool, pool: ramlace.Pool, name: str, servers: set[int]) -> str:
    """Make files of width 1 until one lies on one of the servers; return its path."""
    for number in range(100):
        path = f"/{name}-{number}"
        pool.open(path, "wb", buffering=0, stripe_unit=UNIT, width=1).close()
        if running.lane_servers(path)[0] in servers:
            return path
    raise AssertionError(f"none of 100 files lies on {servers}")


# SEMANTICS 25.1
@pytest.mark.needs_root
def test_status_and_df_agree_with_the_kernel(new_pool: NewPool) -> None:
    running = new_pool(2, 32)

    def compare(pool: ramlace.Pool, when: str) -> None:
        def differs() -> Any:
            servers = running.status()
            kernel = [kernel_usage(running, number) for number in range(2)]
            mine = [server["used_bytes"] + server["reserved_bytes"] for server in servers]
            return None if mine == kernel else (mine, kernel)

        # A close is trimmed by a delivery, a moment later.
        assert eventually(lambda: differs() is None), f"{when}: {differs()}"
        total = pool.statfs()
        assert total.total_bytes == 64 * MIB
        assert total.used_bytes == sum(server.used_bytes or 0 for server in pool.servers()), when
        assert total.free_bytes == total.total_bytes - total.used_bytes
        # The command opens a session, which takes a little of the log.
        assert abs(running.json("df")["used_bytes"] - total.used_bytes) <= 64 * KIB, when

    with running.connect() as pool:
        compare(pool, "empty")
        for size in (1, 5000, UNIT + 1, 3 * MIB + 7):
            with pool.open(f"/{size}", "wb", buffering=0, stripe_unit=UNIT) as file:
                file.write(pattern(1, size))
            compare(pool, f"{size} bytes written")
        pool.truncate(f"/{3 * MIB + 7}", UNIT + 1)
        compare(pool, "truncated")
        fill(pool, "/full")
        compare(pool, "full")
        pool.remove("/full")
        compare(pool, "deleted")
        pool.array("/array", (5_000_001,), "uint8").view()[:] = 1
        compare(pool, "an array")
        for entry in pool.ls():
            pool.remove(entry.name)
        compare(pool, "all deleted")


# SEMANTICS 7.3
def test_an_append_that_finds_no_room_leaves_a_hole(new_pool: NewPool) -> None:
    """Others had the offset behind it before it failed: its bytes are zeros that take no memory."""
    running = new_pool(1, 32)
    with running.connect() as pool:
        for name in ("/log", "/full"):
            with pool.open(name, "wb", buffering=0) as file:
                file.write(pattern(1, 100_000))
        with pool.open("/full", "r+b", buffering=0) as file, pytest.raises(ramlace.Error) as full:
            offset = 0
            while True:
                offset += file.pwrite(bytes(64 * KIB), offset)
        assert full.value.errno == errno.ENOSPC
        held = running.files_bytes()
        with pool.open("/log", "ab", buffering=0) as file:
            for _ in range(2):
                with pytest.raises(ramlace.Error) as refused:
                    file.write(b"x" * MIB)
                assert refused.value.errno == errno.ENOSPC
        assert running.files_bytes() == held
        pool.remove("/full")
        with pool.open("/log", "ab", buffering=0) as file:
            assert file.write(b"behind") == 6
        assert pool.open("/log").read() == pattern(1, 100_000) + bytes(2 * MIB) + b"behind"


def test_several_clients_fill_a_pool_and_none_loses_an_acknowledged_byte(new_pool: NewPool) -> None:
    running = new_pool(3, 16)
    piece = 100_000
    results = clients.run_all(
        *((clients.fill_until_full, running.name, number % 2 == 0, f"/{number}", piece) for number in range(3))
    )
    assert sum(done for done, _ in results) > 36 * MIB
    with running.connect() as pool:
        for number, (done, code) in enumerate(results):
            assert code == errno.ENOSPC, f"client {number} ended with errno {code}"
            expected = b"".join(pattern(index, piece) for index in range(done // piece + 1))[:done]
            with pool.open(f"/{number}", buffering=0) as file:
                content = bytearray(done)
                assert file.pread_into(content, 0) == done
            assert content == expected, f"client {number}"


def test_directories_are_made_as_long_as_any_server_may_hold_one(planned: NewPool) -> None:
    """The server that is drawn as a home may be full; an entry needs no inode where its directory is."""
    pool = planned(3, 32)
    pool.up("--inodes", "30")
    with pool.connect() as connected:
        made = []
        with pytest.raises(OSError, match="inodes") as full:
            for number in itertools.count():
                connected.mkdir(f"/{number}")
                made.append(f"{number}")
        assert full.value.errno == errno.ENOSPC
        room = connected.statfs()
        assert room.inodes == room.inodes_max == 30 == len(made) + 1
        assert sorted(connected.listdir("/")) == sorted(made)
        connected.rmdir(f"/{made.pop()}")
        connected.mkdir("/again")
        for name in [*made, "again"]:
            connected.rmdir(f"/{name}")
    assert pool.run("check").returncode == 0


# SEMANTICS 24
def test_a_server_that_may_hold_no_more_files_says_so_and_changes_nothing(planned: NewPool) -> None:
    pool = planned(2, 32)
    pool.up("--inodes", "40")
    with pool.connect() as connected:
        connected.mkdir("/d")
        made: list[str] = []
        full: list[OSError] = []
        makers: list[Callable[[str], None]] = [
            lambda path: connected.open(path, "xb").close(),
            lambda path: connected.symlink("x", path),
            connected.mkdir,
        ]
        for number in range(120):
            path = f"/d/{number}"
            try:
                makers[number % 3](path)
                made.append(path)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                assert "inodes" in str(error)
                full.append(error)
        assert len(full) > 60
        # What was refused left nothing behind, and what is there can still be opened by a create.
        assert sorted(entry.name for entry in connected.scandir("/d")) == sorted(path[3:] for path in made)
        room = connected.statfs()
        assert room.inodes_max == 40
        assert room.inodes == len(made) + 2
        assert pool.json("df")["inodes_max"] == 40
        with connected.open(made[0], "ab") as again:
            again.write(b"there is room for bytes")
        # The numbers outlive the server's process.
        for server in range(2):
            pool.kill_child(server)
        with pytest.raises(OSError, match="inodes"):
            connected.open("/d/one more", "xb")
        connected.remove(made[0])
        with connected.open("/d/one more", "xb") as file:
            file.write(b"now")
        with pytest.raises(OSError, match="inodes"):
            connected.open("/d/and another", "xb")


# SEMANTICS 25.2
@pytest.mark.parametrize(("servers", "each"), [(3, 32), (1, 96), (3, 64)])
def test_what_df_says_that_one_file_can_have_it_gets(
    new_pool: NewPool, new_mount: NewMount, servers: int, each: int
) -> None:
    """Through a mount and by the library, also when one server is fuller than the others."""
    running = new_pool(servers, each)
    mount = new_mount(running)
    log_bytes = servers * max(each * MIB // 64, 256 * KIB)

    def fill_up(name: str) -> tuple[int, int]:
        found = os.statvfs(mount.directory)
        promised, done = found.f_bavail * found.f_frsize, 0
        piece = pattern(1, MIB)
        with (mount / name).open("xb", buffering=0) as file:
            with pytest.raises(OSError, match="space") as full:
                while True:
                    done += file.write(piece)
            assert full.value.errno == errno.ENOSPC
        return promised, done

    with running.connect() as pool:
        said = pool.statfs()
        assert running.json("df")["file_bytes"] == pytest.approx(said.file_bytes, abs=MIB)
        assert said.file_bytes <= said.free_bytes
        assert "ONE FILE" in running.run("df").stdout.decode()
        assert "One more file on all servers can have" in running.run("status").stdout.decode()
        promised, done = fill_up("all")
        assert promised == pytest.approx(said.file_bytes, abs=MIB)
        assert promised - log_bytes - servers * 2 * MIB <= done <= promised, f"{done} of {promised} bytes"
        # Nearly all of the pool: 1/64 of each server, 1 MiB at the least, is kept for its log.
        kept = servers * max(each * MIB // 64, MIB)
        assert promised >= servers * each * MIB - kept - servers * MIB
        (mount / "all").unlink()
        assert eventually(lambda: pool.statfs().free_bytes > said.free_bytes - 2 * log_bytes)
        if servers > 1:
            filler = make_file_on(running, pool, "filler", {1})
            with pool.open(filler, "r+b", buffering=0) as file:
                file.write(pattern(2, each * MIB // 2))
            assert eventually(lambda: os.statvfs(mount.directory).f_bavail < (promised - 3 * MIB) // 4096)
            promised, done = fill_up("rest")
            assert promised < servers * each * MIB * 0.6 < pool.statfs().free_bytes + done
            assert promised - log_bytes - servers * 2 * MIB <= done <= promised, f"{done} of {promised} bytes"


# SEMANTICS 25.3
def test_what_df_says_that_one_directory_can_have_it_gets(planned: NewPool) -> None:
    """The files of a directory live with its server."""
    running = planned(3, 32)
    running.up("--inodes", "300")
    with running.connect() as pool:
        pool.open("/first", "xb", buffering=0).close()
        said = pool.statfs()
        assert said.inodes_max == 300
        assert 80 < said.directory_inodes <= 100
        assert running.json("df")["directory_inodes"] == said.directory_inodes
        assert "ONE DIRECTORY" in running.run("df").stdout.decode()
        made = 0
        with pytest.raises(OSError, match="inodes") as full:
            for made in itertools.count():
                pool.open(f"/{made}", "xb", buffering=0).close()
        assert full.value.errno == errno.ENOSPC
        assert made >= said.directory_inodes
        assert pool.statfs().directory_inodes == 0
