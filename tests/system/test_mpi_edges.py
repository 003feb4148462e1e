"""MPI-IO at its edges: ranks far apart, places beyond all files, mistakes of one rank that leave the others alone."""

import pytest

from mpi_library import Mpi
from pool import Pool


# SEMANTICS 98.15
def test_places_beyond_all_numbers_are_refused_and_the_current_one_is_never_a_guess(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    for case in ("overflow", "current"):
        mpi.run(shared_pool, 2, mpi.program("edges"), case, f"ramlace:{place}/{case}")


# SEMANTICS 98.15
def test_a_mistake_that_only_the_view_sees_is_one_ranks_alone(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("edges"), "mistakes", f"ramlace:{place}/file")


# SEMANTICS 98.13
@pytest.mark.parametrize("case", ["lost_server", "lost_rows"])
def test_a_collective_write_that_fails_leaves_the_pointer_where_it_was(
    mpi: Mpi, shared_pool: Pool, place: str, case: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("edges"), case, f"ramlace:{place}/file")
