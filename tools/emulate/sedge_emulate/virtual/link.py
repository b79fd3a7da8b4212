"""The broker of a virtual fleet: routes frames between agents and coordinator in virtual time.

It gives MQTT's guarantees within a connection: frames stay in order, and each subscriber gets one copy.
The plan adds loss, damage, duplicates, delays, rates and cuts. If a device's link breaks, frames in
transit to or from it are lost. Nothing is stored for an offline device, because Sedge does not require
a broker to do so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import SupportsIndex, overload

from sedge_emulate.meter import Meter, packet_bytes
from sedge_emulate.virtual.clock import Clock
from sedge_emulate.virtual.plan import Direction, LinkPlan, Queue
from sedge_protocol.wire import topics

# The time that a nearby broker takes to forward a frame.
BROKER_S = 0.0005
# The broker notices that a device has vanished after one and a half keepalives of 30 s.
MISSED_S = 45.0

Receive = Callable[[str, bytes], None]


@dataclass
class Port:
    """One device's connection. ``session`` counts its connections; frames from an earlier one are lost."""

    device: str
    plan: LinkPlan
    meter: Meter
    receive: Receive
    session: int = 0
    up: bool = False
    subscriptions: set[str] = field(default_factory=set[str])
    queue: Queue = field(default_factory=Queue)
    _number: dict[Direction, int] = field(
        default_factory=lambda: {Direction.UP: 0, Direction.DOWN: 0}
    )
    _latest: dict[Direction, float] = field(
        default_factory=lambda: {Direction.UP: 0.0, Direction.DOWN: 0.0}
    )

    def opened(self) -> None:
        """Begin a new connection. Its frames do not queue behind those of the previous one."""
        self.session += 1
        self.up = True
        self.queue = Queue()
        self._latest = {Direction.UP: 0.0, Direction.DOWN: 0.0}

    def arrivals(self, frame: bytes, way: Direction, now: float) -> list[tuple[float, bytes]]:
        """Return the arrival time and content of each copy of a frame.

        Frames never overtake earlier frames.
        """
        self._number[way] += 1
        number = self._number[way]
        transit = self.plan.transit(number, len(frame), way, now, self.queue)
        copies: list[tuple[float, bytes]] = []
        for delay_s in transit.copies:
            self._latest[way] = max(self._latest[way], now + delay_s)
            copies.append(
                (self._latest[way], _damaged(frame, number) if transit.corrupted else frame)
            )
        return copies


class MemoryBroker:
    """The broker for all connections of a fleet.

    ``to_cloud`` delivers frames to the coordinator immediately.
    """

    def __init__(self, clock: Clock, fleet: str, to_cloud: Receive) -> None:
        self._clock = clock
        self._fleet = fleet
        self._to_cloud = to_cloud
        self._ports: dict[str, Port] = {}
        self._listeners: dict[str, dict[str, Port]] = {}
        self._wills: dict[str, tuple[str, bytes]] = {}
        self.cloud_sent = 0
        self.cloud_received = 0

    def add(self, port: Port) -> None:
        """Register a device that may connect."""
        self._ports[topics.down(self._fleet, port.device)] = port

    def connect(self, port: Port, will: tuple[str, bytes]) -> None:
        """Open a new connection for the device.

        Publishes the will of its previous connection, unless that has already happened.
        """
        self._publish_will(port)
        port.opened()
        self._wills[port.device] = will
        port.meter.connected(port.device, *will)
        port.meter.subscribed(topics.down(self._fleet, port.device))
        self.subscribe(port, topics.hint(self._fleet, topics.shard_of(port.device)))

    def cut(self, port: Port) -> None:
        """Cut the device's link. The broker notices when the keepalive expires."""
        if not port.up:
            return
        port.up = False
        for topic in sorted(port.subscriptions):
            self._listeners[topic].pop(port.device)
        port.subscriptions.clear()
        session = port.session
        missed = partial(self._miss, port, session)
        self._clock.at(self._clock.now + MISSED_S, missed)

    def subscribe(self, port: Port, topic: str) -> None:
        """Subscribe the device to a topic."""
        port.meter.subscribed(topic)
        port.subscriptions.add(topic)
        self._listeners.setdefault(topic, {})[port.device] = port

    def unsubscribe(self, port: Port, topic: str) -> None:
        """End the device's subscription to a topic."""
        port.meter.unsubscribed(topic)
        if topic in port.subscriptions:
            port.subscriptions.remove(topic)
            del self._listeners[topic][port.device]

    def send_up(self, port: Port, topic: str, frame: bytes) -> None:
        """Publish a frame from a device."""
        if not port.up:
            return
        port.meter.sent(topic, frame)
        for at, copy in port.arrivals(frame, Direction.UP, self._clock.now):
            arrive = partial(self._arrive_up, port, port.session, topic, copy)
            self._clock.at(at + BROKER_S, arrive)

    def send_down(self, topic: str, frame: bytes) -> None:
        """Publish a frame from the coordinator, to one device or to all subscribers of a topic."""
        self.cloud_sent += packet_bytes(topic, frame)
        port = self._ports.get(topic)
        listeners = [port] if port else list(self._listeners.get(topic, {}).values())
        if len(listeners) > 1:
            frame = _Shared(frame)
        for port in listeners:
            if not port.up:
                continue
            port.meter.received(topic, frame)
            for at, copy in port.arrivals(frame, Direction.DOWN, self._clock.now + BROKER_S):
                self._clock.at(at, partial(self._arrive_down, port, port.session, topic, copy))

    def _arrive_up(self, port: Port, session: int, topic: str, frame: bytes) -> None:
        if port.up and port.session == session:
            self.cloud_received += packet_bytes(topic, frame)
            self._to_cloud(topic, frame)

    def _arrive_down(self, port: Port, session: int, topic: str, frame: bytes) -> None:
        if port.up and port.session == session:
            port.receive(topic, frame)

    def _miss(self, port: Port, session: int) -> None:
        if port.session == session and not port.up:
            self._publish_will(port)

    def _publish_will(self, port: Port) -> None:
        will = self._wills.pop(port.device, None)
        if will is not None:
            self._clock.at(self._clock.now + BROKER_S, partial(self._to_cloud, *will))


class _Shared(bytes):
    """A frame for many devices. Each slice of it is made once and shared by all devices.

    So the chunk that it carries is copied and hashed (``Manifest.matches``) only once, not once per
    device.
    """

    def __init__(self, frame: bytes) -> None:
        self._cuts: dict[tuple[int | None, int | None, int | None], bytes] = {}

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...

    @overload
    def __getitem__(self, key: slice, /) -> bytes: ...

    def __getitem__(self, key: SupportsIndex | slice, /) -> int | bytes:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        place = (key.start, key.stop, key.step)
        if place not in self._cuts:
            self._cuts[place] = super().__getitem__(key)
        return self._cuts[place]


def _damaged(frame: bytes, number: int) -> bytes:
    """Return a copy of the frame with one bit flipped; ``number`` determines which."""
    damaged = bytearray(frame)
    damaged[number * 7919 % len(frame)] ^= 1 << number % 8
    return bytes(damaged)
