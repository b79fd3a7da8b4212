"""Observes a run: collects each round's result and traffic, and counts late devices."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

import msgspec

from sedge_cloud.events import Event, RoundClosed, RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.rounds.lifecycle import FINISHED
from sedge_cloud.store.records import Summary
from sedge_cloud.strategy import Groups
from sedge_emulate.progress import Progress
from sedge_emulate.result import RoundResult
from sedge_emulate.summaries import round_result
from sedge_protocol.wire.messages import TRAIN


@dataclass(frozen=True)
class Totals:
    """Traffic so far: the bytes that each device and the coordinator have sent and received.

    ``payload_up``, ``payload_down`` and ``resent`` are parts of the devices' bytes, or 0 if unknown.
    ``billed`` maps each device to its number of messages, sent and received, and to the number of 5 KB
    units billed for them.
    """

    devices: Mapping[str, tuple[int, int]]
    coordinator: tuple[int, int] = (0, 0)
    payload_up: int = 0
    payload_down: int = 0
    resent: int = 0
    billed: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def up(self) -> int:
        """The number of bytes that all devices have sent."""
        return sum(up for up, _ in self.devices.values())

    @property
    def down(self) -> int:
        """The number of bytes that all devices have received."""
        return sum(down for _, down in self.devices.values())

    @property
    def messages(self) -> int:
        """The number of messages that all devices have sent and received."""
        return sum(messages for messages, _ in self.billed.values())

    @property
    def units(self) -> int:
        """The number of 5 KB units that all devices are billed for."""
        return sum(units for _, units in self.billed.values())

    def without(self, devices: Set[str]) -> "Totals":
        """Return the totals without these devices."""
        moved = {d: self.devices[d] for d in self.devices.keys() - devices}
        return replace(
            self, devices=moved, billed={d: b for d, b in self.billed.items() if d in moved}
        )


class Watch:
    """Follows the coordinator's events during a run.

    ``clock`` returns the seconds since the run began, virtual or real. ``totals`` returns the traffic
    so far, and ``groups`` the groups of devices that learn together. ``partners`` counts for each
    device how many training rounds grouped it with each other device. ``failure`` says why the run
    failed; it is empty otherwise.
    """

    def __init__(
        self,
        progress: Progress,
        clock: Callable[[], float],
        totals: Callable[[], Totals],
        groups: Callable[[], Groups] = dict,
    ) -> None:
        self.rounds: list[RoundResult] = []
        self.summaries: list[Summary] = []
        self.late: Counter[str] = Counter()
        self.ended = False
        self.failure = ""
        self.last_event_s = 0.0
        self._progress = progress
        self._clock = clock
        self._totals = totals
        self._groups = groups
        self.partners: dict[str, Counter[str]] = defaultdict(Counter)
        self._counted = Totals({})
        # The devices that have sent an update by now, the devices that had sent one when the round opened,
        # and the number of devices whose first update arrived after the last training round closed.
        self._known: set[str] = set()
        self._known_before: Set[str] = frozenset()
        self._newcomers = 0
        self._cohort: tuple[str, ...] = ()
        self._opened_s = 0.0
        self._opened_wall_s = time.monotonic()  # in case a round is already open
        self._received = 0
        self._late = 0

    def playing_back(self, jobs: int) -> None:
        """Note that ``jobs`` jobs are already done and the interrupted run is being replayed."""
        if jobs:
            self._progress.note(
                f"{jobs} jobs are already done; replaying them up to the interruption"
            )

    def observe(self, event: Event) -> None:
        """Handle one event."""
        self.last_event_s = self._clock()
        match event:
            case RoundOpened():
                self._opened_s, self._opened_wall_s = self.last_event_s, time.monotonic()
                self._received, self._cohort = 0, event.cohort
                if event.task == TRAIN:
                    self._counted = self._totals()
                    self._known_before = frozenset(self._known)
                    self._progress.round_opened(event.round, len(event.cohort))
            case UpdateReceived():
                self._newcomers += event.report.task == TRAIN and event.device not in self._known
                self._known.add(event.device)
                self._late += event.late
                self._received += not event.late
                self._progress.update_received(event.round, self._received, len(self._cohort))
            case RoundClosed():
                self._close(event.summary)
            case RunEnded():
                self.ended, self.failure = True, self._failure(event)

    def remember(self, summary: Summary) -> None:
        """Add a round that closed before the run was interrupted. Its times and bytes are unknown."""
        self.summaries.append(summary)
        self._known.update(device.device for device in summary.devices)
        if summary.task == TRAIN:
            self.rounds.append(round_result(summary))
            self._progress.round_remembered()

    def _failure(self, ended: RunEnded) -> str:
        if ended.status == FINISHED:
            return ""
        last = self.summaries[-1] if self.summaries else None
        if last is None or not last.failure:
            return ended.why or f"the run is {ended.status}; start it again with --fresh"
        return last.failure

    def _close(self, summary: Summary) -> None:
        self.summaries.append(summary)
        for remark in summary.remarks:
            self._progress.note(remark)
        if summary.task != TRAIN:
            return
        totals, before = self._totals(), self._counted
        new, new_before = (found.without(self._known_before) for found in (totals, before))
        late = sorted(set(self._cohort) - {device.device for device in summary.devices})
        self.late.update(late)
        for device, others in self._groups().items():
            self.partners[device].update(others)
        result = msgspec.structs.replace(
            round_result(summary),
            late=self._late,
            seconds=time.monotonic() - self._opened_wall_s,
            bytes_up=totals.up - before.up,
            bytes_down=totals.down - before.down,
            newcomers=self._newcomers,
            newcomer_up=new.up - new_before.up,
            newcomer_down=new.down - new_before.down,
            messages=totals.messages - before.messages,
            units=totals.units - before.units,
            newcomer_messages=new.messages - new_before.messages,
            newcomer_units=new.units - new_before.units,
            coordinator_up=totals.coordinator[0] - before.coordinator[0],
            coordinator_down=totals.coordinator[1] - before.coordinator[1],
            opened_s=self._opened_s,
            closed_s=self.last_event_s,
            late_devices=late,
            resent_bytes=totals.resent - before.resent,
        )
        self._late = self._newcomers = 0
        self.rounds.append(result)
        self._progress.round_closed(result)
