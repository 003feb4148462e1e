"""Every kind of call on two mounts of one file, while each kind of request in turn is delayed.

Nothing waits for longer than is promised, and no byte is wrong.
"""

import itertools
import mmap
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from groups import control_group
from litmus import COHERENT, LONG, OPTIONS, RELAXED, STRICT
from mount import REFRESH, Mount, Program, mapping
from pool import MIB, Pool, eventually

pytestmark = [pytest.mark.both, pytest.mark.lengthy]

SOURCE = Path(__file__).parent / "litmus" / "waits.c"
FILE_BYTES = (16 + 16 + 128 + 8) * 4096
# Kinds of requests: the kernel's numbers, and those that crates/fuse/src/delays.rs adds.
KINDS = {
    "read": (15,),
    "write": (16,),
    "write-back": (62,),
    "drop": (63,),
    "truncate": (4,),
    "punch": (43,),
    "fsync": (20,),
    "flush": (25,),
    "release": (18,),
    "open": (14, 35),
    "forget": (2, 42),
    "lock": (31, 32, 33),
    "statfs": (17, 3),
}
SIZE, READ, WRITE, DROP = 3, 15, 16, 63
PAGE = 4096
# A chunk, as files have them.
UNIT = 2 * MIB
KIND_NUMBERS = 64
MODES = (STRICT, COHERENT, RELAXED)
# Whose requests are delayed, and when.
SIDES = ("first", "second", "both")
MOMENTS = ("before", "after")
# A mount that does not answer is waited for 5 seconds: nobody here is silent for so long, and no call takes
# longer but for the delays of its own requests.
BOUND_MILLIS = 5_000
REQUESTS_PER_CALL_MAX = 40
# What begins now is in its delay when this is over.
MOMENT_SECONDS = 0.15
# What a run may take beyond its time, its bound and the end of its calls.
MORE_SECONDS = 60.0
# What the calls' threads need by themselves, and a little for pages: two of each kind, and eight.
GROUP_BYTES = 24 * MIB
GROUP_BYTES_MANY = 96 * MIB


# More threads than two processors have turns for: beside other tests servers and daemons, idle ones too, were seen to
# wait for a processor for 8 to 60 seconds (their schedstat), and mounts and servers that wait for them give them up.
CROWDED = pytest.mark.alone(reason="hundreds of threads keep the processors from everybody else")


