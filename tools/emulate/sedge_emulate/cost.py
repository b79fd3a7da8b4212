"""``sedge-emulate cost``: the monthly cost of a device's link, from a short emulated run.

    month = the first round, with bundle and whole model, + (rounds_per_day * days - 1) * a later round
    link bytes = MQTT bytes + header_bytes * (messages + MQTT bytes / 1400), keepalives included
    airtime = 8 * link bytes / rate          energy = airtime * radio_w + rounds * train_s * train_w

Bytes and messages are means over the devices, as counted by meter.py. Evaluation rounds are not included.
Each message is billed in units of 5 KB, rounded up, in either direction; keepalives cost no units.
"""

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console
from rich.table import Table

from sedge_emulate.config import load_emulation
from sedge_emulate.emulation import locked
from sedge_emulate.meter import PING_BYTES
from sedge_emulate.result import StrategyResult
from sedge_emulate.run import emulate, overridden
from sedge_protocol.errors import DataError
from sedge_protocol.host.mqtt import KEEPALIVE_S

PACKET_BYTES = 1400


class Prices(msgspec.Struct, frozen=True):
    """The user's rates and prices, from the command line."""

    rounds_per_day: float
    days: float
    online_hours: float
    header_bytes: float
    kbit_s: float
    radio_w: float
    train_s: float
    train_w: float
    per_mb: float
    per_million_units: float


@dataclass(frozen=True)
class Use:
    """A device's traffic: MQTT bytes in each direction; messages and billed units in both directions."""

    up: float = 0.0
    down: float = 0.0
    messages: float = 0.0
    units: float = 0.0

    def of(self, count: int) -> "Use":
        """Return the mean, which is this sum divided by ``count``."""
        n = max(1, count)
        return Use(self.up / n, self.down / n, self.messages / n, self.units / n)


@dataclass(frozen=True)
class Bill:
    """What a device uses and costs in a month."""

    use: Use
    link_bytes: float
    airtime_s: float
    energy_j: float
    price: float


def measured(strategy: StrategyResult) -> tuple[Use, Use]:
    """Return the mean traffic of a device's first round and of a later round.

    Raises ``DataError`` if no device took part twice.
    """
    rounds = strategy.rounds
    newcomers = sum(r.newcomers for r in rounds)
    updates = sum(r.num_updates + r.late for r in rounds) - newcomers
    if updates <= 0:
        raise DataError(f"{strategy.name}: no device took part twice; increase --rounds")
    first = Use(
        sum(r.newcomer_up for r in rounds),
        sum(r.newcomer_down for r in rounds),
        sum(r.newcomer_messages for r in rounds),
        sum(r.newcomer_units for r in rounds),
    )
    later = Use(
        sum(r.bytes_up for r in rounds) - first.up,
        sum(r.bytes_down for r in rounds) - first.down,
        sum(r.messages for r in rounds) - first.messages,
        sum(r.units for r in rounds) - first.units,
    )
    return first.of(newcomers), later.of(updates)


def month(first: Use, later: Use, prices: Prices) -> Bill:
    """Return the bill for a device's first month, which includes its first round."""
    rounds = prices.rounds_per_day * prices.days
    again = max(0.0, rounds - 1)
    pings = prices.online_hours * prices.days * 3600 / KEEPALIVE_S
    use = Use(
        first.up + again * later.up + PING_BYTES * pings,
        first.down + again * later.down + PING_BYTES * pings,
        first.messages + again * later.messages,
        first.units + again * later.units,
    )
    mqtt = use.up + use.down
    packets = use.messages + mqtt / PACKET_BYTES + 2 * pings
    link_bytes = mqtt + prices.header_bytes * packets
    airtime_s = 8 * link_bytes / max(1e-9, 1000 * prices.kbit_s)
    energy_j = airtime_s * prices.radio_w + rounds * prices.train_s * prices.train_w
    price = link_bytes / 1e6 * prices.per_mb + use.units / 1e6 * prices.per_million_units
    return Bill(use, link_bytes, airtime_s, energy_j, price)


def cost(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit status."""
    logging.basicConfig(level=logging.CRITICAL)
    prices = msgspec.convert(vars(arguments), Prices)
    config, console = overridden(load_emulation(arguments.fleet), arguments), Console()
    with TemporaryDirectory(prefix="sedge-cost-") as folder:
        arguments.out = Path(folder)
        with locked(arguments.out):
            _, result = emulate(config, arguments, console)
    for strategy in result.strategies:
        first, later = measured(strategy)
        console.print(_table(strategy.name, first, later, month(first, later, prices), prices))
    return 0


def _table(name: str, first: Use, later: Use, bill: Bill, prices: Prices) -> Table:
    table = Table(title=f"{name}: a device, {prices.rounds_per_day:g} rounds per day")
    for head in ("", "first round", "a later round", f"{prices.days:g} days"):
        table.add_column(head, justify="right" if head else "left")
    uses = (first, later, bill.use)
    for text, key in (("bytes up", "up"), ("bytes down", "down"), ("messages", "messages"),
                      ("units of 5 KB", "units")):  # fmt: skip
        table.add_row(text, *(f"{getattr(use, key):,.0f}" for use in uses))
    for text, figure in (
        ("bytes with headers", f"{bill.link_bytes:,.0f}"),
        (f"airtime at {prices.kbit_s:g} kbit/s", f"{bill.airtime_s:,.0f} s"),
        ("estimated energy", f"{bill.energy_j:,.0f} J"),
        ("price", f"{bill.price:,.4f}"),
    ):
        table.add_row(text, "", "", figure)
    return table
