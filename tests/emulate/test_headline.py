"""The figures of a strategy's row, from the sample of result.json."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from sedge_emulate.headline import Rate, headline
from sedge_emulate.result import read_json
from sedge_protocol.errors import LocalError

_SAMPLE = Path(__file__).parents[1] / "vectors" / "result_format_1.json"


def test_headline() -> None:
    row = headline(read_json(_SAMPLE).strategies[1])
    # Two rounds of 60,000 bytes: the three updates of the first are from newcomers, the second has two.
    assert row.rates.newcomer == Rate(20_000, 2_000_000)
    assert row.rates.device == Rate(30_000, 3_000_000)
    assert row.rates.coordinator == Rate(2_000_000, 60_000)
    assert row.of_dense == 3_030_000 / 8_000_000
    assert (row.worst.device, row.worst.before, row.worst.after) == ("dev-07", 0.25, 0.6)


def test_headline_without_rounds_or_devices() -> None:
    strategy = read_json(_SAMPLE).strategies[0]
    alone = headline(replace(strategy, rounds=strategy.rounds[:1]))
    assert (alone.rates.device.both, alone.of_dense, alone.rates.newcomer.up) == (0, 0, 20_000)
    assert headline(replace(strategy, rounds=[])).of_dense == 0
    with pytest.raises(LocalError, match="local: a result without devices"):
        headline(replace(strategy, devices=[]))
