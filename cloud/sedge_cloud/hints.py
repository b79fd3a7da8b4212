"""Immediate messages between ingest and leader, so that within one process neither has to poll the rows.

Every hint may be lost: the same facts are in rows, which are read when another process has changed
something. The columns show which rows those are, and who reads them.

    DeviceOnline    sessions (online, waits), devices (hello, incarnation)   leader
    Left       sessions (online)                                        leader
    Answered   updates (a receipt, good or bad)                         leader
    Declined   orders (declined)                                        leader
    Lacking    (chunks of a blob that go to all; devices ask again)
    DiskFailed (a collection of garbage is due; the leader has its own)
    Ordered    rounds (open), orders                                    ingest
    Over       rounds (open), runs (status)                             ingest
    Begun      runs (status, config)                                    ingest
    LeftOut    (told to a device and logged, not stored; another process gets a signal)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_protocol.wire.messages import Order


@dataclass(frozen=True)
class DeviceOnline:
    """A device has said hello; ``renewed`` if its agent has restarted or has different abilities."""

    device: str
    renewed: bool


@dataclass(frozen=True)
class Left:
    """A device is offline until its next hello."""

    device: str


@dataclass(frozen=True)
class Answered:
    """A device has a receipt for an order, new or repeated; ``counts`` says that it accepts the update."""

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
    """Devices of a process lack chunks of a shared blob: ``missing`` is a bitmap of these."""

    asker: str
    sha256: bytes
    chunk_bytes: int
    missing: bytes


@dataclass(frozen=True)
class DiskFailed:
    """The ingest has had a disk error: the disk may be full."""


@dataclass(frozen=True)
class Ordered:
    """Orders of an open round are to be sent, for the first time or again.

    ``orders`` has all of the round's orders; ``settled`` devices have answered theirs. The orders of the
    devices in ``to`` are to be sent; ``made`` has those that are made already. ``is_new`` says that the
    round has just opened.
    """

    row: RoundRow
    orders: Mapping[str, OrderRow]
    settled: frozenset[str]
    to: tuple[str, ...]
    made: Mapping[str, Order] = field(default_factory=dict[str, Order])
    is_new: bool = False


@dataclass(frozen=True)
class Over:
    """A run's open round is over; unless empty, ``why`` is sent to devices that still work for it."""

    run: str
    why: str = ""


@dataclass(frozen=True)
class Begun:
    """A run starts or resumes, perhaps with another configuration."""

    run: str


@dataclass(frozen=True)
class LeftOut:
    """A device lacks features that its order of a run would need."""

    run: str
    device: str
    features: frozenset[str]


ToLeader: TypeAlias = DeviceOnline | Left | Answered | Declined | Lacking | DiskFailed
ToIngest: TypeAlias = Ordered | Over | Begun | LeftOut
Hint: TypeAlias = ToLeader | ToIngest
