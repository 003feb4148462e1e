"""Measure ramlace beside the machine's own limits, in turns, in the same run.

usage: bench/run.py [--quick] [--only TEXT] [--files N] [--proof PROGRAM] [--json FILE]

Starts a pool of its own, runs the drivers, and prints a table: each figure, the limit measured
beside it, their ratio, and the CPU time of both sides. Every figure is the median of 5 rounds;
the round before them is dropped. `--quick` does one short round of everything: it shows that the
bench works, and its numbers mean nothing. Nothing here fails because something was slow.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import coherence
import machine
import mounts
import mpiio
import refreshing
import report
import resources
import startup
import strict
import tracing_cost
import trees
import viewed

from pool import BenchError, Pool, bench_binary

DRIVERS = ("transfer", "latency", "columns", "names", "coordination")
MEMORY = "3GiB"
MEMORY_QUICK = "384MiB"
SERVERS = 3
# What is measured again where contents are not sealed: the price of the seal is the difference.
SEALED = (("transfer", "tcp, 1 server"), ("latency", "4 KiB, tcp"))
TRUSTED = "trusted network"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round; the numbers mean nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="only figures whose name contains TEXT")
    parser.add_argument("--files", type=int, default=trees.FILES, help="files of the tree for `trees`")
    parser.add_argument("--proof", type=Path, metavar="PROGRAM", help="what `strict` is compared with (see there)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to FILE")
    return parser.parse_args()


def main() -> int:
    """Measure, print and write; return the exit code."""
    args = parse()
    try:
        rows = measure(args)
    except BenchError as error:
        print(f"bench: {error}", *getattr(error, "__notes__", []), sep="\n", file=sys.stderr)
        return 1
    print(report.table(rows))
    if args.json:
        result = {"version": 1, "quick": args.quick, "machine": machine.facts(), "figures": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(args: argparse.Namespace) -> list[dict]:
    """Run everything that is wanted; return one row for each figure."""
    rows: list[dict] = []
    with Pool(SERVERS, MEMORY_QUICK if args.quick else MEMORY) as pool:
        if not args.quick:
            pool.wait_for_reservation()
        for driver in DRIVERS:
            progress(driver)
            rows += [row for figure in run_driver(pool, driver, args) for row in report.rows(figure)]
        progress("mount")
        rows += [row for figure in mounts.figures(pool, args, run) for row in report.rows(figure)]
        progress("refresh")
        rows += refreshing.rows(pool, args.quick, args.only)
        progress("coherence")
        rows += coherence.rows(pool, args.quick, args.only)
        progress("reads beside a view")
        rows += viewed.rows(pool, args.quick, args.only)
        progress("strict mounts")
        rows += strict.rows(pool, args.quick, args.only, args.proof)
        progress("trees")
        rows += trees.rows(pool, args.quick, args.only, args.files)
        progress("MPI-IO")
        rows += mpiio.rows(pool, args)
        progress("columns in Python")
        rows += [row for figure in python_columns(pool, args) for row in report.rows(figure)]
        progress("memory and idle servers")
        rows += resources.rows(pool, args.quick, args.only)
    progress(TRUSTED)
    rows += trusted(args)
    progress("tracing")
    rows += tracing_cost.rows(args.quick, args.only)
    progress("startup")
    rows += startup.rows(args.quick, args.only)
    return rows


def trusted(args: argparse.Namespace) -> list[dict]:
    """Measure calls and streams over TCP in a pool whose file contents are not sealed."""
    wanted = [(driver, only) for driver, only in SEALED if args.only in ("", TRUSTED) or args.only in only]
    if not wanted:
        return []
    rows: list[dict] = []
    with Pool(SERVERS, MEMORY_QUICK if args.quick else MEMORY, "--trust-network") as pool:
        if not args.quick:
            pool.wait_for_reservation()
        for driver, only in wanted:
            for figure in run_driver(pool, driver, argparse.Namespace(**{**vars(args), "only": only})):
                figure["name"] += f", {TRUSTED}"
                rows += report.rows(figure)
    return rows


def progress(what: str) -> None:
    """Tell what is going on to whoever watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what} ...", end="", file=sys.stderr, flush=True)


def run_driver(pool: Pool, driver: str, args: argparse.Namespace) -> list[dict]:
    """Run a native driver; return its figures with all their samples."""
    command = [bench_binary(), driver, "--scratch", pool.scratch, "--only", args.only]
    command += ["--pids", ",".join(map(str, pool.pids()))]
    return run([*command, "--quick"] if args.quick else command, pool)


def python_columns(pool: Pool, args: argparse.Namespace) -> list[dict]:
    """Run the sums in Python, when its package is installed beside this interpreter."""
    command = [sys.executable, Path(__file__).parent / "python_columns.py", "--only", args.only]
    return run([*command, "--quick"] if args.quick else command, pool)


def run(command: list, pool: Pool) -> list[dict]:
    """Run a program of the bench against a pool."""
    done = subprocess.run(command, env=pool.environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{Path(command[0]).name} {command[1]} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)["figures"]


if __name__ == "__main__":
    sys.exit(main())
