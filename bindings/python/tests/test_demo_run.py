"""The whole demo, small: its table, plot and numbers; bad inputs; a worker killed in its middle."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest


@pytest.fixture
def environment(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Sockets have short names: no directory deep below the temporary ones.
    with tempfile.TemporaryDirectory(prefix="rl-") as run:
        yield {**os.environ, "XDG_RUNTIME_DIR": run, "TMPDIR": str(temporary)}


def start(environment, cwd, *arguments, prefix=()):
    command = [*prefix, sys.executable, "-m", "ramlace.demo", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


# The demo's temporary directory is the test's: a mount of another run is not taken for its own.
def mounts(environment):
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [line[4] for line in lines if line[4].startswith(environment["TMPDIR"])]


def daemons(environment):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"mount" in words and any(word.startswith(environment["TMPDIR"].encode()) for word in words):
                found.append(words)
    return found


def nothing_is_left(environment, out):
    assert mounts(environment) == []
    until = time.monotonic() + 20
    # A daemon ends a moment after its mount.
    while daemons(environment) and time.monotonic() < until:
        time.sleep(0.05)
    assert daemons(environment) == []
    assert list(Path(environment["TMPDIR"]).glob("ramlace-demo-*")) == []
    assert list(Path(environment["XDG_RUNTIME_DIR"]).glob("ramlace/*/pool.json")) == []
    assert list(out.glob("*.f64")) == []
    assert list(Path("/dev/shm").glob("ramlace-demo-*")) == []


def why_no_mount():
    """Return what is missing for a mount, or nothing."""
    if not Path("/dev/fuse").exists():
        return "this machine has no /dev/fuse"
    if os.geteuid() and not shutil.which("fusermount3"):
        return "fusermount3 is missing"
    # Root of a container often may not mount.
    if not os.geteuid() and subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        return "root may not mount here"
    return ""


PLACES = ["local disk, cold cache", "pool, library reads over TCP", "pool, native arrays"]
MOUNTED = ["pool, mount, cold cache", "pool, mount, warm cache"]
LIMITS = ["tmpfs, the same code, sums", "tmpfs, the same code, bootstrap"]


def lines_of(out):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize("servers", [3, pytest.param(1, marks=pytest.mark.long)])
def test_the_demo_agrees_with_numpy_and_tells_the_same_everywhere(environment, tmp_path, servers):
    values = np.random.default_rng(5).normal(size=(5000, 13))
    values[values > 2] = np.nan
    np.save(tmp_path / "m.npy", values)
    demo = start(environment, tmp_path, "--input", "m.npy", "--servers", servers, "--out", "out", "--json", "d.json")
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    content = json.loads((tmp_path / "d.json").read_text())
    np.testing.assert_allclose(content["results"]["column_sums"], np.nansum(values, axis=0), rtol=1e-12)
    means = np.array(content["results"]["bootstrap_means"])
    assert means.shape == (6, 13)
    np.testing.assert_allclose(means.mean(axis=0), np.nanmean(values, axis=0), atol=0.05)

    rows = lines_of(out)
    figures = [row[0] for row in rows if re.fullmatch(r"\d+\.\d{3}", row[2])]
    places = PLACES if why_no_mount() else PLACES + MOUNTED
    assert figures == [*places, *places, *LIMITS]
    assert {row[1] for row in rows if row[0].startswith("pool,") and row[2]} == {str(servers)}
    for measured in content["column_sums"]:
        line = next(row for row in rows if row[0].startswith(measured["title"]))
        assert line[2] == f"{measured['sequential']['seconds']:.3f}"
        assert line[4] == f"{measured['parallel']['seconds']:.3f}"
        assert measured["sequential"]["bytes"] == 5000 * 13 * 8
    caches = {row["key"]: row["cache"] for row in content["column_sums"] + content["bootstrap"]}
    keys = {"disk", "tcp", "array", "tmpfs"}
    assert set(caches) == (keys if why_no_mount() else keys | {"mount_cold", "mount_warm"})
    if not why_no_mount():
        assert caches["mount_cold"] == "cold cache, verified by mincore"
        assert caches["mount_warm"] == "warm cache, verified by mincore"
        assert content["not_measured"] == []

    words = " ".join(ElementTree.parse(tmp_path / "out" / "demo.svg").getroot().itertext())
    for measured in (*content["column_sums"], *content["bootstrap"]):
        for figure in (measured["sequential"], measured["parallel"]):
            assert f"{figure['gigabytes_per_second']:.2f} GB/s, {figure['seconds']:.3f} s" in words
    pixels = (matplotlib.image.imread(tmp_path / "out" / "demo.png") * 255).astype(np.uint8)
    # As one number each: to sort rows of a million takes longer than the demo.
    assert len(np.unique(np.ascontiguousarray(pixels).view(np.uint32))) > 10
    nothing_is_left(environment, tmp_path / "out")


# A /dev without the device of FUSE, in a mount namespace of the command's own.
HIDE_FUSE = """
set -e
mkdir "$0/dev"
mount -t tmpfs hidden "$0/dev"
mkdir "$0/dev/shm"
mount --rbind /dev/shm "$0/dev/shm"
for name in null zero full random urandom tty; do touch "$0/dev/$name"; mount --bind "/dev/$name" "$0/dev/$name"; done
mount --rbind "$0/dev" /dev
test ! -e /dev/fuse
exec "$@"
"""


def test_without_fuse_the_demo_does_the_rest_and_says_so(environment, tmp_path):
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    prefix = [*unshare, "sh", "-c", HIDE_FUSE, str(tmp_path)]
    trial = subprocess.run([*prefix, "true"], check=False, capture_output=True, text=True)
    if trial.returncode:
        pytest.skip(f"/dev/fuse cannot be hidden here: {trial.stderr.strip()}")
    (tmp_path / "dev").rmdir()
    np.save(tmp_path / "m.npy", np.arange(600.0).reshape(100, 6))
    demo = start(environment, tmp_path, "--input", "m.npy", "--out", "out", prefix=prefix)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    assert "the pool cannot be mounted here: " in err
    assert "Traceback" not in err
    rows = lines_of(out)
    figures = [row[0] for row in rows if re.fullmatch(r"\d+\.\d{3}", row[2])]
    assert figures == [*PLACES, *PLACES, *LIMITS]
    for title in MOUNTED:
        assert [row[0] for row in rows].count(f"{title}: not measured, see below") == 2
    notes = [line for line in out.splitlines() if line.startswith("- no rows through the mount: ")]
    assert len(notes) == 1
    assert "/dev/fuse" in notes[0]
    content = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert content["not_measured"] == MOUNTED
    assert notes[0].removeprefix("- ") in content["notes"]
    nothing_is_left(environment, tmp_path / "out")


@pytest.mark.long
def test_the_default_data_fills_the_size_asked_for(environment, tmp_path):
    demo = start(environment, tmp_path, "--rows", 20_000, "--cols", 30)
    _, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    content = json.loads((tmp_path / "demo-out" / "demo.json").read_text())
    sums = content["results"]["column_sums"]
    assert (content["rows"], content["cols"], len(sums)) == (20_000, 30, 30)
    # Columns 0 and 14 are the same column of the table: the year.
    assert sums[0] == sums[14] == sums[28] == 20_000 * 2013
    assert "carrier" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "gone.csv"], "gone.csv: no such file"),
        (["--input", "text.csv"], "none of its 2 columns is numeric"),
        (["--input", "objects.npy"], "Python objects"),
        (["--rows", "500000000", "--cols", "8000"], "does not fit into memory"),
        (["--rows", "1000", "--cols", "5", "--memory", "1KiB"], "lend"),
    ],
)
def test_bad_inputs_end_with_a_sentence_and_leave_nothing(environment, tmp_path, arguments, words):
    (tmp_path / "text.csv").write_text("a,b\nx,y\n")
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    demo = start(environment, tmp_path, *arguments)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert words in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("ramlace.demo: ")
    assert "Traceback" not in err
    nothing_is_left(environment, tmp_path / "demo-out")


# Enough runs at each place that a signal sent at its first one meets it, on any machine; a late one meets the next.
REPEAT = 8


def start_long(environment, cwd):
    """Start a demo that is still at work when the signal comes; with data that need no parsing of a table."""
    np.save(cwd / "m.npy", np.random.default_rng(7).normal(size=(50_000, 40)))
    return start(environment, cwd, "--input", "m.npy", "--repeat", REPEAT)


# Each moment is a whole demo.
MOMENTS = [
    *(pytest.param(moment, marks=pytest.mark.long) for moment in ("local disk", "native arrays", "mount, cold")),
    "over TCP",
    "mount, warm",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_worker_is_named_and_everything_is_cleaned_up(environment, tmp_path, moment):
    if "mount" in moment and why_no_mount():
        pytest.skip(why_no_mount())
    demo = start_long(environment, tmp_path)
    pids = []
    for line in demo.stderr:
        found = re.match(r"3 worker processes: (.*)", line)
        if found:
            pids = [int(pid) for pid in found[1].split()]
        if line.startswith("measuring") and moment in line:
            break
    os.kill(pids[1], signal.SIGKILL)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert f"worker 1 (pid {pids[1]}) was killed by SIGKILL" in err
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    nothing_is_left(environment, tmp_path / "demo-out")


@pytest.mark.parametrize("moment", ["over TCP", "mount, warm"])
def test_a_demo_that_is_told_to_stop_cleans_up(environment, tmp_path, moment):
    if "mount" in moment and why_no_mount():
        pytest.skip(why_no_mount())
    demo = start_long(environment, tmp_path)
    for line in demo.stderr:
        if line.startswith("measuring") and moment in line:
            break
    demo.send_signal(signal.SIGTERM)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGTERM, err
    nothing_is_left(environment, tmp_path / "demo-out")
