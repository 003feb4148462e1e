"""MPI-IO on a pool: our library in front of Debian's Open MPI and MPICH, by programs in C and Fortran.

A program whose files quietly went to a local disk would pass, too: every test asks each rank's own counters.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mount import NewMount
from pool import PATIENCE_SECONDS, Pool, binary

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests/system/mpi"
STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
# What each MPI wants to run more ranks than there are cores, as root, and with nobody on the network.
VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "FI_TCP_IFACE": "lo",
    "FI_SOCKETS_IFACE": "lo",
    "UCX_NET_DEVICES": "lo",
}
CASES = ["offsets", "views", "holes", "shared", "atomic", "wholes", "errors", "large_counts", "many"]


@dataclass
class Mpi:
    """One MPI, our library for it, and programs built by its compilers."""

    name: str
    directory: Path
    library: Path

    def program(self, name: str) -> Path:
        """Build a C program of tests/system/mpi, once."""
        output = self.directory / name
        if not output.exists():
            self._compile(f"mpicc.{self.name}", *STRICT, str(SOURCES / f"{name}.c"), "-o", str(output))
        return output

    def fortran(self, binding: str) -> Path:
        """Build the Fortran program for one of the bindings, once."""
        output = self.directory / f"fortran-{binding}"
        if not output.exists():
            # MPICH's old bindings take buffers of any type.
            loose = ["-fallow-argument-mismatch"] if self.name == "mpich" else []
            words = ["-cpp", f"-DUSE_{binding}", *loose, "-J", str(self.directory)]
            self._compile(f"mpif90.{self.name}", *words, str(SOURCES / "fortran.f90"), "-o", str(output))
        return output

    def _compile(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr

    def run(
        self, pool: Pool, ranks: int, *words: str | Path, code: int = 0, opened: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run ranks to their ends by `ramlace mpirun`; each must have opened files by our library, or none has."""
        report = self.directory / "report"
        report.unlink(missing_ok=True)
        launcher = ["mpirun", "--launcher", f"mpirun.{self.name}", "-np", str(ranks)]
        done = subprocess.run(
            [binary(), "--pool", pool.name, *launcher, *map(str, words)],
            env={
                **os.environ,
                **VARIABLES,
                "TMPDIR": "/tmp",
                "RAMLACE_MPIIO_LIBRARY": str(self.library),
                "RAMLACE_MPIIO_REPORT": str(report),
            },
            capture_output=True,
            check=False,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
        )
        assert done.returncode == code, f"{words} ended with {done.returncode}: {done.stderr}{done.stdout}"
        if code == 0 and opened:
            counts = [int(number) for number in re.findall(r"^opens (\d+)", report.read_text(), re.MULTILINE)]
            assert len(counts) == ranks, counts
            assert all(counts), counts
        elif code == 0:
            assert not report.exists() or set(re.findall(r"^opens (\d+)", report.read_text(), re.MULTILINE)) <= {"0"}
        return done