class Delays:
    """How long requests of one mount wait; its daemon reads this before each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set({})

    def set(self, delays: dict[int, tuple[int, int]]) -> None:
        """Set milliseconds before and after, by kind."""
        entries = [delays.get(kind, (0, 0)) for kind in range(KIND_NUMBERS)]
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(b"".join(struct.pack("<HH", *entry) for entry in entries))


class Pair:
    """Two mounts of one mode, whose requests can be delayed."""

    def __init__(self, pool: Pool, mode: str, directory: Path) -> None:
        self.mode = mode
        self.delays = tuple(Delays(directory / f"{mode}-{side}") for side in SIDES[:2])
        self.mounts: list[Mount] = []
        for delays in self.delays:
            variables = {"RAMLACE_MOUNT_DELAYS": str(delays.path)}
            self.mounts.append(Mount(pool, "--mode", mode, variables=variables))
        # Those of other pairs are used later, and their time goes on meanwhile.
        self.watched = self.mounts

    def watch(self) -> None:
        """Begin the time of all mounts anew."""
        for mount in self.watched:
            mount.daemon.watch()

    def delay(self, kind: str, side: str, moment: str, millis: int) -> None:
        """Delay one kind of requests on one side or both, and nothing else."""
        entry = (millis, 0) if moment == "before" else (0, millis)
        for name, delays in zip(SIDES, self.delays, strict=False):
            delays.set(dict.fromkeys(KINDS[kind], entry) if side in (name, "both") else {})

    def set_free(self) -> None:
        """Delay nothing any more."""
        for delays in self.delays:
            delays.set({})

    def close(self) -> None:
        """Take them away; nobody was taken for silent."""
        self.set_free()
        for mount in self.mounts:
            mount.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The calls, compiled."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler here")
    program = tmp_path_factory.mktemp("waits") / "waits"
    words = ["cc", *OPTIONS, "-pthread", str(SOURCE), "-o", str(program)]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def pairs(fuse: None, shared_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    """Two mounts of each mode."""
    made: dict[str, Pair] = {}
    try:
        for mode in MODES:
            made[mode] = Pair(shared_pool, mode, tmp_path_factory.mktemp("delays"))
        for pair in made.values():
            pair.watched = [mount for other in made.values() for mount in other.mounts]
        yield made
    finally:
        for pair in made.values():
            pair.close()


def run(program: Path, pair: Pair, place: str, millis: int, bound_millis: int, copies: int, *prefix: str) -> str:
    """Make all calls on both mounts for a while; return what is told of them."""
    first, second = (mount / place for mount in pair.mounts)
    pair.watch()
    with (first / "file").open("wb") as file:
        file.truncate(FILE_BYTES)
    assert (second / "file").stat().st_size == FILE_BYTES
    words = [*prefix, str(program), pair.mode, str(millis), str(bound_millis), str(copies), str(first), str(second)]
    # A program that waits for a mount cannot be killed: its own watchdog ends it, else the mounts' daemons are.
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=(millis + bound_millis) / 1000 + MORE_SECONDS)
        except subprocess.TimeoutExpired:
            for mount in pair.mounts:
                mount.daemon.send(signal.SIGKILL)
            process.kill()
            raise
        finally:
            pair.set_free()
    logs = [mount.log() for mount in pair.mounts]
    assert process.returncode == 0, (process.returncode, said, logs)
    assert not any(logs), logs
    (first / "file").unlink()
    return said


def cells(everyday: bool) -> Iterator[tuple[str, str, str]]:
    """Return what is delayed, on which side and when: all there are, or each kind once."""
    if not everyday:
        yield from itertools.product(KINDS, SIDES, MOMENTS)
        return
    for number, kind in enumerate(KINDS):
        yield kind, SIDES[number % len(SIDES)], MOMENTS[number // len(SIDES) % len(MOMENTS)]


# SEMANTICS 141
@pytest.mark.parametrize("mode", MODES)
def test_no_call_waits_for_ever_whatever_is_delayed(
    pairs: dict[str, Pair], program: Path, place: str, mode: str
) -> None:
    # At the end each page of a strict file is loaded anew, and each load is delayed.
    millis, delay = (1_000, 100) if LONG else (100, 40)
    for kind, side, moment in cells(everyday=not LONG):
        pairs[mode].delay(kind, side, moment, delay)
        said = run(program, pairs[mode], place, millis, BOUND_MILLIS + REQUESTS_PER_CALL_MAX * delay, 1)
        print(f"waits | {mode} | {kind} | {side} | {moment} |\n{said}")


# SEMANTICS 114.4
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
def test_a_read_goes_to_the_end_whatever_is_dropped_while_it_asks_for_that(
    pairs: dict[str, Pair], place: str, mode: str, moment: str
) -> None:
    """A kernel ignores the size that it is answered when it was told to drop pages of the file since it asked."""
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    size = 3 * 65_536
    here.write_bytes(bytes(size))
    with here.open("r+b", buffering=0) as writer, there.open("r+b", buffering=0) as reader:
        for turn in range(3):
            assert len(os.pread(reader.fileno(), 2 * size, 0)) == size
            size += 100
            assert os.pwrite(writer.fileno(), b"x" * 100, size - 100) == 100
            pair.delays[1].set({SIZE: (300, 0) if moment == "before" else (0, 300)})
            # Somewhere else: pages that the other kernel has.
            meanwhile = threading.Timer(0.1, os.pwrite, (writer.fileno(), b"y", 0))
            meanwhile.start()
            read = os.pread(reader.fileno(), 2 * size, 0)
            meanwhile.join()
            pair.set_free()
            assert len(read) == size, turn
            assert read[-100:] == b"x" * 100, turn


# SEMANTICS 114.4
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
def test_a_mapping_reaches_as_far_as_a_program_has_heard_whatever_is_dropped_while_it_asks(
    pairs: dict[str, Pair], place: str, mode: str, moment: str
) -> None:
    """What the kernel answers to `fstat` counts for loads too."""
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    size = 64 * PAGE
    here.write_bytes(b"a" * size)
    start = f"file = os.open({str(there)!r}, os.O_RDWR)\nview = mmap.mmap(file, 0)"
    with here.open("r+b", buffering=0) as writer, Program(start) as program:
        for turn in range(3):
            os.truncate(here, 2 * PAGE)
            assert program.ask("os.fstat(file).st_size, view[0]") == (2 * PAGE, b"ab"[turn > 0])
            os.truncate(here, size)
            pair.delays[1].set({SIZE: (300, 0) if moment == "before" else (0, 300)})
            # A page that the other kernel has.
            meanwhile = threading.Timer(0.1, os.pwrite, (writer.fileno(), b"b", 0))
            meanwhile.start()
            program.run("size = os.fstat(file).st_size")
            meanwhile.join()
            pair.set_free()
            assert program.ask("size") == size
            assert program.ask("view[size - 1]") == 0, turn


# SEMANTICS 114.4
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
@pytest.mark.parametrize("sizes", [(0, 8_000), (100, 8_000), (PAGE, 8_000), (8_000, 3 * 65_536)])
def test_a_read_goes_to_the_end_whatever_a_late_answer_says(
    pairs: dict[str, Pair], place: str, mode: str, sizes: tuple[int, int]
) -> None:
    """A kernel that takes in an answer of before takes nothing of one that it has asked for meanwhile."""
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    short, whole = sizes
    here.write_bytes(b"a" * whole)
    with here.open("r+b", buffering=0) as writer, there.open("rb", buffering=0) as reader:
        for turn in range(3):
            assert len(os.pread(reader.fileno(), 2 * whole, 0)) == whole
            os.ftruncate(writer.fileno(), short)
            pair.delays[1].set({SIZE: (0, 300)})
            late = threading.Thread(target=os.fstat, args=(reader.fileno(),))
            late.start()
            time.sleep(0.1)
            os.pwrite(writer.fileno(), b"b" * whole, 0)
            pair.delays[1].set({SIZE: (0, 400)})
            read = os.pread(reader.fileno(), 2 * whole, 0)
            late.join()
            pair.set_free()
            assert read == b"b" * whole, (turn, len(read), read.count(0))


# SEMANTICS 114.2
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
def test_mounts_that_make_a_file_grow_out_of_its_inode_at_once_read_nothing_older(
    pairs: dict[str, Pair], place: str, mode: str
) -> None:
    """Each has the page that the other's bytes change, and drops it late."""
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    for turn in range(3):
        here.write_bytes(b"a" * 100)
        with here.open("r+b", buffering=0) as writer, there.open("r+b", buffering=0) as reader:
            for file in (writer, reader):
                assert os.pread(file.fileno(), 100, 0) == b"a" * 100
            for delays in pair.delays:
                delays.set({DROP: (200, 0)})
            grows = threading.Thread(target=os.pwrite, args=(reader.fileno(), b"x", 3 * PAGE))
            grows.start()
            assert os.pwrite(writer.fileno(), b"x", 2 * PAGE) == 1
            assert os.pwrite(writer.fileno(), b"b", 50) == 1
            read = os.pread(reader.fileno(), 1, 50)
            grows.join()
            pair.set_free()
            assert read == b"b", turn
        here.unlink()


