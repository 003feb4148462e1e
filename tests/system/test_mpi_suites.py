"""Others' programs for MPI-IO on a pool: mpi4py's tests, ROMIO's, IOR and BTIO, from copies that the tester points to.

RAMLACE_MPI_SUITES is a directory with their sources, which need only be readable: mpi4py/ (a release), mpich/ (with
src/mpi/romio/test), ior/, and npb/ (the MPI version of NAS's benchmarks, 3.4: the directory that has BT/ and sys/).
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import NewPool
from mount import WATCH_SECONDS
from mpi_library import HOW_TO_GET, Mpi
from pool import Pool

pytestmark = pytest.mark.long

# ROMIO's programs and how many ranks its own script gives them. What is not among them measures, fills a disk, or wants
# a file system of its own name.
ROMIO = {
    "aggregation1": 4,
    "aggregation2": 4,
    "async": 4,
    "async-multiple": 4,
    "atomicity": 4,
    "coll_test": 4,
    "creat_excl": 2,
    "darray_read": 4,
    "error": 1,
    "excl": 4,
    "file_info": 4,
    "hindexed": 4,
    "i_noncontig": 2,
    "misc": 4,
    "noncontig": 2,
    "noncontig_coll": 2,
    "noncontig_coll2": 4,
    "ordered_fp": 4,
    "psimple": 4,
    "shared_fp": 4,
    "simple": 4,
    "split_coll": 4,
    "status": 1,
    "types_with_zeros": 2,
}
# Runs mpi4py's tests with their temporary files elsewhere; TMPDIR would also move the pools' own directory.
MPI4PY = """
import runpy, sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = sys.path[0] + "/main.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def suite(name: str) -> Path:
    """Return where the sources of a suite are."""
    root = os.environ.get("RAMLACE_MPI_SUITES")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"no sources of {name}: RAMLACE_MPI_SUITES names no directory that has them")
    return Path(root) / name


def copied(name: str, mpi: Mpi) -> Path:
    """Return where the copy of a suite for one MPI is: another one would take what is built there for its own."""
    source, place = suite(name), mpi.directory / name
    if not place.exists():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns(".git", "build"))
    return place


def done(*words: str | Path, cwd: Path, **variables: str) -> None:
    """Run a step of a build."""
    result = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
    )
    assert result.returncode == 0, f"{words}: {result.stdout[-4000:]}{result.stderr[-4000:]}"


@pytest.mark.parametrize("program", ROMIO)
def test_romios_own_programs_find_no_errors(
    mpi: Mpi, shared_pool: Pool, new_pool: NewPool, place: str, program: str
) -> None:
    source = suite("mpich") / f"src/mpi/romio/test/{program}.c"
    if not source.exists():
        text = source.with_name(f"{program}.c.in").read_text().replace("@LL@", "lld")
        source = mpi.directory / f"{program}.c"
        source.write_text(text)
    output = mpi.directory / f"romio-{program}"
    done(f"mpicc.{mpi.name}", "-w", "-O1", source, "-o", output, cwd=mpi.directory)
    word = "-f" if program == "aggregation1" else "-fname"
    # It takes every first server but 0 for an error, also the one that it has asked for: which is 0 in a pool of two.
    pool, file = (new_pool(2, 32), "/file") if program == "file_info" else (shared_pool, f"{place}/file")
    said = mpi.run(pool, ROMIO[program], output, word, f"ramlace:{file}")
    assert "No Errors" in said.stdout


@pytest.fixture(scope="module")
def python(mpi: Mpi) -> Path:
    """A Python with mpi4py for this MPI: built before there is a mount, whose watchdog does not wait for that."""
    done(sys.executable, "-m", "venv", "venv", cwd=mpi.directory)
    made = mpi.directory / "venv/bin/python"
    # What was built for another MPI may be in the cache. An optimizing compiler takes minutes.
    words = ("-m", "pip", "install", "--quiet", "--no-cache-dir", copied("mpi4py", mpi))
    done(made, *words, cwd=mpi.directory, MPICC=f"mpicc.{mpi.name}", CFLAGS="-O0")
    return made


@pytest.mark.alone(reason="ranks that wait keep the processors from each other, and beside other tests take minutes")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_mpi4pys_own_tests_of_files_pass(mpi: Mpi, python: Path, shared_pool: Pool, here: Path, ranks: int) -> None:
    tests = (suite("mpi4py") / "test", "-i", "test_io", "-i", "test_file")
    said = mpi.run(shared_pool, ranks, python, "-c", MPI4PY, here, *tests, seconds=WATCH_SECONDS - 20)
    assert "Ran 89 tests" in said.stderr + said.stdout


# Each rank for itself, collectively, by file views, and with a file of its own.
@pytest.mark.parametrize("words", ["", "-c", "-c --mpiio.useFileView", "-F"])
def test_ior_reads_what_it_wrote(mpi: Mpi, shared_pool: Pool, place: str, words: str) -> None:
    build = copied("ior", mpi)
    if not (build / "src/ior").exists():
        if not (build / "configure").exists():
            done("./bootstrap", cwd=build)
        without = [f"--without-{name}" for name in ("hdf5", "ncmpi", "gpfs", "lustre")]
        done("./configure", "--with-mpiio", *without, cwd=build, MPICC=f"mpicc.{mpi.name}")
        done("make", "-C", "src", "ior", cwd=build)
    sizes = ("-b", "4m", "-t", "256k", "-s", "2", "-C")
    file = f"ramlace:{place}/file"
    said = mpi.run(
        shared_pool, 2, build / "src/ior", "-a", "MPIIO", "-w", "-r", "-W", "-R", *sizes, *words.split(), "-o", file
    )
    assert "\nwrite " in said.stdout
    assert "\nread " in said.stdout
    assert "ncorrect" not in said.stdout + said.stderr


@pytest.mark.parametrize("way", ["full", "simple"])
def test_btio_reads_back_the_solution_that_it_wrote(mpi: Mpi, shared_pool: Pool, here: Path, way: str) -> None:
    if not shutil.which(f"mpif90.{mpi.name}") or not shutil.which("gfortran"):
        pytest.skip(f"BTIO is not built: {HOW_TO_GET.format('gfortran')}")
    build = copied("npb", mpi)
    program = build / f"bin/bt.S.x.mpi_io_{way}"
    if not program.exists():
        (build / "bin").mkdir(exist_ok=True)
        # Its calls differ in the types of their buffers.
        words = {"MPIFC": f"mpif90.{mpi.name}", "MPICC": f"mpicc.{mpi.name}", "FFLAGS": "-O1 -fallow-argument-mismatch"}
        text = (build / "config/make.def.template").read_text()
        for name, word in words.items():
            text = re.sub(rf"^{name}\s*=.*", f"{name} = {word}", text, flags=re.MULTILINE)
        (build / "config/make.def").write_text(text)
        done("make", "bt", "CLASS=S", f"SUBTYPE={way}", cwd=build)
    # Its file has a name of its own, in the directory where it runs.
    said = mpi.run(shared_pool, 4, program, cwd=here)
    assert re.search(r"Verification\s*=\s*SUCCESSFUL", said.stdout), said.stdout
    steps, numbers, bytes_each = 12, 12**3 * 5, 8
    assert (here / f"btio.{way}.out").stat().st_size == steps * numbers * bytes_each
