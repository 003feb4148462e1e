"""What programs do with a tree of small files on a mount, beside a file system in memory that shares their core.

The tree is made by the bench from a seed: files of 0 to 64 KiB, most of them small, in directories of some dozens. The
null file system is the same engine with a map in memory behind it, pinned to one core with the programs: no wake goes
between cores, and the kernel may keep everything. A third side is the pool again, with the mount's daemon, the servers
and the programs on that core: what it is faster than the first is what wakes between cores cost. A fourth is another
mount of the pool, which sends its changes a moment later (`--metadata=behind`). Beside the rates it is counted what the
kernel asked the mount, and what either mount asked the servers.
"""

import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import report
from mounts import daemons, mounted_pool
from resources import cpu_seconds

from pool import BenchError, Pool, bench_binary

FILES = 1_000
FILES_QUICK = 24
ROUNDS = 3
FILE_BYTES_MAX = 64 << 10
FILES_PER_DIRECTORY = 30
DEPTH = 6
BEHIND = "sent later"
REQUESTS_ATTRIBUTE = "user.ramlace.requests"
# As many bytes as a mount tells of itself.
TOLD_BYTES_MAX = 64 << 10
# What comes by time, not by what is done.
BY_TIME = {"Heartbeat", "GetMap", "ServerStatus", "GetMetrics"}
BY_TIME |= {"OpenSession", "CloseSession", "Listen"}

# What a program does for the first time, for the second, or on another mount, which has seen nothing of the tree.
ONCE, AGAIN, ELSEWHERE = "once", "again", "elsewhere"

# A work's name, its command in the directory of the tree, and which of these it is.
WORKS = (
    ("untar", "tar xf {tar}", ONCE),
    ("cp -r", "cp -r tree copy", ONCE),
    ("chmod -R", "chmod -R go-rwx copy", ONCE),
    ("find -size elsewhere", "find tree -size +16k", ELSEWHERE),
    ("ls -lR again", "ls -lR tree", AGAIN),
    ("du again", "du -s tree", AGAIN),
    ("find -size again", "find tree -size +16k", AGAIN),
    ("grep -r again", "grep -rc rarely tree", AGAIN),
    ("git add", "git init -q tree && git -C tree add -A", ONCE),
    ("git status again", "git -C tree status --porcelain", AGAIN),
    ("rm -rf", "rm -rf copy", ONCE),
)


def names(work: str) -> tuple[str, str, str, str]:
    """Return the names of a work's rows."""
    rate, messages = f"trees, {work}", f"trees, {work}, messages a file"
    return rate, f"trees, {work}, requests of the kernel a file", messages, f"{messages}, sent later"


def rows(pool: Pool, quick: bool, only: str, files: int) -> list[dict[str, Any]]:
    """Measure what is wanted; none, with a word, where nothing can be mounted."""
    wanted = [work for work in WORKS if any(only in name for name in names(work[0]))]
    if not wanted:
        return []
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("trees on mounts are left out: /dev/fuse cannot be opened", file=sys.stderr)
        return []
    works = [work for work in WORKS if work in wanted or work[2] == ONCE]
    works = [work for work in works if "git" not in work[1] or shutil.which("git")]
    count = FILES_QUICK if quick else files
    tar = make_tree(pool.scratch, count)
    with (
        mounted_pool(pool, name="trees") as mount,
        mounted_pool(pool, "--metadata=behind", name="trees") as behind,
        mounted_null_tree(pool) as null,
    ):
        pids = [*pool.pids(), *daemons(mount), *daemons(behind)]
        core = min(os.sched_getaffinity(0))
        sides = [
            ("figure", Side((mount, behind), tar, pids, None, lambda: counts(pool, mount))),
            ("null FUSE on one core", Side((null, null), tar, daemons(null), core, Counter)),
            ("all of it on one core", Side((mount, behind), tar, pids, core, Counter)),
            (BEHIND, Side((behind, mount), tar, pids, None, lambda: counts(pool, behind))),
        ]
        for _ in range(1 if quick else ROUNDS):
            for _, side in sides:
                with side.on_its_core():
                    side.round(works)
    return [row for name, _, _ in wanted for row in rows_of(name, count, sides, only)]


def rows_of(work: str, files: int, sides: list[tuple[str, "Side"]], only: str) -> list[dict[str, Any]]:
    """Return a work's rows: its rate beside the null file system's, and what it asked."""
    if work not in sides[0][1].seconds:
        return []
    rate, requests, messages, messages_behind = names(work)
    timed = [
        {"side": name, "seconds": side.seconds[work], "cpu_seconds": side.cpu_seconds[work]} for name, side in sides
    ]
    made = report.rows({"name": rate, "unit": "files", "units": files, "sides": timed})
    usual, behind = sides[0][1].counted[work], dict(sides)[BEHIND].counted[work]
    for name, kind, own in (
        (requests, "request ", usual),
        (messages, "message ", usual),
        (messages_behind, "message ", behind),
    ):
        row = report.plain(name, "", [sum(n for key, n in one.items() if key.startswith(kind)) / files for one in own])
        row["kinds"] = {key.removeprefix(kind): n / files for key, n in own[-1].items() if key.startswith(kind) and n}
        made.append(row)
    return [row for row in made if only in row["name"]]


