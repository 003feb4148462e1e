"""The doors to the matrix: each lends one column after another to the same arithmetic.

A door is small and picklable: it is sent to the worker processes, which connect before the
clock starts and open the bytes while it runs.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import ramlace

Floats = NDArray[np.float64]


class Columns(ABC):
    """An opened matrix; ``column(j)`` is float64 of shape (rows,), good until the next call."""

    @abstractmethod
    def column(self, index: int) -> Floats:
        """Return column ``index``."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was opened."""


# Opens the matrix; its time counts.
Opener = Callable[[], Columns]


@dataclass(frozen=True)
class Door(ABC):
    """How to reach a column-major float64 matrix of ``rows`` × ``cols``."""

    rows: int
    cols: int

    @abstractmethod
    def connect(self) -> Opener:
        """Do what belongs to a program's start; return what opens the matrix once the clock runs."""


class _ReadColumns(Columns):
    """Columns read into one buffer, from a descriptor of this machine."""

    def __init__(self, path: str, rows: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # A program that reads columns one after another would say so.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._buffer = np.empty(rows)

    def column(self, index: int) -> Floats:
        view = self._buffer.data.cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], index * len(view) + done)
            if count == 0:
                raise EOFError(f"column {index} of the file ends after {done} of {len(view)} bytes")
            done += count
        return self._buffer

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class DiskDoor(Door):
    """A file on local disk, read by ``preadv`` into one buffer of a column."""

    path: str

    def connect(self) -> Opener:
        """There is nothing to do before the file is opened."""
        return partial(_ReadColumns, self.path, self.rows)


class _MappedColumns(Columns):
    """Columns of a mapping: nothing is copied."""

    def __init__(self, path: str, rows: int, cols: int) -> None:
        mapped = np.memmap(path, dtype=np.float64, mode="r", shape=(rows, cols), order="F")
        # A plain array over the same bytes: each slice of a memmap object costs some Python.
        self._matrix: Floats = np.asarray(mapped)

    def column(self, index: int) -> Floats:
        return self._matrix[:, index]

    def close(self) -> None:
        # The mapping lives as long as somebody looks at a column.
        del self._matrix


@dataclass(frozen=True)
class MappedDoor(Door):
    """A file mapped by ``numpy.memmap``: any file of this machine's directories, and so a mounted pool's."""

    path: str

    def connect(self) -> Opener:
        """There is nothing to do before the file is mapped."""
        return partial(_MappedColumns, self.path, self.rows, self.cols)


class _PoolColumns(Columns):
    """Columns read from the pool into one buffer."""

    def __init__(self, pool: "ramlace.Pool", path: str, rows: int) -> None:
        self._file = pool.open(path, "rb", buffering=0)
        self._buffer = np.empty(rows)

    def column(self, index: int) -> Floats:
        view = self._buffer.data.cast("B")
        done = 0
        while done < len(view):
            count = self._file.pread_into(view[done:], index * len(view) + done)
            if count == 0:
                raise EOFError(f"column {index} of the pool's file ends after {done} of {len(view)} bytes")
            done += count
        return self._buffer

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class ReadDoor(Door):
    """A file of the pool, read by the library over TCP, never by the machine's shared memory."""

    locator: str
    path: str

    def connect(self) -> Opener:
        """Connect to the pool, without its local shortcuts."""
        import ramlace

        pool = ramlace.connect(self.locator, local=False)
        return partial(_PoolColumns, pool, self.path, self.rows)


class _ArrayColumns(Columns):
    """Columns of a shared array's view: nothing is copied."""

    def __init__(self, pool: "ramlace.Pool", path: str) -> None:
        self._array = pool.array(path)
        self._matrix = self._array.view()

    def column(self, index: int) -> Floats:
        column: Floats = self._matrix[:, index]
        return column

    def close(self) -> None:
        del self._matrix
        self._array.close()


@dataclass(frozen=True)
class ArrayDoor(Door):
    """A native array of the pool, mapped where the bytes are on this machine."""

    locator: str
    path: str

    def connect(self) -> Opener:
        """Connect to the pool."""
        import ramlace

        return partial(_ArrayColumns, ramlace.connect(self.locator), self.path)
