"""The figures for the tables of results: a row per strategy, with bytes per device and round."""

from collections.abc import Sequence

import msgspec

from sedge_emulate.paired import pooled
from sedge_emulate.result import DeviceResult, RoundResult, Spread, StrategyResult
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.objective import ACCURACY, Metric


class Rate(msgspec.Struct, frozen=True):
    """Mean bytes in each direction, 0 if there was nothing to average."""

    up: float
    down: float

    @property
    def both(self) -> float:
        """The sum of both directions."""
        return self.up + self.down


class Rates(msgspec.Struct, frozen=True):
    """Mean bytes in a device's later rounds, in its first round, and in the coordinator's rounds."""

    device: Rate
    newcomer: Rate
    coordinator: Rate


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's figures in the table.

    ``before`` and ``after`` count each device once. ``before_pooled`` and ``after_pooled`` are over all
    test examples together, or None if the numbers of test examples are unknown. ``of_dense`` is a device's
    bytes per round, up and down, divided by the size of two dense models.
    """

    name: str
    before: Spread
    after: Spread
    before_pooled: float | None
    after_pooled: float | None
    rates: Rates
    of_dense: float
    seconds: float
    worst: DeviceResult


def worst_first(devices: Sequence[DeviceResult], metric: Metric) -> list[DeviceResult]:
    """Sort the devices from worst to best by their metric before training, then after it, then by name."""

    def place(device: DeviceResult) -> tuple[float, float, str]:
        return -metric.badness(device.before), -metric.badness(device.after), device.device

    return sorted(devices, key=place)


def headline(strategy: StrategyResult, metric: Metric = ACCURACY) -> Headline:
    """Compute the strategy's row of the table. Raises ``LocalError`` for a strategy without devices."""
    if not strategy.devices:
        raise LocalError(f"{strategy.name}: a result without devices")
    rates = rates_of(strategy.rounds)
    dense = 2 * strategy.bytes.dense_update
    return Headline(
        name=strategy.name,
        before=strategy.before,
        after=strategy.after,
        before_pooled=pooled(strategy.devices, "before"),
        after_pooled=pooled(strategy.devices, "after"),
        rates=rates,
        of_dense=rates.device.both / dense if dense else 0.0,
        seconds=strategy.seconds,
        worst=worst_first(strategy.devices, metric)[0],
    )


def rates_of(rounds: Sequence[RoundResult]) -> Rates:
    """Compute the mean bytes of devices' later rounds and first rounds, and of the coordinator's rounds."""
    # If an emulation over a broker was resumed, the bytes of rounds closed earlier are unknown.
    known = [r for r in rounds if r.bytes_up or r.bytes_down]
    newcomers = sum(r.newcomers for r in known)
    updates = sum(r.num_updates + r.late for r in known) - newcomers
    new = Rate(sum(r.newcomer_up for r in known), sum(r.newcomer_down for r in known))
    up, down = sum(r.bytes_up for r in known), sum(r.bytes_down for r in known)
    sent, received = sum(r.coordinator_up for r in known), sum(r.coordinator_down for r in known)
    return Rates(
        _rate(up - new.up, down - new.down, updates),
        _rate(new.up, new.down, newcomers),
        _rate(sent, received, len(known)),
    )


def _rate(up: float, down: float, count: int) -> Rate:
    return Rate(up / count, down / count) if count > 0 else Rate(0.0, 0.0)
