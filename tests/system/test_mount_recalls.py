"""What a recall costs in messages: one each way for each mount that has the pages, and none where nobody has."""

import itertools
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from conftest import NewPool
from mount import Mount, NewMount
from pool import KIB, Pool

pytestmark = pytest.mark.both

PAGE = 4 * KIB
PAGES = 64
READERS = 10
SAMPLES = 4
# The answer that brings recalls to a mount, and the message that says that they are done.
RECALLED, ACKNOWLEDGED = "Listen", "EndRecalls"


@contextmanager
def counted(pool: Pool, samples: list[Counter[str]]) -> Iterator[None]:
    """Add to the samples how many answers brought recalls in the block, and how many acknowledgements came."""
    before = answers(pool)
    yield
    samples.append(answers(pool) - before)


def answers(pool: Pool) -> Counter[str]:
    """Return how many were sent so far."""
    told = pool.json("status", "--messages")["messages"]
    return Counter({one["message"]: one["answers"] for one in told if one["message"] in (RECALLED, ACKNOWLEDGED)})


def least(samples: list[Counter[str]]) -> list[int]:
    """Return the least of each: mounts ask again from time to time what is recalled, also where nothing is."""
    print(samples)
    return [min(sample[name] for sample in samples) for name in (RECALLED, ACKNOWLEDGED)]


def least_acknowledged(samples: list[Counter[str]]) -> int:
    """Return the least number of acknowledged recalls, and all are acknowledged: a mount asks again in a slow block."""
    return least(samples)[1]


class Readers:
    """A file that ten mounts have read, and one that changes it."""

    def __init__(self, mounts: list[Mount], stack: ExitStack) -> None:
        (mounts[0] / "file").write_bytes(bytes(PAGES * PAGE))
        files = [stack.enter_context((mount / "file").open("r+b", buffering=0)).fileno() for mount in mounts]
        self.file, *self.readers = files
        self.view = stack.enter_context(mmap.mmap(self.file, 0))
        self.turn = 0

    def read(self) -> None:
        """Let all have all of it, as it is."""
        content = os.pread(self.file, PAGES * PAGE, 0)
        for reader in self.readers:
            assert os.pread(reader, PAGES * PAGE, 0) == content

    def write(self, first: int, count: int) -> None:
        """Change some pages by one call."""
        self.turn += 1
        assert os.pwrite(self.file, bytes([self.turn % 256]) * (count * PAGE), first * PAGE) == count * PAGE

    def write_each(self) -> None:
        """Change page after page."""
        for page in range(PAGES):
            self.write(page, 1)

    def store(self, first: int, count: int) -> None:
        """Store into some pages, and publish it."""
        self.turn += 1
        self.view[first * PAGE : (first + count) * PAGE : PAGE] = bytes([self.turn % 256]) * count
        self.view.flush()


# A writer that goes on recalls as much again each time.
GOES_ON = 1 + (PAGES - 1).bit_length()
CHANGES: dict[str, tuple[Callable[[Readers], None], int]] = {
    "a page is written": (lambda readers: readers.write(5, 1), 1),
    "many pages are written": (lambda readers: readers.write(0, PAGES), 1),
    "page after page is written": (Readers.write_each, GOES_ON),
    "a page is published": (lambda readers: readers.store(5, 1), 1),
    "many pages are published": (lambda readers: readers.store(0, PAGES), 1),
}


# SEMANTICS 114.7
def test_each_reader_of_what_is_changed_hears_of_it_by_one_message_and_says_so_by_one(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(1, 96)
    with ExitStack() as stack:
        readers = Readers([new_mount(pool) for _ in range(1 + READERS)], stack)
        for name, (change, recalls) in CHANGES.items():
            samples: list[Counter[str]] = []
            for _ in range(SAMPLES):
                readers.read()
                with counted(pool, samples):
                    change(readers)
                readers.read()
            assert least(samples) == [recalls * READERS] * 2, name
            # Nobody has read since.
            change(readers)
            again: list[Counter[str]] = []
            for _ in range(SAMPLES):
                with counted(pool, again):
                    change(readers)
            assert least_acknowledged(again) == 0, name


# SEMANTICS 124.5
def test_a_page_that_changes_sides_costs_one_message_each_way(new_pool: NewPool, new_mount: NewMount) -> None:
    pool, turns = new_pool(1, 96), 20
    mounts = [new_mount(pool, "--mode", "strict") for _ in range(2)]
    (mounts[0] / "file").write_bytes(bytes(PAGES * PAGE))
    with ExitStack() as stack:
        files = [stack.enter_context((mount / "file").open("r+b", buffering=0)).fileno() for mount in mounts]
        views = [stack.enter_context(mmap.mmap(file, 0)) for file in files]
        views[1][7 * PAGE] = 1
        samples: list[Counter[str]] = []
        for _ in range(SAMPLES):
            with counted(pool, samples):
                for turn in range(turns):
                    for view in views:
                        view[7 * PAGE] = turn
                    assert [view[7 * PAGE] for view in views] == [turn] * 2
        # It is on the other side before each store and before each load.
        assert least(samples) == [4 * turns] * 2


# SEMANTICS 114.3
@pytest.mark.parametrize("how", ["wb", "w+b"])
def test_a_file_that_grows_out_of_its_inode_recalls_nothing_from_the_mount_that_writes_it(
    new_pool: NewPool, new_mount: NewMount, how: str
) -> None:
    """Its kernel has no page that it has not filled, and it knows by the answer that the bytes have gone to a lane."""
    pool = new_pool(1, 96)
    here, there = new_mount(pool), new_mount(pool)
    content = bytes(range(256)) * 64
    pieces = (1_536, 4_000, 11_776, len(content))
    samples: list[Counter[str]] = []
    for turn in range(SAMPLES):
        names = [f"{turn}-{number}" for number in range(10)]
        with counted(pool, samples):
            for name in names:
                with (here / name).open(how, buffering=0) as file:
                    for start, end in itertools.pairwise((0, *pieces)):
                        assert file.write(content[start:end]) == end - start
        for name in names:
            assert (there / name).read_bytes() == content
            with (here / name).open("r+b", buffering=0) as file:
                file.write(b"again")
            assert (there / name).read_bytes() == b"again" + content[5:]
            assert (here / name).read_bytes() == b"again" + content[5:]
    assert least_acknowledged(samples) == 0
