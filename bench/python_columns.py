"""Column sums in numpy: a native array's `.view()`, and the same code on files of a tmpfs.

Prints the samples as the native drivers do. Without the Python package it says so and prints none.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pool import bench_binary

COLUMNS = 60
ROWS = 1 << 20
ROWS_QUICK = 1 << 14
ROUNDS = 5


def main() -> None:
    """Measure both scans."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    wanted = [scan for scan in ("first scan", "warm") if args.only in figure_name(scan)]
    figures: list[dict] = []
    if wanted:
        try:
            import numpy

            import ramlace
        except ImportError as error:
            print(f"the sums in Python are left out: {error}", file=sys.stderr)
        else:
            figures = measure(args.quick, wanted, numpy, ramlace)
    print(json.dumps({"figures": figures}))


def figure_name(scan: str) -> str:
    """Return the figure's name in the table."""
    return f"column sums, numpy, {scan}"


def measure(quick: bool, wanted: list[str], numpy, ramlace) -> list[dict]:
    """Fill an array and two files with the same matrix; sum them in turns."""
    shape = (ROWS_QUICK if quick else ROWS, COLUMNS)
    size = shape[0] * shape[1] * 8
    pool = ramlace.connect()
    pool.array("/bench-numpy", shape, "f8", order="F")
    with held_file(size) as huge, held_file(size, "--small-pages") as small:

        def file(path: Path):
            return numpy.memmap(path, dtype="f8", mode="r+", shape=shape, order="F")

        openers = {
            "tmpfs, huge pages": lambda: file(huge),
            "tmpfs, 4 KiB pages": lambda: file(small),
            "figure": lambda: pool.array("/bench-numpy").view(),
        }
        for opener in openers.values():
            opener()[:] = numpy.arange(COLUMNS)

        def check(matrix) -> None:
            sums = numpy.add.reduce(matrix, axis=0)
            if not numpy.array_equal(sums, numpy.arange(COLUMNS) * float(shape[0])):
                raise SystemExit("the sums are wrong")

        figures = []
        for scan in wanted:
            if scan == "warm":
                held = {name: opener() for name, opener in openers.items()}
                works = {name: lambda matrix=matrix: check(matrix) for name, matrix in held.items()}
            else:
                works = {name: lambda opener=opener: check(opener()) for name, opener in openers.items()}
            sides = take_turns(works, 1 if quick else ROUNDS)
            figures.append({"name": figure_name(scan), "unit": "bytes", "units": size, "sides": sides})
        return figures


def take_turns(works: dict[str, Callable[[], None]], rounds: int) -> list[dict]:
    """Run all works in turns; the first round is dropped."""
    sides: dict = {name: {"side": name, "seconds": [], "cpu_seconds": []} for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            cpu, begun = cpu_seconds(), time.perf_counter()
            work()
            seconds, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
            if number > 0:
                sides[name]["seconds"].append(seconds)
                sides[name]["cpu_seconds"].append(cpu)
    return list(sides.values())


def cpu_seconds() -> float:
    """Return this process's CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def held_file(size: int, *options: str) -> Iterator[Path]:
    """Yield the path of a file in a tmpfs that goes with the block."""
    command = [bench_binary(), "hold-file", "--bytes", str(size), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        line = holder.stdout.readline().strip() if holder.stdout else ""
        if not line:
            raise SystemExit("no file of a tmpfs could be made")
        yield Path(line)


if __name__ == "__main__":
    main()
