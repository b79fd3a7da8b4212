"""The coordinator's shell, with all of the service's I/O: link, clock, log and readiness."""

import logging
import secrets
import time
from collections.abc import Callable

import numpy as np

from sedge_cloud.company import Company
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import CloudEffect, Event, RoundClosed, RoundOpened, RunEnded
from sedge_cloud.recorder import Recorder
from sedge_protocol.host.mqtt import (
    BrokerSettings,
    Connected,
    Disconnected,
    MqttLink,
    Received,
    TooLarge,
)
from sedge_protocol.host.probe import number_of, numbered
from sedge_protocol.host.systemd import notify
from sedge_protocol.wire.effects import Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import MAX_PACKET_BYTES
from sedge_protocol.wire.message_limit import LimitProbe
from sedge_protocol.wire.reconnect import SOON_S, Reconnect
from sedge_protocol.wire.topics import ITSELF, all_up, cloud, down, first_version_up, up

RELOAD_S = 0.5
# Rows are reloaded no more often than this, however often other processes signal changes.
SOON_AGAIN_S = 0.1
# Longer messages on our own topic are not answered, as they only measure the broker's limit.
MAX_QUESTION_BYTES = 64


def on_the_wall(now: float) -> float:
    """Convert a time on the event loop's clock to wall-clock time, in seconds."""
    return time.time() - time.monotonic() + now


