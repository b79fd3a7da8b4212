"""``sedge-emulate cost`` without a fleet file: estimates the operator's cost of a fleet of any size.

    cohort    = devices * share               updates = cohort * rounds_per_day * days
    bytes     = first round of each device + (updates - newcomers) * a later round + keepalives
    sent      = rounds * broadcast + updates * (down - broadcast): a broadcast leaves a coordinator once
    CPU       = updates * CPU per update + processes * duration * idle share of a process
    broker    = connections * memory per connection
    rows      = devices * bytes per device + updates * bytes per update

Benchmarks measured the costs of one device, one update and one connection, and stored them as JSON
(``python -m tools.bench fleet_costs``, ``python -m tools.bench processes``). This module contains no
measured figures. The user specifies the prices, including those of a cloud broker. Effects that depend on
the fleet's size, such as a deeper database index, are not modelled: benchmarks of large stores measure
them.
"""

import argparse
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from sedge_emulate.meter import PING_BYTES
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.host.mqtt import KEEPALIVE_S

# Where a source checkout stores its benchmarks' results.
RESULTS = Path(__file__).parents[2] / "bench" / "results"
SECONDS_A_DAY = 86_400
T = TypeVar("T")


class RoundTraffic(msgspec.Struct, frozen=True):
    """A device's traffic in a round: MQTT bytes up and down; messages and 5 KB units in both directions."""

    up: float
    down: float
    messages: float
    units: float


class DeviceCosts(msgspec.Struct, frozen=True):
    """What one device and one broker connection cost, from ``fleet_costs.json``."""

    parameters: int
    first: RoundTraffic
    later: RoundTraffic
    broadcast_bytes: float
    device_row_bytes: float
    connection_bytes: float


class ProcessCosts(msgspec.Struct, frozen=True):
    """The CPU time (ms) and the database bytes that one update takes, from ``processes.json``.

    ``idle`` is the share of a processor that a coordinator process uses while idle.
    """

    update_ms: float
    update_row_bytes: float
    idle: float


class PlannedFleet(msgspec.Struct, frozen=True, kw_only=True):
    """The user's fleet. A ``share`` of the devices trains in each round; a share ``online`` is connected.

    ``processes`` is the number of coordinator processes.
    """

    devices: float
    share: float
    online: float
    processes: float
    rounds_per_day: float
    days: float
    per_mb: float
    per_million_units: float
    per_million_connection_minutes: float


class FleetPlan(msgspec.Struct, frozen=True):
    """What the fleet needs and costs over its ``days``."""

    updates: float
    up: float
    down: float
    sent: float
    messages: float
    units: float
    cpu_s: float
    rows_bytes: float
    connections: float
    broker_bytes: float
    connection_minutes: float
    price: float


def planned(fleet: PlannedFleet, device: DeviceCosts, cloud: ProcessCosts) -> FleetPlan:
    """Compute the plan. Every device that ever takes part has one first round."""
    rounds = fleet.rounds_per_day * fleet.days
    updates = fleet.devices * fleet.share * rounds
    newcomers = min(fleet.devices, updates)
    connections = fleet.devices * fleet.online
    online_s = connections * fleet.days * SECONDS_A_DAY
    pings = PING_BYTES * online_s / KEEPALIVE_S

    def both(name: str) -> float:
        first, later = getattr(device.first, name), getattr(device.later, name)
        return float(newcomers * first + (updates - newcomers) * later)

    up, down, units = both("up") + pings, both("down") + pings, both("units")
    minutes = online_s / 60
    price = (
        (up + down) / 1e6 * fleet.per_mb
        + units / 1e6 * fleet.per_million_units
        + minutes / 1e6 * fleet.per_million_connection_minutes
    )
    return FleetPlan(
        updates=updates,
        up=up,
        down=down,
        sent=rounds * device.broadcast_bytes + both("down") - updates * device.broadcast_bytes,
        messages=both("messages"),
        units=units,
        cpu_s=updates * cloud.update_ms / 1000
        + fleet.processes * fleet.days * SECONDS_A_DAY * cloud.idle,
        rows_bytes=fleet.devices * device.device_row_bytes + updates * cloud.update_row_bytes,
        connections=connections,
        broker_bytes=connections * device.connection_bytes,
        connection_minutes=minutes,
        price=price,
    )


def plan(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit status.

    Raises ``ConfigError`` for invalid options, and ``DataError`` if a benchmark's result is missing.
    """
    if arguments.devices is None:
        raise ConfigError(
            "--devices", "nothing", "the number of devices, such as 1e7, or a fleet file"
        )
    for option in ("share", "online"):
        if not 0 <= getattr(arguments, option) <= 1:
            raise ConfigError(f"--{option}", getattr(arguments, option), "a fraction from 0 to 1")
    results: Path = arguments.results or RESULTS
    device = _kept(results / "fleet_costs.json", DeviceCosts, "tools.bench fleet_costs")
    cloud = _kept(results / "processes.json", ProcessCosts, "tools.bench processes")
    fleet = msgspec.convert(vars(arguments), PlannedFleet)
    Console().print(_table(fleet, planned(fleet, device, cloud), device, cloud))
    return 0


def _kept(path: Path, kind: type[T], program: str) -> T:
    """Load a benchmark's stored result. Raises ``DataError`` if it is missing or malformed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError) as exc:  # ValueError covers msgspec's errors
        expected = f"a result of `python -m {program}`, in a checkout or in --results FOLDER"
        raise DataError(f"{path}: {exc}, expected {expected}") from exc


def _table(
    fleet: PlannedFleet, found: FleetPlan, device: DeviceCosts, cloud: ProcessCosts
) -> Table:
    cohort = fleet.devices * fleet.share
    table = Table(
        title=f"{fleet.devices:,.0f} devices, {fleet.rounds_per_day:g} rounds per day with {cohort:,.0f} "
        f"of them, {device.parameters:,} parameters, {fleet.days:g} days",
        caption=f"One update: {cloud.update_ms:.1f} ms. One idle coordinator: {cloud.idle:.1%} of a core.",
    )
    table.add_column("")
    table.add_column("in total", justify="right")
    table.add_column("per second, on average", justify="right")
    seconds = max(fleet.days * SECONDS_A_DAY, 1e-9)
    for text, figure in (
        ("updates", found.updates),
        ("messages", found.messages),
        ("units of 5 KB", found.units),
        ("bytes from devices", found.up),
        ("bytes to devices", found.down),
        ("bytes that leave the coordinators", found.sent),
        ("processor seconds of coordinators", found.cpu_s),
        ("connection minutes", found.connection_minutes),
    ):
        table.add_row(text, f"{figure:,.0f}", f"{figure / seconds:,.2f}")
    for text, figure in (
        ("concurrent connections", found.connections),
        ("bytes of broker memory for connections", found.broker_bytes),
        ("bytes of rows if none are deleted", found.rows_bytes),
        ("price", found.price),
    ):
        table.add_row(text, f"{figure:,.0f}", "")
    return table
