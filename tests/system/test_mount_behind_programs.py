"""What programs do with trees of files on a mount that sends its changes a moment later, and on bad days of theirs."""

import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import NewPool
from mount import NewMount, fill
from pool import eventually

BEHIND = "--metadata=behind"
#: As many as no directory has that is delegated.
MANY_ENTRIES = 4_200


def tree(seed: int, files: int) -> Iterator[tuple[str, bytes]]:
    """Return names and bytes of files, of which some do not live with their inode."""
    source = random.Random(seed)
    for number in range(files):
        directory = f"d{number // 25}"
        size = source.choice((0, 1, 100, 4095, 4096, 4097, 9000, 70_000, 300))
        yield f"{directory}/f{number}", source.randbytes(size)


def archive(place: Path, seed: int, files: int) -> Path:
    """Write such a tree's archive."""
    root = place / f"tree{seed}"
    for name, content in tree(seed, files):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    tar = place / f"tree{seed}.tar"
    with tarfile.open(tar, "w") as written:
        written.add(root, ".")
    shutil.rmtree(root)
    return tar


def unlike(root: Path, seed: int, files: int) -> list[str]:
    """Return the files of such a tree that are not as they were made."""
    return [name for name, content in tree(seed, files) if (root / name).read_bytes() != content]


# SEMANTICS 142.1, 142.2
def test_a_directory_that_outgrows_what_is_delegated_keeps_every_file(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool)
    (here / "d").mkdir()
    for number in range(MANY_ENTRIES):
        (here / f"d/f{number}").write_bytes(b"%d" % number)
    names = {f"f{number}" for number in range(MANY_ENTRIES)}
    assert set(os.listdir(there / "d")) == names == set(os.listdir(here / "d"))
    for number in range(0, MANY_ENTRIES, 7):
        assert (there / f"d/f{number}").read_bytes() == b"%d" % number
    assert "lost" not in here.log()
    assert pool.check() == []


# SEMANTICS 142.2, 142.4
@pytest.mark.parametrize("mode", ["coherent", "strict"])
def test_a_database_is_whole_on_both_mounts(new_pool: NewPool, new_mount: NewMount, mode: str) -> None:
    """Its journals are made, synced and removed in the same directory all the time."""
    pool = new_pool(2, 256)
    here, there = (new_mount(pool, BEHIND, "--mode", mode) for _ in range(2))
    (here / "d").mkdir()
    for turn in range(6):
        mount = (here, there)[turn % 2]
        with sqlite3.connect(mount / "d/data") as base:
            base.execute("create table if not exists t (n integer, text)")
            for number in range(5):
                base.execute("insert into t values (?, ?)", (turn, "x" * 700 * number))
                base.commit()
        base.close()
    base = sqlite3.connect(there / "d/data")
    assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert base.execute("select count(*) from t").fetchone() == (30,)
    base.close()
    assert os.listdir(here / "d") == ["data"]
    assert pool.check() == []


