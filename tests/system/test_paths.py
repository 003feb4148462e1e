"""A path costs one request for each server on its way, and what it leads to comes with it."""

import errno
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import ramlace
import wire
from conftest import NewPool
from noise import host_key_of_line
from pool import Pool, pattern


def cost(pool: Pool, call: Callable[[], object]) -> int:
    """Return the requests of one call, as the median of several."""

    def once() -> int:
        before = pool.requests()
        call()
        return pool.requests() - before

    return sorted(once() for _ in range(9))[4]


def test_a_stat_is_one_request_however_deep_and_whether_it_is_there_or_not(new_pool: NewPool) -> None:
    """On one server; so are a create, an open and an unlink whose directory was found before, and a close."""
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

        assert cost(pool, create) == 2
        assert cost(pool, lambda: client.open(made[0], "rb", buffering=0).close()) == 2
        assert cost(pool, lambda: client.remove(made.pop())) == 1
        assert cost(pool, lambda: client.mkdir(next(names))) == 1
        assert cost(pool, lambda: client.symlink("target", next(names))) == 1


def test_a_path_leads_where_it_leads_now(shared_pool: Pool, place: str) -> None:
    """Whatever a client knows of it: others move directories, put links in their place, and remove them."""
    with shared_pool.connect() as mine, shared_pool.connect() as other:
        way = f"{place}/a/b"
        mine.makedirs(way)
        other.makedirs(f"{place}/elsewhere")
        for number in range(3):
            mine.open(f"{way}/before-{number}", "wb").write(b"here")
        other.rename(way, f"{place}/moved")
        for refused in (
            lambda: mine.open(f"{way}/x", "wb"),
            lambda: mine.open(f"{way}/before-0", "rb"),
            lambda: mine.remove(f"{way}/before-0"),
            lambda: mine.mkdir(f"{way}/x"),
            lambda: mine.symlink("x", f"{way}/x"),
        ):
            with pytest.raises(FileNotFoundError):
                refused()
        other.mkdir(way)
        mine.open(f"{way}/new", "wb").write(b"there")
        assert mine.listdir(way) == ["new"]
        assert sorted(mine.listdir(f"{place}/moved")) == [f"before-{number}" for number in range(3)]
        other.remove(f"{way}/new")
        other.rmdir(way)
        other.symlink(f"{place}/elsewhere", way)
        mine.open(f"{way}/linked", "wb").write(b"linked")
        assert mine.listdir(f"{place}/elsewhere") == ["linked"]
        mine.remove(f"{way}/linked")
        assert mine.listdir(f"{place}/elsewhere") == []


def test_a_change_by_a_path_is_done_while_the_path_leads_there_and_once(new_pool: NewPool) -> None:
    """A repetition has the first answer, wherever the path leads by then."""
    pool = new_pool(1, 64)
    with pool.connect() as client, wire.Wire(pool.addresses[0]) as line:
        client.makedirs("/a/b")
        for name in "xyz":
            client.open(f"/a/b/{name}", "wb").close()
        parent = client.stat("/a/b").st_ino
        line.greet(pool.secret)
        line.open_session()

        def unlink(sequence: int, way: bytes, name: bytes) -> str:
            body = way + wire.numbers(parent, len(name)) + name
            slot = parent >> 48
            return line.call(wire.UNLINK, body, slot=slot, sequence=sequence, epoch=1, flags=wire.BY_PATH).error

        way = wire.names(b"a", b"b")
        assert unlink(1, way, b"x") == ""
        client.rename("/a/b", "/a/c")
        assert "leads elsewhere" in unlink(2, way, b"y")
        assert unlink(1, way, b"x") == "", "it was done"
        client.symlink("c", "/a/link")
        for wrong in ((b"a", b"link"), (b"a",), (b"a", b"c", b"d"), (b"a", b"c", b"y"), (b"no",)):
            assert "leads elsewhere" in unlink(3, wire.names(*wrong), b"y"), wrong
        assert "from 1 to 64 names, not 0" in unlink(3, wire.names(), b"y")
        assert "from 1 to 64 names, not 65" in unlink(3, wire.names(*[b"a"] * 65), b"y")
        assert sorted(client.listdir("/a/c")) == ["y", "z"]
        assert unlink(3, wire.names(b"a", b"c"), b"y") == ""
        assert client.listdir("/a/c") == ["z"]
        look = line.call(wire.LOOKUP, way + wire.numbers(parent, 1) + b"z", epoch=1, flags=wire.BY_PATH)
        assert "goes by no path" in look.error


def test_a_change_by_a_path_needs_the_right_to_go_there(new_pool: NewPool) -> None:
    """A client that may not search a directory on its way changes nothing behind it, though it knows what is there."""
    pool = new_pool(1, 64)
    with pool.connect() as client:
        client.makedirs("/closed/open", 0o755)
        client.open("/closed/open/file", "wb").close()
        parent = client.stat("/closed/open").st_ino
    pool.run("chmod", "777", "/closed/open")
    with wire.Wire(pool.addresses[0]) as line:
        line.greet(host_key_of_line((pool.directory / "host-key").read_text()))
        line.open_session(wire.SESSION_HOST)
        user = wire.numbers(1001, 1001, 0)
        body = user + wire.names(b"closed", b"open") + wire.numbers(parent, 4) + b"file"

        def unlink(sequence: int) -> str:
            flags = wire.ON_BEHALF | wire.BY_PATH
            return line.call(wire.UNLINK, body, slot=parent >> 48, sequence=sequence, epoch=1, flags=flags).error

        pool.run("chmod", "755", "/")
        pool.run("chmod", "700", "/closed")
        assert "leads elsewhere" in unlink(1)
        assert pool.run("ls", "/closed/open").stdout == b"file\n"
        pool.run("chmod", "711", "/closed")
        assert unlink(2) == ""
        assert pool.run("ls", "/closed/open").stdout == b""


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
    """The home of an open file learns of its last write later, and is notified before it is asked."""
    with shared_pool.connect() as client, client.open(f"{place}/file", "wb", buffering=0) as file:
        file.write(bytes(1 << 20))
        for number in range(50):
            before = client.stat(f"{place}/file").st_mtime_ns
            file.pwrite(b"again", number)
            assert client.stat(f"{place}/file").st_mtime_ns > before


