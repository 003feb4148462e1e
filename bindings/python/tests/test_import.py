"""Importing needs no server and no numpy; errors are OSErrors of their errno."""

import errno
import os
import subprocess
import sys

import pytest

import ramlace
from ramlace import _command, _errors


def test_importing_starts_nothing_and_imports_no_numpy(tmp_path):
    code = "import sys, ramlace; sys.exit('numpy' in sys.modules or 'pandas' in sys.modules)"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "RAMLACE_BIN": "/nonexistent"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "builtin"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EEXIST, FileExistsError),
        (errno.EACCES, PermissionError),
        (errno.EISDIR, IsADirectoryError),
        (errno.ENOTDIR, NotADirectoryError),
        (errno.ETIMEDOUT, TimeoutError),
        (errno.ENOSPC, OSError),
    ],
)
def test_errors_are_also_the_built_in_ones(number, builtin):
    error = _errors.make(number, "Kind", "a sentence")
    assert isinstance(error, builtin)
    assert isinstance(error, ramlace.Error)
    assert (error.errno, error.kind, error.strerror) == (number, "Kind", "a sentence")


def test_a_pool_that_is_not_there_says_how_to_start_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="ramlace up"):
        ramlace.connect("nobody-started-this")


def test_a_command_that_is_not_there_says_the_next_step(monkeypatch, tmp_path):
    monkeypatch.delenv("RAMLACE_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match=r"make build.*RAMLACE_BIN"):
        _command.find()
    monkeypatch.setenv("RAMLACE_BIN", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match="gone, which is no program"):
        _command.find()


def _program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_command_that_fails_is_told_in_its_own_words(monkeypatch, tmp_path):
    monkeypatch.setenv("RAMLACE_BIN", _program(tmp_path / "c", "echo 'port 7000 is in use' >&2; exit 1"))
    with pytest.raises(ramlace.Error, match="'ramlace up' failed: port 7000 is in use"):
        _command.run("up")
    monkeypatch.setenv("RAMLACE_BIN", _program(tmp_path / "d", "kill -9 $$"))
    with pytest.raises(ramlace.Error, match="killed by signal 9"):
        _command.run("up")
    monkeypatch.setenv("RAMLACE_BIN", _program(tmp_path / "e", "echo hello"))
    with pytest.raises(ramlace.Error, match="no JSON"):
        _command.run("up")


@pytest.mark.parametrize("deadline", [0, -1, 601, float("nan")])
def test_a_deadline_out_of_range_is_refused(deadline):
    with pytest.raises(ValueError, match="deadline"):
        ramlace.connect("x", deadline_seconds=deadline)
