"""The schema of result.json: round trips, what it refuses, and the figures derived from it."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from sedge_emulate.headline import headline
from sedge_emulate.result import Spread, class_results, classes_of, read_json, spread, write_json
from sedge_protocol.errors import LocalError, StorageError

# Three strategies on twelve devices; the worst are dev-03, dev-07 and dev-11.
_VECTORS = Path(__file__).parents[1] / "vectors"
_SAMPLE = _VECTORS / "result_format_1.json"
# The same as it was written before there were virtual time and faults.
_FIRST = _VECTORS / "result_format_1_first.json"


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


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "result.json"
    whole = read_json(_SAMPLE)
    for result in (whole, replace(whole, strategies=[])):
        write_json(result, path)
        assert read_json(path) == result
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_a_result_of_format_1_is_written_as_it_always_was(tmp_path: Path) -> None:
    write_json(read_json(_SAMPLE), tmp_path / "result.json")
    assert (tmp_path / "result.json").read_bytes() == _SAMPLE.read_bytes()


def test_a_file_of_before_virtual_time_can_be_read() -> None:
    first, now = read_json(_FIRST), read_json(_SAMPLE)
    assert (first.link, now.link) == ("", "memory")
    for old, new in zip(first.strategies, now.strategies, strict=True):
        # Newcomers were not told apart.
        assert headline(old).rates.device.up == 24_000
        assert headline(new).rates.device.up == 30_000
        assert (old.engine, old.bytes.resent) == (None, 0)
        assert new.engine is not None
        assert all(not r.late_devices and r.closed_s == 0 for r in old.rounds)
        assert all(device.class_name == "" for device in old.devices)


def test_classes_count_every_device_and_average_the_evaluated() -> None:
    devices = read_json(_SAMPLE).strategies[1].devices
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
    strategy = read_json(_SAMPLE).strategies[0]
    assert [kind.name for kind in strategy.classes] == ["Pi 5", "solar node"]
    assert classes_of(replace(strategy, classes=[])) == strategy.classes
    assert classes_of(replace(strategy, classes=strategy.classes[:1])) == strategy.classes[:1]


def test_an_old_reader_finds_all_it_knew() -> None:
    """Nothing was renamed, removed or given another value."""

    def require_within(old: object, new: object) -> None:
        if isinstance(old, dict):
            assert isinstance(new, dict)
            for key, value in old.items():
                require_within(value, new[key])
        elif isinstance(old, list):
            assert isinstance(new, list)
            for one, other in zip(old, new, strict=True):
                require_within(one, other)
        else:
            assert old == new

    require_within(json.loads(_FIRST.read_text()), json.loads(_SAMPLE.read_text()))


def test_the_kinds_of_bytes_add_up() -> None:
    """The sample obeys what the schema says of them."""
    for strategy in read_json(_SAMPLE).strategies:
        devices, total = strategy.devices, strategy.bytes
        up = sum(d.payload_up + d.overhead_up + d.resent_up for d in devices)
        down = sum(d.payload_down + d.overhead_down + d.resent_down for d in devices)
        assert (up, down) == (total.device_up, total.device_down)
        assert total.resent == sum(d.resent_up + d.resent_down for d in devices)
        assert total.payload_up == sum(d.payload_up for d in devices)


def test_the_public_schema() -> None:
    """Readers of format 1 rely on these names."""
    found = json.loads(_SAMPLE.read_text())
    strategy = found["strategies"][2]
    names = {
        "format created command dataset split devices seed model machine strategies link "
        "metric settings data_sha256 fleet": found,
        "name share": found["metric"],
        "name parameters dense_bytes from_cache": found["model"],
        "cpus platform python versions": found["machine"],
        "name options rounds before after devices bytes seconds personal engine classes "
        "central remarks epochs partners": strategy,
        "round before_mean after_mean train_loss num_updates late seconds bytes_up bytes_down "
        "opened_s closed_s late_devices resent_bytes personal distrusted newcomers newcomer_up "
        "newcomer_down coordinator_up coordinator_down messages units newcomer_messages "
        "newcomer_units before_worst after_worst": strategy["rounds"][0],
        "mean worst_tenth min max": strategy["before"],
        "device num_train num_test num_classes before after class_name payload_up overhead_up "
        "resent_up payload_down overhead_down resent_down late reboots cuts central": strategy[
            "devices"
        ][0],
        "examples before after global_model": strategy["central"],
        "device_up device_down coordinator_up coordinator_down update_payload_mean dense_update "
        "payload_up payload_down resent": strategy["bytes"],
        "name devices evaluated before after payload_up overhead_up resent_up payload_down "
        "overhead_down resent_down late reboots cuts": strategy["classes"][0],
        "wall_s train_s workers overhead device_rounds peak_rss_bytes trainer": strategy["engine"],
        "tensor elements share": strategy["personal"][0],
    }
    for expected, part in names.items():
        assert list(part) == expected.split(" ")
    assert found["format"] == 1
    options = {"local_epochs": 5, "learning_rate": 0.01, "codec": "int8", "feedback": True}
    assert strategy["options"] == options


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    whole = _SAMPLE.read_bytes()
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
        write_json(read_json(_SAMPLE), tmp_path / "file" / "result.json")
    with pytest.raises(StorageError, match="absent"):
        read_json(tmp_path / "absent.json")
