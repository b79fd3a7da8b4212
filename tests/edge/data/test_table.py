"""Tables as people have them, and what is wrong with them by line and column."""

from pathlib import Path

import numpy as np
import pytest

from sedge_edge.data import load_source, read_source
from sedge_protocol.errors import DataError

NUMBERS = [[5.25, -1.0], [0.5, 2.0], [1e-3, 7.0]]


def write(folder: Path, text: str, name: str = "train.csv") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    "text",
    [
        "5.25,-1,0\n0.5,2,2\n1e-3,7,1\n",
        "5.25,-1,0\r\n0.5,2,2\r\n\r\n1e-3,7,1",
        "a,b,label\n5.25,-1,0\n0.5,2,2\n1e-3,7,1\n",
        "a,b,species\n5.25,-1,0\n0.5,2,2\n1e-3,7,1\n",
        "label,a,b\n0,5.25,-1\n2,0.5,2\n1,1e-3,7\n",
        'a, Y ,b\n5.25,0,"-1"\n0.5,2,2\n1e-3,1,7\n',
        "\ufeffa;target;b\n5,25;0;-1,0\n0,5;2;2,0\n0,001;1;7,0\n",
        "a;b;y\n5.25;-1;0\n.5;2;2\n0.001;7;1\n",
        "5,25\t-1\t0\n0,5\t2\t2\n0,001\t7\t1\n",
        "0,1,2\n5.25,-1,0\n0.5,2,2\n1e-3,7,1\n",  # to_csv of a frame without names
        "0,1,label\n5.25,-1,0\n0.5,2,2\n1e-3,7,1\n",
        "# a,b,y\n5.25,-1,0\n0.5,2,2\n1e-3,7,1\n",  # savetxt
        "group,a,b,label\nann,5.25,-1,0\nbob,0.5,2,2\nann,1e-3,7,1\n",
        "a,b,label,group\n5.25,-1,0,ann\n0.5,2,2,bob\n1e-3,7,1,ann\n",
    ],
)
def test_the_same_table_as_people_write_it(tmp_path: Path, text: str) -> None:
    source = read_source(write(tmp_path, text), tmp_path)
    examples, group = source.examples(), source.groups()
    assert examples.inputs.dtype == np.float32
    np.testing.assert_array_equal(examples.inputs, np.array(NUMBERS, np.float32))
    assert examples.targets.dtype == np.int64
    assert examples.targets.tolist() == [0, 2, 1]
    named = None if group is None else group.tolist()
    assert named == (["ann", "bob", "ann"] if "group" in text else None)


def test_a_target_that_is_not_whole_is_a_number(tmp_path: Path) -> None:
    """Also where only one row shows it, or only the way it is written."""
    for values in ("1,2,0\n1,2,0.5\n", "1,2,0.0\n1,2,1.0\n"):
        examples = load_source(write(tmp_path, values), tmp_path)
        assert examples.targets.dtype == np.float32
        assert examples.targets.shape == (2, 1)


def test_a_last_column_taken_as_the_target_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_source(write(tmp_path, "a,b,species\n1,2,0\n"), tmp_path)
    (said,) = caplog.messages
    assert "train.csv: the target is the last column, species; no column is called" in said
    caplog.clear()
    load_source(write(tmp_path, "a,b,label\n1,2,0\n"), tmp_path)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, expected a table"),
        ("a,b,y\n", "no examples below the column names"),
        ("a\n1\n", "one column, expected the inputs and the target"),
        ("group,y\nann,1\n", "no column but the target"),
        ("a,b,y\n1,,0\n", r"line 2, column 2 \(b\): empty, expected a number: fill it in or leave"),
        ("1,2,0\n1,NA,0\n", "line 2, column 2: 'NA', expected a number$"),
        ("1,nan,0\n1,2,0\n", "line 1, column 2: 'nan', expected a number$"),
        ("a,b,y\n\n1,2,0\n1,inf,0\n", r"line 4, column 2 \(b\): 'inf', expected a number"),
        ("a,b,y\n1,1e999,0\n", r"line 2, column 2 \(b\): '1e999'"),
        (
            "a,b,label\n1,2,cat\n",
            r"\(label\): 'cat', expected a number: number the classes, in the same",
        ),
        (
            "5.1,3.5,setosa\n4.9,3.0,setosa\n",
            "line 1, column 3: 'setosa', expected a number: number the",
        ),
        ("a,b,y\n1,2\n", "line 2: 2 fields, expected 3 as in the first line"),
        ("a,y,label\n1,2,0\n", "columns y, label, expected one target: rename the others"),
        (",a,b,label\n0,1,2,0\n", "column 1 has no name; if it holds row numbers"),
        ("Unnamed: 0,a,label\n0,1,0\n", "column 1 has no name"),
        ("a;b;y\n1.234,5;2;0\n", r"column 1 \(a\): '1.234,5', expected a number"),
        ("a;b;y\n1,234,567;2;0\n", r"column 1 \(a\): '1,234,567'"),
        ('a,b,y\n"1,5",2,0\n', r"column 1 \(a\): '1,5'"),
        ("1 2 0\n", "one column"),
        ("a,b,y\n1,2\0,0\n", "expected"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_source(write(tmp_path, text), tmp_path)
    assert str(tmp_path / "train.csv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: No such file"):
        load_source("none.csv", tmp_path)
    (tmp_path / "train.csv").write_bytes("a,b,größe\n1,2,0\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8 text"):
        load_source("train.csv", tmp_path)
    (tmp_path / "train.csv").write_bytes("a,b,y\n1,2,0\n".encode("utf-16"))
    with pytest.raises(DataError, match="not UTF-8 text"):
        load_source("train.csv", tmp_path)


def test_tabs_alone_part_a_tsv(tmp_path: Path) -> None:
    examples = load_source(write(tmp_path, "a\ty\n1,5\t0\n", "train.tsv"), tmp_path)
    assert examples.inputs.tolist() == [[1.5]]
