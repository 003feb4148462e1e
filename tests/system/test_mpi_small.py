"""Small accesses by MPI-IO, one after the other: what they cost, and that they look as if each had gone by itself."""

import re

import pytest

from conftest import NewPool
from mpi_library import Mpi
from pool import Pool

ROWS = 2000
# What tests/system/mpi/faults.c does: errors and other calls at the moments that matter, put before the C library.
FAULTS = [
    "write_under_way",
    "cut_under_way",
    "phases_under_way",
    "lost_behind",
    "nothing_in_vain",
    "close",
    "one_row",
    "one_chunk",
    "beyond",
    "silent",
    "told",
    "class",
    "pointer",
    "together",
]
# What tests/system/mpi/behind.c does: the same for rows that are in flight while the program goes on.
BEHIND = ["goes_on", "limit", "again", "lost", "silent", "close", "threads"]


def counts(pool: Pool) -> int:
    """Return how many requests all servers have answered that move bytes of files."""
    told = {one["message"]: one["answers"] for one in pool.json("status", "--messages")["messages"]}
    return sum(told.get(kind, 0) for kind in ("WriteRuns", "ReadRuns", "WriteChunk", "ExtendChunk", "ReadChunk"))


def reported(mpi: Mpi, word: str) -> list[int]:
    """Return what each rank has counted."""
    return [int(number) for number in re.findall(rf"\b{word} (\d+)", (mpi.directory / "report").read_text())]


# SEMANTICS 98.11
@pytest.mark.parametrize("case", ["rows", "rows_together"])
def test_thousands_of_small_rows_cost_a_few_requests(mpi: Mpi, shared_pool: Pool, place: str, case: str) -> None:
    small = mpi.program("small")
    before = counts(shared_pool)
    mpi.run(shared_pool, 2, small, case, f"ramlace:{place}/together", str(1 << 20))
    together = counts(shared_pool) - before
    # Of each rank: those before it was clear that more come, and some for each server.
    assert 2 * 2 * 16 <= together < 200
    assert reported(mpi, "kept") == [ROWS - 16] * 2
    assert all(number > ROWS - 50 for number in reported(mpi, "ahead"))
    before = counts(shared_pool)
    mpi.run(shared_pool, 2, small, case, f"ramlace:{place}/one-by-one", "0")
    # Those of the first rows find the file with its inode.
    assert counts(shared_pool) - before > 2 * 2 * (ROWS - 20)
    assert reported(mpi, "kept") == reported(mpi, "ahead") == [0, 0]
    with shared_pool.connect() as pool:
        assert pool.read_bytes(f"{place}/together") == pool.read_bytes(f"{place}/one-by-one")


# SEMANTICS 98.12
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_kept_is_there_where_the_standard_promises_it(
    mpi: Mpi, shared_pool: Pool, place: str, ranks: int
) -> None:
    mpi.run(shared_pool, ranks, mpi.program("small"), "promises", f"ramlace:{place}/file")


# SEMANTICS 98.12
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_collective_reads_find_what_collective_writes_have_kept(
    mpi: Mpi, shared_pool: Pool, place: str, ranks: int
) -> None:
    mpi.run(shared_pool, ranks, mpi.program("small"), "meets", f"ramlace:{place}/file")


# SEMANTICS 98.11, 98.14
def test_what_is_read_twice_is_asked_for_twice(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("small"), "fresh", f"ramlace:{place}/file")


# SEMANTICS 98.11
def test_reads_in_no_order_bring_nothing_ahead_where_a_hint_says_so(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 1, mpi.program("small"), "style", f"ramlace:{place}/file")
    # Of the second hundred: all but the first, which are asked for one by one.
    assert reported(mpi, "ahead") == [100 - 16]


# SEMANTICS 98.11
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_random_small_accesses_leave_what_an_array_holds(mpi: Mpi, shared_pool: Pool, place: str, seed: int) -> None:
    mpi.run(shared_pool, 1, mpi.program("small"), "image", f"ramlace:{place}/file", str(seed))


# SEMANTICS 98.12, 98.14
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", ["trailer", "over", "two"])
def test_what_is_kept_comes_before_what_is_done_later(
    mpi: Mpi, shared_pool: Pool, place: str, case: str, ranks: int
) -> None:
    mpi.run(shared_pool, ranks, mpi.program("small"), case, f"ramlace:{place}/file")


# SEMANTICS 98.13, 98.14, 100
@pytest.mark.parametrize("case", FAULTS)
def test_small_accesses_fail_and_wait_as_if_each_had_gone_by_itself(
    mpi: Mpi, shared_pool: Pool, place: str, case: str
) -> None:
    mpi.run(shared_pool, 1, mpi.program("faults"), case, f"ramlace:{place}/file")


# SEMANTICS 98.12, 98.13
@pytest.mark.parametrize("case", BEHIND)
def test_rows_on_their_way_do_not_keep_the_program_waiting(mpi: Mpi, shared_pool: Pool, place: str, case: str) -> None:
    mpi.run(shared_pool, 1, mpi.program("behind"), case, f"ramlace:{place}/file")
    # In other cases calls wait, and may have sent all of it before the thread had a processor.
    if case in ("goes_on", "again"):
        assert reported(mpi, "behind")[0] > 0


# SEMANTICS 98.12
def test_a_rank_that_is_killed_takes_no_more_with_it_than_what_it_has_kept(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    assert mpi.killed(shared_pool, mpi.program("small"), "killed", f"ramlace:{place}/file") == "kept\n"
    with shared_pool.connect() as pool:
        found = pool.read_bytes(f"{place}/file")
    # Those that came before it was clear that more would.
    sent = [bytes(1 + (row * 7 + at) % 255 for at in range(480)) for row in range(16)]
    assert found.startswith(b"".join(sent))
    mpi.run(shared_pool, 2, mpi.program("small"), "promises", f"ramlace:{place}/file")


# SEMANTICS 98.12, 98.13
def test_a_file_that_is_open_when_mpi_ends_has_its_rows_and_standard_error_names_what_is_lost(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    said = mpi.run(shared_pool, 1, mpi.program("faults"), "left_open", f"ramlace:{place}/file").stderr
    assert f"ramlace: {place}/file" in said
    assert "MPI_File_close" in said
    with shared_pool.connect() as pool:
        found = pool.read_bytes(f"{place}/file")
    rows = [found[at : at + 480] for at in range(0, len(found), 480)]
    assert len(rows) == 2 * 60 - 1
    assert [row for row in range(0, len(rows), 2) if rows[row] != bytes([1 + row]) * 480] == [40]


# SEMANTICS 98.13
def test_a_pool_that_fills_up_under_small_writes_says_so(mpi: Mpi, new_pool: NewPool) -> None:
    mpi.run(new_pool(2, 32), 1, mpi.program("small"), "full", "ramlace:/file")
