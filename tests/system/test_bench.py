"""The bench runs: one short round of everything, whose numbers mean nothing but must be there."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pool import BUILT

ROOT = Path(__file__).resolve().parents[2]
FIGURES = (
    "read 1 MiB, calls, tcp, 1 server",
    "write 1 MiB, stream, tcp, 3 servers",
    "read 1 MiB, stream, unix, 1 server",
    "read 4 KiB, tcp, p50",
    "read 4 KiB, unix, p99",
    "column sums, native, first scan",
    "column sums, native, warm",
    "create and close, tcp",
    "private memory of a server (supervisor and child)",
    "CPU of an idle server, no client",
    "CPU of an idle server, a connected client",
    "up of 4 servers",
    "trees, untar",
    "trees, untar, requests of the kernel a file",
    "trees, rm -rf, messages a file",
    "trees, untar, messages a file, sent later",
    "trees, ls -lR again",
    "coherent alone, read 4 KiB, cold",
    "coherent alone, write 1 MiB",
    "coherent alone, mapped stores and msync",
    "coherent alone, small files opened, read and closed",
    "mount, msync of pages with stores: 1",
    "mount, msync of pages with stores, which another mount has mapped: 16",
    "mount, msync, a page of 4,096 beside one of 256",
    "mount, refresh of an unchanged mapped GiB",
    "strict, a page that changes sides",
    "strict, scan of what another mount has stored, of a cold read",
)
PYTHON_FIGURES = (
    "column sums, numpy, first scan",
    "column sums, numpy, warm",
    "mount, sequential read of an array that a program has open for stores",
)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the bench."""
    drivers = Path(os.environ.get("RAMLACE_BENCH_BIN", BUILT / "ramlace-bench"))
    if not drivers.exists():
        pytest.fail("the drivers are not built: make test builds them")
    command = [sys.executable, str(ROOT / "bench" / "run.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def positive(value: object) -> bool:
    """Whether it is a number that a measurement can have."""
    return isinstance(value, float) and math.isfinite(value) and value > 0


@pytest.mark.long
def test_a_quick_run_yields_every_figure_beside_its_limit(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    done = run("--quick", "--json", str(target))
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    rows = {row["name"]: row for row in result["figures"]}
    assert set(FIGURES) | set(PYTHON_FIGURES) <= set(rows)
    assert result["quick"] is True
    assert result["machine"]["cores"] >= 1
    for name, row in rows.items():
        assert name in done.stdout, "the table has a line for each figure"
        if "limits" not in row:
            assert all(value >= 0 and math.isfinite(value) for value in row["figure"]["samples"]), row
            continue
        sides = [row["figure"], *row["limits"].values()]
        assert all(positive(side["value"]) and positive(side["cpu"]) for side in sides), row
        assert row["ratio"] == sides[0]["value"] / sides[1]["value"], row
        assert len(row["ratio_rounds"]) == 1, row


def test_only_what_is_asked_for_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    done = run("--quick", "--only", "read 4 KiB, tcp", "--json", str(target))
    assert done.returncode == 0, done.stderr
    names = [row["name"] for row in json.loads(target.read_text())["figures"]]
    assert names == ["read 4 KiB, tcp, p50", "read 4 KiB, tcp, p99"]


# Two names of one file stand for a file on two mounts.
PROOF = """#!/bin/sh
truncate -s 4096 "$1/f" && ln "$1/f" "$2/f" && echo up && read line
"""


def test_a_page_that_changes_sides_is_measured_beside_another_program(tmp_path: Path) -> None:
    target, proof = tmp_path / "bench.json", tmp_path / "proof"
    proof.write_text(PROOF)
    proof.chmod(0o755)
    done = run("--quick", "--only", "strict, a page", "--proof", str(proof), "--json", str(target))
    assert done.returncode == 0, done.stderr
    name = "strict, a page that changes sides"
    rows = {row["name"].removeprefix(name): row["figure"]["value"] for row in json.loads(target.read_text())["figures"]}
    ours, theirs, trip, ratio = (
        rows[part]
        for part in (
            "",
            ", the other program's",
            ", a round trip of 64 bytes",
            ", of twice the other program's and a round trip",
        )
    )
    assert 0 < theirs < ours
    assert ratio == ours / (2 * theirs + trip)
    # One that does not say that it is up is no silent gap in the table.
    proof.write_text("#!/bin/sh\n")
    done = run("--quick", "--only", "strict, a page", "--proof", str(proof))
    assert done.returncode == 1
    assert "did not say that it is up" in done.stderr


def test_trees_are_measured_beside_null_fuse_and_where_no_wake_goes_between_cores(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    done = run("--quick", "--only", "trees, untar", "--json", str(target))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(target.read_text())["figures"]}
    assert list(rows["trees, untar"]["limits"]) == ["null FUSE on one core", "all of it on one core", "sent later"]


@pytest.mark.needs_root
def test_ranks_on_two_machines_are_measured_beside_those_without_hints(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    done = run("--quick", "--only", "MPI-IO, Open MPI, two machines", "--json", str(target))
    assert done.returncode == 0, done.stderr
    if "is left out" in done.stderr:
        pytest.skip(done.stderr.strip())
    name = "MPI-IO, Open MPI, two machines, each rank's block, placement=local"
    rows = {row["name"]: row for row in json.loads(target.read_text())["figures"]}
    assert list(rows) == [f"{name}, write", f"{name}, read"]
    assert all(list(row["limits"]) == ["the usual layout"] for row in rows.values())
    # Nothing of the machines is left.
    left = subprocess.run(["ip", "netns"], capture_output=True, check=True, text=True).stdout
    assert "ramlace-bench-" not in left
