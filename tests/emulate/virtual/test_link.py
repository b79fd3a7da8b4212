"""The in-memory broker: who gets what, when, and what a broken link takes with it."""

from dataclasses import dataclass, field

import pytest

from sedge_emulate.config import EmulationConfig, StrategyConfig
from sedge_emulate.device_classes import ClassConfig, LinkConfig
from sedge_emulate.meter import Meter, packet_bytes
from sedge_emulate.virtual.clock import Clock
from sedge_emulate.virtual.link import BROKER_S, MISSED_S, MemoryBroker, Port
from sedge_emulate.virtual.plan import Plan
from sedge_protocol.wire.frame import Frame, Kind, open_frame, seal
from sedge_protocol.wire.messages import Goodbye, encode_body
from sedge_protocol.wire.topics import blob, down, up

FLEET = "f"
BLOB = blob(FLEET, bytes(16))
WILL = (up(FLEET, "a"), b"will of a")
FRAME = seal(Frame(Kind.GOODBYE, encode_body(Goodbye(bytes(16)))), down(FLEET, "a"), bytes(32))


Arrived = tuple[float, str, bytes]


@dataclass
class Net:
    """A broker with devices a and b, and everything that has arrived anywhere."""

    link: LinkConfig = field(default_factory=LinkConfig)
    clock: Clock = field(default_factory=Clock)
    cloud: list[Arrived] = field(default_factory=list[Arrived])
    devices: dict[str, list[Arrived]] = field(default_factory=lambda: {"a": [], "b": []})

    def __post_init__(self) -> None:
        def receive(topic: str, frame: bytes) -> None:
            self.cloud.append((self.clock.now, topic, frame))

        self.broker = MemoryBroker(self.clock, FLEET, receive)
        kind = ClassConfig("k", link=self.link)
        plan = Plan(EmulationConfig(classes=(kind,), strategies=(StrategyConfig("fedavg"),)), 1)
        self.ports = {name: self.port(name, plan, number) for number, name in enumerate("ab")}

    def port(self, name: str, plan: Plan, number: int) -> Port:
        def receive(topic: str, frame: bytes) -> None:
            self.devices[name].append((self.clock.now, topic, frame))

        port = Port(name, plan.device(number).link, Meter(), receive)
        self.broker.add(port)
        return port

    def run(self) -> None:
        while self.clock.step():
            pass


@pytest.fixture
def net() -> Net:
    net = Net()
    for name, port in net.ports.items():
        net.broker.connect(port, (up(FLEET, name), f"will of {name}".encode()))
    return net


def test_a_device_reaches_the_coordinator_and_is_reached(net: Net) -> None:
    net.broker.send_up(net.ports["a"], up(FLEET, "a"), FRAME)
    net.broker.send_down(down(FLEET, "b"), FRAME)
    net.run()
    assert net.cloud == [(BROKER_S, up(FLEET, "a"), FRAME)]
    assert net.devices == {"a": [], "b": [(BROKER_S, down(FLEET, "b"), FRAME)]}


def test_a_broadcast_counts_once_at_the_coordinator_and_at_every_device(net: Net) -> None:
    for port in net.ports.values():
        net.broker.subscribe(port, BLOB)
    before = [port.meter.down.total for port in net.ports.values()]
    net.broker.send_down(BLOB, FRAME)
    packet = packet_bytes(BLOB, FRAME)
    assert packet > len(FRAME) + len(BLOB)
    assert net.broker.cloud_sent == packet
    after = [port.meter.down.total for port in net.ports.values()]
    assert after == [total + packet for total in before]
    net.broker.send_up(net.ports["a"], up(FLEET, "a"), FRAME)
    net.run()
    assert net.broker.cloud_received == packet_bytes(up(FLEET, "a"), FRAME)


def test_what_many_get_is_cut_once(net: Net) -> None:
    for port in net.ports.values():
        net.broker.subscribe(port, BLOB)
    frame = seal(Frame(Kind.CHUNK, b"body" * 1000, 1, 0, bytes(16), 3), BLOB, None)
    net.broker.send_down(BLOB, frame)
    net.run()
    one, two = (open_frame(net.devices[name][0][2], BLOB, None) for name in "ab")
    assert one == two == open_frame(frame, BLOB, None)
    assert one.body is two.body
    got = net.devices["a"][0][2]
    assert (got, got[3], got[:7], got[64:-1:2]) == (frame, frame[3], frame[:7], frame[64:-1:2])


