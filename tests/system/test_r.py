"""R with bigmemory, unchanged, on a mounted pool: README's own lines, and several processes at once."""

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from mount import Mount, NewMount
from pool import MIB, PATIENCE_SECONDS, Pool
from readme import README, blocks, why_no_r

ROWS, COLS = 50_000, 6
ROWS_MANY = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def bigmemory() -> None:
    """Skip where there is no R."""
    if reason := why_no_r():
        pytest.skip(reason)


class R:
    """An R process that runs what it is given, line by line; every answer is what one expression prints."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            ["R", "--vanilla", "--quiet", "--no-echo"],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.begin("suppressMessages(library(bigmemory))")
        self.hear()

    def begin(self, text: str) -> None:
        """Give it lines to run, and do not wait."""
        assert self.process.stdin
        self.process.stdin.write(f"{text}\ncat('\\nDONE\\n')\n".encode())
        self.process.stdin.flush()

    def hear(self) -> str:
        """Wait until it has run them; return what it printed. An error ends R, and is an assertion."""
        assert self.process.stdout
        said = b""
        while not said.endswith(b"\nDONE\n"):
            assert select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0], f"R says nothing after {said!r}"
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            assert more, f"R ended with {self.process.wait(PATIENCE_SECONDS)}: {said.decode()}"
            said += more
        return said.decode().removesuffix("\nDONE\n").strip()

    def run(self, text: str) -> str:
        """Run lines; return what they print."""
        self.begin(text)
        return self.hear()

    def numbers(self, text: str) -> list[float]:
        """Return an expression's numbers, exactly."""
        return [float.fromhex(word) for word in self.run(f"cat(sprintf('%a', {text}))").split()]

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def started(bigmemory: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[R]]:
    """R processes: to start one and load its packages takes longer than most tests."""
    made: list[R] = []
    try:
        yield made
    finally:
        for session in made:
            session.close()


@pytest.fixture
def sessions(started: list[R], here: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[R]]:
    """Four R processes in this test's directory on a mount, which know nothing of other tests."""
    while len(started) < 4:
        started.append(R(tmp_path))
    for session in started:
        session.run(f'setwd("{here}")')
    failed = request.session.testsfailed
    yield started
    if request.session.testsfailed > failed:
        # Whatever they are at.
        while started:
            started.pop().close()
    for session in started:
        # What is mapped goes with its last name.
        session.run('rm(list = ls()); invisible(gc()); setwd("/")')


def make(session: R, options: str = "", rows: int = ROWS) -> None:
    session.run(
        f'm <- filebacked.big.matrix({rows}, {COLS}, type = "double", backingpath = ".", '
        f'backingfile = "m.bin", descriptorfile = "m.desc"{options})'
    )


def attach(session: R) -> None:
    session.run('m <- attach.big.matrix("m.desc")')


