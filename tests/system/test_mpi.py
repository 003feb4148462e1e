"""MPI-IO on a pool: our library in front of Debian's Open MPI and MPICH, by programs in C and Fortran.

A program whose files quietly went to a local disk would pass, too: every test asks each rank's own counters.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from c_programs import compile_c
from mount import NewMount
from mpi_library import (
    HOW_TO_GET,
    ROOT,
    SOURCES,
    STANDARD,
    STANDARD_COMPILER,
    VARIABLES,
    Mpi,
    installed,
    temporary,
)
from pool import PATIENCE_SECONDS, Pool, binary

CASES = ["offsets", "views", "once", "holes", "shared", "atomic", "wholes", "errors", "large_counts", "many"]


# SEMANTICS 97.2
def test_the_library_is_named_by_its_mpi_and_exports_both_names_of_every_routine(mpi: Mpi) -> None:
    names = {kind: f"libramlace_mpiio_{kind}.so" for kind in ("ompi", "mpich", "abi")}
    of_debian = {"openmpi": {names["ompi"]}, "mpich": {names["mpich"]}}
    assert mpi.library.name in of_debian.get(mpi.name, names.values())

    def exported(library: str) -> set[str]:
        words = ["nm", "-D", "--defined-only", library]
        done = subprocess.run(words, capture_output=True, check=True, text=True)
        names = {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
        return {name for name in names if re.fullmatch(r"P?MPI_File_\w+", name)}

    linked = subprocess.run(["ldd", str(mpi.library)], capture_output=True, check=True, text=True).stdout
    theirs = re.search(r"libmpi(?:ch|_abi)?\.so\S* => (\S+)", linked)
    assert theirs, linked
    # Error handlers, handles and Fortran's numbers are the MPI library's own business.
    native = re.compile(r"P?MPI_File_(\w*errhandler|c2f|f2c|\w*fromint|\w*toint)")
    wanted = {name for name in exported(theirs[1]) if not native.fullmatch(name)}
    assert wanted == exported(str(mpi.library))
    assert len(wanted) > 100


# SEMANTICS 97.2
def test_each_routine_of_the_header_is_called_by_a_program_here(mpi: Mpi) -> None:
    def names(path: Path) -> tuple[set[str], set[str]]:
        """Names of MPI-IO in what a program is to the compiler: of headers, and of its own."""
        words = [f"mpicc.{mpi.name}", "-std=gnu11", "-E", str(path)]
        text = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        declared: set[str] = set()
        called: set[str] = set()
        own = False
        for line in text.splitlines():
            if marker := re.match(r'# \d+ "([^"]*)"', line):
                own = marker[1] == str(path)
            (called if own else declared).update(re.findall(r"\b(MPI_File_\w+) ?\(", line))
        return declared, called

    declared: set[str] = set()
    called: set[str] = set()
    for path in SOURCES.glob("*.c"):
        of_headers, of_program = names(path)
        declared |= of_headers
        called |= of_program
    # Types of functions, not functions; and what the MPI library alone knows.
    declared -= {"MPI_File_errhandler_fn", "MPI_File_errhandler_function", "MPI_File_fromint", "MPI_File_toint"}
    assert len(declared) > 55
    assert declared <= called, declared - called


# SEMANTICS 97.2, 98.9
def test_each_routine_that_moves_data_moves_it(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 4, mpi.program("routines"), f"ramlace:{place}/file")


# SEMANTICS 98.9
def test_large_nonblocking_transfers_go_on_behind_the_program(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("background"), f"ramlace:{place}/file")
    behind = re.findall(r"background (\d+)$", (mpi.directory / "report").read_text(), re.MULTILINE)
    assert len(behind) == 3
    # Five writes, five reads, two by the pointer, and one that fails.
    assert all(int(number) >= 13 for number in behind), behind


# SEMANTICS 97.4
def test_doctor_says_which_library_a_program_wants_and_what_to_do(mpi: Mpi, shared_pool: Pool) -> None:
    program = mpi.program("routines")
    variables = {"RAMLACE_MPIIO_LIBRARY": str(mpi.library)}
    said = shared_pool.run("doctor", "--mpi", str(program), variables=variables).stdout.decode()
    title = {"ompi": "Open MPI", "mpich": "MPICH", "abi": "binary interface"}
    assert title[mpi.library.stem.rpartition("_")[2]] in said
    assert str(mpi.library) in said
    assert f"ramlace mpirun -np 4 {program} ramlace:/FILE" in said
    said = doctor_refuses(shared_pool, program, "")
    assert mpi.library.name in said
    assert "bindings/mpi/build.sh" in said
    assert "no MPI-IO library of ramlace's" in doctor_refuses(shared_pool, program, str(program))


def doctor_refuses(pool: Pool, program: Path, library: str) -> str:
    """Return what doctor says of a program that is not ready."""
    done = pool.run("doctor", "--mpi", str(program), variables={"RAMLACE_MPIIO_LIBRARY": library}, check=False)
    assert done.returncode == 1
    return done.stdout.decode()


# SEMANTICS 97.4
def test_doctor_explains_programs_that_nothing_can_stand_before(shared_pool: Pool, tmp_path: Path) -> None:
    source = tmp_path / "program.c"
    source.write_text('const char *const routine = "PMPI_File_open"; int main(void) { return 0; }\n')
    fixed, plain, script = tmp_path / "fixed", tmp_path / "plain", tmp_path / "script.py"
    # Of MPI alone, as MPI's archives make it, and of all.
    for word in ("-O1", "-static"):
        subprocess.run(["cc", word, str(source), "-o", str(fixed)], check=True)
        said = doctor_refuses(shared_pool, fixed, "")
        assert "linked statically" in said
        assert "ramlace mount" in said
    absent, wants = tmp_path / "libmpi.so.40", tmp_path / "wants"
    source.write_text("int MPI_Init(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-Wl,-soname,libmpi.so.4040", str(source), "-o", str(absent)], check=True)
    source.write_text("int MPI_Init(void); int main(void) { return MPI_Init(); }\n")
    subprocess.run(["cc", str(source), str(absent), "-o", str(wants)], check=True)
    assert "libmpi.so.4040 is not found" in doctor_refuses(shared_pool, wants, "")
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", str(source), "-o", str(plain)], check=True)
    script.write_text("from mpi4py import MPI\n")
    assert "loads no MPI" in doctor_refuses(shared_pool, plain, "")
    assert "mpi4py.MPI" in doctor_refuses(shared_pool, script, "")
    assert "No such file" in shared_pool.refused("doctor", "--mpi", str(tmp_path / "nothing"))


# SEMANTICS 98.1, 98.3, 98.15, 99.1, 100
@pytest.mark.parametrize("case", CASES)
def test_every_routine_does_what_the_standard_says(mpi: Mpi, shared_pool: Pool, place: str, case: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("mpiio_test"), case, f"ramlace:{place}/file")
    # Nothing of shared pointers is left behind.
    with shared_pool.connect() as pool:
        assert not [name for name in pool.listdir(place) if name.startswith(".")]


# SEMANTICS 98.8
def test_external32_is_what_mpis_table_says(mpi: Mpi, shared_pool: Pool, place: str) -> None:
    mpi.run(shared_pool, 3, mpi.program("external32"), f"ramlace:{place}/file")


# SEMANTICS 98.2
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_write_every_other_byte_lose_nothing(mpi: Mpi, shared_pool: Pool, place: str, ranks: int) -> None:
    mpi.run(shared_pool, ranks, mpi.program("mpiio_test"), "holes", f"ramlace://{shared_pool.name}{place}/file")


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpi]:
    """An MPI with the standard's binary interface (MPI 5), where there is one."""
    if not shutil.which(STANDARD_COMPILER):
        pytest.skip(
            f"no MPI with the standard's binary interface is here: there is no {STANDARD_COMPILER} (MPICH 5 has it)"
        )
    yield from installed(STANDARD, tmp_path_factory)


