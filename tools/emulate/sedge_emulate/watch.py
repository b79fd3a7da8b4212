"""A run as the coordinator's events tell it: rounds as results, late devices, bytes between events."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sedge_cloud.events import Event, RoundClosed, RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.rounds.lifecycle import FINISHED
from sedge_cloud.rounds.summary import Summary
from sedge_emulate.progress import Progress
from sedge_emulate.result import RoundResult
from sedge_protocol.wire.messages import TRAIN


@dataclass(frozen=True)
class Totals:
    """Bytes of all devices so far and, where they are counted, the payload and ``resent`` among them."""

    up: int
    down: int
    payload_up: int = 0
    payload_down: int = 0
    resent: int = 0


class Watch:
    """Collects the coordinator's events.

    ``clock`` gives the run's own seconds from 0, virtual or not; ``totals`` the bytes so far. ``failure``
    says why the run has failed, and is empty where it has not.
    """

    def __init__(
        self, progress: Progress, clock: Callable[[], float], totals: Callable[[], Totals]
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
        self._counted = Totals(0, 0)
        self._cohort: tuple[str, ...] = ()
        self._opened_s = 0.0
        self._opened_wall_s = time.monotonic()  # of a round that was open already when we started
        self._received = 0
        self._late = 0

    def playing_back(self, jobs: int) -> None:
        """Note that this many jobs were done before the emulation was killed and are now replayed."""
        if jobs:
            self._progress.note(f"{jobs} jobs are done already; playing back to where it ended")

    def observe(self, event: Event) -> None:
        """One event."""
        self.last_event_s = self._clock()
        match event:
            case RoundOpened():
                self._opened_s, self._opened_wall_s = self.last_event_s, time.monotonic()
                self._received, self._cohort = 0, event.cohort
                if event.task == TRAIN:
                    self._counted = self._totals()
                    self._progress.round_opened(event.round, len(event.cohort))
            case UpdateReceived():
                self._late += event.late
                self._received += not event.late
                self._progress.update_received(event.round, self._received, len(self._cohort))
            case RoundClosed():
                self._close(event.summary)
            case RunEnded():
                self.ended, self.failure = True, self._failure(event)

    def remember(self, summary: Summary) -> None:
        """Add a round that had closed before the emulation was killed; its times and bytes are lost."""
        self.summaries.append(summary)
        if summary.task == TRAIN:
            self.rounds.append(_result(summary))
            self._progress.round_remembered()

    def _failure(self, ended: RunEnded) -> str:
        if ended.status == FINISHED:
            return ""
        last = self.summaries[-1] if self.summaries else None
        if last is None or not last.failure:
            return ended.why or f"the run is {ended.status}; start it again without --resume"
        hint = "; each device's reason is in the log (--verbose)" if last.declined else ""
        return last.failure + hint

    def _close(self, summary: Summary) -> None:
        self.summaries.append(summary)
        if summary.task != TRAIN:
            return
        totals = self._totals()
        late = sorted(set(self._cohort) - {device.device for device in summary.devices})
        self.late.update(late)
        result = msgspec.structs.replace(
            _result(summary),
            late=self._late,
            seconds=time.monotonic() - self._opened_wall_s,
            bytes_up=totals.up - self._counted.up,
            bytes_down=totals.down - self._counted.down,
            opened_s=self._opened_s,
            closed_s=self.last_event_s,
            late_devices=late,
            resent_bytes=totals.resent - self._counted.resent,
        )
        self._late = 0
        self.rounds.append(result)
        self._progress.round_closed(result)


def _result(summary: Summary) -> RoundResult:
    """A round without its times and bytes."""
    return RoundResult(
        round=summary.round,
        before_mean=summary.before,
        after_mean=summary.after,
        train_loss=summary.train_loss,
        num_updates=len(summary.devices),
        late=0,
        seconds=0.0,
        bytes_up=0,
        bytes_down=0,
        personal={name: k / max(1, summary.cohort) for name, k in summary.personal.items()},
        distrusted=summary.distrusted,
    )
