"""Puts the matrix where it is measured: a file on disk or in tmpfs, and an array of the pool."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ramlace.demo.data import Matrix
from ramlace.demo.problem import DemoError
from ramlace.demo.progress import bar
from ramlace.demo.units import show_bytes

if TYPE_CHECKING:
    import ramlace

# Bytes that a file system keeps free beside the matrix.
FREE_BYTES_MIN = 64 << 20


def free_bytes(directory: Path) -> int:
    """Return the bytes an ordinary user may still write to the file system of ``directory``."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


@contextmanager
def matrix_file(directory: Path, matrix: Matrix, title: str, *, keep: bool = False) -> Iterator[Path]:
    """Write the matrix to a new file, column after column, as raw float64; remove it afterwards.

    Raises DemoError where the file system has no room for it.
    """
    free = free_bytes(directory)
    if free < matrix.nbytes + FREE_BYTES_MIN:
        raise DemoError(
            f"{directory}: the matrix takes {show_bytes(matrix.nbytes)}, and {show_bytes(free)} are free there; "
            "choose another place by --out, or fewer --rows"
        )
    path = directory / f"ramlace-demo-{os.getpid()}.f64"
    try:
        with path.open("xb", buffering=0) as file:
            for column in bar(matrix.filled_columns(), matrix.cols, title):
                view = column.data.cast("B")
                done = 0
                while done < len(view):
                    done += file.write(view[done:])
            os.fsync(file.fileno())
        yield path
    finally:
        if not keep:
            path.unlink(missing_ok=True)


def fill_array(array: "ramlace.Array", matrix: Matrix, title: str) -> None:
    """Store the matrix into an array of its shape, in Fortran order, and publish it."""
    view = array.view()
    for index, column in enumerate(bar(matrix.filled_columns(), matrix.cols, title)):
        view[:, index] = column
    array.publish()
