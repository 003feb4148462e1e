"""Table, plot and numbers say what was measured; results that differ are an error."""

import json
import re
import types
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import numpy as np
import pytest

from ramlace.demo import cases, doors, machine, options, plot, report, table, units
from ramlace.demo.data import Matrix, Table
from ramlace.demo.problem import DemoError


def row(key, seconds, parallel, limit=False):
    place = cases.Place(key, f"place {key}", 3, doors.DiskDoor(10, 10, "/f"), limit=limit)
    one = cases.Measured(1, [seconds, seconds * 2, seconds / 2], 10**9)
    many = cases.Measured(3, [parallel], 10**9)
    return cases.Row(place, one, many, "cold, verified", np.array([1.5, np.nan]))


ROWS = [row("disk", 2.0, 1.0), row("array", 0.5, 0.25), row("tmpfs", 0.4, 0.2, limit=True)]


def test_the_table_holds_every_figure_and_reads_as_markdown():
    text = table.render(ROWS, ROWS, 6, 12.5, ["a note"], [])
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert {len(line) for line in lines} == {7}
    assert ["place disk", "3", "2.000", "0.50", "1.000", "1.00", "2.00"] in lines
    assert ["place array", "3", "0.500", "2.00", "0.250", "4.00", "2.00"] in lines
    assert ["place tmpfs, sums", "3", "0.400", "2.50", "0.200", "5.00", "2.00"] in lines
    assert ["memcpy, bytes copied", "", "", "12.50", "", "", ""] in lines
    assert text.endswith("- a note")


def test_what_could_not_be_measured_has_its_line_in_both_parts():
    text = table.render(ROWS, ROWS, 6, 12.5, ["no warm mount: why"], ["pool, mount, warm cache"])
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    wanted = ["pool, mount, warm cache: not measured, see below", *[""] * 6]
    first, second = (index for index, line in enumerate(lines) if line == wanted)
    heads = [next(i for i, line in enumerate(lines) if line[0].startswith(f"**{head}")) for head in ("column", "boot")]
    assert heads[0] < first < heads[1] < second
    assert text.endswith("- no warm mount: why")


def test_the_plot_holds_the_data(tmp_path):
    png, svg = plot.draw(ROWS, ROWS[:2], 12.5, "a title", tmp_path / "p.png")
    words = " ".join(ElementTree.parse(svg).getroot().itertext())
    for text in ("a title", "place disk", "0.50 GB/s, 2.000 s", "4.00 GB/s, 0.250 s", "memcpy 12.50 GB/s"):
        assert text in words
    assert words.count("4.00 GB/s, 0.250 s") == 2
    # Bars of both colours are there, and longer ones have more of their colour.
    pixels = (matplotlib.image.imread(png)[..., :3] * 255).round().astype(int)
    for colour in (plot.SEQUENTIAL_COLOUR, plot.PARALLEL_COLOUR):
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(pixels - wanted).max(axis=-1) <= 2).sum() > 1000


def test_no_label_lies_on_the_line_a_bar_or_another_label():
    # One bar ends just before the line, one just behind it.
    rows = [row("near", 0.205, 0.195), row("far", 2.0, 0.1), *ROWS]
    figure = plot.compose(rows, rows[::-1], 5.0, "t")
    figure.canvas.draw()
    for panel in figure.axes:
        labels = [text.get_window_extent() for text in panel.texts]
        assert len(labels) == 2 * len(rows)
        marks = [mark.get_window_extent() for mark in [*panel.patches, *panel.lines]]
        assert len(marks) == 2 * len(rows) + 1
        for index, label in enumerate(labels):
            assert label.x1 <= panel.bbox.x1
            assert not any(label.overlaps(other) for other in [*labels[:index], *marks])


class SlowTeam:
    """Does the jobs here and says that several workers took longer than one."""

    def run(self, jobs):
        return types.SimpleNamespace(seconds=1.0 if len(jobs) == 1 else 1.5, results=[job()() for job in jobs])


class NumbersDoor(doors.Door):
    """Columns of numbers."""

    def connect(self):
        column = np.arange(float(self.rows))
        return lambda: types.SimpleNamespace(column=lambda _: column, close=lambda: None)


def test_a_longer_bar_is_never_a_longer_time():
    place = cases.Place("x", "x", 1, NumbersDoor(100, 4))
    found = cases.measure_bootstrap(SlowTeam(), 3, place, 1, 6, 7)
    assert found.sequential.seconds < found.parallel.seconds
    assert found.sequential.gigabytes_per_second > found.parallel.gigabytes_per_second
    assert found.sequential.gigabytes_per_second == 100 * 4 * 8 / 1e9


def test_the_bars_are_as_long_as_the_rates(tmp_path):
    _, svg = plot.draw(ROWS[:2], ROWS[:2], 5.0, "t", tmp_path / "p")
    widths = {}
    for path in ElementTree.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}path"):
        colour = re.search(r"fill: (#[0-9a-f]{6})", path.get("style") or "")
        if colour and colour[1] in (plot.SEQUENTIAL_COLOUR, plot.PARALLEL_COLOUR):
            xs = [float(word) for word in re.findall(r"[ML] ([\d.]+)", path.get("d"))]
            widths.setdefault(colour[1], []).append(max(xs) - min(xs))
    # In each panel: the disk's bar, the array's bar, and the small one of the legend.
    for colour, ratio in ((plot.SEQUENTIAL_COLOUR, 4.0), (plot.PARALLEL_COLOUR, 4.0)):
        assert widths[colour][1] / widths[colour][0] == pytest.approx(ratio, rel=1e-3)


