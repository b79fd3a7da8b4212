"""The schema of result.json: round trips, what it refuses, and the figures derived from it."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.emulate.sample import PATH, SAMPLE

from sedge_emulate.result import Spread, class_results, classes_of, read_json, spread, write_json
from sedge_protocol.errors import LocalError, StorageError


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5], Spread(0.5, 0.5, 0.5, 0.5)),
        ([1.0] * 9 + [0.0], Spread(0.9, 0.0, 0.0, 1.0)),
        ([0.25] + [0.75] * 18, Spread(13.75 / 19, 0.25, 0.25, 0.75)),
        ([0.25, 0.75] + [1.0] * 18, Spread(0.95, 0.5, 0.25, 1.0)),
        ([1.0] * 7, Spread(1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_spread(values: list[float], expected: Spread) -> None:
    found = spread(values)
    assert (found.mean, found.worst_tenth) == pytest.approx((expected.mean, expected.worst_tenth))
    assert (found.min, found.max) == (expected.min, expected.max)
    assert spread(values[::-1]) == found


def test_a_mean_never_leaves_the_ends() -> None:
    # 0.1 + 0.1 + 0.1 is 0.30000000000000004: the mean of equal values must still be that value.
    for value in (0.1, 0.7, 1 / 3, 1.0):
        assert spread([value] * 3).mean == value


def test_no_devices_have_no_spread() -> None:
    with pytest.raises(LocalError, match="spread"):
        spread([])


def test_a_result_of_format_1_is_written_and_read_as_it_always_was(tmp_path: Path) -> None:
    """Its readers rely on every name."""
    path = tmp_path / "runs" / "result.json"
    write_json(SAMPLE, path)
    assert path.read_bytes() == PATH.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]
    empty = replace(SAMPLE, strategies=[])
    write_json(empty, path)
    assert read_json(path) == empty


def test_classes_count_every_device_and_average_the_evaluated() -> None:
    devices = SAMPLE.strategies[1].devices
    evaluated, absent = devices[:10], [replace(d, before=0.0, after=0.0) for d in devices[10:]]
    pi, solar = class_results(evaluated, absent)
    assert (pi.name, pi.devices, pi.evaluated) == ("Pi 5", 8, 8)
    assert (solar.name, solar.devices, solar.evaluated) == ("solar node", 4, 2)
    assert solar.before == pytest.approx((devices[8].before + devices[9].before) / 2)
    assert (solar.reboots, solar.cuts, pi.cuts, pi.late) == (3, 1, 2, 1)
    assert solar.resent_down == 8000
    assert class_results([], absent)[0].before == 0
    assert class_results([]) == []


def test_a_result_that_does_not_name_its_classes_has_those_of_its_devices() -> None:
    strategy = SAMPLE.strategies[0]
    assert [kind.name for kind in strategy.classes] == ["Pi 5", "solar node"]
    assert classes_of(replace(strategy, classes=[])) == strategy.classes
    assert classes_of(replace(strategy, classes=strategy.classes[:1])) == strategy.classes[:1]


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    whole = PATH.read_bytes()
    broken = {
        "format 2, expected 1": whole.replace(b'"format": 1', b'"format": 2'),
        r"expected a result.*": whole[:-20],
        "<= 1": whole.replace(b'"share": 0.18', b'"share": 1.18'),
        "missing required field `split`": whole.replace(b'"split"', b'"spilt"'),
        "expected a result of format 1": b"\xff\xfe",
    }
    for message, content in broken.items():
        path.write_bytes(content)
        with pytest.raises(StorageError, match=message):
            read_json(path)


def test_the_disk_says_no(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        write_json(SAMPLE, tmp_path / "file" / "result.json")
    with pytest.raises(StorageError, match="absent"):
        read_json(tmp_path / "absent.json")
