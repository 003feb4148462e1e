"""Collective calls of MPI-IO by two phases: that they move the same bytes, and when they are chosen."""

import re

import pytest

from mpi_library import Mpi
from pool import Pool


def exchanges(mpi: Mpi) -> set[int]:
    """Return how many calls went by two phases, by what the ranks say."""
    return {int(number) for number in re.findall(r"exchanges (\d+)", (mpi.directory / "report").read_text())}


# SEMANTICS 98.10
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_that_exchange_their_bytes_leave_those_that_each_had(
    mpi: Mpi, shared_pool: Pool, place: str, ranks: int, seed: int
) -> None:
    mpi.run(shared_pool, ranks, mpi.program("phases"), f"ramlace:{place}/file", str(seed), "6")
    # Two of mistakes, and three of each round.
    assert exchanges(mpi) == {2 + 6 * 3}


# SEMANTICS 98.10
def test_two_phases_are_chosen_for_writes_of_tiny_pieces_and_where_a_hint_says_so(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    cases = {
        ("8", "automatic"): 1,
        ("16", "automatic"): 0,
        ("8", "enable"): 2,
        ("4096", "enable"): 2,
        ("8", "disable"): 0,
    }
    for number, ((length, choice), expected) in enumerate(cases.items()):
        words = ("bytes", length, choice)
        mpi.run(shared_pool, 3, mpi.program("phases"), f"ramlace:{place}/{number}", *words)
        assert exchanges(mpi) == {expected}, words
    with shared_pool.connect() as pool:
        assert pool.read_bytes(f"{place}/0") == pool.read_bytes(f"{place}/2") == pool.read_bytes(f"{place}/4")