@pytest.fixture(scope="module", params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """One of Debian's MPIs with our library; skipped where it is not installed."""
    name = request.param
    if not shutil.which(f"mpicc.{name}") or not shutil.which(f"mpirun.{name}"):
        pytest.skip(f"{name} is not installed (`make test-long` installs it): MPI-IO is not tried with it")
    directory = tmp_path_factory.mktemp(name)
    done = subprocess.run(
        [str(ROOT / "bindings/mpi/build.sh"), f"mpicc.{name}", str(directory)],
        env={**os.environ, "PKG_CONFIG_PATH": str(ROOT / "target/release/pkgconfig")},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    yield Mpi(name, directory, Path(done.stdout.strip()))
    shutil.rmtree(directory)


def test_the_library_is_named_by_its_mpi_and_exports_both_names_of_every_routine(mpi: Mpi) -> None:
    assert mpi.library.name == {"openmpi": "libramlace_mpiio_ompi.so", "mpich": "libramlace_mpiio_mpich.so"}[mpi.name]

    def exported(library: str) -> set[str]:
        words = ["nm", "-D", "--defined-only", library]
        done = subprocess.run(words, capture_output=True, check=True, text=True)
        names = {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
        return {name for name in names if re.fullmatch(r"P?MPI_File_\w+", name)}

    linked = subprocess.run(["ldd", str(mpi.library)], capture_output=True, check=True, text=True).stdout
    theirs = re.search(r"libmpi(?:ch)?\.so\S* => (\S+)", linked)
    assert theirs, linked
    # Error handlers, handles and Fortran's numbers are the MPI library's own business.
    native = re.compile(r"P?MPI_File_(\w*errhandler|c2f|f2c|\w+_fromint|\w+_toint)")
    wanted = {name for name in exported(theirs[1]) if not native.fullmatch(name)}
    assert wanted == exported(str(mpi.library))
    assert len(wanted) > 100


@pytest.mark.parametrize("case", CASES)
def test_every_routine_does_what_the_standard_says(mpi: Mpi, shared_pool: Pool, place: str, case: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("mpiio_test"), case, f"ramlace:{place}/file")
    # Nothing of shared pointers is left behind.
    with shared_pool.connect() as pool:
        assert not [name for name in pool.listdir(place) if name.startswith(".")]


def test_external32_is_what_mpis_table_says(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("external32"), f"ramlace:{place}/file")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_write_every_other_byte_lose_nothing(mpi: Mpi, shared_pool: Pool, place: str, ranks: int) -> None:
    mpi.run(shared_pool, ranks, mpi.program("mpiio_test"), "holes", f"ramlace://{shared_pool.name}{place}/file")


@pytest.mark.parametrize("binding", ["F08", "MODULE", "HEADER"])
def test_fortran_reaches_the_pool_by_its_three_bindings(mpi: Mpi, shared_pool: Pool, place: str, binding: str) -> None:
    if not shutil.which(f"mpif90.{mpi.name}") or not shutil.which("gfortran"):
        pytest.skip("no Fortran compiler: its bindings are not tried")
    mpi.run(shared_pool, 3, mpi.fortran(binding), f"ramlace:{place}/file")


@pytest.mark.parametrize("seed", [1, 2])
def test_random_views_and_types_move_what_mpis_own_packing_says(
    mpi: Mpi, shared_pool: Pool, place: str, seed: int
) -> None:
    rounds = 200 if os.environ.get("RAMLACE_TEST_LONG") else 12
    mpi.run(shared_pool, 1, mpi.program("fuzz"), f"ramlace:{place}/file", str(seed), str(rounds))


def test_a_file_below_a_mount_is_ours_and_the_mount_has_it(
    mpi: Mpi, shared_pool: Pool, place: str, here: Path, new_mount: NewMount
) -> None:
    path = here / "below"
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "count", path)
    assert path.read_bytes() == bytes(range(256)) * 2
    with shared_pool.connect() as pool:
        assert pool.read_bytes(f"{place}/below") == bytes(range(256)) * 2
    # What a mount for reading refuses, the library does not do either.
    reading = new_mount(shared_pool, "--read-only")
    mpi.run(shared_pool, 1, mpi.program("mpiio_test"), "count", reading / f"{place}/other", code=1)
    with shared_pool.connect() as pool:
        assert not pool.exists(f"{place}/other")


def test_other_files_are_the_mpi_librarys_own(mpi: Mpi, shared_pool: Pool, tmp_path: Path) -> None:
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "count", tmp_path / "local", opened=False)
    assert (tmp_path / "local").read_bytes() == bytes(range(256)) * 2


def test_a_rank_that_is_killed_leaves_no_lock_and_no_pointer_in_the_way(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    file = f"ramlace:{place}/file"
    alone = subprocess.Popen(
        [str(mpi.program("mpiio_test")), "killed", file],
        env={**os.environ, **VARIABLES, "LD_PRELOAD": str(mpi.library), "RAMLACE_POOL": shared_pool.name},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert alone.stdout
        assert alone.stdout.readline() == "writing\n"
    finally:
        os.killpg(alone.pid, signal.SIGKILL)
        alone.communicate(timeout=PATIENCE_SECONDS)
    # The locks go with the session, ten seconds later.
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "atomic", file)
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "shared", file)


def test_mpirun_says_how_to_get_the_library_that_is_missing(mpi: Mpi, shared_pool: Pool, tmp_path: Path) -> None:
    words = ("mpirun", "--launcher", f"mpirun.{mpi.name}", "-np", "1", "true")
    said = shared_pool.refused(*words, variables={**VARIABLES, "RAMLACE_MPIIO_LIBRARY": ""})
    assert mpi.library.name in said
    assert "bindings/mpi/build.sh" in said
    other = tmp_path / "launcher"
    other.write_text("#!/bin/sh\necho strange launcher 1.0\n")
    other.chmod(0o700)
    said = shared_pool.refused("mpirun", "--launcher", str(other), "-np", "1", "true")
    assert "strange launcher 1.0" in said
    assert "neither Open MPI nor MPICH" in said
