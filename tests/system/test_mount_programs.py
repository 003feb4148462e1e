"""Programs that know nothing of pools and use files hard: version control, databases, environments, builds."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pool import PATIENCE_SECONDS, pattern


def done(*words: str | Path, at: Path) -> str:
    """Run a program to its good end; return what it has said."""
    ended = subprocess.run(words, cwd=at, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
    return ended.stdout


def git(at: Path, *words: str | Path) -> str:
    """Run git as nobody in particular, whatever this machine's settings are."""
    settings = ["user.name=a", "user.email=a@b", "init.defaultBranch=main", "safe.directory=*", "gc.auto=0"]
    return done("git", *[word for setting in settings for word in ("-c", setting)], *words, at=at)


# SEMANTICS 29.1
def test_git_commits_clones_collects_and_finds_nothing_broken(here: Path, there: Path, tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    first = here / "first"
    git(here, "init", "-q", first)
    for turn in range(4):
        for number in range(20):
            (first / f"file-{number}").write_bytes(pattern(turn * 20 + number, 3000 * (number + 1)))
        git(first, "add", ".")
        git(first, "commit", "-q", "-m", f"turn {turn}")
    git(first, "checkout", "-q", "-b", "other", "HEAD~2")
    git(first, "merge", "-q", "main")
    git(first, "gc", "-q", "--prune=now")
    # By the other mount and out of the pool: the same history, and no object that is not what its name says.
    git(there, "clone", "-q", "--no-hardlinks", there / "first", there / "second")
    git(tmp_path, "clone", "-q", first, tmp_path / "third")
    for tree in (first, there / "first", here / "second", tmp_path / "third"):
        git(tree, "fsck", "--strict", "--full")
        assert git(tree, "status", "--short") == ""
        assert git(tree, "rev-parse", "HEAD") == git(first, "rev-parse", "main")
        assert (tree / "file-7").read_bytes() == pattern(67, 24_000)


# SEMANTICS 29.1
def test_a_database_of_one_writer_is_whole_for_the_next(here: Path, there: Path) -> None:
    def connect(directory: Path) -> sqlite3.Connection:
        return sqlite3.connect(directory / "base.db")

    expected = 0
    for turn in range(4):
        with closing(connect((here, there)[turn % 2])) as base:
            base.execute("create table if not exists numbers (a integer primary key, b text)")
            rows = ((turn * 1000 + number, "x" * (number % 700)) for number in range(1000))
            with base:
                base.executemany("insert into numbers values (?, ?)", rows)
            with base:
                base.execute("delete from numbers where a % 3 = ?", (turn % 3,))
            # What is taken back has not been.
            base.execute("update numbers set b = 'wrong'")
            base.rollback()
            base.execute("vacuum")
            expected = base.execute("select count(*) from numbers").fetchone()[0]
        with closing(connect((there, here)[turn % 2])) as base:
            assert base.execute("pragma integrity_check").fetchone() == ("ok",)
            assert base.execute("select count(*) from numbers").fetchone() == (expected,)
            assert base.execute("select count(*) from numbers where b = 'wrong'").fetchone() == (0,)
    assert expected > 0


def test_a_python_environment_works_where_it_was_made(here: Path, there: Path) -> None:
    done(sys.executable, "-m", "venv", "--without-pip", here / "env", at=here)
    packages = next((here / "env/lib").glob("python*/site-packages"))
    (packages / "mine").mkdir()
    (packages / "mine/__init__.py").write_text("import json\nanswer = json.dumps({'it': 'works'})\n")
    for python in (here / "env/bin/python", there / "env/bin/python"):
        assert done(python, "-c", "import mine; print(mine.answer)", at=here) == '{"it": "works"}\n'


def test_a_program_is_built_run_and_built_anew(here: Path) -> None:
    if not (shutil.which("cc") and shutil.which("make")):
        pytest.skip("there is no C compiler or no make")
    (here / "Makefile").write_text("program: main.o part.o\n\tcc -o $@ $^\n%.o: %.c\n\tcc -c -o $@ $<\n")
    (here / "part.c").write_text("int part(void) { return 41; }\n")
    main = '#include <stdio.h>\nint part(void);\nint main(void) {{ printf("%d\\n", part() + {}); return 0; }}\n'
    for turn in range(3):
        (here / "main.c").write_text(main.format(turn))
        said = done("make", at=here)
        assert ("part.c" in said) == (turn == 0), "what has not changed was built again"
        assert done(here / "program", at=here) == f"{41 + turn}\n"
        assert "up to date" in done("make", at=here)
