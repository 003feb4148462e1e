"""Random changes of one file by every door of a mount, beside a bytearray that has them too.

Each leg is done on one mount, through several descriptors and mappings that see one another's changes at
once; then everything is closed, and the next leg goes on with the file on the other mount.
"""

import errno
import mmap
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mount import NewMount, fails
from pool import KIB, MIB, Pool, pattern
from test_mount_bytes import COLLAPSE, KEEP, PUNCH, ZERO, fallocate

UNIT = 64 * KIB
PAGE = 4 * KIB
IS_LONG = bool(os.environ.get("RAMLACE_TEST_LONG"))
LEGS, STEPS = (12, 250) if IS_LONG else (6, 120)


@dataclass
class Shape:
    """Where a file lies, and how large it and its changes become."""

    unit: int
    width: int
    size_max: int
    change_max: int


SHAPES = {
    # Up to 4 KiB it lives with its inode: most changes cross that border.
    "small": Shape(UNIT, 1, 12 * KIB, 5 * KIB),
    "striped": Shape(UNIT, 3, 12 * UNIT, 2 * UNIT),
    "large": Shape(2 * MIB, 3, 9 * MIB, 3 * MIB),
}
# From 1 MiB on a mount with --passthrough hands it over where it has no holes.
SHAPES_OF_KERNELS = {"mapped": Shape(2 * MIB, 1, 9 * MIB, 3 * MIB)}

pytestmark = pytest.mark.lengthy


