"""MPI-IO beside the C library, and beside each MPI library's own files on tmpfs."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import report
from mpiio_machines import NoMachinesError, two_machines

from pool import BUILT, ROOT, BenchError, Pool, ramlace_binary

MPIS = {"openmpi": "Open MPI", "mpich": "MPICH"}
# What the program measures in one run: its ranks, and MiB of each.
RUNS = {"library": (2, 128), "btio": (4, 16)}
# Of each of two ranks, on a machine of its own; and what each machine lends.
MACHINES_MIB, MACHINES_MEMORY = 64, "512MiB"
MIB_QUICK = 8
# A quick round is no work for compilers; and its ranks, which wait for each other by turning, have a small cube.
LIBRARY_QUICK, PROGRAM_QUICK = ("-O0", "-g0"), ("-O0", "-DCUBE=8")
ROUNDS = 5
# More ranks than cores, as root, and with nobody on the network.
VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "self,vader",
}


def rows(pool: Pool, args: argparse.Namespace) -> list[dict]:
    """Measure with each MPI that is installed; none, with a word, where there is none."""
    made: list[dict] = []
    for name, title in MPIS.items():
        prefix = f"MPI-IO, {title}, "
        if args.only and prefix not in args.only and args.only not in prefix:
            continue
        if not shutil.which(f"mpicc.{name}") or not shutil.which(f"mpirun.{name}"):
            print(f"MPI-IO is left out for {title}: it is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(dir=pool.scratch) as directory:
            figures = with_mpi(pool, name, Path(directory), quick=args.quick)
        for figure in figures:
            figure["name"] = prefix + figure["name"]
            made += report.rows(figure)
    return [row for row in made if args.only in row["name"]]


def with_mpi(pool: Pool, name: str, directory: Path, *, quick: bool) -> list[dict]:
    """Build the library and the program for one MPI; return its figures."""
    flags = ["-I", ROOT / "crates/capi/include", "-L", BUILT]
    program = directory / "mpiio"
    of_program, of_library = (PROGRAM_QUICK, LIBRARY_QUICK) if quick else (("-O2",), ())
    built = [f"mpicc.{name}", "-std=gnu11", *of_program, ROOT / "bench/mpiio.c", "-o", program, *flags, "-lramlace"]
    call([*built, f"-Wl,-rpath,{BUILT}"], dict(os.environ))
    build = [ROOT / "bindings/mpi/build.sh", f"mpicc.{name}", directory, *of_library]
    library = call(build, {**os.environ, "PKG_CONFIG_PATH": str(BUILT / "pkgconfig")}).strip()
    environment = {**pool.environment(), **VARIABLES, "RAMLACE_MPIIO_LIBRARY": library}
    figures = []
    for what, (ranks, mib) in RUNS.items():
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="ramlace-bench-") as local:
            sizes = ["1", MIB_QUICK] if quick else [ROUNDS, mib]
            words = [program, what, f"ramlace:/bench-mpiio-{name}-{what}", local.name, *sizes, *pool.pids()]
            launcher = [ramlace_binary(), "mpirun", "--launcher", f"mpirun.{name}", "-np", ranks]
            figures += json.loads(call([*launcher, *words], environment))["figures"]
    return figures + on_two_machines(name, library, program, quick=quick)


def on_two_machines(name: str, library: str, program: Path, *, quick: bool) -> list[dict]:
    """Run ranks on two machines; return the figures. With MPICH they may wait for ever in its own end."""
    if name != "openmpi":
        return []
    sizes = [1, MIB_QUICK] if quick else [ROUNDS, MACHINES_MIB]
    words = (program, "machines", "ramlace:/bench-mpiio", "-", *sizes)
    try:
        with two_machines(MACHINES_MEMORY) as machines:
            return json.loads(machines.ranks(f"mpirun.{name}", library, VARIABLES, *words))["figures"]
    except NoMachinesError as error:
        print(f"MPI-IO on two machines is left out: {error}", file=sys.stderr)
        return []


def call(words: list, environment: dict[str, str]) -> str:
    """Run a program to its end; return what it prints."""
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{Path(words[0]).name} failed: {done.stderr.strip()}")
    return done.stdout