# SEMANTICS 142.2
@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_repository_is_whole_on_another_mount(new_pool: NewPool, new_mount: NewMount, tmp_path: Path) -> None:
    pool = new_pool(2, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool, BEHIND)
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)}

    def git(place: Path, *words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "safe.directory=*")
        environment = {**os.environ, **settings}
        done = subprocess.run(["git", *who, *words], cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (here / "r").mkdir()
    git(here / "r", "init", "-q")
    for name, content in tree(3, 60):
        (here / "r" / name).parent.mkdir(exist_ok=True)
        (here / "r" / name).write_bytes(content)
    git(here / "r", "add", "-A")
    git(here / "r", "commit", "-qm", "one")
    git(there / "r", "fsck", "--strict")
    assert git(there / "r", "status", "--porcelain") == ""
    git(there / ".", "clone", "-q", "r", "copy")
    assert unlike(here / "copy", 3, 60) == []
    assert pool.check() == []


# SEMANTICS 142.2
@pytest.mark.parametrize("mode", ["coherent", "strict"])
def test_two_mounts_that_write_by_turns_in_one_directory_see_all(
    new_pool: NewPool, new_mount: NewMount, mode: str
) -> None:
    pool = new_pool(2, 256)
    mounts = [new_mount(pool, BEHIND, "--mode", mode) for _ in range(2)]
    (mounts[0] / "d").mkdir()
    sizes = (10, 4096, 5000, 0)
    for turn in range(24):
        mine, other = mounts[turn % 2], mounts[1 - turn % 2]
        for file in range(4):
            (mine / f"d/f{turn}-{file}").write_bytes(b"%d" % (turn % 10) * sizes[file])
        with open(mine / "d/both", "ab") as both:
            both.write(b"%2d" % turn)
        assert (other / "d/both").read_bytes() == b"".join(b"%2d" % one for one in range(turn + 1))
        assert len(os.listdir(other / "d")) == 4 * (turn + 1) + 1
        for file in range(4):
            assert (other / f"d/f{turn}-{file}").read_bytes() == b"%d" % (turn % 10) * sizes[file]
    assert pool.check() == []


# SEMANTICS 142.4
def test_a_tree_is_whole_though_servers_are_killed_while_it_is_unpacked(
    new_pool: NewPool, new_mount: NewMount, tmp_path: Path
) -> None:
    pool = new_pool(2, 256)
    here, there = new_mount(pool, BEHIND), new_mount(pool)
    done = threading.Event()

    def kills() -> None:
        for turn in range(6):
            if done.wait(0.3):
                return
            pool.kill_child(turn % 2)
            pool.await_restart(turn % 2, turn // 2 + 1)

    killer = threading.Thread(target=kills)
    killer.start()
    try:
        for seed in range(4):
            tar = archive(tmp_path, seed, 150)
            (here / f"t{seed}").mkdir()
            subprocess.run(["tar", "xf", tar, "-C", here / f"t{seed}"], check=True)
    finally:
        done.set()
        killer.join()
    for seed in range(4):
        assert unlike(there / f"t{seed}", seed, 150) == []
    assert "lost" not in here.log()
    assert pool.check() == []


def make(place: Path, seed: int, files: int) -> dict[str, bytes]:
    """Make such a tree; return what was made by calls none of which failed, close among them."""
    made = {}
    for name, content in tree(seed, files):
        try:
            (place / name).parent.mkdir(exist_ok=True)
            with open(place / name, "xb", buffering=0) as file:
                # A write of less than all is told, too.
                if content and file.write(content) != len(content):
                    continue
        except OSError as error:
            assert error.errno == errno.ENOSPC, name
            continue
        made[name] = content
    return made


# SEMANTICS 142.5
def test_a_pool_that_is_full_in_the_middle_of_a_tree_says_so_by_a_call_or_by_close(
    new_pool: NewPool, new_mount: NewMount
) -> None:
    pool = new_pool(2, 64)
    mount = new_mount(pool, BEHIND)
    (mount / "t").mkdir()
    made = make(mount / "t", 1, 100)
    fill(mount)
    (mount / "u").mkdir()
    later = make(mount / "u", 2, 400)
    assert len(made) == 100
    assert len(later) < 400, "the pool was never full"
    os.sync()
    mount.unmount()
    again = new_mount(pool)
    for place, files in (("t", made), ("u", later)):
        assert [name for name, content in files.items() if (again / place / name).read_bytes() != content] == []
    assert "lost" not in mount.log()
    assert pool.check() == []


# SEMANTICS 142.4
def test_a_killed_mount_leaves_a_beginning_beside_others_that_write(
    new_pool: NewPool, new_mount: NewMount, tmp_path: Path
) -> None:
    """What is there of a file is a beginning of what was written to it, whatever its size."""
    pool = new_pool(2, 256)
    there = new_mount(pool, BEHIND)
    for turn in range(4):
        here = new_mount(pool, BEHIND)
        (here / f"k{turn}").mkdir()
        (there / f"o{turn}").mkdir()
        tar = archive(tmp_path, turn, 200)
        unpacking = subprocess.Popen(["tar", "xf", tar, "-C", here / f"k{turn}"], stderr=subprocess.DEVNULL)
        made = make(there / f"o{turn}", turn, 40 + 30 * turn)
        here.daemon.send(signal.SIGKILL)
        assert here.daemon.ends()
        unpacking.wait(60)
        for name, content in tree(turn, 200):
            if (there / f"k{turn}" / name).exists():
                assert content.startswith((there / f"k{turn}" / name).read_bytes()), name
        assert len(made) == 40 + 30 * turn
        assert all((there / f"o{turn}" / name).read_bytes() == content for name, content in made.items())
    # Once the sessions of the dead are over.
    assert eventually(lambda: pool.check() == [])