# SEMANTICS 97.2
@pytest.mark.parametrize(
    ("program", "words"), [("routines", ""), ("mpiio_test", "views"), ("mpiio_test", "errors"), ("small", "promises")]
)
def test_programs_of_the_standards_binary_interface_reach_the_pool(
    standard: Mpi, shared_pool: Pool, place: str, program: str, words: str
) -> None:
    assert standard.library.name == "libramlace_mpiio_abi.so"
    standard.run(shared_pool, 3, standard.program(program), *words.split(), f"ramlace:{place}/file")


# SEMANTICS 97.2
@pytest.mark.parametrize("binding", ["F08", "MODULE", "HEADER"])
def test_fortran_reaches_the_pool_by_its_three_bindings(mpi: Mpi, shared_pool: Pool, place: str, binding: str) -> None:
    if not shutil.which(f"mpif90.{mpi.name}") or not shutil.which("gfortran"):
        pytest.skip(f"Fortran's bindings are not tried: {HOW_TO_GET.format('gfortran')}")
    for name in ("fortran", "routines"):
        mpi.run(shared_pool, 3, mpi.fortran(name, binding), f"ramlace:{place}/{name}")


# SEMANTICS 98.1, 98.8
@pytest.mark.parametrize("seed", [1, 2])
def test_random_views_and_types_move_what_mpis_own_packing_says(
    mpi: Mpi, shared_pool: Pool, place: str, seed: int
) -> None:
    rounds = 200 if os.environ.get("RAMLACE_TEST_LONG") else 12
    mpi.run(shared_pool, 1, mpi.program("fuzz"), f"ramlace:{place}/file", str(seed), str(rounds))


