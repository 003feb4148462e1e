"""The whole demo, small: its table, plot and numbers; bad inputs; a worker killed in its middle."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest


@pytest.fixture
def environment(tmp_path):
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    return {**os.environ, "XDG_RUNTIME_DIR": str(run)}


def start(environment, cwd, *arguments):
    command = [sys.executable, "-m", "ramlace.demo", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def nothing_is_left(environment, out):
    assert list(Path(environment["XDG_RUNTIME_DIR"]).glob("ramlace/*/pool.json")) == []
    assert list(out.glob("*.f64")) == []
    assert list(Path("/dev/shm").glob("ramlace-demo-*")) == []


@pytest.mark.parametrize("servers", [3, 1])
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

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line[:1] == "|"]
    figures = [row[0] for row in rows if re.fullmatch(r"\d+\.\d{3}", row[2])]
    places = ["local disk, cold cache", "pool, library reads over TCP", "pool, native arrays"]
    assert figures == [*places, *places, "tmpfs, the same code, sums", "tmpfs, the same code, bootstrap"]
    assert {row[1] for row in rows if row[0].startswith("pool,")} == {str(servers)}
    for measured in content["column_sums"]:
        line = next(row for row in rows if row[0].startswith(measured["title"]))
        assert line[2] == f"{measured['sequential']['seconds']:.3f}"
        assert line[4] == f"{measured['parallel']['seconds']:.3f}"
        assert measured["sequential"]["bytes"] == 5000 * 13 * 8
    assert {row["key"] for row in content["column_sums"]} >= {"disk", "tcp", "array"}

    words = " ".join(ElementTree.parse(tmp_path / "out" / "demo.svg").getroot().itertext())
    for measured in (*content["column_sums"], *content["bootstrap"]):
        for figure in (measured["sequential"], measured["parallel"]):
            assert f"{figure['gigabytes_per_second']:.2f} GB/s, {figure['seconds']:.3f} s" in words
    assert len(np.unique(matplotlib.image.imread(tmp_path / "out" / "demo.png").reshape(-1, 4), axis=0)) > 10
    nothing_is_left(environment, tmp_path / "out")


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


@pytest.mark.parametrize("moment", ["local disk", "over TCP", "native arrays"])
def test_a_killed_worker_is_named_and_everything_is_cleaned_up(environment, tmp_path, moment):
    demo = start(environment, tmp_path, "--rows", 300_000, "--cols", 40, "--repeat", 50)
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


def test_a_demo_that_is_told_to_stop_cleans_up(environment, tmp_path):
    demo = start(environment, tmp_path, "--rows", 300_000, "--cols", 40, "--repeat", 50)
    for line in demo.stderr:
        if line.startswith("measuring") and "TCP" in line:
            break
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGTERM
    nothing_is_left(environment, tmp_path / "demo-out")