def test_the_lines_of_the_readme_print_what_they_say(here: Path, tmp_path: Path) -> None:
    if not README.is_file():
        pytest.skip("no README.md here: this is no checkout")
    (tmp_path / "pool").symlink_to(here)
    found = [block for block in blocks() if block.language == "r"]
    assert [len(block.promised) for block in found] == [0, 1]
    for block in found:
        # Each is a program of its own, as README says.
        done = subprocess.run(
            ["Rscript", "-e", block.text], cwd=tmp_path, capture_output=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == 0, done.stderr.decode()
        assert set(block.promised) <= {line.strip() for line in done.stdout.decode().splitlines()}


def test_a_matrix_of_one_process_is_attached_and_summed_by_others(sessions: list[R], here: Path) -> None:
    make(sessions[0])
    sessions[0].run(f"set.seed(1); for (j in 1:{COLS}) m[, j] <- rnorm({ROWS})")
    assert sessions[0].run("cat(flush(m))") == "TRUE"
    sums = sessions[0].numbers("colSums(m[, ])")
    for session in sessions[1:]:
        attach(session)
        session.begin("cat(sprintf('%a', colSums(m[, ])))")
    for session in sessions[1:]:
        assert [float.fromhex(word) for word in session.hear().split()] == sums
    # The file is the matrix, column by column, for everybody else as well.
    values = np.fromfile(here / "m.bin").reshape((ROWS, COLS), order="F")
    assert np.allclose(values.sum(axis=0), sums)
    assert len(set(sums)) == COLS


def test_several_processes_fill_one_matrix_at_once(sessions: list[R], shared_pool: Pool, place: str) -> None:
    make(sessions[0])
    for session in sessions[1:]:
        attach(session)
    # Interleaved rows: every page has stores of all four.
    for number, session in enumerate(sessions):
        rows = f"seq({number + 1}, {ROWS}, 4)"
        session.begin(f"for (j in 1:{COLS}) m[{rows}, j] <- {rows} * 10 + j")
    for session in sessions:
        session.hear()
    # Nobody has flushed, and everybody sees all.
    wanted = np.arange(1, ROWS + 1)[:, None] * 10.0 + np.arange(1, COLS + 1)
    for session in sessions:
        assert session.numbers("colSums(m[, ])") == wanted.sum(axis=0).tolist()
    assert sessions[2].run("cat(flush(m))") == "TRUE"
    # One flush publishes all stores of the machine: the library reads what the kernel wrote back.
    with shared_pool.connect(local=False) as pool, pool.open(f"{place}/m.bin", "rb") as file:
        content = np.frombuffer(file.read()).reshape((ROWS, COLS), order="F")
    np.testing.assert_array_equal(content, wanted)


def test_a_store_is_seen_at_once_on_this_machine_and_after_flush_and_refresh_on_another(
    sessions: list[R], here: Path, there: Path, shared_pool: Pool
) -> None:
    make(sessions[0], ", init = 0")
    sessions[0].run("flush(m)")
    attach(sessions[1])
    assert sessions[1].numbers("m[7, 3]") == [0.0]
    elsewhere = R(there)
    try:
        attach(elsewhere)
        assert elsewhere.numbers("m[7, 3]") == [0.0]
        sessions[0].run("m[7, 3] <- 42")
        assert sessions[1].numbers("m[7, 3]") == [42.0]
        assert elsewhere.numbers("m[7, 3]") == [0.0]
        sessions[0].run("flush(m)")
        shared_pool.run("refresh", str(there / "m.bin"))
        assert elsewhere.numbers("m[7, 3]") == [42.0]
    finally:
        elsewhere.close()


# SEMANTICS 115, 116
def test_columns_that_r_fills_on_two_machines_are_whole_and_seen_after_flush_alone(here: Path, there: Path) -> None:
    """Columns end inside a page; both have the matrix attached all the time, and nobody refreshes."""
    fill_columns(here, there, ROWS, 10)


# SEMANTICS 115, 116
@pytest.mark.long
def test_columns_that_r_fills_on_two_machines_are_whole_a_hundred_times(
    first_mount: Mount, second_mount: Mount, here: Path, there: Path
) -> None:
    def watch() -> None:
        for mount in (first_mount, second_mount):
            mount.daemon.watch()

    fill_columns(here, there, ROWS_MANY, 100, watch)


def fill_columns(
    here: Path, there: Path, rows: int, turns: int, before_each: Callable[[], None] = lambda: None
) -> None:
    """Let R on two machines fill every other column each, and see all of both as soon as these have flushed."""
    with ExitStack() as stack:
        machines = [R(directory) for directory in (here, there)]
        for machine in machines:
            stack.callback(machine.close)
        make(machines[0], ", init = 0", rows)
        machines[0].run("flush(m)")
        attach(machines[1])
        for turn in range(turns):
            before_each()
            for number, machine in enumerate(machines):
                machine.begin(
                    f"for (j in seq({number + 1}, {COLS}, 2)) m[, j] <- {1000 * turn + 100} + j; cat(flush(m))"
                )
            assert [machine.hear() for machine in machines] == ["TRUE", "TRUE"]
            wrong = f"sum(m[, ] != matrix(rep({1000 * turn + 100} + 1:{COLS}, each = {rows}), {rows}))"
            assert [machine.run(f"cat({wrong})") for machine in machines] == ["0", "0"], turn


def test_columns_of_every_type_and_names_come_back(sessions: list[R]) -> None:
    for number, (kind, value) in enumerate({"char": 7, "short": -300, "integer": 70_000, "double": 0.1}.items()):
        sessions[0].run(
            f'm <- filebacked.big.matrix(1000, 2, type = "{kind}", init = {value}, backingpath = ".", '
            f'backingfile = "{number}.bin", descriptorfile = "{number}.desc", dimnames = list(NULL, c("a", "b")))\n'
            "invisible(flush(m))"
        )
        sessions[1].run(f'm <- attach.big.matrix("{number}.desc")')
        assert sessions[1].numbers('m[1000, "b"]') == [value]
        assert sessions[1].run("cat(typeof(m), colnames(m), dim(m))") == f"{kind} a b 1000 2"


def test_a_matrix_attached_for_reading_refuses_stores(sessions: list[R], here: Path) -> None:
    make(sessions[0], ", init = 5")
    sessions[0].run("flush(m)")
    session = sessions[1]
    session.run('m <- attach.big.matrix("m.desc", readonly = TRUE)')
    assert "refused" in session.run('tryCatch(m[1, 1] <- 1, error = function(e) cat("refused"))')
    assert session.numbers("m[1, 1]") == [5.0]
    # A file without the right to write is attached for reading too.
    (here / "m.bin").chmod(0o444)
    assert session.numbers('attach.big.matrix("m.desc", readonly = TRUE)[2, 2]') == [5.0]


# SEMANTICS 102.1
def test_a_matrix_that_the_pool_has_no_room_for_fails_and_harms_nobody(
    new_pool: object, new_mount: NewMount, planned: object
) -> None:
    pool: Pool = new_pool(1, 32)  # type: ignore[operator]
    mount = new_mount(pool)
    session = R(mount.directory)
    try:
        # 64 MiB of zeros that are stored, in a pool of 32.
        session.begin(
            f'm <- filebacked.big.matrix({8 * MIB}, 1, type = "double", backingpath = ".", '
            'backingfile = "m.bin", descriptorfile = "m.desc")\nm[, 1] <- 1\ncat(flush(m))'
        )
        try:
            said = session.hear()
        except AssertionError as error:
            said = str(error)
    finally:
        session.close()
    print(said)
    # R says what a store into a page without memory is, as on tmpfs.
    assert "bus error" in said
    assert "TRUE" not in said
    (mount / "m.bin").unlink()
    (mount / "small").write_bytes(b"there is room again")