# SEMANTICS 97.1
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


# SEMANTICS 98.22
def test_a_link_below_a_mount_is_deleted_itself_and_leads_where_the_machine_has_it_lead(
    mpi: Mpi, shared_pool: Pool, here: Path, tmp_path: Path
) -> None:
    links, count = mpi.program("links"), mpi.program("mpiio_test")
    target, link, local = here / "target", here / "link", tmp_path / "local"
    target.write_bytes(b"stays")
    local.write_bytes(b"stays")
    for leads_to in (Path("target"), target, local, here / "nothing"):
        link.symlink_to(leads_to)
        mpi.run(shared_pool, 1, links, "delete", link, opened=False)
        assert not link.is_symlink()
    assert target.read_bytes() == local.read_bytes() == b"stays"
    # A file that goes when it is closed, by a link in the pool and by one beside it, named whole or from where it is.
    for name, directory in ((link, None), (Path("link"), tmp_path), (tmp_path / "link", None), (Path("link"), here)):
        path = (directory or tmp_path) / name
        path.symlink_to(target)
        mpi.run(shared_pool, 2, links, "on_close", name, cwd=directory)
        assert not path.is_symlink()
        assert target.read_bytes() == b"on close"
        target.write_bytes(b"stays")
    # What is yet to be made by a link is made where it leads, in the pool and beside it.
    made = here / "made"
    link.symlink_to(made)
    mpi.run(shared_pool, 1, links, "exclusive", link, opened=False)
    mpi.run(shared_pool, 1, count, "count", link)
    assert made.read_bytes() == bytes(range(256))
    link.unlink()
    link.symlink_to(tmp_path / "made")
    mpi.run(shared_pool, 1, count, "count", link, opened=False)
    assert (tmp_path / "made").read_bytes() == bytes(range(256))


