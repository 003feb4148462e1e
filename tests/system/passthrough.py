"""Pools with a mount that passes files through to the kernel (`mount --passthrough`), for root alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mount import NewMount
from pool import KIB, MIB, Pool, pattern

PAGE = 4 * KIB
SIZE = 2 * MIB + 100


class PassthroughPool:
    """A pool of one server with a mount with passthrough, and one without."""

    def __init__(self, pool: Pool, mount: NewMount) -> None:
        self.pool = pool
        self.here = mount(pool, "--passthrough")
        self.there = mount(pool)

    def make(self, name: str = "file", size: int = SIZE) -> bytes:
        """Make a file that can be passed through, and return what is in it."""
        content = pattern(len(name), size)
        with self.pool.connect() as pool, pool.open(name, "wb") as file:
            file.write(content)
        return content

    def bytes_of(self, name: str = "file") -> bytes:
        """Return what the library reads."""
        with self.pool.connect() as pool, pool.open(name) as file:
            return bytes(file.read())

    def used_bytes(self) -> int:
        """Return the memory of files: the log grows by a page now and then, by the very request."""
        server = self.pool.status()[0]
        return int(server["used_bytes"]) - int(server["meta_bytes"])


@pytest.fixture
def passthrough(new_pool: Callable[..., Pool], new_mount: NewMount) -> PassthroughPool:
    """Return such a pool, of 64 MiB."""
    return PassthroughPool(new_pool(1, 64), new_mount)


def reading(path: Path) -> str:
    """Return what a `Program` runs to map a file for reading as `view`."""
    return f"file = os.open({str(path)!r}, os.O_RDONLY); view = mmap.mmap(file, 0, prot=mmap.PROT_READ)"
