"""Foreign pickles: arrays and containers come out as they went in, and nothing else is ever called."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sedge_emulate.data.plain_pickle import read_plain
from sedge_protocol.errors import DataError


def plain(data: bytes) -> Any:
    return read_plain(io.BytesIO(data), "p.pkl")


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_containers(protocol: int) -> None:
    value: dict[str, Any] = {
        "separation": {"train": [0, 1], "total": 2},
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">i4"),
        "mask": np.array([True, False]),
        "none": np.array([], np.int64),
        "scalars": [np.int32(7), np.float64(0.5)],
        "objects": np.array([{"x": np.arange(3)}, "text"], object),
    }
    found = plain(pickle.dumps(value, protocol))
    assert found.keys() == value.keys()
    assert found["separation"] == value["separation"]
    assert found["scalars"] == [7, 0.5]
    for name in ("floats", "columns", "big endian", "mask", "none"):
        assert found[name].dtype == value[name].dtype
        np.testing.assert_array_equal(found[name], value[name])
    np.testing.assert_array_equal(found["objects"][0]["x"], np.arange(3))
    assert found["objects"][1] == "text"


def test_lists_may_be_named_again() -> None:
    once = list(range(1000))
    assert plain(pickle.dumps({"train": once, "test": once})) == {"train": once, "test": once}


class Hostile:
    """Unpickled by the standard library it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("wrapped", [False, True])
def test_nothing_is_run(tmp_path: Path, wrapped: bool) -> None:
    made = tmp_path / "made"
    value: object = Hostile(made)
    data = pickle.dumps(np.array([value], object) if wrapped else [value])
    with pytest.raises(DataError, match=r"p.pkl: it names .*expected a pickle of only numpy arr"):
        plain(data)
    assert not made.exists()


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


def shared(value: Any, levels: int, width: int) -> Any:
    """A list or tuple of the same one so many times, which is one of the same, and so on."""
    for _ in range(levels):
        value = type(value)([value] * width)
    return value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "pickle exhausted"),
        (pickle.dumps(np.arange(100))[:-40], "p.pkl: "),
        (pickle.dumps(np.array(["2020-01-01"], "M8[D]")), "an array of type 'M8'"),
        (pickle.dumps(np.zeros(2, [("a", "i4")])), "an array of type 'V4'"),
        (pickle.dumps(len), "it names builtins.len"),
        (pickle.dumps(nested(20)), "containers nested more than 16 deep"),
        # The array itself must not be called: ndarray((9,), "O", b"...") would read addresses.
        (b"cnumpy\nndarray\n(I9\ntR.", "NoneType"),
        (pickle.dumps(shared([], 7, 500)), "more values than that many bytes can hold"),
        # As a key of a dict: "}" before it, and the value 1 and "s" after it; without protocol and frame.
        (b"}" + pickle.dumps(shared((), 60, 2), 2)[2:-1] + b"K\x01s.", "names a tuple twice"),
        (b"}" + pickle.dumps(shared((), 60, 2), 4)[11:-1] + b"K\x01s.", "names a tuple twice"),
        (b")" + b"2\x86" * 60 + b"}q\x00h\x00K\x01s.", "names a tuple twice"),
        # What is put into the memo is the tuple below the None that was popped.
        (b"()\x85N0q\x00h\x00\x86" + b"N0q\x00h\x00\x86" * 60 + b".", "names a tuple twice"),
    ],
)
def test_what_is_no_plain_pickle(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        plain(data)