def write_behind(descriptor: int) -> None:
    """Write into the chunk that begins with the file."""
    assert os.pwrite(descriptor, b"x" * PAGE, 3 * PAGE) == PAGE


def write_elsewhere(descriptor: int) -> None:
    """Write into another chunk: its lane may have another server."""
    assert os.pwrite(descriptor, b"x" * PAGE, UNIT) == PAGE


def allocate(descriptor: int) -> None:
    """Write nothing."""
    os.posix_fallocate(descriptor, 0, 4 * PAGE)


def truncate(descriptor: int) -> None:
    """Write nothing, and hold what programs have stored until the answer."""
    os.ftruncate(descriptor, 4 * PAGE)


GROWS: dict[str, tuple[int, Callable[[int], None]]] = {
    "written": (os.O_RDWR, write_behind),
    "written elsewhere": (os.O_RDWR, write_elsewhere),
    "written past the pages": (os.O_WRONLY, write_behind),
    "appended": (os.O_WRONLY | os.O_APPEND, write_behind),
    "allocated": (os.O_RDWR, allocate),
    "truncated": (os.O_RDWR, truncate),
}


# SEMANTICS 114.2
@pytest.mark.parametrize("reserves", [False, True])
@pytest.mark.parametrize("grows", GROWS)
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
def test_what_others_write_where_a_file_was_small_is_seen_by_the_mount_that_has_made_it_grow(
    pairs: dict[str, Pair], place: str, mode: str, grows: str, reserves: bool
) -> None:
    """It has the page, with a store in it, and drops it late."""
    flags, grow = GROWS[grows]
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    here.write_bytes(b"a" * 100)
    if reserves:
        os.setxattr(here, "user.ramlace.reserve", b"1")
    with ExitStack() as stack:
        reader, other = (stack.enter_context(path.open("r+b", buffering=0)) for path in (here, there))
        view = stack.enter_context(mmap.mmap(reader.fileno(), 0))
        assert os.pread(other.fileno(), 100, 0) == view[:]
        descriptor = os.open(here, flags)
        stack.callback(os.close, descriptor)
        view[10] = ord("s")
        pair.delays[0].set({DROP: (500, 0)})
        grow(descriptor)
        assert os.pwrite(other.fileno(), b"b", 50) == 1
        read = os.pread(reader.fileno(), 1, 50)
        pair.set_free()
        assert read == b"b"
        view.flush()
        for file in (reader, other):
            assert os.pread(file.fileno(), 100, 0) == b"a" * 10 + b"s" + b"a" * 39 + b"b" + b"a" * 49


