"""What the system tests share: pools that are always taken down, and a private runtime directory."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from mount import first_mount, fuse, here, new_mount, second_mount, there
from mpi_library import mpi
from passthrough import passthrough
from pool import MIB, Pool

# A shell that runs the tests in the background has told them to ignore this, and programs that tests start with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers = itertools.count()

NewPool = Callable[..., Pool]

# Fixtures that live where mounts, or MPI's library, do.
__all__ = ["first_mount", "fuse", "here", "mpi", "new_mount", "passthrough", "second_mount", "there"]


IS_ROOT = os.geteuid() == 0
# scripts/round.py looks for these in the tests' files.
GROUPS = ("needs_root", "both", "alone")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile the tests before several processes begin: each of them would compile all, at the same time."""
    words = [*config.invocation_params.args, "--collect-only", "-qqq"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=False)
    # What else fails here fails in the processes, which say so.
    if done.returncode == pytest.ExitCode.USAGE_ERROR:
        raise pytest.UsageError(done.stderr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let no test be lost: the file of one that runs in another group must name its mark. Then order them."""
    texts = {path: path.read_text() for path in {item.path for item in items}}
    for item in items:
        for mark in item.iter_markers():
            name = f"mark.{mark.name}"
            if mark.name in GROUPS and name not in texts[item.path]:
                raise pytest.UsageError(f"{item.nodeid} is marked, and its file does not say `{name}`")
    # What takes minutes begins first, so that no process is left alone with it at the end; then the largest files.
    lengthy = {item.path for item in items if item.get_closest_marker("lengthy")}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in lengthy, -sizes[item.path], str(item.path)))


class Parts(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process whole files, and of a file that is parted by a parameter the tests with one value of it."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the part to which a test belongs: a parameter parts its file if its name begins so."""
        file, _, test = nodeid.partition("::")
        return " ".join([file, *re.findall(r"part \w+", test)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Parts:
    """Return what gives tests to processes, in the order of their collection."""
    config.option.loadscopereorder = False
    return Parts(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what only root can do."""
    if not IS_ROOT and item.get_closest_marker("needs_root"):
        pytest.skip("this needs root")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test be lost: what an ordinary user skips for want of root must be marked, so that root runs it."""
    report = yield
    if report.skipped and not IS_ROOT and isinstance(report.longrepr, tuple) and "root" in report.longrepr[2]:
        marks = {mark.name for mark in item.iter_markers()}
        if not marks & {"needs_root", "both"}:
            report.outcome = "failed"
            report.longrepr = f"{report.longrepr[2]}; mark it: pytest.mark.needs_root"
    return report


@pytest.fixture(scope="session")
def runtime() -> Iterator[Path]:
    """The runtime directory of every pool here, with a short name: paths of sockets are short."""
    directory = Path(tempfile.mkdtemp(prefix="rl-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        for name in ("RAMLACE_POOL", "RAMLACE_SECRET_FILE", "RAMLACE_LOCAL"):
            patch.delenv(name, raising=False)
        with shared(directory):
            yield directory
    shutil.rmtree(directory)


@contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Let unmounts below reach other programs' namespaces, where this is root.

    A namespace that begins meanwhile (`ip netns exec`, of whichever test or program of this machine) has a copy of
    every mount, and unless the directory is shared its copy outlives the unmount, and the daemon with it.
    """
    name = str(directory)
    commands = [["mount", "--bind", name, name], ["mount", "--make-shared", name]]
    made = os.geteuid() == 0 and all(
        subprocess.run(words, capture_output=True, check=False).returncode == 0 for words in commands
    )
    try:
        yield
    finally:
        if made:
            subprocess.run(["umount", "-l", name], check=True)


@pytest.fixture
def planned(runtime: Path) -> Iterator[NewPool]:
    """Make pools that are not running yet; all of them are taken down at the end."""
    made: list[Pool] = []

    def plan(servers: int = 3, mib: int = 32) -> Pool:
        """Plan a pool of so many servers that lend `mib` MiB each."""
        pool = Pool(f"t{os.getpid()}-{next(_numbers)}", runtime, servers * mib * MIB, servers)
        made.append(pool)
        return pool

    yield plan
    for pool in made:
        pool.close()


@pytest.fixture
def new_pool(planned: NewPool) -> NewPool:
    """Start pools; all of them are taken down at the end."""

    def start(servers: int = 3, mib: int = 32, *words: str) -> Pool:
        pool = planned(servers, mib)
        pool.up(*words)
        return pool

    return start


@pytest.fixture(scope="module")
def shared_pool(runtime: Path) -> Iterator[Pool]:
    """One pool of 3 servers with 96 MiB each for tests that break nothing."""
    pool = Pool(f"m{os.getpid()}-{next(_numbers)}", runtime, 288 * MIB, 3)
    try:
        pool.up()
        yield pool
    finally:
        pool.close()


@pytest.fixture
def place(shared_pool: Pool, request: pytest.FixtureRequest) -> Iterator[str]:
    """A directory in the shared pool for one test."""
    name = "/" + "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:100]
    with shared_pool.connect() as connected:
        connected.mkdir(name)
    yield name
    with shared_pool.connect() as connected:
        connected.rmtree(name)
