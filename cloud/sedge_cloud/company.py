"""Moves shards of the fleet between processes, by subscribing, holding frames back and exchanging signals.

For an arriving shard, the process first subscribes, and keeps incoming frames until the shard is its own.
For a departing shard, it unsubscribes. It hands the shard over once the broker has confirmed this and all
frames sent before that have been processed. A process that is unsure of its lease, or has no broker,
accepts no frames.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.disk_errors import disk_error
from sedge_cloud.events import CloudEffect
from sedge_cloud.hints import Lacking, LeftOut
from sedge_cloud.processes.membership import Membership
from sedge_cloud.processes.signals import Changed, Signals
from sedge_cloud.store.leases import LEASE_S
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.topics import ITSELF, cloud, first_version_up, shard_in, up

# The maximum number of frames kept for arriving shards. When there are more, the oldest are lost and
# devices send them again.
MAX_EARLY = 1000
# A planned stop waits up to RETIRE_S for other processes to take over, and checks every STEP_S whether they
# have.
RETIRE_S, STEP_S = 10.0, 0.02


class BrokerLink(Protocol):
    """The methods of the broker link that this module needs."""

    subscriptions: tuple[str, ...]

    @property
    def up(self) -> bool:
        """Return True if the broker has accepted the connection."""
        ...

    @property
    def is_settled(self) -> bool:
        """Return True if the broker has confirmed our subscriptions."""
        ...


class Flushable(Protocol):
    """The recorder's method that this module needs."""

    def flush(self, now: float) -> None:
        """Write all changes now."""
        ...


class Company:
    """Represents this process among the processes that serve a fleet; ``core`` is its coordinator.

    The process is ``alone`` if the state is on this machine's disk, where no other process can reach it.
    """

    def __init__(self, core: Coordinator, members: Membership, alone: bool) -> None:
        self._core = core
        self._members = members
        self._alone = alone
        self._link: BrokerLink | None = None
        self._recorder: Flushable | None = None
        self._signals = Signals(core.fleet, core.store.secret())
        self._early: deque[tuple[str, bytes]] = deque(maxlen=MAX_EARLY)
        self._down_since: float | None = time.monotonic()
        self._is_changing = self._has_taken = False
        self._rests = False

    def begin(self, link: BrokerLink, recorder: Flushable | None) -> None:
        """Set the link and the recorder. Must be called before the first ``poll``."""
        self._link, self._recorder = link, recorder
        if not self._alone:
            self._listen(time.monotonic())

    @property
    def may_grow(self) -> bool:
        """Return True if other processes may serve the fleet."""
        return not self._alone

    @property
    def answers(self) -> bool:
        """Return True if this process is the one that answers doctors."""
        return self._members.leads

    def timer(self) -> float:
        """Return the time at which ``poll`` must next be called."""
        return self._members.timer()

    def poll(self, now: float) -> list[CloudEffect]:
        """Check the leases, and continue moving shards that arrive or depart."""
        effects: list[CloudEffect] = []
        is_new = self._members.poll(now)
        if self._alone:
            return [*effects, *self._members.take_notes()]
        if self._link is not None and self._link.up:
            self._down_since = None
        if is_new or not self._has_taken:
            effects += self._take(now)
        self._core.ingest.broadcast.others = self._members.others if self._members.leads else 0
        self._rest(now)
        effects += self._go_on(now)
        self._is_changing = False
        return [*effects, *self._members.take_notes()]

    def disconnected(self, now: float) -> None:
        """Record that the link to the broker is down."""
        self._down_since = now if self._down_since is None else self._down_since

    def admits(self, topic: str, payload: bytes, now: float) -> bool:
        """Return True if this process must handle a frame now. Frames for arriving shards are set aside."""
        if not self._members.is_sure(now):
            self._core.counters["unsure"] += 1
            return False
        if shard_in(topic) in self._members.coming:
            self._early.append((topic, payload))
            return False
        return True

    def signals(self, now: float) -> list[CloudEffect]:
        """Return the signals to send to other processes this turn."""
        signals, self._core.signals = self._core.signals, []
        if self._members.is_alone:
            return []
        return [self._signals.seal(self._members.token, signal) for signal in signals]

    def hear(self, topic: str, payload: bytes, now: float) -> tuple[bool, list[CloudEffect]]:
        """Process another process's signal. Returns whether rows changed, and the effects to perform."""
        sender, signal = self._signals.open(self._members.token, topic, payload)
        if isinstance(signal, Lacking) and self._members.leads:
            return False, self._core.wanted(sender, signal, now)
        if isinstance(signal, LeftOut):
            return False, self._core.left_out(signal, now)
        return isinstance(signal, Changed), []

    def retire(self, step: Callable[[], None]) -> None:
        """Hand over all shards if there are other processes, calling ``step`` while waiting for them."""
        if self._members.is_alone:
            return
        self._members.retire(True)
        deadline = time.monotonic() + RETIRE_S
        while not self._members.is_alone and (self._members.shards or self._members.leads):
            if time.monotonic() > deadline:
                break
            step()
            time.sleep(STEP_S)

    def leave(self) -> None:
        """Give up this process's lease, so that it no longer serves the fleet."""
        self._members.leave()

    def _take(self, now: float) -> list[CloudEffect]:
        members = self._members
        self._listen(now)
        try:
            effects = self._core.take(members.shards, members.leads, now)
        except StorageError as exc:
            self._has_taken = False
            return [disk_error(self._core.counters, exc)]
        self._has_taken = True
        early, self._early = self._early, deque(maxlen=MAX_EARLY)
        for topic, payload in early:
            shard = shard_in(topic)
            if shard in members.coming:
                self._early.append((topic, payload))
            elif shard in members.shards and self._core.admits(topic, payload, now):
                effects += self._core.receive(topic, payload, now)
        return effects

    def _listen(self, now: float) -> None:
        fleet, members = self._core.fleet, self._members
        wildcards = self._core.listen((members.shards | members.coming) - members.going, now)
        ours = {first_version_up(fleet), up(fleet, ITSELF), cloud(fleet)}
        if self._link is not None:
            self._link.subscriptions = tuple(sorted(wildcards | ours))
        self._is_changing = True

    def _go_on(self, now: float) -> list[CloudEffect]:
        """Report the arriving shards that this process has subscribed to, and hand over departing ones."""
        members, link = self._members, self._link
        if self._is_changing or link is None or (link.up and not link.is_settled):
            return []
        if members.unready and link.up:
            members.listens()
        if not members.going:
            return []
        effects = self._core.commit(now)
        if self._recorder is not None:
            self._recorder.flush(now)
        members.hand_over()
        return effects + self._take(now)

    def _rest(self, now: float) -> None:
        """Hand all shards to other processes for as long as this one has no connection to the broker."""
        rests = self._down_since is not None and now > self._down_since + LEASE_S
        # When connected again, it takes shards even if others serve them: during an outage of the broker,
        # all processes may have given them up.
        if rests != self._rests and not (rests and self._members.is_alone):
            self._members.retire(rests)
            self._rests = rests
