"""Immediate messages between ingest and leader; where both are in one process, nothing is left to guess.

Every hint may be lost: its rows say the same, and whoever needs it reads them when another process has
changed something. On the right is who reads what.

    DeviceOnline    sessions (online, waits), devices (hello, incarnation)   leader
    Left       sessions (online)                                        leader
    Answered   updates (a receipt, good or bad)                         leader
    Declined   orders (declined)                                        leader
    Lacking    (chunks of a blob that go to all; devices ask again)
    DiskFailed (a collection of garbage is due; the leader has its own)
    Ordered    rounds (open), orders                                    ingest
    Over       rounds (open), runs (status)                             ingest
    Begun      runs (status, config)                                    ingest
    LeftOut    (said to a device and the log, and nowhere else; another process is told by a signal)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_protocol.wire.messages import Order


@dataclass(frozen=True)
class DeviceOnline:
    """A device has said hello; ``renewed``: its agent has started anew, or can do other things."""

    device: str
    renewed: bool


@dataclass(frozen=True)
class Left:
    """A device is offline until its next hello."""

    device: str


@dataclass(frozen=True)
class Answered:
    """A device has a receipt for an order, new or repeated; ``counts``: of an update that was taken."""

    run: str
    round: int
    device: str
    counts: bool


@dataclass(frozen=True)
class Declined:
    """A device has declined its order."""

    run: str
    round: int
    device: str
    reason: str


@dataclass(frozen=True)
class Lacking:
    """Devices of a process lack chunks of a blob for all: ``missing`` is a bitmap of them."""

    asker: str
    sha256: bytes
    chunk_bytes: int
    missing: bytes


@dataclass(frozen=True)
class DiskFailed:
    """The ingest's disk has refused something: it may be full."""


@dataclass(frozen=True)
class Ordered:
    """Orders of an open round are to be sent, for the first time or again.

    ``orders`` are all of the round's, of which those of ``settled`` are answered; those of the devices
    ``to`` are to be sent, of which ``made`` are made already. ``is_new``: the round has just opened.
    """

    row: RoundRow
    orders: Mapping[str, OrderRow]
    settled: frozenset[str]
    to: tuple[str, ...]
    made: Mapping[str, Order] = field(default_factory=dict[str, Order])
    is_new: bool = False


@dataclass(frozen=True)
class Over:
    """A run has no open round any more; ``why`` tells the devices that still work for it, unless empty."""

    run: str
    why: str = ""


@dataclass(frozen=True)
class Begun:
    """A run goes on, for the first time or again, perhaps with another configuration."""

    run: str


@dataclass(frozen=True)
class LeftOut:
    """A device lacks what its order of a run would need."""

    run: str
    device: str
    features: frozenset[str]


ToLeader: TypeAlias = DeviceOnline | Left | Answered | Declined | Lacking | DiskFailed
ToIngest: TypeAlias = Ordered | Over | Begun | LeftOut
Hint: TypeAlias = ToLeader | ToIngest
