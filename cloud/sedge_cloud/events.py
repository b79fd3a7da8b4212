"""The coordinator's progress reports, for logs, status pages and the emulator."""

from dataclasses import dataclass
from typing import TypeAlias

from sedge_cloud.store.records import Summary
from sedge_protocol.wire import effects
from sedge_protocol.wire.update import Report


@dataclass(frozen=True)
class RoundOpened:
    """A round has been opened with this cohort."""

    run: str
    round: int
    task: str
    cohort: tuple[str, ...]


@dataclass(frozen=True)
class UpdateReceived:
    """An update has been stored. ``size`` is its size in bytes before framing."""

    run: str
    round: int
    device: str
    report: Report
    size: int
    late: bool


@dataclass(frozen=True)
class RoundClosed:
    """A round has been closed."""

    summary: Summary


@dataclass(frozen=True)
class RunEnded:
    """A run has finished, failed or been stopped.

    ``why`` is empty if the summary of a round gives the reason.
    """

    run: str
    status: str
    why: str = ""


Event: TypeAlias = RoundOpened | UpdateReceived | RoundClosed | RunEnded
CloudEffect: TypeAlias = effects.Effect | Event