# SEMANTICS 114.2
def test_a_store_that_is_dropped_late_leaves_what_another_has_written_when_its_mount_makes_the_file_grow(
    pairs: dict[str, Pair], place: str
) -> None:
    """What was there before the store is known where the file was small, and not where its bytes go."""
    pair = pairs[COHERENT]
    here, there = (mount / place / "file" for mount in pair.mounts)
    here.write_bytes(b"a" * 100)
    with ExitStack() as stack:
        file, other = (stack.enter_context(path.open("r+b", buffering=0)) for path in (here, there))
        view = stack.enter_context(mmap.mmap(file.fileno(), 0))
        assert os.pread(other.fileno(), 100, 0) == view[:]
        view[10] = ord("s")
        pair.delays[0].set({DROP: (500, 0)})
        writer = threading.Thread(target=os.pwrite, args=(other.fileno(), b"b", 50))
        writer.start()
        time.sleep(MOMENT_SECONDS)
        write_behind(file.fileno())
        writer.join()
        pair.set_free()
        view.flush()
        for one in (file, other):
            assert os.pread(one.fileno(), 100, 0) == b"a" * 10 + b"s" + b"a" * 39 + b"b" + b"a" * 49


# SEMANTICS 114.4
def test_a_page_that_was_read_behind_the_end_is_recalled_when_somebody_writes_there(
    pairs: dict[str, Pair], place: str
) -> None:
    """It was read again after it was dropped, and before the truncation that dropped it has returned."""
    pair = pairs[COHERENT]
    here, there = (mount / place / "file" for mount in pair.mounts)
    for _ in range(3):
        here.write_bytes(b"a" * 3 * PAGE)
        with here.open("rb", buffering=0) as reader, there.open("r+b", buffering=0) as other:
            assert os.pread(reader.fileno(), PAGE, 0) == b"a" * PAGE
            pair.delays[0].set({DROP: (0, 300)})
            cuts = threading.Thread(target=os.ftruncate, args=(other.fileno(), 0))
            cuts.start()
            time.sleep(0.25)
            os.pread(reader.fileno(), PAGE, 0)
            cuts.join()
            assert os.pwrite(other.fileno(), b"b" * PAGE, 0) == PAGE
            read = os.pread(reader.fileno(), PAGE, 0)
            pair.set_free()
            assert read == b"b" * PAGE


