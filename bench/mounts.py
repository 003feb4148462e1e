"""The pool and a null FUSE file system, mounted for the driver that measures mounts."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pool import BenchError, Pool, bench_binary

# As large as the driver's matrix.
NULL_BYTES = (1 << 20) * 60 * 8
NULL_BYTES_QUICK = (1 << 14) * 60 * 8


def figures(pool: Pool, args: argparse.Namespace, run: Callable[[list, Pool], list[dict]]) -> list[dict]:
    """Return the figures of the driver `mount`; none, with a word, where nothing can be mounted."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("mounts are left out: /dev/fuse cannot be opened", file=sys.stderr)
        return []
    with (
        mounted_pool(pool) as mount,
        mounted_pool(pool, name="other") as other,
        mounted_null(pool, quick=args.quick) as null,
        mounted_passthrough(pool) as passthrough,
    ):
        command = [bench_binary(), "mount", "--mount", mount, "--other", other, "--null", null, "--only", args.only]
        directories = [mount, other, null]
        if passthrough:
            command += ["--passthrough", passthrough]
            directories.append(passthrough)
        command += ["--pids", ",".join(map(str, [*pool.pids(), *daemons(*directories)]))]
        return run([*command, "--quick"] if args.quick else command, pool)


@contextlib.contextmanager
def mounted_pool(pool: Pool, *words: str, name: str = "mnt") -> Iterator[Path]:
    """Mount the pool for the block."""
    directory = pool.scratch / "-".join([name, *words])
    directory.mkdir()
    pool.command("mount", *words, str(directory))
    try:
        yield directory
    finally:
        pool.command("unmount", str(directory))


@contextlib.contextmanager
def mounted_passthrough(pool: Pool) -> Iterator[Path | None]:
    """Mount the pool with passthrough, where that is possible."""
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(mounted_pool(pool, "--passthrough"))
        except BenchError as error:
            print(f"passthrough is left out: {error}", file=sys.stderr)
            directory = None
        yield directory


@contextlib.contextmanager
def mounted_null(pool: Pool, *, quick: bool) -> Iterator[Path]:
    """Mount the null file system for the block."""
    directory = pool.scratch / "null"
    directory.mkdir()
    size = NULL_BYTES_QUICK if quick else NULL_BYTES
    command = [bench_binary(), "null-fuse", "--mount", directory, "--bytes", str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline().strip() if process.stdout else ""
        if line != "mounted":
            raise BenchError("the null file system could not be mounted")
        yield directory


def daemons(*directories: Path) -> list[int]:
    """Return the processes that serve these mounts: those that were started with the directory as a word."""
    words = {os.fsencode(directory) for directory in directories}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words & set(line) and ({b"mount", b"null-fuse", b"null-tree"} & set(line)):
                found.append(int(entry.name))
    return found
