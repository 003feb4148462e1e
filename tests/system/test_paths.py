"""A path costs one request for each server on its way, and what it leads to comes with it."""

import errno
import itertools
from collections.abc import Callable

import pytest

import ramlace
import wire
from conftest import NewPool
from pool import Pool, pattern


def requests(pool: Pool) -> int:
    """Return how many requests all servers of a pool have answered."""
    return sum(server["requests"] for server in pool.status())


def cost(pool: Pool, call: Callable[[], object]) -> int:
    """Return the requests of one call, as the median of several: heartbeats come in between."""

    def once() -> int:
        before = requests(pool)
        call()
        return requests(pool) - before

    looking = sorted(_difference(pool) for _ in range(5))[2]
    return sorted(once() for _ in range(9))[4] - looking


def _difference(pool: Pool) -> int:
    before = requests(pool)
    return requests(pool) - before


def test_a_stat_is_one_request_however_deep_and_whether_it_is_there_or_not(new_pool: NewPool) -> None:
    """On one server; a create and an unlink find their directory with one more, a close is one."""
    pool = new_pool(1, 64)
    with pool.connect() as client:
        deep = "/" + "/".join("abcdef")
        client.makedirs(deep)
        client.open(f"{deep}/small", "wb").write(b"bytes")
        assert cost(pool, lambda: client.stat(f"{deep}/small")) == 1
        assert cost(pool, lambda: client.stat(deep)) == 1
        assert cost(pool, lambda: client.read_bytes(f"{deep}/small")) == 1
        assert cost(pool, lambda: client.exists(f"{deep}/nothing")) == 1
        assert cost(pool, lambda: client.exists(f"/a/nothing{deep}")) == 1
        names = (f"{deep}/{number}" for number in itertools.count())
        made: list[str] = []

        def create() -> None:
            made.append(next(names))
            client.open(made[-1], "xb", buffering=0).close()

        assert cost(pool, create) == 3
        assert cost(pool, lambda: client.remove(made.pop())) == 2


def test_paths_lead_through_links_and_over_servers_as_they_do_elsewhere(shared_pool: Pool, place: str) -> None:
    """Directories of one path live with any server; links, dots and slashes in the middle change the way."""
    with shared_pool.connect() as client:
        path = place
        for name in "abcdefgh":
            path += f"/{name}"
            client.mkdir(path)
        client.open(f"{path}/file", "wb").write(b"deep")
        client.symlink("b/c", f"{place}/a/short")
        client.symlink(f"{place}/a", f"{place}/whole")
        client.symlink("nowhere", f"{place}/a/b/hanging")
        client.symlink("file", f"{path}/same")
        for way in (
            f"{path}/file",
            f"{place}/a/short/d/e/f/g/h/file",
            f"{place}/whole/short/../c/d/e/f/g/h/./file",
            f"{place}/a/b/../../whole/b/c//d/e/f/g/h/same",
        ):
            assert client.stat(way).st_size == 4, way
            assert client.open(way).read() == client.read_bytes(way) == b"deep", way
        for way, number in (
            (f"{place}/a/b/hanging/x/y", errno.ENOENT),
            (f"{place}/a/b/nothing/../c", errno.ENOENT),
            (f"{path}/file/x", errno.ENOTDIR),
            (f"{path}/same/", errno.ENOTDIR),
            (f"{place}/a/{'n' * 256}/b", errno.ENAMETOOLONG),
        ):
            with pytest.raises(OSError) as refused:
                client.stat(way)
            assert refused.value.errno == number, way
        with pytest.raises(ramlace.Error):
            client.remove(f"{path}/file/")
        client.remove(f"{path}/same")
        assert client.exists(f"{path}/file")


def test_what_this_process_has_written_is_in_the_times_that_a_path_tells(shared_pool: Pool, place: str) -> None:
    """The home of an open file hears of its last write later, and is told before it is asked."""
    with shared_pool.connect() as client, client.open(f"{place}/file", "wb", buffering=0) as file:
        file.write(bytes(1 << 20))
        for number in range(50):
            before = client.stat(f"{place}/file").st_mtime_ns
            file.pwrite(b"again", number)
            assert client.stat(f"{place}/file").st_mtime_ns > before


def test_a_walk_of_a_hosts_user_asks_for_his_rights_at_each_step(new_pool: NewPool) -> None:
    """Who may not search a directory on the way, or not read the file, gets nothing of what is behind."""
    pool = new_pool(1, 64)
    with pool.connect() as client:
        client.makedirs("/open/closed/deep", 0o755)
        client.open("/open/closed/deep/file", "wb").write(b"secret")
    pool.run("chmod", "755", "/", "/open", "/open/closed/deep")
    pool.run("chmod", "644", "/open/closed/deep/file")

    def walked(mode: str, file_mode: str) -> wire.Reply:
        pool.run("chmod", file_mode, "/open/closed/deep/file")
        pool.run("chmod", mode, "/open/closed")
        key = bytes.fromhex((pool.directory / "host-key").read_text().strip())
        with wire.Wire(pool.addresses[0]) as line:
            line.greet(key)
            line.open_session(wire.SESSION_HOST)
            names = b"".join(wire.numbers(len(name)) + name for name in (b"open", b"closed", b"deep", b"file"))
            body = wire.numbers(1001, 1001, 0) + wire.numbers(1, 4) + names + b"\1\1"
            return line.call(wire.WALK, body, epoch=1, flags=wire.ON_BEHALF)

    whole = walked("755", "644")
    assert whole.error == "" and whole.body.endswith(b"\6secret") and whole.body[0] == 4
    # The attributes are his to see, the bytes are not.
    assert walked("755", "600").body[0] == 4 and not walked("755", "600").body.endswith(b"secret")
    shut = walked("700", "644")
    assert shut.body[0] == 2 and b"secret" not in shut.body and b"may not" in shut.body
    assert pool.run("ls", "/open/closed/deep").stdout == b"file\n"


def test_all_bytes_of_a_file_whatever_its_size(shared_pool: Pool, place: str) -> None:
    """Inline, behind an end that a truncation has moved, in lanes; not of what has no bytes."""
    with shared_pool.connect() as client:
        for size in (0, 1, 4096, 4097, 3 << 20):
            client.open(f"{place}/{size}", "wb").write(pattern(size, size))
            assert client.read_bytes(f"{place}/{size}") == pattern(size, size)
            assert shared_pool.run("cat", f"{place}/{size}").stdout == pattern(size, size)
        client.truncate(f"{place}/1", 4096)
        assert client.read_bytes(f"{place}/1") == pattern(1, 1) + bytes(4095)
        client.truncate(f"{place}/1", 10_000)
        assert client.read_bytes(f"{place}/1") == pattern(1, 1) + bytes(9999)
        for path, number in ((place, errno.EISDIR), (f"{place}/nothing", errno.ENOENT)):
            with pytest.raises(OSError) as refused:
                client.read_bytes(path)
            assert refused.value.errno == number
