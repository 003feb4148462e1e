"""Files of pools, by our library and by a mount, beside those of the MPI library's own MPI-IO on tmpfs: the same."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpi_library import VARIABLES, Mpi, installed
from pool import PATIENCE_SECONDS, Pool

SEEDS = 6 if os.environ.get("RAMLACE_TEST_LONG") else 2
ROUNDS = 20 if os.environ.get("RAMLACE_TEST_LONG") else 3
# More ranks than processors mostly wait for each other, by turning round.
RANKS = [1, 2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on tmpfs."""
    directory = Path(tempfile.mkdtemp(prefix="ramlace-judge-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """MPICH with our library: its own MPI-IO is what is judged by."""
    yield from installed("mpich", tmp_path_factory)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """Open MPI with our library, which is held to what MPICH has said."""
    yield from installed("openmpi", tmp_path_factory)


# Open MPI's own are no judge: OMPIO seeks to wrong ends, and its ROMIO ends by a signal where views are taken apart.
# SEMANTICS 98.21
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_files_are_what_the_mpi_librarys_own_are_on_tmpfs(
    judge: Mpi, held: Mpi, shared_pool: Pool, place: str, memory: Path, ranks: int, seed: int
) -> None:
    words = (str(seed), str(ROUNDS))
    theirs, record = memory / "file", memory / "record"
    record.mkdir()
    for mpi, way in ((judge, "record"), (held, "replay")):
        ours = f"{place}/{way}"
        mpi.run(shared_pool, ranks, mpi.program("judge"), f"ramlace:{ours}", theirs, *words, way, record)
        # One of the two files is ours, and the other is not.
        assert set(re.findall(r"^opens (\d+)", (mpi.directory / "report").read_text(), re.MULTILINE)) == {"1"}
        with shared_pool.connect() as pool:
            assert pool.read_bytes(ours) == theirs.read_bytes()


def run_without_the_library(mpi: Mpi, ranks: int, program: str, *words: object) -> None:
    """Run a program by its MPI's own launcher alone."""
    command = [f"mpirun.{mpi.name}", "-np", ranks, mpi.program(program), *words]
    said = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **VARIABLES},
        capture_output=True,
        check=False,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    assert said.returncode == 0, said.stderr + said.stdout


# SEMANTICS 97.5
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_files_below_a_mount_without_the_library_are_what_they_are_on_tmpfs(
    judge: Mpi, shared_pool: Pool, place: str, here: Path, memory: Path, ranks: int, seed: int
) -> None:
    run_without_the_library(judge, ranks, "judge", here / "file", memory / "file", seed, ROUNDS)
    with shared_pool.connect() as pool:
        assert pool.read_bytes(f"{place}/file") == (memory / "file").read_bytes()


# Open MPI's own is no judge, but serves a mount without the library: a fixed list of all calls that move data.
# SEMANTICS 97.5
def test_each_routine_does_below_a_mount_without_the_library_what_it_should(
    held: Mpi, shared_pool: Pool, place: str, here: Path
) -> None:
    run_without_the_library(held, 4, "routines", here / "file", "own")
    with shared_pool.connect() as pool:
        assert pool.read_bytes(f"{place}/file") == (here / "file").read_bytes() != b""