@dataclass
class File:
    """A file on a mount, open several times, and what it should hold."""

    path: Path
    shape: Shape
    chance: random.Random
    model: bytearray = field(default_factory=bytearray)
    # Two for any use, two that pass the kernel's pages by, one that appends.
    plain: list[int] = field(default_factory=list)
    direct: int = -1
    only_writes: int = -1
    append: int = -1
    # One that cannot write: the kernel splices from no other where it maps without asking.
    source: int = -1
    # Whether the mount hands files to the kernel.
    may_be_handed: bool = False
    story: list[str] = field(default_factory=list)

    @contextmanager
    def opened(self, directory: Path) -> Iterator[None]:
        """Keep its descriptors open on one mount."""
        self.path = directory / "file"
        self.plain = [os.open(self.path, os.O_RDWR | os.O_CREAT) for _ in range(2)]
        self.direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        self.only_writes = os.open(self.path, os.O_WRONLY)
        self.append = os.open(self.path, os.O_RDWR | os.O_APPEND)
        self.source = os.open(self.path, os.O_RDONLY)
        try:
            yield
        finally:
            for descriptor in (*self.plain, self.direct, self.only_writes, self.append, self.source):
                os.close(descriptor)

    def reach(self, size: int) -> None:
        """Grow to a size with zeros."""
        self.model.extend(bytes(max(size - len(self.model), 0)))

    def put(self, offset: int, data: bytes) -> None:
        """Change bytes, growing where needed."""
        self.reach(offset)
        self.model[offset : offset + len(data)] = data

    def data(self, length: int) -> bytes:
        """Return bytes that no earlier change has written."""
        return pattern(self.chance.randrange(100_000), length)

    def write(self, offset: int, length: int) -> None:
        data = self.data(length)
        assert os.pwrite(self.chance.choice([*self.plain, self.direct, self.only_writes]), data, offset) == length
        self.put(offset, data)

    def write_appended(self, offset: int, length: int) -> None:
        length = min(length, max(self.shape.size_max - len(self.model), 0))
        data = self.data(length)
        assert os.write(self.append, data) == length
        self.model += data

    def store(self, offset: int, length: int) -> None:
        """Store into a mapping that is not told to write back before it goes."""
        end = min(offset + length, len(self.model))
        if offset >= end:
            return
        data = self.data(end - offset)
        begin = offset // PAGE * PAGE
        with mmap.mmap(self.chance.choice(self.plain), end - begin, offset=begin) as view:
            view[offset - begin :] = data
            if self.chance.random() < 0.2:
                view.flush()
        self.put(offset, data)

    def truncate(self, offset: int, _length: int) -> None:
        os.ftruncate(self.chance.choice(self.plain), offset)
        self.reach(offset)
        del self.model[offset:]

    def truncate_path(self, offset: int, _length: int) -> None:
        os.truncate(self.path, offset)
        self.reach(offset)
        del self.model[offset:]

    def allocate(self, mode: int) -> Callable[[int, int], None]:
        def change(offset: int, length: int) -> None:
            try:
                fallocate(self.chance.choice(self.plain), mode, offset, length)
            except OSError as error:
                # No room behind the end of what a kernel reads.
                behind = mode & KEEP and not mode & PUNCH and offset + length > len(self.model)
                assert error.errno == errno.EOPNOTSUPP and behind and self.may_be_handed, error
                return
            if not mode & KEEP:
                self.reach(offset + length)
            if mode & (PUNCH | ZERO):
                end = min(offset + length, len(self.model))
                self.model[offset:end] = bytes(max(end - offset, 0))

        return change

    def copy(self, offset: int, length: int) -> None:
        """Let the kernel copy a piece of the file to another place of it."""
        length = min(length, len(self.model) // 2)
        if not length:
            return
        first, second = self.source, self.plain[1]
        source = self.chance.randrange(len(self.model) - length + 1)
        to = min(offset, self.shape.size_max - length)
        if source < to + length and to < source + length:
            fails(errno.EINVAL, os.copy_file_range, first, second, length, source, to)
            return
        data = bytes(self.model[source : source + length])
        done = 0
        while done < length:
            done += os.copy_file_range(first, second, length - done, source + done, to + done)
        self.put(to, data)

    def collapse(self, offset: int, length: int) -> None:
        """What would move all that follows is refused and changes nothing."""
        fails(errno.EOPNOTSUPP, fallocate, self.plain[0], COLLAPSE, offset // PAGE * PAGE, PAGE)

    def sync(self, _offset: int, _length: int) -> None:
        os.fsync(self.chance.choice(self.plain))

    def forget_pages(self, _offset: int, _length: int) -> None:
        os.fsync(self.plain[0])
        os.posix_fadvise(self.plain[0], 0, 0, os.POSIX_FADV_DONTNEED)

    def check(self, offset: int, length: int) -> None:
        """Compare a piece by a door of chance's choice, and the size."""
        expected = self.model[offset : offset + length]
        way = self.chance.randrange(4)
        assert os.fstat(self.chance.choice(self.plain)).st_size == len(self.model)
        if way == 0 and expected:
            begin = offset // PAGE * PAGE
            length = offset + len(expected) - begin
            with mmap.mmap(self.plain[1], length, offset=begin, prot=mmap.PROT_READ) as view:
                assert view[offset - begin :] == expected
        elif way == 1:
            assert os.pread(self.direct, length, offset) == expected
        elif way == 2 and self.model:
            self.check_holes(self.chance.randrange(len(self.model)))
        else:
            assert os.pread(self.chance.choice(self.plain), length, offset) == expected

    def check_holes(self, at: int) -> None:
        """Check that what counts as a hole is zeros, also where programs have stored and not published."""
        try:
            data = os.lseek(self.plain[0], at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            data = len(self.model)
        assert at <= data and not any(self.model[at:data])
        hole = os.lseek(self.plain[0], at, os.SEEK_HOLE)
        assert at <= hole <= len(self.model) and (hole == at or data == at)
        if hole < len(self.model):
            assert not any(self.model[hole : min(hole + 1, len(self.model))])
        fails(errno.ENXIO, os.lseek, self.plain[0], len(self.model), os.SEEK_DATA)

    def place(self) -> tuple[int, int]:
        """Return an offset and a length: any, or near a border of anything."""
        size_max, change_max = self.shape.size_max, self.shape.change_max
        edges = [0, PAGE, self.shape.unit, self.shape.unit * self.shape.width, len(self.model)]
        near = [edge + beside for edge in edges for beside in (-1, 0, 1) if 0 <= edge + beside < size_max]
        offset = self.chance.choice([self.chance.randrange(size_max), self.chance.choice(near)])
        length = self.chance.choice([1, PAGE, self.chance.randrange(1, change_max), self.chance.randrange(1, 200)])
        return offset, min(length, size_max - offset)

    def changes(self) -> list[Callable[[int, int], None]]:
        """Return what may happen, the usual several times."""
        often = [self.write, self.store, self.write] * 3
        allocations = [self.allocate(mode) for mode in (0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP)]
        seldom = [self.truncate_path, self.collapse, self.sync, self.forget_pages]
        return [*often, *allocations, *seldom, self.write_appended, self.copy, self.copy, self.truncate]


# SEMANTICS 29.1, 61.1, 62.1
@pytest.mark.parametrize("shape", [pytest.param(shape, id=f"part {shape}") for shape in SHAPES])
@pytest.mark.parametrize("seed", range(12 if IS_LONG else 2))
def test_a_file_that_is_changed_by_every_door_is_what_a_bytearray_holds(
    shared_pool: Pool, place: str, here: Path, there: Path, shape: str, seed: int
) -> None:
    change_on_two_mounts(shared_pool, place, here, there, shape, seed)


# SEMANTICS 89.3
@pytest.mark.parametrize("seed", range(12 if IS_LONG else 2))
@pytest.mark.needs_root
def test_a_file_that_kernels_map_is_what_a_bytearray_holds(
    shared_pool: Pool, place: str, there: Path, new_mount: NewMount, seed: int
) -> None:
    mount = new_mount(shared_pool, "--passthrough")
    change_on_two_mounts(shared_pool, place, mount / place, there, "mapped", seed)


def change_on_two_mounts(shared_pool: Pool, place: str, here: Path, there: Path, shape: str, seed: int) -> None:
    """Change a file leg by leg, and compare it after each by every door."""
    found = (SHAPES | SHAPES_OF_KERNELS)[shape]
    with shared_pool.connect() as pool:
        pool.set_layout(place, stripe_unit=found.unit, width=found.width)
        file = File(here, found, random.Random(f"{shape} {seed}"), may_be_handed=shape == "mapped")
        for leg in range(LEGS):
            with file.opened((here, there)[leg % 2]):
                change_at_random(file)
            # Closed here, so it is whole for every program that opens it now.
            assert (there / "file").read_bytes() == file.model, (leg, file.story)
            assert (here / "file").read_bytes() == file.model, (leg, file.story)
            assert pool.open(f"{place}/file").read() == file.model, (leg, file.story)


def change_at_random(file: File) -> None:
    """Do one leg; what fails tells what went before."""
    changes = file.changes()
    file.story.clear()
    for _ in range(STEPS):
        offset, length = file.place()
        change = file.chance.choice(changes)
        file.story.append(f"{change.__qualname__.removeprefix('File.')}({offset}, {length})")
        try:
            change(offset, length)
            file.check(max(offset - 100, 0), length + 200)
        except BaseException as error:
            error.add_note(f"after {len(file.story)} changes: {file.story[-20:]}")
            raise