# SEMANTICS 114.5
@pytest.mark.parametrize("size", [1_000, 6 * PAGE, 3 * 65_536])
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
def test_a_truncation_that_has_returned_is_seen_however_late_a_kernel_drops_what_it_cut_off(
    pairs: dict[str, Pair], place: str, mode: str, size: int
) -> None:
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    here.write_bytes(b"a" * size)
    with there.open("r+b", buffering=0) as reader, mmap.mmap(reader.fileno(), 0, prot=mmap.PROT_READ) as view:
        for kept in (size - 300, size // 2, 100):
            assert os.pread(reader.fileno(), 2 * size, 0) == view[: here.stat().st_size]
            pair.delays[1].set({DROP: (200, 0)})
            os.truncate(here, kept)
            shown = view[kept : min(-(-kept // PAGE) * PAGE, size)]
            read = os.pread(reader.fileno(), 2 * size, 0)
            pair.set_free()
            assert not any(shown), kept
            assert read == b"a" * kept, (kept, len(read))
            os.truncate(here, kept + 200)
            assert os.pread(reader.fileno(), 2 * size, 0) == b"a" * kept + bytes(200)
            os.truncate(here, kept)


# SEMANTICS 114.5
@pytest.mark.parametrize("millis", [0, 200])
@pytest.mark.parametrize("mode", [COHERENT, STRICT])
def test_what_was_stored_and_cut_off_is_nowhere_when_the_file_is_longer_again(
    pairs: dict[str, Pair], place: str, mode: str, millis: int
) -> None:
    """One mount's programs have stored behind the cut and published nothing; the other mount cuts, and cuts again."""
    pair = pairs[mode]
    here, there = (mount / place / "file" for mount in pair.mounts)
    whole, kept = 8 * PAGE, 3 * PAGE + 1_000
    for _ in range(3):
        here.write_bytes(b"a" * whole)
        with there.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as view:
            for at in (kept + 1_000, 5 * PAGE + 10, 7 * PAGE + 10):
                view[at] = ord("b")
            pair.delays[1].set({DROP: (millis, 0)})
            os.truncate(here, kept)
            os.truncate(here, whole)
            read, shown = os.pread(file.fileno(), whole, 0), view[:whole]
            pair.set_free()
            for content in (read, shown, here.read_bytes()):
                assert content == b"a" * kept + bytes(whole - kept)
        here.unlink()


# SEMANTICS 114.6
@pytest.mark.parametrize("sizes", [(0, 0), (100, 5 * PAGE), (900, 0)])
@pytest.mark.parametrize("mode", MODES)
def test_truncations_that_cross_are_answered_though_both_kernels_have_stores(
    pairs: dict[str, Pair], place: str, mode: str, sizes: tuple[int, int]
) -> None:
    """While a kernel truncates a file it writes no page of it back, and cannot drop it: each waits for the other."""
    pair = pairs[mode]
    paths = [mount / place / "file" for mount in pair.mounts]
    whole = 1_000 if max(sizes) == 900 else 8 * PAGE
    for _ in range(3):
        paths[0].write_bytes(b"a" * whole)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("r+b", buffering=0)).fileno() for path in paths]
            views = [stack.enter_context(mmap.mmap(file, 0)) for file in files]
            for side, view in enumerate(views):
                for at in range(10 + side, whole, PAGE):
                    view[at] = ord("0") + side
            # Each is in flight when the other's recall comes.
            for delays in pair.delays:
                delays.set(dict.fromkeys(KINDS["truncate"], (0, 100)))
            stack.callback(pair.set_free)
            calls = [
                threading.Thread(target=os.ftruncate, args=call, daemon=True) for call in zip(files, sizes, strict=True)
            ]
            for call in calls:
                call.start()
            for call in calls:
                call.join(BOUND_MILLIS / 1000)
                assert not call.is_alive(), "a truncation waits for ever"
            pair.set_free()
            if mode == RELAXED:
                for path in paths:
                    os.getxattr(path, REFRESH)
            size = paths[0].stat().st_size
            assert size in sizes
            assert paths[1].stat().st_size == size
            for file in files:
                os.fsync(file)
            # Of the two that crossed, one kernel drops behind its own truncation.
            assert eventually(partial(agree, files, whole))


def agree(files: list[int], length: int) -> bool:
    """Tell whether both files have the same bytes."""
    return os.pread(files[0], length, 0) == os.pread(files[1], length, 0)


class Writer:
    """A file on both mounts, and a call that writes a byte of its sixth page on the first one."""

    AT = 5 * PAGE + 100

    def __init__(self, pair: Pair, place: str, stack: ExitStack) -> None:
        self.pair = pair
        self.path, self.other_path = (mount / place / "file" for mount in pair.mounts)
        self.path.write_bytes(bytes(8 * PAGE))
        self.file = stack.enter_context(self.path.open("r+b", buffering=0)).fileno()
        self.other = stack.enter_context(self.other_path.open("r+b", buffering=0)).fileno()
        self.view = stack.enter_context(mmap.mmap(self.file, 0))
        stack.callback(pair.set_free)
        for file in (self.file, self.other):
            assert not any(os.pread(file, 8 * PAGE, 0))

    def begin(self, millis: int) -> threading.Thread:
        """Begin the call: its byte is in the kernel's page at once, and in the pool when it was delayed."""
        self.pair.delays[0].set({WRITE: (millis, 0)})
        writes = threading.Thread(target=os.pwrite, args=(self.file, b"1", self.AT))
        writes.start()
        time.sleep(MOMENT_SECONDS)
        return writes

    def check(self) -> None:
        """A program that reads finds the byte, also when the page was written back."""
        assert os.pread(self.file, 1, self.AT) == b"1"
        self.view[self.AT + 100] = 2
        self.view.flush()
        os.getxattr(self.other_path, REFRESH)
        assert os.pread(self.other, 101, self.AT) == b"1" + bytes(99) + b"\2"


# SEMANTICS 114.1, 116
@pytest.mark.parametrize("mode", [COHERENT, RELAXED])
def test_a_write_stays_whatever_an_open_drops_while_it_is_under_way(
    pairs: dict[str, Pair], place: str, mode: str
) -> None:
    """A kernel drops pages behind the answer to an open: when it comes to them, a later write may be under way."""
    with ExitStack() as stack:
        writer = Writer(pairs[mode], place, stack)
        # Another version of the file: the next open drops its pages.
        assert os.pwrite(writer.other, b"x", 0) == 1
        os.fsync(writer.other)
        time.sleep(MOMENT_SECONDS)
        # The kernel waits for the first page.
        os.posix_fadvise(writer.file, 0, PAGE, os.POSIX_FADV_DONTNEED)
        writer.pair.delays[0].set({READ: (500, 0)})
        reads = threading.Thread(target=os.pread, args=(writer.file, 1, 0))
        reads.start()
        time.sleep(MOMENT_SECONDS)
        opens = threading.Thread(target=lambda: stack.callback(os.close, os.open(writer.path, os.O_RDONLY)))
        opens.start()
        time.sleep(MOMENT_SECONDS)
        assert os.pwrite(writer.file, b"0", 7 * PAGE) == 1
        writes = writer.begin(1_200)
        opens.join()
        reads.join()
        # What is read now is in the page when the write is in the pool.
        os.pread(writer.file, 1, writer.AT)
        writes.join()
        writer.pair.set_free()
        writer.check()


# SEMANTICS 114.1, 116
@pytest.mark.parametrize("mode", [COHERENT, RELAXED])
def test_a_write_stays_however_late_its_pages_are_dropped_that_were_read_meanwhile(
    pairs: dict[str, Pair], place: str, mode: str
) -> None:
    with ExitStack() as stack:
        writer = Writer(pairs[mode], place, stack)
        writes = writer.begin(600)
        # Somebody else's write into the page: it is dropped, and read again without the first one's byte.
        assert os.pwrite(writer.other, b"o", writer.AT + 50) == 1
        time.sleep(MOMENT_SECONDS)
        os.pread(writer.file, 1, writer.AT)
        writer.view[writer.AT + 200] = 3
        writer.pair.delays[0].set({DROP: (1_000, 0)})
        writes.join()
        writer.pair.set_free()
        assert os.pwrite(writer.other, bytes(1), writer.AT + 50) == 1
        writer.check()


# SEMANTICS 116
@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR | os.O_DIRECT])
@pytest.mark.parametrize("mode", MODES)
def test_stores_beside_a_write_that_goes_past_the_pages_survive_and_so_does_the_write(
    pairs: dict[str, Pair], place: str, mode: str, flags: int
) -> None:
    """A kernel drops pages before and behind such a write. One that is read in between has the bytes of before."""
    with ExitStack() as stack:
        writer = Writer(pairs[mode], place, stack)
        past_pages = os.open(writer.path, flags)
        stack.callback(os.close, past_pages)
        writer.pair.delays[0].set({WRITE: (600, 0)})
        writes = threading.Thread(target=os.pwrite, args=(past_pages, b"1", writer.AT))
        writes.start()
        time.sleep(MOMENT_SECONDS)
        writer.view[writer.AT + 200] = 3
        writes.join()
        writer.pair.set_free()
        assert writer.view[writer.AT + 200] == 3
        writer.check()
        assert os.pread(writer.other, 1, writer.AT + 200) == b"\3"


