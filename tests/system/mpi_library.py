"""One of Debian's MPIs with our library, as tests use it."""

import atexit
import fcntl
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pool import BUILT, PATIENCE_SECONDS, Pool, binary

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests/system/mpi"
# What a program exports is found before the libraries': so it may stand between ours and the C library. Compiled
# without optimisation: that would take longer than the programs run.
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-rdynamic")
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


@functools.cache
def temporary() -> str:
    """Return a directory of this process alone for what MPI's launchers make, with a short name for their sockets.

    Open MPI's jobs of one user share a directory in it, which one that ends removes while another begins.
    """
    directory = tempfile.mkdtemp(prefix="rl-mpi-", dir="/tmp")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


# Why something is not here, for those who read why a test was skipped.
HOW_TO_GET = "{} is not installed (`make test` does that as root, where apt-get reaches Debian's packages)"


# The standard's own binary interface (MPI 5), and the command that compiles for it, of whichever MPI has one.
STANDARD = "standard"
STANDARD_COMPILER = "mpicc_abi"


def compiler(name: str) -> str:
    """Return the command that compiles for an MPI."""
    return STANDARD_COMPILER if name == STANDARD else f"mpicc.{name}"


def launcher_of(name: str) -> str:
    """Return the command that starts its ranks: for the standard's interface the one beside the compiler."""
    found = shutil.which(STANDARD_COMPILER) or STANDARD_COMPILER
    return str(Path(found).with_name("mpiexec")) if name == STANDARD else f"mpirun.{name}"


@dataclass
class Mpi:
    """One MPI, our library for it, and programs built by its compilers."""

    name: str
    directory: Path
    library: Path
    # Of all processes of a run of the tests.
    programs: Path

    def program(self, name: str) -> Path:
        """Build a C program of tests/system/mpi, once."""
        output = self.programs / name
        with self.programs.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not output.exists():
                self._compile(compiler(self.name), *STRICT, str(SOURCES / f"{name}.c"), "-o", str(output))
        return output

    def example(self, name: str) -> Path:
        """Build an example in C, once."""
        output = self.directory / name
        if not output.exists():
            self._compile(compiler(self.name), *STRICT[1:], str(ROOT / f"examples/{name}.c"), "-o", str(output))
        return output

    def fortran(self, name: str, binding: str) -> Path:
        """Build a Fortran program for one of the bindings, once."""
        output = self.directory / f"{name}-{binding}"
        if not output.exists():
            # MPICH's old bindings take buffers of any type.
            loose = ["-fallow-argument-mismatch"] if self.name == "mpich" else []
            words = ["-cpp", f"-DUSE_{binding}", *loose, "-J", str(self.directory)]
            self._compile(f"mpif90.{self.name}", *words, str(SOURCES / f"{name}.f90"), "-o", str(output))
        return output

    def _compile(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr

    def run(
        self,
        pool: Pool,
        ranks: int,
        *words: str | Path,
        code: int = 0,
        opened: bool = True,
        cwd: Path | None = None,
        seconds: float = 2 * PATIENCE_SECONDS,
    ) -> "subprocess.CompletedProcess[str]":
        """Run ranks to their ends by `ramlace mpirun`; each must have opened files by our library, or none has."""
        report = self.directory / "report"
        report.unlink(missing_ok=True)
        before, began = pool.scheduled(), time.monotonic()
        launcher = ["mpirun", "--launcher", launcher_of(self.name), "-np", str(ranks)]
        done = subprocess.run(
            [binary(), "--pool", pool.name, *launcher, *map(str, words)],
            cwd=cwd,
            env={
                **os.environ,
                **VARIABLES,
                "TMPDIR": temporary(),
                "RAMLACE_MPIIO_LIBRARY": str(self.library),
                "RAMLACE_MPIIO_REPORT": str(report),
            },
            capture_output=True,
            check=False,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == code, (
            f"{words} ended with {done.returncode} after {time.monotonic() - began:.1f} s, "
            f"while of its servers {served(before, pool.scheduled())}: {done.stderr}{done.stdout}"
        )
        if code == 0 and opened:
            counts = [int(number) for number in re.findall(r"^opens (\d+)", report.read_text(), re.MULTILINE)]
            assert len(counts) == ranks, counts
            assert all(counts), counts
        elif code == 0:
            assert not report.exists() or set(re.findall(r"^opens (\d+)", report.read_text(), re.MULTILINE)) <= {"0"}
        return done

    def killed(self, pool: Pool, *words: str | Path) -> str:
        """Start one rank, kill it when it has said a line, and return that."""
        alone = subprocess.Popen(
            list(map(str, words)),
            env={**os.environ, **VARIABLES, "LD_PRELOAD": str(self.library), "RAMLACE_POOL": pool.name},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert alone.stdout
            return alone.stdout.readline()
        finally:
            os.killpg(alone.pid, signal.SIGKILL)
            alone.communicate(timeout=PATIENCE_SECONDS)


Scheduled = dict[tuple[int, int], tuple[float, float]]


def served(before: Scheduled, after: Scheduled) -> str:
    """Say what processors servers have had meanwhile: whether one that did not answer could have."""
    said = []
    for process, (used, waited) in after.items():
        used_before, waited_before = before.get(process, (0.0, 0.0))
        said.append(
            f"{process[0]} ran {used - used_before:.2f} s and waited {waited - waited_before:.2f} s for a processor"
        )
    return ", ".join(said)


def build(name: str, directory: Path, *flags: str) -> Path:
    """Build our library for one of the MPIs."""
    done = subprocess.run(
        [str(ROOT / "bindings/mpi/build.sh"), compiler(name), str(directory), *flags],
        env={**os.environ, "PKG_CONFIG_PATH": str(BUILT / "pkgconfig")},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def of_all_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of all processes of a run of the tests."""
    directory = tmp_path_factory.getbasetemp()
    return directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory


def built_once(name: str, directory: Path) -> Path:
    """Our library for one of the MPIs, built once for all processes of a run of the tests."""
    with (directory / f"mpiio-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The linker writes it as the last thing.
        built = list((directory / f"mpiio-{name}").glob("libramlace_mpiio_*.so"))
        return built[0] if built else build(name, directory / f"mpiio-{name}")


def installed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """One of Debian's MPIs with our library, for a while; skipped where it is not installed."""
    if not shutil.which(compiler(name)) or not shutil.which(launcher_of(name)):
        pytest.skip(f"MPI-IO is not tried with {name}: {HOW_TO_GET.format(name)}")
    directory, shared = tmp_path_factory.mktemp(name), of_all_processes(tmp_path_factory)
    programs = shared / f"mpi-programs-{name}"
    programs.mkdir(exist_ok=True)
    yield Mpi(name, directory, built_once(name, shared), programs)
    shutil.rmtree(directory)


@pytest.fixture(scope="module", params=os.environ.get("RAMLACE_MPIS", "openmpi mpich").split())
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """Each of Debian's MPIs with our library; or those that the tester names, by mpicc.NAME and mpirun.NAME."""
    yield from installed(request.param, tmp_path_factory)
