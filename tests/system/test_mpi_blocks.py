"""Blocks of arrays by MPI-IO: hints that put each block where one server, or this machine's, has it."""

import re

import pytest

from mpi_library import Mpi
from pool import MIB, Pool


def answers(pool: Pool, *kinds: str) -> list[int]:
    """Return how many requests of these kinds all servers have answered."""
    told = {one["message"]: one["answers"] for one in pool.json("status", "--messages")["messages"]}
    return [int(told.get(kind, 0)) for kind in kinds]


def writes(pool: Pool) -> int:
    """Return how many requests with many runs all servers have done."""
    return answers(pool, "WriteRuns")[0]


# SEMANTICS 98.4
def test_a_subarray_view_of_4_kib_rows_costs_one_request_for_each_server(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    kinds = ("WriteRuns", "ReadRuns", "WriteChunk", "ExtendChunk", "ReadChunk")
    before = answers(shared_pool, *kinds)
    # 1 MiB of an array whose rows have 8 KiB: the first 4 KiB of 256 of them, spread over all three servers.
    rows = ("rows", "256", "columns", "512", "striping_unit", "65536")
    said = mpi.run(shared_pool, 1, mpi.program("blocks"), f"ramlace:{place}/file", *rows)
    assert "unit 65536" in said.stdout
    after = answers(shared_pool, *kinds)
    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 3, 0, 0, 0]


# SEMANTICS 98.16
def test_a_block_of_an_array_that_hints_describe_is_with_one_server(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    program = mpi.program("blocks")
    before = writes(shared_pool)
    mpi.run(shared_pool, 3, program, f"ramlace:{place}/usual")
    usual = writes(shared_pool) - before
    before = writes(shared_pool)
    array = ("chunked", "3072,1024", "chunked_item", "8", "chunked_size", "1024,64")
    said = mpi.run(shared_pool, 3, program, f"ramlace:{place}/blocks", *array)
    # Each of three ranks asks all three servers, or one.
    assert (usual, writes(shared_pool) - before) == (9, 3)
    assert f"unit {8 * MIB}" in said.stdout


# SEMANTICS 98.16
@pytest.mark.parametrize(
    ("hints", "unit"),
    [
        ("chunked 3072,1024 chunked_item 8 chunked_size 1000,64", 8 * MIB),
        ("chunked 10,20,30 chunked_item 8 chunked_size 1,1,1", 64 << 10),
        ("chunked 1000000 chunked_item 1 chunked_size 300000", 512 << 10),
        ("chunked 3072,1024 chunked_item 8 chunked_size 1024,64 striping_unit 131072", 128 << 10),
        ("chunked 3072,1024 chunked_item 8 chunked_size 100000000,64", 2 * MIB),
        ("chunked 3072,1024 chunked_item 8x chunked_size 1024,64", 2 * MIB),
        ("chunked many chunked_item 8 chunked_size 4", 2 * MIB),
        ("chunked 5,,5 chunked_item 8 chunked_size 4,4", 2 * MIB),
    ],
)
def test_hints_of_blocks_choose_the_bytes_of_chunks(
    mpi: Mpi, shared_pool: Pool, place: str, hints: str, unit: int
) -> None:
    said = mpi.run(shared_pool, 1, mpi.program("blocks"), f"ramlace:{place}/file", *hints.split())
    assert re.search(r"unit (\d+)", said.stdout) is not None
    assert f"unit {unit}\n" in said.stdout
