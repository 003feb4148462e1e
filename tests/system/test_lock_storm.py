"""Owners on two mounts and in a library lock bytes of one file at random, and give up; servers die, and mounts stop."""

import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from c_programs import flags
from conftest import NewPool
from litmus import LONG
from mount import Mount, NewMount
from pool import BUILT, PATIENCE_SECONDS, Pool, eventually, frozen
from test_mount_locks import Locker

SOURCE = Path(__file__).parent / "litmus" / "locks.c"
OPTIONS = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread")
# What the owners share: two numbers for each byte, and the counts of locks.c.
BYTES, BELIEFS_BYTES = 48, 4096
COUNTS = ("granted", "refused", "given_up", "failed")
SECONDS = 30.0 if LONG else 5.0
# What an owner may wait for its last locks (locks.c), and a little.
END_SECONDS = 100.0


Trouble = Callable[[Pool, list[Mount], random.Random], None]


class Doors:
    """The programs that lock, one for the mount and one for the library."""

    def __init__(self, directory: Path) -> None:
        self.mount, self.library = directory / "locks", directory / "locks-library"
        self.beliefs = directory / "beliefs"
        self.beliefs.write_bytes(bytes(BELIEFS_BYTES))
        library = ("-DLIBRARY", *flags(BUILT / "pkgconfig"))
        for program, options in ((self.mount, ()), (self.library, library)):
            words = ["cc", *OPTIONS, str(SOURCE), *options, "-o", str(program)]
            done = subprocess.run(words, capture_output=True, check=False, text=True)
            assert done.returncode == 0, done.stderr

    def begin(self, pool: Pool, door: str, seed: int, owners: int, path: str) -> subprocess.Popen[str]:
        """Begin to lock by a door."""
        program = self.library if door == "library" else self.mount
        words = [str(program), door, str(seed), str(int(SECONDS * 1000)), str(owners), str(self.beliefs), path]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(pool.runtime), "RAMLACE_POOL": pool.name}
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def counts(self) -> dict[str, int]:
        """Return what has become of the owners' requests."""
        found = struct.unpack_from(f"<{len(COUNTS)}Q", self.beliefs.read_bytes(), 2 * BYTES * 4)
        return dict(zip(COUNTS, found, strict=True))


@pytest.fixture
def doors(tmp_path: Path) -> Doors:
    """The programs, compiled."""
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        pytest.skip("no C compiler or pkg-config here")
    return Doors(tmp_path)


def deaths(pool: Pool, mounts: list[Mount], draw: random.Random) -> None:
    """The server is killed, or it or a mount stops for a moment."""
    time.sleep(draw.uniform(0.1, 0.6))
    match draw.randrange(3):
        case 0:
            pool.kill_child(0)
        case 1:
            with frozen(pool.process("child", 0)):
                time.sleep(draw.uniform(0.05, 1.5))
        case _:
            with frozen(draw.choice(mounts).daemon):
                time.sleep(draw.uniform(0.05, 1.5))


def silence(pool: Pool, _: list[Mount], draw: random.Random) -> None:
    """The server stops for so long that what waits for it fails; then it does what it was sent."""
    time.sleep(draw.uniform(0.2, 1.0))
    with frozen(pool.process("child", 0)):
        time.sleep(draw.uniform(5.2, 6.5))


def nothing(pool: Pool, mounts: list[Mount], draw: random.Random) -> None:
    """Nothing goes wrong but signals and time limits."""
    del pool, mounts, draw
    time.sleep(0.1)


# SEMANTICS 65.1, 69.4
@pytest.mark.lengthy
@pytest.mark.parametrize("seed", range(3 if LONG else 1))
@pytest.mark.parametrize("trouble", [nothing, deaths, pytest.param(silence, marks=pytest.mark.long)])
def test_whoever_has_a_lock_has_it_alone_and_whoever_gives_up_has_what_it_had(
    new_pool: NewPool, new_mount: NewMount, doors: Doors, trouble: Trouble, seed: int
) -> None:
    pool = new_pool(1)
    mounts = [new_mount(pool), new_mount(pool)]
    (mounts[0] / "file").write_bytes(bytes(BYTES))
    draw = random.Random(seed)
    with ExitStack() as stack:
        programs: list[subprocess.Popen[str]] = []
        for mount in mounts:
            for door, owners in (("ofd", 5), ("posix", 1)):
                path = str(mount / "file")
                programs.append(doors.begin(pool, door, 10 * seed + len(programs), owners, path))
        programs.append(doors.begin(pool, "library", 10 * seed + len(programs), 4, "/file"))
        for program in programs:
            stack.callback(program.wait, PATIENCE_SECONDS)
            stack.callback(program.kill)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            trouble(pool, mounts, draw)
        for program in programs:
            said, _ = program.communicate(timeout=SECONDS + END_SECONDS)
            assert program.returncode == 0, (said, doors.counts())
    counts = doors.counts()
    print(f"locks | {trouble.__name__} | seed {seed} | {counts}")
    assert min(counts[name] for name in COUNTS[:3]) > 0
    # Nothing is left of them.
    assert eventually(lambda: not any(server["locks"] + server["lock_waits"] for server in pool.status()))
    assert not any(os.getxattr(mount.directory, "user.ramlace.pending") for mount in mounts)
    for mount in mounts:
        with Locker(mount / "file") as last:
            assert last.takes("posix(f, W)")