def test_the_json_holds_all_numbers(tmp_path):
    report.write_json(tmp_path / "deep" / "d.json", ROWS, ROWS, 12.5, {"rows": 10}, ["n"], ["mount"])
    content = json.loads((tmp_path / "deep" / "d.json").read_text())
    first = content["column_sums"][0]
    assert first["sequential"]["runs_seconds"] == [2.0, 4.0, 1.0]
    assert first["sequential"]["gigabytes_per_second"] == 0.5
    assert first["cache"] == "cold, verified"
    assert content["results"]["column_sums"] == [1.5, None]
    assert content["not_measured"] == ["mount"]
    assert (content["rows"], content["memcpy_gigabytes_per_second"]) == (10, 12.5)


def test_results_that_differ_in_one_bit_are_an_error():
    expected = np.array([1.0, np.nan, 3.0])
    cases.agree("x", expected, expected.copy())
    for other in ([1.0, np.nan, np.nextafter(3.0, 4)], [1.0, 2.0, 3.0], [np.nan, np.nan, 3.0], [1.0, np.nan]):
        with pytest.raises(DemoError, match=r"x: .*(DISAGREE|were expected)"):
            cases.agree("x", expected, np.array(other))


def matrix(rows, cols):
    return Matrix(Table("t", ["a"], [np.ones(10)]), rows, cols)


def test_what_does_not_fit_into_memory_is_said_with_both_sizes():
    asked = options.parse(["--rows", "5000000", "--cols", "800"])
    with pytest.raises(DemoError) as caught:
        options.check_memory(asked, matrix(5_000_000, 800), 8 << 30)
    words = str(caught.value)
    assert "5,000,000 rows × 800 columns" in words
    assert "29.8 GiB" in words
    assert "8.0 GiB available" in words
    assert re.search(r"--rows \d+", words)
    options.check_memory(asked, matrix(5_000_000, 800), 64 << 30)


def test_the_default_fits_in_6_gib():
    asked = options.parse([])
    options.check_memory(asked, matrix(options.ROWS_DEFAULT, options.COLS_DEFAULT), 6 << 30)


def test_memory_that_is_too_small_for_the_matrix_is_refused():
    asked = options.parse(["--memory", "2MiB", "--servers", "2"])
    with pytest.raises(DemoError, match=r"lend 2\.0 MiB together"):
        options.check_memory(asked, matrix(1_000_000, 1), 64 << 30)


@pytest.mark.parametrize(
    "arguments",
    [["--rows", "0"], ["--cols", "-1"], ["--servers", "x"], ["--memory", "lots"], ["--memory", "-1"], ["extra"]],
)
def test_options_that_make_no_sense_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        options.parse(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("1k", 1024), ("1.5GiB", 3 << 29), ("2 M".replace(" ", ""), 2 << 20)]
)
def test_sizes_are_read(text, count):
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "0", "-1", "1X", "nan", "inf"])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(ValueError):
        units.parse_bytes(text)


def test_a_cold_file_is_verified_to_be_cold(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(8 << 20))
    # Just written: all of it is in the page cache.
    assert machine.resident_bytes(path) == 8 << 20
    words = machine.make_cold(path)
    if machine.filesystem_of(tmp_path) in ("tmpfs", "overlay"):
        pytest.skip("this file system keeps its pages, or those of the one below it")
    assert words == "cold cache, verified by mincore"
    assert machine.make_warm(path) == "warm cache, verified by mincore"
    assert machine.resident_bytes(path) == 8 << 20


def test_how_cold_and_warm_a_file_is_is_told_in_full(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(bytes(1000))
    told = {}
    for resident in (0, 7, 500, 993, 1000, 4096, None):
        monkeypatch.setattr(machine, "resident_bytes", lambda _, answer=resident: answer)
        told[resident] = (machine.say_cold(path), machine.make_warm(path))
    assert told[0] == (
        "cold cache, verified by mincore",
        "NOT warm: 1000 bytes did not stay in the page cache, by mincore",
    )
    assert told[7][0] == "cold cache but for 7 bytes, by mincore"
    assert told[500] == (
        "NOT cold: 500 bytes stayed in the page cache, by mincore",
        "NOT warm: 500 bytes did not stay in the page cache, by mincore",
    )
    assert told[993][1] == "warm cache but for 7 bytes, by mincore"
    # The last page counts whole, though the file ends in it.
    assert told[1000][1] == told[4096][1] == "warm cache, verified by mincore"
    assert [words.split(",")[1] for words in told[None]] == [" but the kernel does not tell whether it is"] * 2


def test_what_the_caches_were_before_each_run_is_kept():
    said = iter(["cold", "cold but for 1 page", "cold", "cold"])
    matrix = np.asfortranarray(np.arange(12.0).reshape(4, 3))

    class Door(doors.Door):
        def connect(self):
            raise NotImplementedError

    class Team:
        def run(self, jobs):
            return types.SimpleNamespace(seconds=1.0, results=[matrix[:, job.columns].sum(axis=0) for job in jobs])

    place = cases.Place("p", "place", 0, Door(4, 3), lambda: next(said))
    row = cases.measure_sums(Team(), 3, place, 2)
    assert row.cache == "cold; cold but for 1 page"
    assert len(row.sequential.runs) == len(row.parallel.runs) == 2
    assert list(said) == []