class Side:
    """A mount on which the works are done by turns, and what they cost there."""

    def __init__(
        self,
        mounts: tuple[Path, Path],
        tar: Path,
        pids: list[int],
        core: int | None,
        count: Callable[[], Counter[str]],
    ) -> None:
        # The second one sees what the first has made.
        self.directory, self.elsewhere = mounts
        self.tar, self.pids, self.core, self.count = tar, pids, core, count
        self.seconds: dict[str, list[float]] = {}
        self.cpu_seconds: dict[str, list[float]] = {}
        self.counted: dict[str, list[Counter[str]]] = {}

    def round(self, works: list[tuple[str, str, str]]) -> None:
        """Do all works once, in a directory of their own."""
        place = self.directory / "work"
        place.mkdir()
        for name, command, when in works:
            words = command.format(tar=self.tar)
            if when == AGAIN:
                self.run(words, place)
            counted, cpu, begun = self.count(), self.cpu(), time.monotonic()
            self.run(words, self.elsewhere / "work" if when == ELSEWHERE else place)
            self.seconds.setdefault(name, []).append(time.monotonic() - begun)
            self.cpu_seconds.setdefault(name, []).append(self.cpu() - cpu)
            self.counted.setdefault(name, []).append(Counter(self.count()) - counted)
        self.run("rm -rf work", self.directory)

    @contextmanager
    def on_its_core(self) -> Iterator[None]:
        """Keep the daemons and servers to the side's core for the block, if it has one."""
        if self.core is None:
            yield
            return
        before = {pid: os.sched_getaffinity(pid) for pid in self.pids}
        try:
            keep_to({pid: {self.core} for pid in self.pids})
            yield
        finally:
            keep_to(before)

    def cpu(self) -> float:
        """Return the CPU time until now of daemons, servers and the programs that have ended."""
        programs = resource.getrusage(resource.RUSAGE_CHILDREN)
        return programs.ru_utime + programs.ru_stime + sum(map(cpu_seconds, self.pids))

    def run(self, words: str, place: Path) -> None:
        """Run a shell's words in a directory, on the side's core."""
        pinned = [] if self.core is None else ["taskset", "-c", str(self.core)]
        command = [*pinned, "sh", "-c", words]
        # Nobody's settings of git, and no other repository around it.
        settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(place)}
        done = subprocess.run(
            command, cwd=place, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
        # Of grep 1: nothing was found.
        if done.returncode != 0 and not (words.startswith("grep") and done.returncode == 1):
            raise BenchError(f"'{words}' failed on {place}: {done.stderr.strip()[-500:]}")


def keep_to(cores: dict[int, set[int]]) -> None:
    """Keep all threads of these processes to cores, those among them that are started meanwhile."""
    kept: set[int] = set()
    while new := {(thread, pid) for pid in cores for thread in threads(pid) if thread not in kept}:
        for thread, pid in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores[pid])
            kept.add(thread)


def threads(pid: int) -> list[int]:
    """Return a process's threads."""
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]


def counts(pool: Pool, mount: Path) -> Counter[str]:
    """Return what the kernel has asked the mount, and what the servers have answered, by kind."""
    told = os.getxattr(mount, REQUESTS_ATTRIBUTE).decode().splitlines()
    requests = {f"request {name}": int(number) for name, number in (line.split() for line in told)}
    messages = {
        f"message {one['message']}": one["answers"]
        for one in pool.command("status", "--messages")["messages"]
        if one["message"] not in BY_TIME
    }
    return Counter({**requests, **messages})


def make_tree(scratch: Path, files: int) -> Path:
    """Write a tree of files and its archive; return the archive."""
    source = random.Random(7)
    root = scratch / "tree"
    for number in range(files):
        directory = root / f"d{number // FILES_PER_DIRECTORY // DEPTH}" / f"e{number // FILES_PER_DIRECTORY % DEPTH}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}.txt").write_bytes(source.randbytes(int(source.random() ** 3 * FILE_BYTES_MAX)))
    tar = scratch / "tree.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(root, "tree")
    shutil.rmtree(root)
    return tar


@contextmanager
def mounted_null_tree(pool: Pool) -> Iterator[Path]:
    """Mount the null file system of a tree for the block, on the first core."""
    directory = pool.scratch / "null-tree"
    directory.mkdir()
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, bench_binary(), "null-tree", "--mount", directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline().strip() if process.stdout else ""
        if line != "mounted":
            raise BenchError("the null file system of a tree could not be mounted")
        yield directory