# SEMANTICS 128.14
@pytest.mark.parametrize("count", [40, 120])
def test_a_load_that_waits_for_its_turn_in_its_mount_holds_nobody_up(
    pairs: dict[str, Pair], place: str, count: int
) -> None:
    """More loads wait for a machine than a mount has connections for, or threads; it wants the page of one of them."""
    pair = pairs[STRICT]
    here, there = (mount / place / "file" for mount in pair.mounts)
    here.write_bytes(bytes(300 * PAGE))
    wanted, others = 290 * PAGE, [2 * page * PAGE for page in range(1, count + 1)]
    with ExitStack() as stack:
        owner = stack.enter_context(Program(mapping(there)))
        reader = stack.enter_context(here.open("rb", buffering=0)).fileno()
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_RANDOM)
        stack.callback(pair.set_free)
        # This mount has the page, as far as its server knows.
        assert os.pread(reader, 1, wanted) == b"\0"
        os.posix_fadvise(reader, wanted, PAGE, os.POSIX_FADV_DONTNEED)
        owner.run(f"for at in {others}: view[at] = 1")
        pair.delays[1].set({DROP: (3_000, 0)})
        found: dict[int, bytes] = {}
        loads = {
            at: threading.Thread(target=lambda at=at: found.update({at: os.pread(reader, 1, at)})) for at in others
        }
        for load in loads.values():
            load.start()
        time.sleep(MOMENT_SECONDS)
        last = threading.Thread(target=lambda: found.update({wanted: os.pread(reader, 1, wanted)}))
        last.start()
        time.sleep(MOMENT_SECONDS)
        owner.run(f"view[{wanted}] = 2")
        assert not found, "the store has waited for the loads, or these for nobody"
        pair.set_free()
        for load in (*loads.values(), last):
            load.join()
        assert found == {wanted: b"\2", **dict.fromkeys(others, b"\1")}


