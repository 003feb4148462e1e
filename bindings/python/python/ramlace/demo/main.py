"""The demo from its first line to its last."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# The comparison is one of places, not of linear algebra libraries: one thread for each process.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import ramlace  # noqa: E402
from ramlace.demo import cases, data, doors, fill, machine, mounted, options, plot, report, table  # noqa: E402
from ramlace.demo.problem import DemoError  # noqa: E402
from ramlace.demo.progress import say  # noqa: E402
from ramlace.demo.team import Team  # noqa: E402
from ramlace.demo.units import show_bytes  # noqa: E402

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# The demo's own: workers connect by its locator.
POOL = f"demo-{os.getpid()}"
ARRAY = "/matrix"
MOUNT_COLD = "pool, mount, cold cache"
MOUNT_WARM = "pool, mount, warm cache"


class Demo:
    """One run: what was asked for, and what has been measured so far."""

    def __init__(self, asked: options.Options, matrix: data.Matrix, team: Team) -> None:
        self.asked = asked
        self.matrix = matrix
        self.team = team
        self.sums: list[cases.Row] = []
        self.bootstrap: list[cases.Row] = []
        self.notes: list[str] = list(matrix.table.notes)
        self.missing: list[str] = []

    def measure(self, place: cases.Place) -> None:
        """Measure both jobs at a place, and compare with what the first place gave."""
        asked = self.asked
        say(f"measuring: {place.title}")
        sums = cases.measure_sums(self.team, asked.workers, place, asked.repeat)
        means = cases.measure_bootstrap(self.team, asked.workers, place, asked.repeat, asked.replicates, asked.seed)
        for rows, row in ((self.sums, sums), (self.bootstrap, means)):
            if rows:
                cases.agree(f"{place.title} beside {rows[0].place.title}", rows[0].result, row.result)
            rows.append(row)
        if sums.cache:
            self.notes.append(f"{place.title}: {sums.cache}")

    def limit_tmpfs(self) -> None:
        """Measure the same code on a mapped tmpfs file, where there is room for one."""
        matrix = self.matrix
        if not SHARED_MEMORY.is_dir() or machine.filesystem_of(SHARED_MEMORY) != "tmpfs":
            self.notes.append(f"no tmpfs limit: {SHARED_MEMORY} is no tmpfs here")
            return
        try:
            with fill.matrix_file(SHARED_MEMORY, matrix, "filling a tmpfs file") as path:
                door = doors.MappedDoor(matrix.rows, matrix.cols, str(path))
                self.measure(cases.Place("tmpfs", "tmpfs, the same code", 0, door, limit=True))
        except DemoError as error:
            if "free there" not in str(error):
                raise
            self.notes.append(f"no tmpfs limit: {error}")

    def disk(self) -> None:
        """Measure the file on local disk, cold."""
        matrix, asked = self.matrix, self.asked
        kind = machine.filesystem_of(asked.out)
        if kind in ("tmpfs", "ramfs"):
            self.notes.append(f"{asked.out} is {kind}: its 'disk' is memory; choose another place by --out")
        with fill.matrix_file(asked.out, matrix, "filling the file on disk", keep=asked.keep) as path:
            door = doors.DiskDoor(matrix.rows, matrix.cols, str(path))

            def make_cold() -> str:
                return machine.make_cold(path)

            # A disk is slow and its runs differ little: one run, or the demo would take minutes.
            self.measure(cases.Place("disk", "local disk, cold cache", 0, door, make_cold, once=True))

    def pool(self, pool: "ramlace.Pool") -> None:
        """Fill an array of the pool; measure it by reads over TCP, by its shared view and through a mount."""
        matrix, servers = self.matrix, self.asked.servers
        array = pool.array(ARRAY, (matrix.rows, matrix.cols), "float64", order="F")
        fill.fill_array(array, matrix, f"filling the pool's array ({array.describe()})")
        array.close()
        reads = doors.ReadDoor(matrix.rows, matrix.cols, pool.locator, ARRAY)
        self.measure(cases.Place("tcp", "pool, library reads over TCP", servers, reads))
        shared = doors.ArrayDoor(matrix.rows, matrix.cols, pool.locator, ARRAY)
        self.measure(cases.Place("array", "pool, native arrays", servers, shared))
        self.mount()

    def mount(self) -> None:
        """Measure the array's bytes as a mapped file on a mount, where the machine can mount."""
        try:
            with mounted.mounted(POOL) as directory:
                self.mounted(directory / ARRAY.lstrip("/"))
        except mounted.NoMountError as error:
            say(f"the pool cannot be mounted here: {error}")
            self.missing += [MOUNT_COLD, MOUNT_WARM]
            self.notes.append(f"no rows through the mount: {error}")

    def mounted(self, path: Path) -> None:
        """Measure a mounted file with none and with all of it among the kernel's pages."""
        matrix, servers = self.matrix, self.asked.servers
        door = doors.MappedDoor(matrix.rows, matrix.cols, str(path))

        def make_cold() -> str:
            mounted.drop_pages(path)
            return machine.say_cold(path)

        def make_warm() -> str:
            return machine.make_warm(path)

        self.measure(cases.Place("mount_cold", MOUNT_COLD, servers, door, make_cold))
        available = machine.available_bytes()
        if available < matrix.nbytes:
            self.missing.append(MOUNT_WARM)
            self.notes.append(
                f"no warm mount: the kernel's pages would take {show_bytes(matrix.nbytes)} beside the pool, "
                f"and {show_bytes(available)} are available"
            )
            return
        self.measure(cases.Place("mount_warm", MOUNT_WARM, servers, door, make_warm))


