"""The plan of a fleet on paper: its arithmetic by hand, and its command on results that are kept."""

from pathlib import Path

import msgspec
import pytest

from sedge_emulate.__main__ import main
from sedge_emulate.fleet_plan import DeviceCosts, PlannedFleet, ProcessCosts, RoundTraffic, planned

DEVICE = DeviceCosts(
    parameters=10, first=RoundTraffic(100, 1000, 8, 9), later=RoundTraffic(10, 50, 4, 5),
    broadcast_bytes=30, device_row_bytes=7, connection_bytes=2000,
)  # fmt: skip
CLOUD = ProcessCosts(update_ms=20, update_row_bytes=11, idle=0.01)
FLEET = PlannedFleet(
    devices=1000, share=0.1, online=0.5, processes=3, rounds_per_day=2, days=10, per_mb=3,
    per_million_units=5, per_million_connection_minutes=7,
)  # fmt: skip


def test_a_plan_by_hand() -> None:
    found = planned(FLEET, DEVICE, CLOUD)
    # 100 devices in each of 20 rounds: 2,000 updates, of which 1,000 are a device's first.
    assert found.updates == 2000
    pings = 2 * 500 * 10 * 86_400 / 30
    assert (found.up, found.down) == (1000 * 110 + pings, 1000 * 1050 + pings)
    # The broadcast leaves once a round; what is a device's own leaves for it.
    assert found.sent == 20 * 30 + 1000 * (1000 - 30) + 1000 * (50 - 30)
    assert (found.messages, found.units) == (12_000, 14_000)
    assert found.cpu_s == pytest.approx(2000 * 0.02 + 3 * 864_000 * 0.01)
    assert found.rows_bytes == 1000 * 7 + 2000 * 11
    assert (found.connections, found.broker_bytes) == (500, 1_000_000)
    minutes = 500 * 10 * 24 * 60
    priced = (found.up + found.down) / 1e6 * 3 + 14_000 / 1e6 * 5 + minutes / 1e6 * 7
    assert found.price == pytest.approx(priced)


def test_a_fleet_that_is_not_asked_often_has_fewer_newcomers_than_devices() -> None:
    found = planned(msgspec.structs.replace(FLEET, rounds_per_day=0.1, online=0), DEVICE, CLOUD)
    assert (found.updates, found.up, found.messages) == (100, 100 * 100, 100 * 8)


def test_the_command_reads_what_benchmarks_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cost", "--devices", "1e7", "--results", str(tmp_path)]
    assert main(words) == 3
    assert "python -m tools.bench fleet_costs" in capsys.readouterr().err
    (tmp_path / "fleet_costs.json").write_bytes(msgspec.json.encode(DEVICE))
    (tmp_path / "processes.json").write_bytes(msgspec.json.encode(CLOUD))
    assert main(words) == 0
    found = capsys.readouterr().out
    assert "10,000,000 devices, 1 rounds per day with 100,000 of them" in found
    assert "3,000,000" in found  # updates of thirty days


def test_wrong_words_get_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    share = "--share: found 2.0, expected a fraction"
    for words, expected in ((), "--devices"), (("--devices=1e7", "--share=2"), share):
        assert main(["cost", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