# SEMANTICS 141
@CROWDED
@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_nor_where_more_calls_wait_than_a_mount_has_threads(
    pairs: dict[str, Pair], program: Path, place: str, mode: str
) -> None:
    """Each mount has 96 threads for calls, and some more; here are more of either."""
    for kind in ("read", "write", "write-back", "drop", "lock"):
        pairs[mode].delay(kind, "both", "before", 20)
        said = run(program, pairs[mode], place, 3_000, 60_000, 8)
        print(f"waits | {mode} | {kind} | many |\n{said}")


# SEMANTICS 141
@CROWDED
@pytest.mark.long
@pytest.mark.needs_root
@pytest.mark.parametrize("mode", MODES)
def test_nor_where_memory_is_short(
    pairs: dict[str, Pair], program: Path, place: str, mode: str, tmp_path: Path
) -> None:
    for kind in ("read", "write-back", "drop"):
        pairs[mode].delay(kind, "both", "before", 20)
        said = run_with_little_memory(program, pairs[mode], place, tmp_path, GROUP_BYTES, 2_000, 2)
        print(f"waits | {mode} | {kind} | little memory |\n{said}")


# SEMANTICS 141
@CROWDED
@pytest.mark.long
@pytest.mark.needs_root
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_nor_where_many_calls_wait_and_memory_is_short(
    pairs: dict[str, Pair], program: Path, place: str, tmp_path: Path, mode: str, kind: str, moment: str
) -> None:
    """Each kind of request in turn, beside all kinds of calls: more of these than a mount has threads."""
    pairs[mode].delay(kind, "both", moment, 20)
    said = run_with_little_memory(program, pairs[mode], place, tmp_path, GROUP_BYTES_MANY, 2_000, 8)
    print(f"waits | {mode} | {kind} | {moment} | many, little memory |\n{said}")


def run_with_little_memory(
    program: Path, pair: Pair, place: str, directory: Path, memory_bytes: int, millis: int, copies: int
) -> str:
    """Make the calls in a control group that has no room for all pages; return what is told of them."""
    # Another program of the group reads more than there is room for, as long as the calls are made.
    more = '{ while kill -0 $$; do cat "$large"; done > /dev/null 2>&1 & }'
    enter = f'echo $$ > "$0" && large=$1 && shift && {more} && exec "$@"'
    large = directory / "large"
    large.write_bytes(os.urandom(2 * memory_bytes))
    with large.open("r+b") as file:
        os.fsync(file.fileno())
        # A program that reads it takes the memory for it.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with control_group(memory_bytes) as group:
        words = ("sh", "-c", enter, str(group.processes), str(large))
        said = run(program, pair, place, millis, 60_000, copies, *words)
        assert group.killed() == 0
        assert group.was_short(), "the group had room for everything, and the test shows nothing"
    return said