def test_a_walk_of_a_hosts_user_asks_for_its_rights_at_each_step(new_pool: NewPool) -> None:
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
        key = host_key_of_line((pool.directory / "host-key").read_text())
        with wire.Wire(pool.addresses[0]) as line:
            line.greet(key)
            line.open_session(wire.SESSION_HOST)
            names = wire.names(b"open", b"closed", b"deep", b"file")
            body = wire.numbers(1001, 1001, 0) + wire.numbers(1) + names + b"\1\1"
            return line.call(wire.WALK, body, epoch=1, flags=wire.ON_BEHALF)

    whole = walked("755", "644")
    assert whole.error == "" and whole.body.endswith(b"\6secret") and whole.body[0] == 4
    # The client may see the attributes, and not the bytes.
    assert walked("755", "600").body[0] == 4 and not walked("755", "600").body.endswith(b"secret")
    shut = walked("700", "644")
    assert shut.body[0] == 2 and b"secret" not in shut.body and b"may not" in shut.body
    assert pool.run("ls", "/open/closed/deep").stdout == b"file\n"


def test_a_size_that_an_open_has_brought_is_not_asked_for(new_pool: NewPool) -> None:
    """An open, the bytes, a close. (A read beyond that size asks: the file may be longer by now.)"""
    pool, size = new_pool(1), 100_000
    with pool.connect() as client:
        client.open("/file", "wb").write(pattern(1, size))

        def read() -> None:
            with client.open("/file", "rb", buffering=0) as file:
                assert file.readinto(bytearray(size)) == size

        assert cost(pool, read) == 3


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


def test_a_tree_is_copied_without_a_walk_to_each_file(new_pool: NewPool, tmp_path: Path) -> None:
    """In, within and out: each directory is found once, however many files it has, and whichever server has it."""
    pool = new_pool(3, 64)
    directories, files = 6, 20
    for directory in range(directories):
        (tmp_path / f"tree/{directory}").mkdir(parents=True)
        for file in range(files):
            (tmp_path / f"tree/{directory}/{file}").write_bytes(pattern(file, 100 * file))

    def answers() -> Counter[str]:
        return Counter({one["message"]: one["answers"] for one in pool.json("status", "--messages")["messages"]})

    tree, out = str(tmp_path / "tree"), str(tmp_path / "out")
    for source, destination in ((tree, "ramlace:/in"), ("ramlace:/in", "ramlace:/within"), ("ramlace:/within", out)):
        before = answers()
        pool.run("cp", "-r", source, destination)
        spent = answers() - before
        found = sum(spent[message] for message in ("Walk", "Lookup", "GetAttributes"))
        assert found <= 3 * (directories + 1), spent
        if destination != out:
            assert spent["Create"] == directories * files, spent
    for path in (tmp_path / "tree").rglob("*"):
        copied = tmp_path / "out" / path.relative_to(tmp_path / "tree")
        assert copied.is_dir() if path.is_dir() else copied.read_bytes() == path.read_bytes()


def test_a_tree_is_removed_by_a_few_messages_for_each_directory(new_pool: NewPool) -> None:
    """By the command and by the library; what has other names, or lies with other servers, is treated as alone."""
    pool = new_pool(3, 64)
    directories, files = 5, 150

    def unlinked_alone() -> int:
        messages = pool.json("status", "--messages")["messages"]
        return sum(one["answers"] for one in messages if one["message"] == "Unlink")

    with pool.connect() as client:

        def plant() -> None:
            for directory in range(directories):
                client.makedirs(f"/tree/{directory}/inner")
                for file in range(files):
                    client.open(f"/tree/{directory}/{file}", "wb").write(bytes(file))
                client.link(f"/tree/{directory}/0", f"/tree/{directory}/inner/second")
                client.link(f"/tree/{directory}/1", f"/kept-{directory}")
                client.symlink("nowhere", f"/tree/{directory}/link")

        plant()
        client.rename("/tree/0/2", "/tree/1/from another slot")
        free = pool.files_bytes()
        alone, before = unlinked_alone(), pool.requests()
        client.rmtree("/tree")
        assert unlinked_alone() == alone
        assert pool.requests() - before <= 20 * directories, "with what servers tell each other"
        assert not client.exists("/tree")
        assert pool.files_bytes() <= free
        for directory in range(directories):
            assert client.stat(f"/kept-{directory}").st_nlink == 1
            client.remove(f"/kept-{directory}")
        plant()
        pool.run("rm", "-r", "/tree")
        assert not client.exists("/tree")
        assert unlinked_alone() == alone + directories, "those that were kept"
    assert "fits together" in pool.run("check").stdout.decode()
