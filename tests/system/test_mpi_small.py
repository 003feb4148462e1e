"""Small accesses by MPI-IO, one after the other: what they cost, and that they look as if each had gone by itself."""

import re

import pytest

from conftest import NewPool
from mpi_library import Mpi
from pool import Pool

ROWS = 2000


def counts(pool: Pool) -> int:
    """Return how many requests all servers have answered that move bytes of files."""
    told = {one["message"]: one["answers"] for one in pool.json("status", "--messages")["messages"]}
    return sum(told.get(kind, 0) for kind in ("WriteRuns", "ReadRuns", "WriteChunk", "ReadChunk"))


def reported(mpi: Mpi, word: str) -> list[int]:
    """Return what each rank has counted."""
    return [int(number) for number in re.findall(rf"\b{word} (\d+)", (mpi.directory / "report").read_text())]


def test_thousands_of_small_rows_cost_a_few_requests(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    small = mpi.program("small")
    before = counts(shared_pool)
    mpi.run(shared_pool, 2, small, "rows", f"ramlace:{place}/together", str(1 << 20))
    together = counts(shared_pool) - before
    # Of each rank: those before it was clear that more come, and some for each server.
    assert 2 * 2 * 16 <= together < 200
    assert reported(mpi, "kept") == [ROWS - 16] * 2
    assert all(number > ROWS - 50 for number in reported(mpi, "ahead"))
    before = counts(shared_pool)
    mpi.run(shared_pool, 2, small, "rows", f"ramlace:{place}/one-by-one", "0")
    # Those of the first rows find the file with its inode.
    assert counts(shared_pool) - before > 2 * 2 * (ROWS - 20)
    assert reported(mpi, "kept") == reported(mpi, "ahead") == [0, 0]
    with shared_pool.connect() as pool:
        assert pool.read_bytes(f"{place}/together") == pool.read_bytes(f"{place}/one-by-one")


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_kept_is_there_where_the_standard_promises_it(
    mpi: Mpi, shared_pool: Pool, place: str, ranks: int
) -> None:
    mpi.run(shared_pool, ranks, mpi.program("small"), "promises", f"ramlace:{place}/file")


def test_what_is_read_twice_is_asked_for_twice(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("small"), "fresh", f"ramlace:{place}/file")


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_random_small_accesses_leave_what_an_array_holds(mpi: Mpi, shared_pool: Pool, place: str, seed: int) -> None:
    mpi.run(shared_pool, 1, mpi.program("small"), "image", f"ramlace:{place}/file", str(seed))


def test_a_pool_that_fills_up_under_small_writes_says_so(mpi: Mpi, new_pool: NewPool) -> None:
    mpi.run(new_pool(2, 32), 1, mpi.program("small"), "full", "ramlace:/file")