class Service:
    """One fleet's running coordinator, driven by the loop. ``observe`` is called with every event.

    ``recorder`` stores observations for status displays. ``company`` says which shards belong to this
    process, and shares them with other processes that serve the fleet; without ``company``, this process
    serves the fleet alone.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: BrokerSettings,
        observe: Callable[[Event], None] = lambda event: None,
        recorder: Recorder | None = None,
        company: Company | None = None,
    ) -> None:
        self.coordinator = coordinator
        self._company = company
        # Reconnects soon, as a whole fleet is waiting.
        soon = Reconnect(np.random.default_rng(), most_s=SOON_S)
        topics = (all_up(coordinator.fleet), first_version_up(coordinator.fleet))
        self.link = MqttLink(settings, topics, reconnect=soon, admit=self._admits)
        if company is not None:
            company.begin(self.link, recorder)
        self._itself = up(coordinator.fleet, ITSELF)
        self._among_us = cloud(coordinator.fleet, "")
        self._token = secrets.token_bytes(16)
        self._probe = LimitProbe()
        self._observe = observe
        self._recorder = recorder
        self._reload_at = self._may_reload_at = 0.0
        self._status = ""
        self._log = logging.getLogger("sedge.cloud")

    def ready(self) -> None:
        """Load the store and tell the service manager that the coordinator is ready."""
        self._do(self.coordinator.load(time.monotonic()))
        notify("READY=1")

    def fileno(self) -> int | None:
        """Return the file descriptor of the link's socket."""
        return self.link.fileno()

    def wants_write(self) -> bool:
        """Return True if the link has bytes to write."""
        return self.link.wants_write()

    def timer(self) -> float:
        """Return the time at which ``step`` must next be called."""
        due = [self.link.timer(), self._reload_at]
        probe = self._probe.timer()
        due += [] if probe is None else [probe]
        due += [] if self._company is None else [self._company.timer()]
        at = self.coordinator.timer()
        # With no room on the link nothing can be sent, so a due timer would make the loop spin; the socket
        # will wake it instead.
        return min(due if at is None or not self.link.room else [*due, at])

    def step(self) -> None:
        """Process the messages that have arrived and the work that is due."""
        now = time.monotonic()
        if self._company is not None:
            self._do(self._company.poll(now))
        if now >= self._reload_at:
            self._reload_at, self._may_reload_at = now + RELOAD_S, now + SOON_AGAIN_S
            self._do(self.coordinator.load(now))
            self._tell_status()
        for event in self.link.step():
            match event:
                case Connected():
                    self._log.info("connected to %s", self.link.settings.url)
                    if self._recorder is not None:
                        self._recorder.link(True, now)
                    # The message comes back unless the broker withholds messages. A second coordinator also
                    # receives it.
                    self.link.send(self._itself, self._token)
                    self._probe.connected(event.max_packet_bytes, now)
                case Disconnected():
                    event.log(self._log)
                    self._probe.disconnected()
                    self.coordinator.disconnected(now)
                    if self._company is not None:
                        self._company.disconnected(now)
                    if self._recorder is not None:
                        self._recorder.link(False, now, event.reason)
                case TooLarge():
                    self._failed(str(event))
                case Received(topic=self._itself):
                    self._answer(event.payload, now)
                case Received() if event.topic.startswith(self._among_us):
                    self._hear(event, now)
                case Received() if self._probe.limit is None:
                    pass  # dropped until orders can be sized; the sender will resend it
                case Received():
                    self._do(self.coordinator.receive(event.topic, event.payload, time.monotonic()))
        self._measure(now)
        self._do(self.coordinator.poll(time.monotonic(), self.link.room))
        if self._company is not None:
            self._do(self._company.signals(now))
        if self._recorder is not None:
            self._recorder.poll(time.monotonic())

    def close(self) -> None:
        """Close the link. The store needs no closing, as it is durable already."""
        notify("STOPPING=1")
        if self._company is not None:
            self._company.retire(self.step)
        self.link.close()
        if self._recorder is not None:
            self._recorder.close(time.monotonic())
        if self._company is not None:
            self._company.leave()

    def _tell_status(self) -> None:
        """Report the status to the service manager in one line, if it has changed."""
        devices = self.coordinator.devices
        parts = [f"{devices.present} of {devices.num_active} devices online"]
        for name, current in self.coordinator.open.items():
            answers = f"{len(current.settled)} of {len(current.orders)} have answered"
            parts.append(f"run {name}, round {current.row.round}: {answers}")
        text = "; ".join(parts)
        if text != self._status:
            self._status = text
            notify(f"STATUS={text}")

    def _admits(self, topic: str, payload: bytes) -> bool:
        """Return True if a frame may be queued. Only our own account may publish to our own topics."""
        now = time.monotonic()
        if topic == self._itself or topic.startswith(self._among_us):
            return True
        if self._company is not None and not self._company.admits(topic, payload, now):
            return False
        return self.coordinator.admits(topic, payload, now)

    def _hear(self, event: Received, now: float) -> None:
        """Process a message from another process."""
        if self._company is None:
            return
        has_changed, effects = self._company.hear(event.topic, event.payload, time.monotonic())
        self._do(effects)
        if has_changed:
            self._reload_at = min(self._reload_at, max(now, self._may_reload_at))

    def _answer(self, payload: bytes, now: float) -> None:
        """Answer a message on our own topic: from this process, a doctor, or a second coordinator."""
        number = number_of(self._token, payload)
        if number is not None:
            if self._probe.limit is None:
                self._probe.came_back(number, now)
                if self._probe.limit is not None:
                    self._measured(self._probe.limit, now)
            return
        if len(payload) > MAX_QUESTION_BYTES:
            return  # too large for a doctor: it only measures the limit and needs no answer
        if self._company is not None and not self._company.answers:
            return
        self.link.send(down(self.coordinator.fleet, ITSELF), payload)
        is_alone = self._company is None or not self._company.may_grow
        if is_alone and len(payload) == len(self._token) and payload != self._token:
            self._log.warning(
                "a second coordinator of this fleet has connected: stop one of the two"
            )

    def _measure(self, now: float) -> None:
        """Continue measuring how large messages may be."""
        known = self._probe.limit is not None
        for number, size in self._probe.poll(now):
            self.link.send(self._itself, numbered(self._token, number, self._itself, size))
        if not known and self._probe.limit is not None:
            self._failed(
                f"the coordinator's messages to itself on {self._itself} do not come back: allow them "
                f"in the broker's rules; meanwhile it sends messages of at most {self._probe.limit} bytes"
            )
            self._measured(self._probe.limit, now)

    def _measured(self, limit: int, now: float) -> None:
        """Start serving devices, now that the largest message size is known."""
        if limit < MAX_PACKET_BYTES and not self._probe.deaf:
            self._log.warning("the broker forwards messages of up to %d bytes", limit)
        if self._recorder is not None:
            self._recorder.link(True, now, max_packet=limit)
        self._do(self.coordinator.connected(now, limit))

    def _failed(self, text: str) -> None:
        self._log.error("%s", text)
        if self._recorder is not None:
            self._recorder.error(text, time.monotonic())

    def _do(self, effects: list[CloudEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.link.send(effect.topic, effect.payload)
                case Note():
                    self._log.log(effect.level, "%s", effect.text)
                    if self._recorder is not None and effect.level >= logging.ERROR:
                        self._recorder.error(effect.text, time.monotonic())
                case Subscribe():
                    self.link.subscribe(effect.topic)
                case Unsubscribe():
                    self.link.unsubscribe(effect.topic)
                case _:
                    self._report(effect)
                    self._observe(effect)

    def _report(self, event: Event) -> None:
        match event:
            case RoundOpened():
                where = f"run {event.run}, round {event.round}"
                self._log.info("%s: %s on %d devices", where, event.task, len(event.cohort))
            case RoundClosed():
                s = event.summary
                self._log.info(
                    "run %s, round %d: closed with %d of %d updates%s",
                    s.run, s.round, len(s.devices), s.cohort,
                    "" if s.withheld
                    else f", {s.metric.words} {s.before:.4f} before, {s.after:.4f} after",
                )  # fmt: skip
                for device, factor in s.distrusted.items():
                    text = "run %s, round %d: the update of %s is unlike the others and is weighted by %.3g"
                    self._log.warning(text, s.run, s.round, device, factor)
            case RunEnded():
                self._log.info("run %s: %s", event.run, event.status)
            case _:
                self._log.debug("update of %s, %d bytes", event.device, event.size)