def test_a_blob_goes_to_those_who_listen(net: Net) -> None:
    net.broker.subscribe(net.ports["a"], BLOB)
    net.broker.send_down(BLOB, FRAME)
    net.broker.subscribe(net.ports["b"], BLOB)
    net.broker.unsubscribe(net.ports["a"], BLOB)
    net.broker.send_down(BLOB, FRAME)
    net.run()
    assert {name: len(found) for name, found in net.devices.items()} == {"a": 1, "b": 1}


def test_what_is_on_its_way_when_the_link_breaks_is_lost(net: Net) -> None:
    port = net.ports["a"]
    net.broker.subscribe(port, BLOB)
    net.broker.send_up(port, up(FLEET, "a"), FRAME)
    net.broker.send_down(BLOB, FRAME)
    net.broker.cut(port)
    net.broker.send_up(port, up(FLEET, "a"), FRAME)
    net.broker.send_down(down(FLEET, "a"), FRAME)
    net.broker.connect(port, WILL)
    net.broker.send_down(BLOB, FRAME)  # a subscription ends with its connection
    net.run()
    assert net.devices["a"] == []
    assert [frame for _, _, frame in net.cloud] == [b"will of a"]


def test_a_new_connection_waits_for_nothing_that_the_old_one_had_on_its_way() -> None:
    net = Net(LinkConfig(up_kbit_s=8, down_kbit_s=8))
    port = net.ports["a"]
    net.broker.connect(port, WILL)
    net.broker.send_up(port, up(FLEET, "a"), bytes(100_000))  # a hundred seconds
    net.broker.send_down(down(FLEET, "a"), bytes(100_000))
    net.broker.cut(port)
    net.broker.connect(port, WILL)
    net.broker.send_up(port, up(FLEET, "a"), bytes(1000))
    net.broker.send_down(down(FLEET, "a"), bytes(1000))
    net.run()
    assert net.cloud[-1][0] == pytest.approx(1 + BROKER_S)
    assert [at for at, _, _ in net.devices["a"]] == pytest.approx([1 + BROKER_S])


def test_the_broker_says_goodbye_for_a_device_that_vanished(net: Net) -> None:
    net.broker.cut(net.ports["a"])
    net.broker.cut(net.ports["a"])
    net.run()
    ((at, topic, frame),) = net.cloud
    assert at == pytest.approx(MISSED_S + BROKER_S)
    assert (topic, frame) == WILL


def test_a_new_connection_ends_the_old_one_at_once(net: Net) -> None:
    net.broker.cut(net.ports["a"])
    net.broker.connect(net.ports["a"], WILL)
    net.run()
    assert net.cloud == [(BROKER_S, up(FLEET, "a"), b"will of a")]


def test_frames_keep_their_order_whatever_the_jitter() -> None:
    net = Net(LinkConfig(delay_ms=10, jitter_ms=100))
    net.broker.connect(net.ports["a"], WILL)
    frames = [bytes(64) + bytes([number]) for number in range(50)]
    for frame in frames:
        net.broker.send_up(net.ports["a"], up(FLEET, "a"), frame)
    net.run()
    assert [frame for _, _, frame in net.cloud] == frames
    assert net.cloud[0][0] >= 0.01


def test_loss_damage_and_doubles() -> None:
    net = Net(LinkConfig(loss=0.2, corrupt=0.2, duplicate=0.2))
    net.broker.connect(net.ports["a"], WILL)
    for _ in range(500):
        net.broker.send_up(net.ports["a"], up(FLEET, "a"), FRAME)
    net.run()
    whole = sum(frame == FRAME for _, _, frame in net.cloud)
    damaged = [frame for _, _, frame in net.cloud if frame != FRAME]
    assert 400 < len(net.cloud) < 560
    assert 300 < whole < 450
    flipped = {int.from_bytes(frame, "big") ^ int.from_bytes(FRAME, "big") for frame in damaged}
    assert all(bits.bit_count() == 1 for bits in flipped)
    assert len(flipped) > 10


def test_the_meter_sees_what_was_sent_even_if_it_is_lost() -> None:
    net = Net(LinkConfig(loss=1.0))
    net.broker.connect(net.ports["a"], WILL)
    before = net.ports["a"].meter.up.total
    net.broker.send_up(net.ports["a"], up(FLEET, "a"), FRAME)
    net.run()
    assert net.cloud == []
    assert net.ports["a"].meter.up.total > before + len(FRAME)