@contextmanager
def running_pool(asked: options.Options, pool_bytes: int) -> Iterator["ramlace.Pool"]:
    """Start a pool of the demo's own; stop it at the end, whatever happens."""
    pool = ramlace.up(name=POOL, servers=asked.servers, memory=pool_bytes)
    try:
        yield pool
    finally:
        if asked.keep:
            say(f"the pool keeps running: ramlace status --pool {pool.name}; ramlace down --pool {pool.name}")
        else:
            pool.down()


def run(asked: options.Options) -> None:
    """Run the whole demo; DemoError or ramlace.Error says why it could not end."""
    started = time.monotonic()
    frame = data.load(asked.input)
    matrix = asked.matrix(frame)
    options.check_memory(asked, matrix, machine.available_bytes())
    asked.out.mkdir(parents=True, exist_ok=True)
    for note in frame.notes:
        say(note)
    say(
        f"{frame.origin}: {frame.rows:,} rows × {len(frame.columns)} numeric columns, repeated to "
        f"{matrix.rows:,} × {matrix.cols:,} float64, {show_bytes(matrix.nbytes)}"
    )
    memcpy = machine.COPY_BYTES / machine.memcpy_seconds() / 1e9
    with Team(asked.workers) as team:
        say(f"{asked.workers} worker processes: {' '.join(map(str, team.pids))}")
        demo = Demo(asked, matrix, team)
        demo.limit_tmpfs()
        demo.disk()
        with running_pool(asked, asked.pool_bytes(matrix)) as pool:
            demo.pool(pool)
    finish(demo, memcpy, time.monotonic() - started)


def finish(demo: Demo, memcpy: float, seconds: float) -> None:
    """Print the table and write it, the plot and the numbers."""
    asked, matrix = demo.asked, demo.matrix
    sums, bootstrap = _limits_last(demo.sums), _limits_last(demo.bootstrap)
    notes = [*_explain(asked), *demo.notes, "all results agree exactly", f"the whole demo took {seconds:.1f} s"]
    text = table.render(sums, bootstrap, asked.replicates, memcpy, notes, demo.missing)
    print(text, flush=True)
    (asked.out / "table.md").write_text(text + "\n")
    title = f"{matrix.rows:,} × {matrix.cols:,} float64 ({show_bytes(matrix.nbytes)}), {asked.servers} servers"
    paths = plot.draw(sums, bootstrap, memcpy, title, asked.out / "demo.png")
    json_path = asked.json or asked.out / "demo.json"
    facts = {
        "data": {"origin": matrix.table.origin, "columns": matrix.table.names},
        "rows": matrix.rows,
        "cols": matrix.cols,
        "bytes": matrix.nbytes,
        "servers": asked.servers,
        "replicates": asked.replicates,
        "seconds": seconds,
        "machine": machine.facts(),
    }
    report.write_json(json_path, sums, bootstrap, memcpy, facts, notes, demo.missing)
    say("written: " + ", ".join(str(path) for path in (asked.out / "table.md", *paths, json_path)))


def _limits_last(rows: list[cases.Row]) -> list[cases.Row]:
    return sorted(rows, key=lambda row: row.place.limit)


def _explain(asked: options.Options) -> list[str]:
    return [
        "timed: from the moment all processes start together to the end of the last, opening and mapping "
        "included; starting processes, connecting and drawing the bootstrap's rows are not",
        f"sequential is one such process; disk runs once, memory {asked.repeat} times (median)",
        "mount and tmpfs: numpy.memmap of a file, the same code for both; on the mount it is the native array's file",
        "GB/s: 10^9 bytes of the matrix done in a second. In the bootstrap every worker looks at every column for "
        "its replicates, so several workers move several times the bytes",
        "views may pass memcpy: it reads every byte and writes it elsewhere, while a view is only read where it lies",
        "mount, cold: every byte comes from the servers through the mount's daemon into the kernel's pages, which "
        "takes this machine's processors from the workers; a disk fills the same pages without them, so that a job of "
        "much arithmetic, as the bootstrap, may be faster from a cold disk",
    ]


def _stop(number: int, _frame: FrameType | None) -> None:
    # A signal to end unwinds as an error does, so that pool, workers and files are cleaned up.
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Run the demo with these arguments; return its exit code."""
    asked = options.parse(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        run(asked)
    except (DemoError, OSError, EOFError) as error:
        print(f"ramlace.demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ramlace.demo: interrupted", file=sys.stderr)
        return 130
    return 0
