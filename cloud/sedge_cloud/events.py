"""What the coordinator tells its shell beside frames: progress, for logs, pages and the emulator."""

from dataclasses import dataclass
from typing import TypeAlias

from sedge_cloud.rounds.summary import Summary
from sedge_protocol.wire import effects
from sedge_protocol.wire.update import Report


@dataclass(frozen=True)
class RoundOpened:
    """A round began with this cohort."""

    run: str
    round: int
    task: str
    cohort: tuple[str, ...]


@dataclass(frozen=True)
class UpdateReceived:
    """An update was stored; ``size`` is its bytes on the wire before framing."""

    run: str
    round: int
    device: str
    report: Report
    size: int
    late: bool


@dataclass(frozen=True)
class RoundClosed:
    """A round ended."""

    summary: Summary


@dataclass(frozen=True)
class RunEnded:
    """A run has finished, has failed or was stopped; ``why`` where no summary of a round tells it."""

    run: str
    status: str
    why: str = ""


Event: TypeAlias = RoundOpened | UpdateReceived | RoundClosed | RunEnded
CloudEffect: TypeAlias = effects.Effect | Event
