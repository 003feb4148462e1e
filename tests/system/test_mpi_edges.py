"""MPI-IO at its edges: ranks far apart, places beyond all files, very many pieces, mistakes of one rank alone."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import NewPool
from mpi_library import Mpi, build
from pool import Pool

# Elements of one message, runs of one list, items for which a list does, and threads that send: far fewer than usually.
# Not optimised: those of the usual limits are what programs get, and are.
LIMITS = ("-O0", "-g0", "-DMESSAGE_MAX=2097152", "-DRUNS_MAX=65536", "-DTILED_ITEMS_MIN=0", "-DSENDERS_MAX=0")


@pytest.fixture(scope="module")
def narrow(mpi: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """The library with limits that a test can reach."""
    directory = tmp_path_factory.mktemp(f"{mpi.name}-narrow")
    yield replace(mpi, library=build(mpi.name, directory, *LIMITS))
    shutil.rmtree(directory)


def exchanges(mpi: Mpi) -> set[int]:
    """Return how many calls went by two phases, by what the ranks say."""
    return {int(number) for number in re.findall(r"exchanges (\d+)", Path(mpi.directory / "report").read_text())}


# SEMANTICS 98.15, 100
def test_places_beyond_all_numbers_are_refused_and_the_current_one_is_never_a_guess(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    for case in ("overflow", "current"):
        mpi.run(shared_pool, 2, mpi.program("edges"), case, f"ramlace:{place}/{case}")


# SEMANTICS 98.10, 98.15
def test_a_mistake_that_only_the_view_sees_is_one_ranks_alone(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("edges"), "mistakes", f"ramlace:{place}/file")


# SEMANTICS 98.10
@pytest.mark.parametrize(("case", "number"), [("far", 0), ("far_once", 0), ("far_by_two_phases", 2)])
def test_ranks_far_apart_have_no_rounds_between_them(
    mpi: Mpi, shared_pool: Pool, place: str, case: str, number: int
) -> None:
    mpi.run(shared_pool, 2, mpi.program("rounds"), case, f"ramlace:{place}/file")
    assert exchanges(mpi) == {number}


# SEMANTICS 98.10
@pytest.mark.parametrize("case", ["large_rounds", "every_other_byte"])
def test_what_a_round_cannot_carry_goes_in_smaller_ones(narrow: Mpi, shared_pool: Pool, place: str, case: str) -> None:
    narrow.run(shared_pool, 2, narrow.program("rounds"), case, f"ramlace:{place}/file")
    assert exchanges(narrow) == {{"large_rounds": 3, "every_other_byte": 4}[case]}


# SEMANTICS 98.10, 98.13
@pytest.mark.parametrize("case", ["lost_server", "lost_rows"])
def test_a_collective_write_that_fails_leaves_the_pointer_where_it_was(
    mpi: Mpi, shared_pool: Pool, place: str, case: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("rounds"), case, f"ramlace:{place}/file")


# SEMANTICS 98.10
def test_ordered_and_split_calls_go_by_two_phases_and_atomic_ones_do_not(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("rounds"), "kinds", f"ramlace:{place}/file")
    assert exchanges(mpi) == {5}


# SEMANTICS 100
@pytest.mark.parametrize("case", ["two_groups", "no_descriptor", "no_communicator"])
def test_an_open_that_one_rank_cannot_do_is_an_error_of_all(mpi: Mpi, shared_pool: Pool, place: str, case: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("opening"), case, f"ramlace:{place}/file")


# SEMANTICS 100
def test_ranks_that_open_files_of_two_pools_all_get_an_error(
    mpi: Mpi, shared_pool: Pool, new_pool: NewPool, place: str
) -> None:
    other = new_pool(1, 32)
    other.run("mkdir", place)
    names = f"ramlace://{shared_pool.name}{place}/file ramlace://{other.name}{place}/file"
    mpi.run(shared_pool, 2, mpi.program("opening"), "two_pools", names)


# SEMANTICS 98.1
@pytest.mark.parametrize("seed", [3, 4])
def test_random_views_that_repeat_move_the_same_bytes_by_tiles(
    narrow: Mpi, shared_pool: Pool, place: str, seed: int
) -> None:
    narrow.run(shared_pool, 1, narrow.program("fuzz"), f"ramlace:{place}/file", str(seed), "12")
    assert int(re.findall(r"tiled (\d+)", Path(narrow.directory / "report").read_text())[0]) > 0


# SEMANTICS 98.12
def test_small_accesses_need_no_thread_of_their_own(narrow: Mpi, shared_pool: Pool, place: str) -> None:
    narrow.run(shared_pool, 1, narrow.program("behind"), "threads", f"ramlace:{place}/threads")
    narrow.run(shared_pool, 1, narrow.program("small"), "image", f"ramlace:{place}/image", "5")
    assert re.findall(r"behind (\d+)", Path(narrow.directory / "report").read_text()) == ["0"]


# SEMANTICS 98.4
def test_views_whose_pieces_come_again_are_described_and_not_listed(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("edges"), "tiles", f"ramlace:{place}/file")
    # A write and two reads.
    assert re.findall(r"tiled (\d+)", Path(mpi.directory / "report").read_text()) == ["3", "3"]


# SEMANTICS 99.3
@pytest.mark.parametrize("case", ["late", "slow_round"])
def test_ranks_that_wait_for_a_late_one_leave_their_processors_to_others(
    mpi: Mpi, shared_pool: Pool, place: str, case: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("rounds"), case, f"ramlace:{place}/file")


# SEMANTICS 98.17
def test_a_placement_is_the_first_ranks_wish_and_not_told(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("opening"), "placement", f"ramlace:{place}/file")


# SEMANTICS 98.19
def test_a_new_file_begins_on_the_server_that_a_hint_names(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("opening"), "first_server", f"ramlace:{place}/file")


# SEMANTICS 98.18
@pytest.mark.parametrize("case", ["no_gather", "many_machines"])
def test_where_ranks_run_is_a_wish_that_keeps_no_rank_waiting(
    mpi: Mpi, shared_pool: Pool, place: str, case: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("opening"), case, f"ramlace:{place}/file")


# SEMANTICS 98.19
def test_a_file_whose_name_is_anothers_tells_nothing_of_that_one(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 2, mpi.program("opening"), "named_anew", f"ramlace:{place}/file")


# SEMANTICS 98.20
@pytest.mark.parametrize("ranks", [1, 2])
def test_accesses_of_no_bytes_change_nothing_and_are_no_error(
    mpi: Mpi, shared_pool: Pool, place: str, ranks: int
) -> None:
    mpi.run(shared_pool, ranks, mpi.program("nothing"), f"ramlace:{place}/file")


# SEMANTICS 98.23
@pytest.mark.parametrize("case", ["many", "atomic"])
def test_an_access_of_more_pieces_than_a_list_may_have_needs_none(
    narrow: Mpi, shared_pool: Pool, place: str, case: str
) -> None:
    narrow.run(shared_pool, 2, narrow.program("pieces"), case, f"ramlace:{place}/file")


# SEMANTICS 98.24
def test_an_atomic_access_that_finds_no_place_for_its_locks_takes_one_lock(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("pieces"), "no_locks", f"ramlace:{place}/file")
    with shared_pool.connect() as pool, pool.open(f"{place}/full", "wb", buffering=0) as file:
        # Six of those that a file may have are left for two ranks.
        held = [file.lock(10_000 + 2 * number, 1) for number in range(4090)]
        mpi.run(shared_pool, 2, mpi.program("pieces"), "few_locks", f"ramlace:{place}/full")
        assert len(held) == 4090


# SEMANTICS 98.25
def test_views_of_files_that_are_only_read_may_have_bytes_more_than_once(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    mpi.run(shared_pool, 2, mpi.program("pieces"), "overlaps", f"ramlace:{place}/file")
    assert exchanges(mpi) == {0}


# SEMANTICS 98.1
def test_pairs_of_a_value_and_an_index_are_moved_as_they_lie(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    if "no pairs" in mpi.run(shared_pool, 2, mpi.program("pieces"), "pairs", f"ramlace:{place}/file").stdout:
        pytest.skip(f"{mpi.name} has no MPI_Type_get_value_index(), which is of MPI 4.1")
