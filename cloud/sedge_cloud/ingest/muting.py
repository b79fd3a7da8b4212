"""Chooses the topics that the link subscribes to, so that a device that floods the broker is muted.

Even a frame that is dropped unread has passed through the broker's queue for the coordinator, and may have
displaced other devices' frames. While a device is muted, the link is therefore not subscribed to its topic.
Normally one wildcard covers all devices. If other processes serve the fleet too, or a device is muted, each
shard has its own wildcard. The shard of a muted device has no wildcard. Instead, the link subscribes to the
other devices' topics one by one; in a large fleet, only to the topics of devices that are online.
"""

import logging
import math
from collections.abc import Callable

from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Subscribe, Unsubscribe

MUTE_S = 60.0
# How often to update the subscriptions while a device is muted.
LOOK_S = 1.0
# If a broker closes the connection within REFUSED_S of a change in subscriptions, it has refused the
# topics, or happened to be restarted just then. For BELIEVED_S it is assumed to have refused them.
REFUSED_S, BELIEVED_S = 10.0, 3600.0


class Muting:
    """Tracks the muted devices, and the topics that the link subscribes to while they are muted."""

    def __init__(
        self, fleet: str, devices: DeviceRegistry, leave: Callable[[Device, float], None]
    ) -> None:
        self._fleet = fleet
        self._devices = devices
        self._leave = leave
        self._until: dict[str, float] = {}
        self._notes: list[Effect] = []
        self.shards = frozenset(topics.SHARD_NAMES)
        self._topics = self._wanted()
        self._look_at = math.inf
        self._changed_at = -math.inf
        self._now = 0.0
        self._able_at = -math.inf

    def listen(self, shards: frozenset[str], now: float) -> None:
        """Serve exactly these shards. The link's next connection subscribes to ``wildcards``."""
        if shards != self.shards:
            self.shards, self._look_at = shards, now

    def wildcards(self) -> set[str]:
        """Return the wildcard topics that cover all devices in the shards."""
        if len(self.shards) == topics.SHARDS:
            return {topics.all_up(self._fleet)}
        return {topics.all_up(self._fleet, shard) for shard in self.shards}

    def mute(self, device: str, now: float) -> None:
        """Unsubscribe from a device's topic for ``MUTE_S``."""
        if now >= self._able_at and device not in self._until:
            self._until[device] = now + MUTE_S
            text = f"device {device} is flooding; its messages are ignored for {MUTE_S:.0f} s"
            self._notes.append(Note(logging.WARNING, text))
            self._look_at = now

    def disconnected(self) -> None:
        """Handle the loss of the connection; the next connection subscribes to ``wildcards``."""
        if self._now <= self._changed_at + REFUSED_S:
            self._able_at = self._now + BELIEVED_S
        self._until.clear()
        self._topics, self._look_at = self.wildcards(), math.inf

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        return None if math.isinf(self._look_at) else self._look_at

    def poll(self, now: float) -> list[Effect]:
        """Return the changes to subscriptions, additions first so that no frame is missed."""
        self._now = now
        if now < self._look_at:
            return []
        over = [name for name, until in self._until.items() if now >= until]
        for name in over:
            del self._until[name]
            # The device counts as offline until its next hello, as its goodbye may have been missed.
            if name in self._devices:
                self._leave(self._devices[name], now)
        self._look_at = now + LOOK_S if self._until else math.inf
        wanted, effects = self._wanted(), [*self._notes]
        self._notes.clear()
        changes: list[Effect] = [Subscribe(topic) for topic in sorted(wanted - self._topics)]
        changes += [Unsubscribe(topic) for topic in sorted(self._topics - wanted)]
        if changes:
            self._topics, self._changed_at = wanted, now
        return [*effects, *changes, *self._devices.request_hello(over)]

    def _wanted(self) -> set[str]:
        if not self._until:
            return self.wildcards()
        muted = set(map(topics.shard_of, self._until)) & self.shards
        heard = {*self._devices.listed(), topics.ITSELF} - self._until.keys()
        neighbours = (name for name in heard if topics.shard_of(name) in muted)
        return {
            *(topics.all_up(self._fleet, shard) for shard in self.shards - muted),
            *(topics.up(self._fleet, name) for name in neighbours),
        }
