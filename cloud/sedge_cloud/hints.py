"""Hints: messages between ingest and leader in one process, so that neither has to poll the rows.

Most hints announce facts that are also in rows, which a process reloads when another one has changed
something. The columns show the hint, the rows with its facts, and who reads them.

    DeviceOnline  sessions (online), devices (hello, incarnation)         leader
    Left          sessions (online)                                       leader
    Answered      updates (a receipt, good or bad)                        leader
    Declined      orders (declined)                                       leader
    DiskFailed    none: garbage is collected, as the disk may be full     leader
    Ordered       rounds (open), orders                                   ingest
    Over          rounds (open), runs (status)                            ingest
    Begun         runs (status, config)                                   ingest
    LeftOut       none: the device is told what it lacks                  ingest
    Lacking       none: chunks of a blob sent to all are requested        the leading process's ingest

Any hint may be lost without harm: a full disk fails again, a device that lacks chunks asks again, and one
that lacks features is left out all the same. ``Lacking`` and ``LeftOut`` are also signals to other
processes, so their fields must not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_cloud.store.schema import FAILED, STOPPED
from sedge_protocol.wire.messages import Order

# Why a run's round is over, by the run's status, for devices still working on it; a deleted run has none.
WHY_OVER = {
    "": "the run was deleted",
    STOPPED: "the run was stopped",
    FAILED: "the run has failed",
}


@dataclass(frozen=True)
class DeviceOnline:
    """A device has said hello; ``renewed`` is True if its agent restarted or has different capabilities."""

    device: str
    renewed: bool


@dataclass(frozen=True)
class Left:
    """A device is offline until its next hello."""

    device: str


@dataclass(frozen=True)
class Answered:
    """A device has been sent a new or repeated receipt; ``counts`` says whether its update was accepted."""

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


class Lacking(msgspec.Struct, frozen=True, array_like=True):
    """Devices of a process lack chunks of a blob that an open round sends to all devices.

    ``missing`` is a bitmap of the chunks they lack; a chunk has ``chunk_bytes`` bytes.
    """

    sha256: bytes
    chunk_bytes: int
    missing: bytes


@dataclass(frozen=True)
class DiskFailed:
    """The ingest has had a disk error: the disk may be full."""


@dataclass(frozen=True)
class Ordered:
    """Orders of an open round must be sent, for the first time or again.

    ``orders`` has all orders in the round; the ``settled`` devices have answered theirs. The orders for
    devices in ``to`` must be sent, and ``made`` holds whichever of these are already built. ``is_new`` is
    True if the round has just opened.
    """

    row: RoundRow
    orders: Mapping[str, OrderRow]
    settled: frozenset[str]
    to: tuple[str, ...]
    made: Mapping[str, Order] = field(default_factory=dict[str, Order])
    is_new: bool = False


@dataclass(frozen=True)
class Over:
    """A run's open round is over.

    If ``why`` is not empty, it is sent to devices that are still working on the round.
    """

    run: str
    why: str = ""


@dataclass(frozen=True)
class Begun:
    """A run starts or resumes, perhaps with a changed configuration."""

    run: str


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """A device was excluded from a run because it lacks features that its order would need.

    The device's own process notifies it.
    """

    run: str
    device: str
    features: tuple[str, ...]


ToLeader: TypeAlias = DeviceOnline | Left | Answered | Declined | DiskFailed
ToIngest: TypeAlias = Ordered | Over | Begun | LeftOut
Hint: TypeAlias = ToLeader | ToIngest | Lacking
