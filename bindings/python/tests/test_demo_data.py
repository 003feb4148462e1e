"""The demo's data set: what is taken, what is left out with a note, what is refused."""

import numpy as np
import pandas as pd
import pytest

from ramlace.demo import data
from ramlace.demo.problem import DemoError


def test_the_flights_table_has_its_14_numeric_columns_and_its_gaps():
    table = data.load(None)
    assert (table.rows, len(table.columns)) == (336_776, 14)
    by_name = dict(zip(table.names, table.columns, strict=True))
    # The figures that R's summary(nycflights13::flights) gives.
    assert np.isnan(by_name["dep_delay"]).sum() == 8255
    assert np.nanmean(by_name["dep_delay"]) == pytest.approx(12.63907, abs=1e-5)
    assert by_name["distance"].sum() == 350_217_607
    assert "carrier" in table.notes[0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_columns_are_left_out_with_a_note(tmp_path, suffix):
    frame = pd.DataFrame({"a": [1, 2, 3], "name": ["x", "y", "z"], "b": [0.5, None, 2.5], "flag": [True, False, True]})
    path = tmp_path / f"table{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    table = data.load(path)
    assert table.names == ["a", "b", "flag"]
    assert "name" in table.notes[0]
    np.testing.assert_array_equal(np.stack(table.columns), [[1, 2, 3], [0.5, np.nan, 2.5], [1, 0, 1]])


def test_whole_numbers_with_gaps_become_nan(tmp_path):
    frame = pd.DataFrame({"n": pd.array([1, None, 3], dtype="Int64")})
    frame.to_parquet(tmp_path / "t.parquet")
    np.testing.assert_array_equal(data.load(tmp_path / "t.parquet").columns[0], [1, np.nan, 3])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.csv", b"a,b\nx,y\n", "none of its 2 columns is numeric"),
        ("empty.csv", b"", "not readable as CSV"),
        ("head.csv", b"a,b\n", "(none of its 2 columns|no rows)"),
        ("ragged.csv", b"a,b\n1,2\n1,2,3,4\n", "not readable as CSV"),
        ("bytes.csv", b"a\n\xff\xfe\x00\n", "not readable as CSV|none of its"),
        ("bad.parquet", b"not parquet at all", "not readable as Parquet"),
        ("bad.npy", b"nothing", "bad.npy"),
        ("cut.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', ", "cut.npy"),
        ("table.xlsx", b"x", "must end in .csv, .npy or .parquet"),
    ],
)
def test_a_file_without_numbers_is_refused_in_words(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DemoError, match=words):
        data.load(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DemoError, match=r"gone\.csv: no such file"):
        data.load(tmp_path / "gone.csv")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([{}, []], dtype=object), "Python objects"),
        (np.array(["a", "b"]), "its type is <U1"),
        (np.ones(3, dtype=complex), "its type is complex128"),
        (np.zeros((2, 2, 2)), r"its shape is \(2, 2, 2\)"),
        (np.zeros((0, 3)), r"its shape is \(0, 3\)"),
        (np.zeros(3, dtype=[("a", "f8")]), "its type is"),
    ],
)
def test_npy_files_without_a_matrix_of_numbers_are_refused(tmp_path, array, words):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(DemoError, match=words):
        data.load(tmp_path / "a.npy")


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_keep_rows_and_columns(tmp_path, order):
    matrix = np.asarray(np.arange(12, dtype=np.int32).reshape(4, 3), order=order)
    np.save(tmp_path / "m.npy", matrix)
    np.testing.assert_array_equal(np.stack(data.load(tmp_path / "m.npy").columns, axis=1), matrix)


@pytest.mark.parametrize(("rows", "cols"), [(7, 5), (3, 2), (2, 1), (1, 9)])
def test_a_table_is_repeated_downwards_and_sideways(rows, cols):
    source = np.arange(6, dtype=float).reshape(3, 2)
    matrix = data.Matrix(data.Table("t", ["a", "b"], [source[:, 0], source[:, 1]]), rows, cols)
    wanted = [[source[i % 3, j % 2] for j in range(cols)] for i in range(rows)]
    np.testing.assert_array_equal(np.stack(list(matrix.filled_columns()), axis=1), wanted)
    np.testing.assert_array_equal(np.stack([matrix.column(j) for j in range(cols)], axis=1), wanted)
    assert matrix.nbytes == rows * cols * 8