# SEMANTICS 97.1
def test_who_cannot_reach_a_mounts_pool_goes_by_the_mount_and_hears_why(mpi: Mpi, here: Path, tmp_path: Path) -> None:
    """Such as a program with the library of another release: that it is slower is not to be a riddle."""
    variables = {"LD_PRELOAD": str(mpi.library), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [str(mpi.program("mpiio_test")), "count", str(here / "below")],
        env={**os.environ, **VARIABLES, **variables},
        check=True,
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    assert (here / "below").read_bytes() == bytes(range(256))
    said = [line for line in done.stderr.splitlines() if "MPI-IO goes by way of the mount" in line]
    assert len(said) == 1, done.stderr
    assert f"{here / 'below'}" in said[0]


# SEMANTICS 97.2
def test_a_program_that_is_linked_with_the_library_needs_nothing_else(
    mpi: Mpi, shared_pool: Pool, place: str, tmp_path: Path
) -> None:
    program, report = tmp_path / "linked", tmp_path / "report"
    library = ["-L", str(mpi.library.parent), "-lramlace_mpiio"]
    compiled = [f"mpicc.{mpi.name}", "-O1", str(SOURCES / "mpiio_test.c"), "-o", str(program), *library]
    subprocess.run([*compiled, f"-Wl,-rpath,{mpi.library.parent}"], check=True)
    subprocess.run(
        [f"mpirun.{mpi.name}", "-np", "2", str(program), "views", f"ramlace:{place}/file"],
        env={**os.environ, **VARIABLES, "RAMLACE_POOL": shared_pool.name, "RAMLACE_MPIIO_REPORT": str(report)},
        check=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    assert re.findall(r"^opens (\d+)", report.read_text(), re.MULTILINE) == ["1", "1"]


def test_the_program_of_2002_says_the_same_on_two_ranks_as_its_twins(
    mpi: Mpi, shared_pool: Pool, place: str, here: Path, tmp_path: Path
) -> None:
    """Its POSIX twin reads by the mount; that one and the C library's are compared in test_c_library.py."""
    made = {}
    for name in ("make_floats", "read_test_posix"):
        made[name] = compile_c(tmp_path / name, [ROOT / f"examples/{name}.c"])
    content = subprocess.run([str(made["make_floats"]), "500003"], capture_output=True, check=True).stdout
    with shared_pool.connect() as pool, pool.open(f"{place}/floats", "wb") as file:
        file.write(content)
    words = ("--repeats", "41", "--floats", "100000", "--seed", "7", "--check", "--sum")
    twin = subprocess.run(
        [str(made["read_test_posix"]), *words, str(here / "floats")], capture_output=True, check=True, text=True
    )
    for ranks in (1, 2):
        said = mpi.run(shared_pool, ranks, mpi.example("read_test_mpi"), *words, f"ramlace:{place}/floats")
        assert sorted(said.stdout.splitlines()) == sorted(twin.stdout.splitlines())
    assert len(twin.stdout.splitlines()) == 42
    assert "21 reads of 400000 bytes" in said.stderr
    # A float that is another one is noticed by the rank that reads it.
    with shared_pool.connect() as pool, pool.open(f"{place}/floats", "r+b") as file:
        file.seek(1_000_001)
        file.write(b"\xff")
    wrong = mpi.run(shared_pool, 2, mpi.example("read_test_mpi"), *words, f"ramlace:{place}/floats", code=1)
    assert "float 250000 is" in wrong.stderr


# SEMANTICS 97.1
def test_other_files_are_the_mpi_librarys_own(mpi: Mpi, shared_pool: Pool, tmp_path: Path) -> None:
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "count", tmp_path / "local", opened=False)
    assert (tmp_path / "local").read_bytes() == bytes(range(256)) * 2


# SEMANTICS 99.2
def test_a_rank_that_is_killed_leaves_no_lock_and_no_pointer_in_the_way(
    mpi: Mpi, shared_pool: Pool, place: str
) -> None:
    file = f"ramlace:{place}/file"
    assert mpi.killed(shared_pool, mpi.program("mpiio_test"), "killed", file) == "writing\n"
    # The locks go with the session, ten seconds later.
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "atomic", file)
    mpi.run(shared_pool, 2, mpi.program("mpiio_test"), "shared", file)


# MPICH's launcher ends all ranks with the first.
# SEMANTICS 99.2
@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
@pytest.mark.parametrize("what", ["lock", "pointer"])
def test_ranks_go_on_with_the_file_of_one_that_is_killed_with_its_locks_or_a_place(
    mpi: Mpi, shared_pool: Pool, place: str, what: str
) -> None:
    launcher = ("mpirun", "--launcher", f"mpirun.{mpi.name}", "--enable-recovery", "-np", "3")
    words = (str(mpi.program("dying")), what, f"ramlace:{place}/file")
    job = subprocess.run(
        [binary(), "--pool", shared_pool.name, *launcher, *words],
        env={**os.environ, **VARIABLES, "TMPDIR": temporary(), "RAMLACE_MPIIO_LIBRARY": str(mpi.library)},
        capture_output=True,
        check=False,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    assert sorted(job.stdout.splitlines()) == [f"rank {rank} went on, opens 1" for rank in (0, 2)], job.stderr
    with shared_pool.connect() as pool:
        found = pool.read_bytes(f"{place}/file")
    blocks = [found[at : at + 100] for at in range(0, len(found), 100)]
    if what == "lock":
        assert blocks in ([b"a" * 100], [b"c" * 100])
    else:
        # The place that the dead one had taken stays empty; no other is lost, and none is given twice.
        assert sorted(blocks) == sorted([bytes(100)] + 20 * [b"a" * 100, b"c" * 100])


# SEMANTICS 97.3
def test_mpirun_says_how_to_get_the_library_that_is_missing(mpi: Mpi, shared_pool: Pool, tmp_path: Path) -> None:
    words = ("mpirun", "--launcher", f"mpirun.{mpi.name}", "-np", "1", "true")
    said = shared_pool.refused(*words, variables={**VARIABLES, "RAMLACE_MPIIO_LIBRARY": ""})
    # A launcher does not tell that its ranks are built for the standard's binary interface.
    assert mpi.library.name.replace("abi", "mpich") in said
    assert "bindings/mpi/build.sh" in said
    other = tmp_path / "launcher"
    other.write_text("#!/bin/sh\necho strange launcher 1.0\n")
    other.chmod(0o700)
    said = shared_pool.refused("mpirun", "--launcher", str(other), "-np", "1", "true")
    assert "strange launcher 1.0" in said
    assert "neither Open MPI nor MPICH" in said
