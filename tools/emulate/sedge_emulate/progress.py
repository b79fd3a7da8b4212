"""Displays a running emulation: a live table in a terminal, elsewhere one line per round.

    with Progress(console) as progress:
        progress.strategy("fedobp", num_rounds=20)
        progress.round_opened(1, cohort=10)
        progress.update_received(1, received=1, cohort=10)   # as each one arrives
        progress.round_closed(round_result)
        progress.finished()

The methods are called from one thread. Another thread draws the live table and only reads. The remaining
time is estimated from the rounds done so far.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sedge_cloud.figures.numbers import duration, measured, size
from sedge_emulate.headline import Rate, rates_of
from sedge_emulate.result import RoundResult
from sedge_protocol.wire.objective import ACCURACY, Metric

# The remaining time is estimated from the latest rounds only: the first round also waits for devices to
# join, and a fleet may slow down as it warms up.
_RECENT_ROUNDS = 5
_BAR_WIDTH = 20
_REDRAWS_PER_S = 4


@dataclass
class _Track:
    """One strategy's progress so far. ``round`` is the number of the open round, or 0 between rounds.

    ``remembered`` counts the rounds that closed before this process started. Progress is a count of
    training rounds, not a round's number, because evaluation rounds are numbered, too.
    """

    name: str
    num_rounds: int
    started_s: float
    metric: Metric = ACCURACY
    ended_s: float | None = None
    closed: list[RoundResult] = field(default_factory=list[RoundResult])
    round: int = 0
    round_started_s: float = 0.0
    received: int = 0
    cohort: int = 0
    remembered: int = 0

    @property
    def done(self) -> int:
        return self.remembered + len(self.closed)

    def left_s(self, now: float) -> float | None:
        in_round_s = now - self.round_started_s if self.round else 0.0
        recent = [r.seconds for r in self.closed[-_RECENT_ROUNDS:]]
        return time_left_s(recent, self.num_rounds - self.done, in_round_s)


def time_left_s(round_s: Sequence[float], rounds_left: int, in_round_s: float) -> float | None:
    """Estimate the seconds until the last round closes from ``round_s``, the lengths of recent rounds.

    Returns None if no round has closed yet. ``in_round_s`` is how long the open round has lasted. If that
    is longer than usual, the round is expected to close immediately.
    """
    if rounds_left <= 0:
        return 0.0
    if not round_s:
        return None
    usual_s = sum(round_s) / len(round_s)
    return max(usual_s - in_round_s, 0.0) + usual_s * (rounds_left - 1)


class Progress:
    """Shows an emulation's progress on ``console``, one strategy after another."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._tracks: list[_Track] = []
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._render,
                refresh_per_second=_REDRAWS_PER_S,
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finished()
        if self._live:
            self._live.stop()

    def strategy(self, name: str, num_rounds: int, metric: Metric = ACCURACY) -> None:
        """Show that the next strategy has begun."""
        self.finished()
        self._tracks.append(_Track(name, num_rounds, self._clock(), metric))
        self._plain(f"{name}: {num_rounds} rounds")

    def round_opened(self, round: int, cohort: int) -> None:
        """Show that a round has begun with this many devices."""
        track = self._tracks[-1]
        track.round, track.cohort, track.received = round, cohort, 0
        track.round_started_s = self._clock()

    def update_received(self, round: int, received: int, cohort: int) -> None:
        """Show how many of the cohort's updates have arrived. Ignored if this round is not open."""
        track = self._tracks[-1]
        if round == track.round:
            track.received, track.cohort = received, cohort

    def round_closed(self, result: RoundResult) -> None:
        """Show that the open round has closed."""
        track = self._tracks[-1]
        track.closed.append(result)
        track.round = 0
        self._plain(_line(track, track.left_s(self._clock())))

    def round_remembered(self) -> None:
        """Count a round that closed before this process started."""
        self._tracks[-1].remembered += 1

    def note(self, text: str) -> None:
        """Print one line for the user, above the live table."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def finished(self) -> None:
        """Show that the current strategy has ended, unless that has already been shown."""
        if self._tracks and self._tracks[-1].ended_s is None:
            track = self._tracks[-1]
            track.round, track.ended_s = 0, self._clock()
            elapsed = duration(track.ended_s - track.started_s)
            self._plain(f"{track.name}: {len(track.closed)} rounds in {elapsed}")

    def _plain(self, text: str) -> None:
        if self._live is None:
            self.note(text)

    def _render(self) -> RenderableType:
        now = self._clock()
        table = Table.grid(padding=(0, 2))
        for column in ("strategy", "bar", "round", "metric", "bytes", "elapsed", "left"):
            right = column in ("round", "bytes", "elapsed")
            # only the bar shrinks if the terminal is narrow
            table.add_column(
                justify="right" if right else "left",
                no_wrap=column != "bar",
                max_width=_BAR_WIDTH if column == "bar" else None,
            )
        tracks = tuple(self._tracks)
        for track in tracks:
            table.add_row(*_row(track, now))
        if not tracks or tracks[-1].ended_s is not None:
            return table
        return Group(table, Text(f"  {_doing(tracks[-1])}", style="dim"))


def _row(track: _Track, now: float) -> tuple[RenderableType, ...]:
    last = track.closed[-1] if track.closed else None
    left_s = track.left_s(now) if track.ended_s is None else None
    ended = now if track.ended_s is None else track.ended_s
    return (
        Text(track.name, style="bold"),
        ProgressBar(total=max(track.num_rounds, 1), completed=track.done),
        f"{track.done}/{track.num_rounds}",
        f"{measured(last.before_mean, track.metric)} → {measured(last.after_mean, track.metric)}"
        if last
        else "",
        _arrows(rates_of(track.closed).device),
        duration(ended - track.started_s),
        f"{duration(left_s)} left" if left_s else "",
    )


def _doing(track: _Track) -> str:
    """Return what the strategy is doing, and the bytes that the table leaves out."""
    rates = rates_of(track.closed)
    first, own = _arrows(rates.newcomer), _arrows(rates.coordinator)
    moved = f"; a device's first round {first}, coordinator {own} per round" if track.closed else ""
    return _state(track) + moved


def _state(track: _Track) -> str:
    if track.round:
        return f"round {track.done + 1}: {track.received} of {track.cohort} devices have trained"
    if track.done >= track.num_rounds:
        return "evaluating every device"
    return "waiting for devices" if not track.done else "between rounds"


def _line(track: _Track, left_s: float | None) -> str:
    last = track.closed[-1]
    # Count the devices that this round did not wait for. If there were none, count the late updates from
    # earlier rounds.
    num_late = len(last.late_devices) or last.late
    late = f", {num_late} late" if num_late else ""
    resent = f", {size(last.resent_bytes)} again" if last.resent_bytes else ""
    left = f", {duration(left_s)} left" if left_s else ""
    rates = rates_of([last])
    moved = [
        f"{who} {_arrows(rate)}"
        for who, rate in (
            ("a device", rates.device),
            (f"{last.newcomers} newcomers", rates.newcomer),
            ("coordinator", rates.coordinator),
        )
        if rate.both
    ]
    return (
        f"{track.name} round {track.done}/{track.num_rounds}: {last.num_updates} devices{late}, "
        f"{track.metric.words} {measured(last.before_mean, track.metric)} -> "
        f"{measured(last.after_mean, track.metric)}, loss {last.train_loss:.3f}, "
        f"{', '.join(moved)}{resent}, {duration(last.seconds)}{left}"
    )


def _arrows(rate: Rate) -> str:
    return f"↑ {size(rate.up)} ↓ {size(rate.down)}"
