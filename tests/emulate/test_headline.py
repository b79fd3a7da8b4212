"""The figures of a strategy's row, where it lacks some; report/test_terminal.py has those of the sample."""

import pytest
from msgspec.structs import replace
from tests.emulate.sample import SAMPLE

from sedge_emulate.headline import headline
from sedge_protocol.errors import LocalError


def test_headline_without_rounds_or_devices() -> None:
    strategy = SAMPLE.strategies[0]
    alone = headline(replace(strategy, rounds=strategy.rounds[:1]))
    assert (alone.rates.device.both, alone.of_dense, alone.rates.newcomer.up) == (0, 0, 20_000)
    assert headline(replace(strategy, rounds=[])).of_dense == 0
    with pytest.raises(LocalError, match="local: a result without devices"):
        headline(replace(strategy, devices=[]))
