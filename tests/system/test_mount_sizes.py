"""Sizes of files that a kernel is answered while another mount makes them longer."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from litmus import COHERENT, STRICT
from mount import Program
from pool import Pool
from test_mount_waits import MOMENTS, PAGE, Pair

pytestmark = [pytest.mark.both, pytest.mark.lengthy]

# The kernel's numbers of requests.
SETATTR, LINK, STATX = 4, 13, 52
SIZE = 64 * PAGE

# The size of an open file, as `statx` says when it asks for the time of creation, too.
LENGTH_BY_STATX = """
libc = ctypes.CDLL(None, use_errno=True)


def length_of(file):
    buffer = ctypes.create_string_buffer(256)
    assert libc.statx(file, b"", 0x1000 | 0x2000, 0xFFF, buffer) == 0, os.strerror(ctypes.get_errno())
    return int.from_bytes(buffer.raw[40:48], "little")
"""


@pytest.fixture(scope="module", params=[COHERENT, STRICT])
def pair(
    fuse: None, shared_pool: Pool, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    """Two mounts of one mode, whose requests can be delayed."""
    made = Pair(shared_pool, request.param, tmp_path_factory.mktemp("delays"))
    try:
        yield made
    finally:
        made.close()


# SEMANTICS 114.4
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_mapping_reaches_as_far_as_statx_says_whatever_is_dropped_while_it_asks(
    pair: Pair, place: str, moment: str
) -> None:
    """A kernel ignores that answer as it ignores the one to `fstat`."""
    here, there = (mount / place / "file" for mount in pair.mounts)
    here.write_bytes(b"a" * SIZE)
    start = f"{LENGTH_BY_STATX}\nfile = os.open({str(there)!r}, os.O_RDWR)\nview = mmap.mmap(file, 0)"
    with here.open("r+b", buffering=0) as writer, Program(start) as program:
        for turn in range(3):
            os.truncate(here, 2 * PAGE)
            assert program.ask("length_of(file), view[0]") == (2 * PAGE, b"ab"[turn > 0])
            os.truncate(here, SIZE)
            pair.delays[1].set({STATX: (300, 0) if moment == "before" else (0, 300)})
            # A page that the other kernel has.
            meanwhile = threading.Timer(0.1, os.pwrite, (writer.fileno(), b"b", 0))
            meanwhile.start()
            program.run("size = length_of(file)")
            meanwhile.join()
            pair.set_free()
            assert program.ask("size") == SIZE
            assert program.ask("view[size - 1]") == 0, turn


def change_mode(path: Path) -> None:
    """Change what is no size."""
    path.chmod(0o640)


def link(path: Path) -> None:
    """Give the file one more name."""
    path.with_name("other").hardlink_to(path)


# SEMANTICS 114.4
@pytest.mark.parametrize(("kind", "change"), [(SETATTR, change_mode), (LINK, link)])
def test_what_is_stored_survives_a_late_answer_to_a_call_that_changes_no_size(
    pair: Pair, place: str, kind: int, change: Callable[[Path], None]
) -> None:
    """Such an answer has the size of before, and the kernel believes it whatever it has been answered since."""
    here, there = (mount / place / "file" for mount in pair.mounts)
    here.write_bytes(b"a" * SIZE)
    start = f"file = os.open({str(there)!r}, os.O_RDWR)\nview = mmap.mmap(file, 0)"
    with Program(start) as program:
        for turn in range(3):
            os.truncate(here, 2 * PAGE)
            assert program.ask("os.fstat(file).st_size, view[0]") == (2 * PAGE, ord("a"))
            pair.delays[1].set({kind: (0, 400)})
            late = threading.Thread(target=change, args=(there,))
            late.start()
            # It is done by then, and not answered.
            time.sleep(0.15)
            os.truncate(here, SIZE)
            assert program.ask("os.fstat(file).st_size") == SIZE
            program.run("view[len(view) - 1] = 7")
            late.join()
            pair.set_free()
            assert program.ask("view[len(view) - 1]") == 7, turn
            program.run("view.flush()")
            with here.open("rb", buffering=0) as reader:
                assert os.pread(reader.fileno(), 1, SIZE - 1) == b"\x07", turn
            there.with_name("other").unlink(missing_ok=True)
