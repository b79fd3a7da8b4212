"""The states of a run and of its rounds: two tables of legal transitions, and ``OpenRound.due``.

    run      running   --the last round closed, or its privacy budget is spent-->  finished
                       --the operator stops it-->                                stopped
                       --too few updates, no plan, no strategy-->                failed

    round    open      --a fraction ``quorum`` of the cohort has sent updates--> grace
                       --every device has answered-->                            closed
                       --all but waiting devices have, with ``min_updates``-->   closed
                       --``deadline_s`` has passed, with ``min_updates``-->      closed
                       --``deadline_s`` has passed, with fewer-->                open, ``deadline_s`` more
                       --all online devices have answered, with ``min_updates``--> offline
             offline   --a device that has yet to answer returns-->               open
                       --``offline_grace_s`` or ``deadline_s`` has passed-->      closed
                       (quorum and answers as in open)
             grace     --every device that is not waiting has answered-->        closed
                       --``grace_s`` or ``deadline_s`` has passed-->             closed
                       --time is up, but updates were lost-->                    open, ``deadline_s`` more
             serving   (for newcomers to a finished run, see serving.py)

A round opens when enough capable devices are online and not waiting (for a closed gate or a full disk,
according to their last HELLO). A device that starts to wait is left out of its round's quorum, and need not
answer, until it stops waiting. Devices that were online before the coordinator started, or before its link
went down, have ``return_s`` to come back. Only then do they count as offline, and no round is drawn until
then. A round that is open when its run ends is void: it is not aggregated. A run that has ended may be
resumed, which reloads it; a round that was open when the run was stopped then continues.

The tables below encode these lines; an event that is illegal in a state raises an error. scheduler.py
applies them. Open rounds are stored: after a restart each continues with the time it has left, at least
``RETURN_S``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import msgspec

from sedge_cloud.clocks import Wall, as_it_is
from sedge_cloud.config import RunConfig
from sedge_cloud.outage import RETURN_S
from sedge_cloud.rounds.resting import Resting
from sedge_cloud.runs.asked import AskedRound, read_asked
from sedge_cloud.runs.run import Run
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import OrderRow, RoundReceipts, RoundRow, UpdateRow
from sedge_cloud.store.schema import FAILED as FAILED
from sedge_cloud.store.schema import FINISHED as FINISHED
from sedge_cloud.store.schema import RUNNING as RUNNING
from sedge_cloud.store.schema import STOPPED as STOPPED
from sedge_protocol.decimal_shares import ceil_of
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.messages import TRAIN


class Trigger(StrEnum):
    """What moves a run or a round into its next state."""

    # to a run
    LAST_ROUND = "the last round closed"
    BUDGET = "the privacy budget is spent"
    STOP = "the operator stopped it"
    FAILURE = "it cannot continue"
    # to a round
    QUORUM = "the quorum has sent updates"
    EVERYONE = "every device has answered"
    ALONE = "all online devices have answered, with enough updates"
    RETURN = "a device that owes an answer has come back"
    TIME = "time is up, with enough updates"
    SHORTAGE = "time is up, with too few updates"


EXCUSED = "every device that is not waiting has answered"


class Phase(StrEnum):
    """What a round waits for: updates, stragglers, offline devices, newcomers, or (if closed) nothing."""

    OPEN = "open"
    GRACE = "grace"
    OFFLINE = "offline"
    SERVING = "serving"
    CLOSED = "closed"


RUN: Mapping[str, Mapping[Trigger, str]] = {
    RUNNING: {
        Trigger.LAST_ROUND: FINISHED,
        Trigger.BUDGET: FINISHED,
        Trigger.STOP: STOPPED,
        Trigger.FAILURE: FAILED,
    },
    STOPPED: {},
    FINISHED: {},
    FAILED: {},
}
ROUND: Mapping[Phase, Mapping[Trigger, Phase]] = {
    Phase.OPEN: {
        Trigger.QUORUM: Phase.GRACE,
        Trigger.EVERYONE: Phase.CLOSED,
        Trigger.ALONE: Phase.OFFLINE,
        Trigger.TIME: Phase.CLOSED,
        Trigger.SHORTAGE: Phase.OPEN,
    },
    Phase.GRACE: {
        Trigger.EVERYONE: Phase.CLOSED,
        Trigger.TIME: Phase.CLOSED,
        Trigger.SHORTAGE: Phase.OPEN,
    },
    Phase.OFFLINE: {
        Trigger.QUORUM: Phase.GRACE,
        Trigger.EVERYONE: Phase.CLOSED,
        Trigger.RETURN: Phase.OPEN,
        Trigger.TIME: Phase.CLOSED,
        Trigger.SHORTAGE: Phase.OPEN,
    },
    Phase.SERVING: {},
    Phase.CLOSED: {},
}


S = TypeVar("S", bound=str)


def next_state(table: Mapping[S, Mapping[Trigger, S]], state: S, event: Trigger) -> S:
    """Return the state after ``event``. Raises ``LocalError`` if the event is illegal in this state."""
    if event not in table[state]:
        expected = ", ".join(table[state]) or "nothing more"
        raise LocalError(f"{state!r}: found the event {str(event)!r}, expected {expected}")
    return table[state][event]


@dataclass
class OpenRound(AskedRound):
    """The open round of a run: which devices were asked, which have answered, and how long it waits.

    The current phase ends at ``ends_at``. Until ``back_at``, a device that is offline may still return from
    an outage.
    """

    deadline: float = math.inf
    phase: Phase = Phase.OPEN
    grace_ends: float = math.inf
    back_at: float = 0.0
    looked_at: float = -math.inf
    extended: int = 0

    def needed(self, config: RunConfig) -> int:
        """Return the number of updates that make a quorum, not counting devices that are waiting."""
        return needed_updates(config, len(self.orders) - len(self.excused))

    @property
    def ends_at(self) -> float:
        """Return the time at which the current phase ends."""
        return min(self.deadline, self.grace_ends)

    def timer(self) -> float:
        """Return the time at which the round is next due even if no message arrives."""
        waits_for_away = self.back_at > self.looked_at and not self.present - self.excused
        return min(self.ends_at, self.back_at if waits_for_away else math.inf)

    def due(self, config: RunConfig, now: float) -> Trigger | None:
        """Return the event that is due, given the answers so far and the time, or None."""
        self.looked_at = now
        if self.phase is Phase.SERVING:
            return None
        expected, enough = (
            len(self.orders) - len(self.excused),
            len(self.received) >= config.min_updates,
        )
        # If there are too few updates, the round still needs the waiting devices.
        if len(self.settled) == expected and (enough or not self.excused):
            return Trigger.EVERYONE
        waits_for_quorum = self.phase in (Phase.OPEN, Phase.OFFLINE)
        if waits_for_quorum and len(self.received) >= needed_updates(config, expected):
            return Trigger.QUORUM
        is_alone = enough and now >= self.back_at and not self.present - self.excused
        if waits_for_quorum and is_alone != (self.phase is Phase.OFFLINE):
            return Trigger.ALONE if is_alone else Trigger.RETURN
        if now < self.ends_at:
            return None
        return Trigger.TIME if enough else Trigger.SHORTAGE

    def closed_by(self, event: Trigger) -> str:
        """Return why ``event`` closes the round, as operators read it."""
        if event is Trigger.EVERYONE:
            return EXCUSED if self.excused else str(event)
        # If a grace period has ended, the reason is whatever began it.
        return str(
            {Phase.GRACE: Trigger.QUORUM, Phase.OFFLINE: Trigger.ALONE}.get(self.phase, event)
        )

    def enter(self, event: Trigger, config: RunConfig, now: float) -> None:
        """Apply an event. Raises ``LocalError`` for one that is illegal in this phase."""
        self.phase = next_state(ROUND, self.phase, event)
        if event is Trigger.QUORUM:
            self.grace_ends = now + config.grace_s
        elif event is Trigger.ALONE:
            self.grace_ends = now + config.offline_grace_s
        elif event is Trigger.RETURN:
            self.grace_ends = math.inf
        elif event is Trigger.SHORTAGE:
            self.deadline, self.grace_ends = now + config.deadline_s, math.inf
            self.extended += 1


@dataclass
class LiveRun:
    """A run, and its open round if it has one.

    A ``retry_at`` above 0 means that a disk write failed; nothing is attempted until that time.
    ``drawn_at`` is the value of ``Fleet.changes`` when a draw last found too few capable devices: it is not
    repeated until a device comes or goes. ``refused`` maps each device to the features that it has been
    told it lacks.
    """

    run: Run
    resting: Resting
    round: OpenRound | None = None
    retry_at: float = 0.0
    drawn_at: int = -1
    refused: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def timer(self) -> float | None:
        """Return the time at which the run is next due if no message arrives; None if no round is open."""
        return None if self.round is None else max(self.round.timer(), self.retry_at)

    def end(self, event: Trigger) -> None:
        """Apply an event that ends the run. Raises ``LocalError`` when it has ended already."""
        self.run.status = next_state(RUN, self.run.status, event)
        self.round = None


def needed_updates(config: RunConfig, expected: int) -> int:
    """Return the quorum, in updates, for a round in which ``expected`` devices should answer."""
    return max(ceil_of(config.quorum, expected), config.min_updates)


def new_round(
    run: Run, number: int, task: str, orders: Sequence[OrderRow], now: float, wall: Wall = as_it_is
) -> OpenRound:
    """Return a round that could open now. Nothing is stored yet."""
    state, opened = run.state, wall(now)
    row = RoundRow(
        run=run.name,
        round=number,
        task=task,
        open=True,
        model=state.model,
        model_hash=state.model_hash,
        summary=None,
        steps=msgspec.msgpack.encode(state.steps) if state.steps else b"",
        opened=opened,
        ends_at=opened + run.config.deadline_s,
        deadline=opened + run.config.deadline_s,
        needed=needed_updates(run.config, len(orders)),
    )
    asked = {order.device: order for order in orders}
    return OpenRound(row, asked, deadline=now + run.config.deadline_s)


def resume(
    run: Run, store: Rows, now: float, wall: Wall = as_it_is, back_s: float = RETURN_S
) -> OpenRound | None:
    """Return the run's open round from the store, to continue where it left off; None if it has none.

    If little or none of its time is left, the devices get ``back_s`` to come back.
    """
    row = store.current_round(run.name)
    if row is None:
        return None
    asked = read_asked(store, row)
    in_grace = row.phase == Phase.GRACE
    end_at = row.ends_at if in_grace else row.deadline  # an offline phase starts over
    whole = run.config.deadline_s
    left, most = end_at - wall(now), run.config.grace_s if in_grace else whole
    if not end_at or left > most:  # the end was not stored, or the clock was set back
        left = most
    end = now + max(left, min(back_s, whole))
    phase = Phase.GRACE if in_grace else Phase.OPEN
    return OpenRound(
        row, asked.orders, asked.settled, asked.received, deadline=end, phase=phase, extended=row.extended
    )  # fmt: skip


def counts_late_since(config: RunConfig, row: RoundRow) -> int | None:
    """Return the earliest round whose late updates count in this one, or None if none do."""
    if config.late_updates != "count" or row.task != TRAIN:
        return None
    since = row.round
    while since > 1 and config.training_rounds(since - 1) == config.training_rounds(since - 2):
        since -= 1
    return since


def counted_updates(received: RoundReceipts, with_late: bool) -> list[UpdateRow]:
    """Return the updates that count in a round: its own and, if ``with_late`` is True, late ones.

    A device counts once: with its update for this round if there is one, otherwise with the latest of its
    late updates.
    """
    updates = received.counted
    if not with_late:
        return updates
    late = {update.device: update for update in received.late}
    absent = late.keys() - {update.device for update in updates}
    return [*updates, *(late[name] for name in sorted(absent))]
