"""What programs on a mount cost: requests of the kernel, by its names, and messages to the servers."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount
from pool import BY_TIME, KIB, MIB, Pool, eventually, frozen, pattern

REQUESTS_ATTRIBUTE = "user.ramlace.requests"
FILES = 20
BLOCKS = 4
SAMPLES = 5


def asked(mount: Path) -> Counter[str]:
    """Return how many requests of each kind the kernel has sent."""
    lines = os.getxattr(mount, REQUESTS_ATTRIBUTE).decode().splitlines()
    return Counter({name: int(count) for name, count in (line.split() for line in lines)})


def answered(pool: Pool) -> Counter[str]:
    """Return how many messages of each kind the servers have answered, without those that come by time."""
    messages = pool.json("status", "--messages")["messages"]
    return Counter({one["message"]: one["answers"] for one in messages if one["message"] not in BY_TIME})


def cost(pool: Pool, mount: Mount, work: Callable[[int], None]) -> tuple[Counter[str], Counter[str]]:
    """Return what a work asks of the mount and of the servers: of each kind the least of several samples.

    On a busy machine a lease may run out in the middle of any one.
    """
    samples = []
    for sample in range(SAMPLES):
        before = asked(mount.directory), answered(pool)
        work(sample)
        samples.append((asked(mount.directory) - before[0], answered(pool) - before[1]))

    def least(which: int) -> Counter[str]:
        kinds = {kind for sample in samples for kind in sample[which]}
        return Counter({kind: min(sample[which][kind] for sample in samples) for kind in kinds})

    return least(0), least(1)


# SEMANTICS 137.4
def test_a_mount_tells_how_many_requests_of_each_kind_came(new_pool: NewPool, new_mount: NewMount) -> None:
    mount = new_mount(new_pool(1))
    before = asked(mount.directory)
    assert before["GETXATTR"] >= 1, "also this one"
    for number in range(3):
        (mount / f"f{number}").write_bytes(b"some bytes")
    after = asked(mount.directory) - before
    assert (after["CREATE"], after["WRITE"], after["FLUSH"]) == (3, 3, 3)
    assert "UNLINK" not in after


# SEMANTICS 137.1
def test_what_was_made_is_not_asked_for(new_pool: NewPool, new_mount: NewMount) -> None:
    """Neither by the open that made it, nor by its name afterwards."""
    pool = new_pool(2)
    mount = new_mount(pool)

    def make(sample: int) -> None:
        directory = mount / f"d{sample}"
        directory.mkdir()
        for number in range(FILES):
            path = directory / f"f{number}"
            path.write_bytes(b"some bytes")
            path.chmod(0o640)
            path.unlink()

    requests, messages = cost(pool, mount, make)
    assert requests["CREATE"] == messages["Create"] == FILES
    # The directory has changed twice for each file, and the first look at a name finds nothing.
    assert requests["LOOKUP"] <= FILES + 4
    assert messages["LeaseName"] <= FILES // 2
    assert requests["GETATTR"] <= 2 * FILES + 4
    # What the directory is comes with the answers that change it.
    assert messages["LeaseAttributes"] <= FILES // 2


# SEMANTICS 137.1
def test_what_makes_a_directory_or_a_link_says_what_it_was_made_in(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2)
    mount = new_mount(pool)

    def make(sample: int) -> None:
        directory = mount / f"d{sample}"
        directory.mkdir()
        (directory / "file").touch()
        for number in range(FILES):
            (directory / f"d{number}").mkdir()
            os.link(directory / "file", directory / f"l{number}")
            os.symlink("nowhere", directory / f"s{number}")

    requests, messages = cost(pool, mount, make)
    assert requests["MKDIR"] == messages["MakeDirectory"] == FILES + 1
    # Of a directory that is made the kernel asks nothing here, and of one that has changed each time.
    assert requests["GETATTR"] >= 2 * FILES
    assert messages["LeaseAttributes"] <= FILES + 8


# SEMANTICS 137.3
def test_attributes_that_nobody_has_are_answered_without_a_message(new_pool: NewPool, new_mount: NewMount) -> None:
    """`ls -l` asks each file for its security label."""
    pool = new_pool(1)
    mount = new_mount(pool)
    files = [mount / f"f{number}" for number in range(FILES)]
    for file in files:
        file.write_bytes(b"some bytes")

    def look(_: int) -> None:
        for file in files:
            file.stat()
            assert os.listxattr(file) == []
            for name in ("security.selinux", "user.nothing"):
                try:
                    os.getxattr(file, name)
                except OSError as error:
                    assert error.errno in {61, 95}, error

    requests, messages = cost(pool, mount, look)
    assert requests["GETXATTR"] >= FILES
    assert messages["GetXattr"] == 0


# SEMANTICS 137.5
# SEMANTICS 137.10
@pytest.mark.parametrize(("servers", "is_spread"), [(1, False), (3, False), (3, True)])
def test_a_write_that_makes_a_file_longer_is_one_message_where_its_home_is(
    new_pool: NewPool, new_mount: NewMount, servers: int, is_spread: bool
) -> None:
    """And two elsewhere, where files of a chosen width begin. The first one takes an empty file to its lanes."""
    pool = new_pool(servers)
    mount = new_mount(pool)
    # Whole pages: of others the kernel makes several requests.
    blocks = [pattern(number, 12 * KIB) for number in range(BLOCKS)]
    # So many that lane 0 of some is with the home, and of some is not.
    files = 2 * FILES

    def write(sample: int) -> None:
        directory = mount / f"d{sample}"
        directory.mkdir()
        if is_spread:
            pool.run("layout", "set", "--width", str(servers), f"/d{sample}")
        for number in range(files):
            with (directory / f"f{number}").open("wb", buffering=0) as file:
                for block in blocks:
                    file.write(block)

    _, messages = cost(pool, mount, write)
    for sample in range(SAMPLES):
        made = [mount / f"d{sample}/f{number}" for number in range(files)]
        assert all(file.read_bytes() == b"".join(blocks) for file in made)
    if not is_spread:
        assert messages["ExtendChunk"] == files * BLOCKS
        assert messages["WriteChunk"] == messages["Extend"] == messages["BeginLane"] == 0
    else:
        assert messages["ExtendChunk"] > 0, "some home is where lane 0 is"
        assert messages["WriteChunk"] > 0, "and some is not"
        # Each sample counts for itself: which files are alike differs from one to the next.
        assert messages["Extend"] <= files * BLOCKS - messages["ExtendChunk"]
        assert messages["BeginLane"] <= files
    assert messages["Promote"] == messages["QueryInode"] == 0
    assert messages["SetAttributes"] == messages["GetAttributes"] == 0


# SEMANTICS 137.8
def test_a_file_that_goes_is_no_message_to_servers_that_have_nothing_of_it(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """Each file has a lane on each of three servers; the bytes of most are in the first one."""
    pool = new_pool(3)
    mount = new_mount(pool)
    contents = {"none": b"", "inline": pattern(1, KIB), "one": pattern(2, 20 * KIB), "all": pattern(3, 5 * MIB)}
    lanes_of = {"none": 0, "inline": 0, "one": 1, "all": 3}
    spread = mount / "spread"
    spread.mkdir()
    pool.run("layout", "set", "--width", "3", "/spread")

    def dropped(kind: str, files: int = FILES, directory: Path = mount.directory) -> int:
        made = [directory / f"{kind}{number}" for number in range(files)]
        for file in made:
            file.write_bytes(contents[kind])
        assert sum(server["lanes"] for server in pool.status()) == files * lanes_of[kind]
        before = answered(pool)
        for file in made:
            file.unlink()
        assert eventually(lambda: all(server["lanes"] == 0 for server in pool.status())), "a lane stays"
        return (answered(pool) - before)["DropLane"]

    assert dropped("none") == dropped("inline") == 0
    assert dropped("one") == 0, "it is with the home's server"
    assert 0 < dropped("one", directory=spread) <= FILES, "where it is not the home's own"
    # Two of three are elsewhere.
    assert dropped("all", 4) == 2 * 4


# SEMANTICS 137.9
def test_what_was_written_and_closed_is_not_asked_for(new_pool: NewPool, new_mount: NewMount) -> None:
    """The close brings what the file is now; what others change then is seen."""
    pool = new_pool(2)
    mount, other = new_mount(pool), new_mount(pool)
    made = [mount / f"f{number}" for number in range(FILES)]

    def write(sample: int) -> None:
        for number, file in enumerate(made):
            file.write_bytes(pattern(sample, 100 + 9_000 * (number % 2) + sample))

    def look(sample: int) -> None:
        closed = answered(pool)["Close"]
        write(sample)
        # The kernel tells a mount of the last close when the program has gone on.
        assert eventually(lambda: answered(pool)["Close"] >= closed + FILES)
        before = answered(pool)
        for number, file in enumerate(made):
            assert file.stat().st_size == 100 + 9_000 * (number % 2) + sample
            file.chmod(0o600 + sample)
        asks.append((answered(pool) - before)["LeaseAttributes"])

    asks: list[int] = []
    for sample in range(SAMPLES):
        look(sample)
    assert min(asks) <= FILES // 4
    for number, file in enumerate(made):
        longer = other / file.name
        longer.write_bytes(pattern(9, 20 * KIB + number))
        longer.chmod(0o640)
        assert (file.stat().st_size, file.stat().st_mode & 0o777) == (20 * KIB + number, 0o640)
        assert file.read_bytes() == pattern(9, 20 * KIB + number)


# SEMANTICS 137.6
def test_a_file_that_was_looked_at_is_read_to_its_end_without_a_request_for_it(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """A program that copies a file looks at it, opens it, and reads until there is no more."""
    pool = new_pool(1)
    writer, mount = new_mount(pool), new_mount(pool)
    # Not whole pages: the last one reaches behind the end.
    content = pattern(1, 20 * KIB + 100)

    def prepare(sample: int) -> None:
        (writer / f"d{sample}").mkdir()
        for number in range(FILES):
            (writer / f"d{sample}/f{number}").write_bytes(content)

    for sample in range(SAMPLES):
        prepare(sample)

    def read(sample: int) -> None:
        for number in range(FILES):
            path = mount / f"d{sample}/f{number}"
            assert path.stat().st_size == len(content)
            assert path.read_bytes() == content

    _, messages = cost(pool, mount, read)
    assert messages["ReadChunk"] >= FILES
    assert messages["GetAttributes"] == 0
    # What another makes longer is read all the same, at once.
    path = f"d{SAMPLES - 1}/f0"
    for step in range(1, 20):
        with (writer / path).open("ab", buffering=0) as file:
            file.write(content)
        assert (mount / path).read_bytes() == content * (step + 1)


# SEMANTICS 137.2
def test_what_one_mount_has_just_made_another_changes_and_the_first_sees_it(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    """While the kernel that made a file believes what it was told with it."""
    pool = new_pool(2)
    here, there = new_mount(pool), new_mount(pool)
    (here / "d").mkdir()
    for number in range(60):
        name = f"d/f{number}"
        with (here / name).open("wb") as file:
            mode = 0o600 + number % 8
            (there / name).chmod(mode)
            assert (here / name).stat().st_mode & 0o777 == mode
            assert os.fstat(file.fileno()).st_mode & 0o777 == mode
            (there / name).rename(there / f"d/g{number}")
            assert not (here / name).exists()
            (there / name).write_bytes(b"another")
            assert (here / name).read_bytes() == b"another"
            assert os.fstat(file.fileno()).st_size == 0


# SEMANTICS 137.7
def test_what_a_server_has_yet_to_hear_is_told(new_pool: NewPool, new_mount: NewMount) -> None:
    """Until the server has received it."""
    pool = new_pool(2)
    mount = new_mount(pool)
    # A file of each server.
    files: dict[int, Path] = {}
    while len(files) < 2:
        directory = mount / f"d{len(os.listdir(mount.directory))}"
        directory.mkdir()
        files.setdefault((directory.stat().st_ino >> 48) % 2, directory / "file")
    handles = [file.open("wb", buffering=0) for file in files.values()]

    def pending() -> set[int]:
        lines = os.getxattr(mount.directory, "user.ramlace.pending").decode().splitlines()
        return {int(line.split()[0]) for line in lines}

    assert pending() == set()
    with frozen(pool.process("child", 1)):
        for handle in handles:
            with contextlib.suppress(OSError):
                handle.close()
        assert eventually(lambda: pending() == {1})
    assert eventually(lambda: pending() == set())


# SEMANTICS 138.7
def test_what_was_just_read_is_opened_again_without_a_message(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2)
    mount = new_mount(pool)
    files = [mount / f"f{number}" for number in range(FILES)]
    for number, file in enumerate(files):
        file.write_bytes(pattern(number, 10 * KIB))

    def read(_: int) -> None:
        for number, file in enumerate(files):
            assert file.read_bytes() == pattern(number, 10 * KIB)

    read(0)
    requests, messages = cost(pool, mount, read)
    assert requests["OPEN"] == FILES
    assert (messages["Open"], messages["Close"], messages["ChangeMany"]) == (0, 0, 0)
    # They are closed some seconds later, many by one message.
    before = answered(pool)
    assert eventually(lambda: (answered(pool) - before)["ChangeMany"] > 0)
    time.sleep(2)
    counts = answered(pool) - before
    assert counts["Close"] == 0
    assert counts["ChangeMany"] <= FILES // 4
    assert pool.check() == []


# SEMANTICS 138.7
@pytest.mark.parametrize("by", ["another", "itself", "a rename", "the library"])
def test_what_was_just_read_is_freed_when_it_is_removed(new_pool: NewPool, new_mount: NewMount, by: str) -> None:
    pool = new_pool(2)
    here, there = new_mount(pool), new_mount(pool)
    (there / "small").write_bytes(b"small")

    def held() -> int:
        return sum(server["used_bytes"] for server in pool.status())

    before = held()
    (there / "big").write_bytes(pattern(1, 8 * MIB))
    assert (here / "big").read_bytes() == pattern(1, 8 * MIB)
    assert held() >= before + 8 * MIB
    match by:
        case "another":
            (there / "big").unlink()
        case "itself":
            (here / "big").unlink()
        case "a rename":
            (here / "small").rename(here / "big")
        case _:
            with pool.connect() as connected:
                connected.remove("/big")
    # Long before the time of a deferred close is over.
    assert eventually(lambda: held() < before + MIB, 5)


# SEMANTICS 12.1, 138.7
def test_what_was_removed_while_it_was_read_is_freed_with_its_close(new_pool: NewPool, new_mount: NewMount) -> None:
    """Also where its attributes were asked for, and leased, once more."""
    pool = new_pool(2)
    here, there = new_mount(pool), new_mount(pool)

    def held() -> int:
        return sum(server["used_bytes"] for server in pool.status())

    before = held()
    (there / "big").write_bytes(pattern(1, 8 * MIB))
    with (here / "big").open("rb") as file:
        assert file.read() == pattern(1, 8 * MIB)
        (there / "big").unlink()
        # A lease that was just recalled is not given again for half a second.
        time.sleep(0.7)
        assert os.fstat(file.fileno()).st_nlink == 0
        assert held() >= before + 8 * MIB
    assert eventually(lambda: held() < before + MIB, 5)


# SEMANTICS 138.7
def test_what_was_just_read_is_open_to_nobody(new_pool: NewPool, new_mount: NewMount) -> None:
    """A file's rules are set where nobody has it open; and who may not open it any more does not."""
    pool = new_pool(2)
    here, there = new_mount(pool), new_mount(pool)
    for name in ("by command", "by mount", "forbidden"):
        (there / name).write_bytes(b"content")
        assert (here / name).read_bytes() == b"content"
    pool.run("layout", "set", "/by command", "--mode", "strict")
    os.setxattr(here / "by mount", "user.ramlace.mode", b"strict")
    (there / "forbidden").chmod(0)
    if os.getuid() != 0:
        with pytest.raises(PermissionError):
            (here / "forbidden").open()
    with (here / "by command").open("rb"):
        assert "open somewhere" in pool.refused("layout", "set", "/by command", "--mode", "coherent")
    (there / "by command").write_bytes(b"another")
    assert (here / "by command").read_bytes() == b"another"


def test_the_command_changes_and_removes_the_files_of_a_directory_by_few_messages(new_pool: NewPool) -> None:
    files = 300
    pool = new_pool(2)
    with pool.connect() as connected:
        connected.mkdir("/d")
        for number in range(files):
            connected.open(f"/d/f{number}", "wb").close()

        def asked(*words: str) -> "Counter[str]":
            before = answered(pool)
            pool.run(*words)
            counts = answered(pool) - before
            assert counts["ChangeMany"] <= 2 + files // 128
            return counts

        counts = asked("chmod", "-R", "u=rwX,g=r,o=", "/d")
        assert counts["SetAttributes"] <= 1, "of the directory alone"
        assert {connected.stat(f"/d/f{number}").st_mode & 0o7777 for number in range(files)} == {0o640}
        counts = asked("chown", "-R", f"{os.getuid()}:{os.getgid()}", "/d")
        assert counts["SetAttributes"] <= 1, "of the directory alone"
        assert asked("rm", "-r", "/d")["Unlink"] == 0
    assert pool.check() == []
