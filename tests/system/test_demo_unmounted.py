"""The demo where an ordinary user has no fusermount3, and where there is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mount import why_not
from pool import PATIENCE_SECONDS, binary

MOUNTED = ["pool, mount, cold cache", "pool, mount, warm cache"]


def run(runtime: Path, place: Path, path: str) -> "subprocess.CompletedProcess[str]":
    """Run the demo on a small matrix with programs from these directories alone."""
    np.save(place / "m.npy", np.arange(600.0).reshape(100, 6))
    words = [sys.executable, "-m", "ramlace.demo", "--input", "m.npy", "--out", "out", "--servers", "2"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PATH": path, "RAMLACE_BIN": binary()}
    return subprocess.run(
        words, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_SECONDS
    )


def test_without_fusermount3_an_ordinary_user_gets_the_rest_and_a_sentence(runtime: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root needs no fusermount3; the round as an ordinary user runs this")
    done = run(runtime, tmp_path, "/nonexistent")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out/demo.json").read_text())
    assert content["not_measured"] == MOUNTED
    assert [row["key"] for row in content["column_sums"]] == ["disk", "tcp", "array", "tmpfs"]
    (note,) = [note for note in content["notes"] if note.startswith("no rows through the mount: ")]
    assert note.removeprefix("no rows through the mount: ") in done.stderr
    assert "fuse" in note
    assert done.stdout.count("not measured, see below") == 4


def test_with_it_every_user_gets_the_rows_through_the_mount(runtime: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    done = run(runtime, tmp_path, os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out/demo.json").read_text())
    assert content["not_measured"] == []
    caches = {row["key"]: row["cache"] for row in content["column_sums"] + content["bootstrap"]}
    assert caches["mount_cold"] == "cold cache, verified by mincore"
    assert caches["mount_warm"] == "warm cache, verified by mincore"
