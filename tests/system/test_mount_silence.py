"""What a mount does when servers die or say nothing."""

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount, Program, is_mounted, mapping
from pool import FAILING_SECONDS_MAX, KIB, MIB, PATIENCE_SECONDS, Pool, eventually, frozen, pattern
from test_mount_leases import OVER_SECONDS

UNIT = 64 * KIB
# What a server that does not answer is called, through a kernel that has fewer words.
SILENT = (errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EIO)
# Requests of a mount that may wait for a server before those that do not need it wait, too.
WAITING_MAX = 95


def make_files(pool: Pool, mount: Mount, count: int = 12) -> dict[int, list[str]]:
    """Make a directory and small files of width 1; return the names by the server of their bytes."""
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=1)
    by_server: dict[int, list[str]] = {}
    for number in range(count):
        (mount / f"file-{number}").write_bytes(pattern(number, 100_000))
        by_server.setdefault(pool.lane_servers(f"/file-{number}")[0], []).append(f"file-{number}")
    return by_server


def read_direct(path: Path) -> bytes:
    """Read past the pages."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


def test_a_killed_server_comes_back_and_programs_of_the_mount_do_not_notice(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    with Program(f"root = {str(mount.directory)!r}") as program:
        program.run("""
done = False


def work():
    number = 0
    while not done:
        name = f"{root}/{number}"
        with open(name, "xb") as file:
            file.write(bytes([number % 256]) * 70_000)
        assert Path(f"{root}/{number // 2}").read_bytes() == bytes([number // 2 % 256]) * 70_000
        number += 1
    return number
from concurrent.futures import ThreadPoolExecutor
result = ThreadPoolExecutor(1).submit(work)
""")
        for server in range(2):
            pool.kill_child(server)
            pool.await_restart(server, 1)
        program.run("done = True")
        made = program.ask("result.result()")
    assert made > 0
    assert sorted(os.listdir(mount.directory), key=int) == [str(number) for number in range(made)]
    for number in range(made):
        assert (mount / str(number)).read_bytes() == bytes([number % 256]) * 70_000


# SEMANTICS 46
def test_stores_to_mapped_memory_survive_the_death_of_a_server(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=2)
    (mount / "file").write_bytes(bytes(4 * MIB))
    with Program(mapping(mount / "file")) as program:
        program.run(f"view[:] = b'a' * {4 * MIB}")
        for server in range(2):
            pool.kill_child(server)
        program.run("view.flush()")
    assert pool.run("cat", "/file").stdout == b"a" * (4 * MIB)


def test_a_server_that_died_for_good_is_an_error_in_time_and_the_rest_works(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    files = make_files(pool, mount)
    assert set(files) == {0, 1}
    pool.kill_server(1)
    errors: dict[str, int | None] = {}

    def read(name: str) -> None:
        begun = time.monotonic()
        try:
            assert read_direct(mount / name) == pattern(int(name[5:]), 100_000)
        except OSError as error:
            errors[name] = error.errno
        assert time.monotonic() - begun < 2 * FAILING_SECONDS_MAX

    threads = [threading.Thread(target=read, args=(name,)) for names in files.values() for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a read hangs"
    assert set(errors.values()) <= set(SILENT), errors
    assert set(files[1]) <= set(errors), "bytes of a dead server were read"
    # Names may lie on the dead server too; those that do not are all there.
    works = [name for name in files[0] if name not in errors]
    assert works
    for name in works:
        with open(mount / name, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"changed", 0)
            os.fsync(file.fileno())
        assert read_direct(mount / name)[:7] == b"changed"
    assert mount.unmount()["directory"] == str(mount.directory)


# SEMANTICS 17.4
@pytest.mark.parametrize("how", ["dead", pytest.param("frozen", marks=pytest.mark.long)])
def test_every_use_of_what_a_silent_server_holds_is_an_error_in_time(
    new_pool: NewPool, new_mount: NewMount, how: str
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    directories = [mount / f"directory-{number}" for number in range(8)]
    for directory in directories:
        directory.mkdir()
        (directory / "file").write_bytes(b"small")
    # Its name and its inode are on the first server, as the root is; its bytes on the other.
    path = mount / make_files(pool, mount)[1][0]
    uses = [
        "os.pread(file, 4096, 0)",
        "os.pwrite(file, b'x', 5)",
        "os.ftruncate(file, 50_000) or os.pread(file, 5, 0)",
        f"Path({str(path)!r}).read_bytes()",
    ]
    opened = f"file = os.open({str(path)!r}, os.O_RDWR | os.O_DIRECT); view = mmap.mmap(file, 0)"
    with Program(opened) as program, Program(opened) as mapper, silent(pool, how):
        for use in uses:
            assert error_in_time(program, use) in SILENT, use
        begun = time.monotonic()
        assert mapper.dies_of("value = view[0]") == signal.SIGBUS
        assert time.monotonic() - begun < FAILING_SECONDS_MAX
        # What is on the server that answers is all there.
        program.run(f"os.stat({str(path)!r})")
        program.run(f"os.listdir({str(mount.directory)!r})")
        # What the files are came with their closes, and is believed by a lease.
        time.sleep(OVER_SECONDS)
        looked = {d: error_in_time(program, f"os.stat({str(d / 'file')!r}).st_size") for d in directories}
        works = next(directory for directory, error in looked.items() if not error)
        assert directory_uses(program, works) == {0}
        silenced = next(directory for directory, error in looked.items() if error)
        assert directory_uses(program, silenced) | {looked[silenced]} <= set(SILENT)


@pytest.mark.long
def test_a_spread_directory_of_which_a_part_is_out_of_reach_says_so(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(3, 32)
    mount = new_mount(pool)
    # Its home is on the second server: slots are dealt out in order, and a number begins with its slot.
    for number in range(64):
        directory = mount / f"large-{number}"
        directory.mkdir()
        if (directory.stat().st_ino >> 48) * 3 // 4096 == 1:
            break
    with pool.connect() as connected:
        for number in range(8_400):
            connected.open(f"/{directory.name}/{number}", "wb", buffering=0).close()
    with Program(f"directory = os.open({str(directory)!r}, os.O_RDONLY)") as program:
        pool.kill_server(2)
        for use in (
            "os.fchmod(directory, 0o700)",
            "os.fchown(directory, os.getuid(), os.getgid())",
            "os.utime(directory)",
            "os.fstat(directory).st_nlink",
            "len(os.listdir(directory))",
            f"os.rmdir({str(directory)!r})",
            f"os.rename({str(directory)!r}, {str(mount / 'other')!r})",
        ):
            # Not EAGAIN: trying again at once would be of no use.
            assert error_in_time(program, use) in SILENT, use


@contextmanager
def silent(pool: Pool, how: str) -> Iterator[None]:
    """Let the second server answer nobody: for good, or for the time of this context."""
    if how == "frozen":
        with frozen(pool.process("child", 1)):
            yield
    else:
        pool.kill_server(1)
        yield


def error_in_time(program: Program, use: str) -> int:
    """Return the number of the error with which something ends in time; 0 for none."""
    program.begin(use, "ask")
    return error_of(program)


def error_of(program: Program) -> int:
    """Return the number of the error with which what was begun ends in time; 0 for none."""
    try:
        program.hear(FAILING_SECONDS_MAX)
    except OSError as error:
        return error.errno or -1
    return 0


def directory_uses(program: Program, directory: Path) -> set[int]:
    """Return what listing, making and removing in a directory come to."""
    texts = [
        f"len(os.listdir({str(directory)!r}))",
        f"open({str(directory / 'made')!r}, 'w').close()",
        f"os.unlink({str(directory / 'file')!r})",
    ]
    return {error_in_time(program, text) for text in texts}


# SEMANTICS 38.1
def test_a_frozen_server_stops_nobody_who_does_not_need_it(new_pool: NewPool, new_mount: NewMount) -> None:
    """As many as may wait for the frozen server do, all the time; files elsewhere are read beside them."""
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    files = make_files(pool, mount, 24)
    # The root, and with it all names, lies on the first server.
    asleep, awake = 1, 0
    names = files[asleep]
    answers: list[int] = []
    done = threading.Event()

    def read(number: int) -> None:
        name = names[number % len(names)]
        while not done.is_set():
            try:
                read_direct(mount / name)
                answers.append(0)
            except OSError as error:
                answers.append(error.errno or -1)

    with Program() as program, frozen(pool.process("child", asleep)):

        def goes_on_beside_them() -> bool:
            """Whether a file elsewhere was read while all of them waited and none had an answer."""
            if waiting(mount) < WAITING_MAX:
                return False
            before = len(answers)
            for name in files[awake][:3]:
                program.run(f"""
file = os.open({str(mount / name)!r}, os.O_RDONLY | os.O_DIRECT)
assert len(os.pread(file, 1 << 20, 0)) == 100_000
os.close(file)""")
            return len(answers) == before

        threads = [threading.Thread(target=read, args=(number,)) for number in range(WAITING_MAX)]
        for thread in threads:
            thread.start()
        try:
            assert eventually(goes_on_beside_them, PATIENCE_SECONDS), "readers elsewhere wait until others have answers"
        finally:
            done.set()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in threads), "a read hangs"
    assert set(answers) <= set(SILENT), answers
    # Awake again, everything works.
    for number in range(24):
        assert eventually(lambda number=number: reads(mount / f"file-{number}", pattern(number, 100_000)))  # type: ignore[misc]


# SEMANTICS 38.1
def test_programs_that_change_one_file_of_a_frozen_server_queue_each_for_its_own_time(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    name = make_files(pool, mount, 24)[1][0]
    start = f"file = os.open({str(mount / name)!r}, os.O_RDWR)"
    with Program(start) as first, Program(start) as second:
        write = "os.pwrite(file, b'x' * 100_000, 0)"
        with frozen(pool.process("child", 1)):
            first.begin(write, "ask")
            assert eventually(lambda: waiting(mount) >= 1)
            second.begin(write, "ask")
            ended = error_of(first)
            # The second one's request begins when the first has its answer: its time is not over yet.
            assert not second.has_answered()
            assert {ended, error_of(second)} <= set(SILENT)
        assert eventually(lambda: error_in_time(first, write) == 0, PATIENCE_SECONDS)
        assert error_in_time(second, write) == 0


def waiting(mount: Mount) -> int:
    """Return how many requests of a mount the kernel has no answer to; many where that is not to be seen."""
    minor = os.minor(os.stat(mount.directory).st_dev)
    try:
        return int(Path(f"/sys/fs/fuse/connections/{minor}/waiting").read_text())
    except OSError:
        time.sleep(0.5)
        return 1 << 20


def reads(path: Path, content: bytes) -> bool:
    """Return whether a file can be read and holds this."""
    try:
        return read_direct(path) == content
    except OSError:
        return False


# SEMANTICS 37.1
def test_an_unmount_ends_also_while_a_server_is_frozen(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    (mount / "file").write_bytes(bytes(MIB))
    with Program(mapping(mount / "file")) as program:
        program.run(f"view[:] = b'a' * {MIB}")
        with frozen(pool.process("child", 0), pool.process("child", 1)):
            program.begin("view.flush()")
            said = pool.run("unmount", str(mount.directory)).stdout.decode()
            assert "detached" in said, said
            assert not is_mounted(mount.directory)
            with suppress(OSError):
                program.hear()


# SEMANTICS 38.2
def test_a_program_that_waits_for_a_frozen_server_can_be_killed(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 32)
    mount = new_mount(pool)
    (mount / "file").write_bytes(pattern(1, MIB))
    with Program(f"file = os.open({str(mount / 'file')!r}, os.O_RDONLY | os.O_DIRECT)") as program:
        with frozen(pool.process("child", 0)):
            program.begin("os.pread(file, 1 << 20, 0)")
            program.process.kill()
            assert program.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert eventually(lambda: reads(mount / "file", pattern(1, MIB)))


def test_a_pool_that_is_gone_is_an_error_and_the_mount_can_be_taken_away(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 32)
    mount = new_mount(pool)
    (mount / "file").write_bytes(b"x")
    pool.kill_server(0)
    # What the file is came with the close, and is believed by a lease.
    time.sleep(OVER_SECONDS)
    with Program() as program:
        for use in (f"os.stat({str(mount / 'file')!r})", f"os.listdir({str(mount.directory)!r})"):
            with pytest.raises(OSError, match="Errno") as told:
                program.run(use)
            assert told.value.errno in SILENT, told.value
    mount.unmount()
    assert mount.daemon.ends()
