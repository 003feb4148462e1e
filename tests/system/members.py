"""Clients that coordinate, in processes of their own; see clients.py for how they are run."""

import time

import ramlace
from clients import Line


def meet(line: Line, pool: str, local: bool, name: str, parties: int, member: int, path: str, rounds: int) -> None:
    """Come to a barrier again and again; a cell tells how many came before each round, and none comes too early."""
    with ramlace.connect(pool, local=local) as connected, connected.open(path, "r+b", buffering=0) as file:
        cell = bytearray(8)
        line.ready()
        for number in range(1, rounds + 1):
            file.fetch_add(0)
            assert connected.barrier(name, parties, member, timeout=60) == number
            assert file.pread_into(cell, 0) == 8
            came = int.from_bytes(cell, "little")
            # Others may have left for the next round already.
            assert parties * number <= came < parties * (number + 1), f"{came} in round {number}"


def count_up(line: Line, pool: str, local: bool, paths: list[str], offsets: list[int], number: int) -> int:
    """Add 1 to cells until told to stop, each to all in turn; return how often."""
    count = 0
    with ramlace.connect(pool, local=local) as connected:
        files = [connected.open(path, "r+b", buffering=0) for path in paths]
        line.ready()
        while not line.told_to_stop():
            for file, offset in zip(files, offsets, strict=True):
                file.fetch_add(offset, number)
            count += 1
        for file in files:
            file.close()
    return count


def wait_at(line: Line, pool: str, name: str, parties: int, member: int) -> None:
    """Come to a barrier and wait there for ever."""
    with ramlace.connect(pool) as connected:
        line.ready()
        connected.barrier(name, parties, member)


def count_slowly(line: Line, pool: str, local: bool, path: str, last: int) -> None:
    """Write the numbers up to `last` to the beginning of a file, one after the other."""
    with ramlace.connect(pool, local=local) as connected, connected.open(path, "r+b", buffering=0) as file:
        line.ready()
        for number in range(1, last + 1):
            assert file.pwrite(number.to_bytes(8, "little"), 0) == 8
            if number % 16 == 0:
                time.sleep(0.01)
