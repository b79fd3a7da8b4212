"""The link of a simulated fleet: a broker that keeps nothing, and whoever sits in between."""

from collections.abc import Callable, Sequence
from functools import partial

from tests.hunt.chance import Chance
from tests.hunt.judge import Judge
from tests.hunt.machines import DEVICES, FLEET, RUN, Device, Machine
from tests.hunt.timeline import EPOCH, Timeline

from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Decline
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.topics import up

FAULTS = {"drop": 0.04, "double": 0.03, "damage": 0.02, "late": 0.03, "replay": 0.02, "cut": 0.008}
DELAY_S = 0.02
# Lets a machine do something, and what follows from it (World.act).
Act = Callable[[Machine, Callable[[], Sequence[object]]], None]


class Link:
    """Carries frames between ``machines`` late, twice, damaged, or not at all.

    ``heard`` is what an eavesdropper has. Nothing reaches a device of ``deaf`` until the time there.
    """

    def __init__(
        self, machines: Sequence[Machine], time: Timeline, chance: Chance, judge: Judge, act: Act
    ) -> None:
        self._machines, self._time, self._chance = machines, time, chance
        self._judge, self._act = judge, act
        self.heard: list[Send] = []
        self.deaf: dict[str, float] = {}

    def publish(self, sender: Machine, send: Send) -> None:
        """A machine sends a frame; what befalls it is drawn."""
        if isinstance(sender, Device) and not sender.connected:
            return
        self._judge.sent(send)
        place = f"link {sender.name}"
        kind, delay = self._chance.strike(place, **FAULTS), DELAY_S
        match kind:
            case "drop":
                return
            case "late":
                delay += 20 * self._share(f"late {place}")
            case "damage":
                send = Send(send.topic, self._damaged(send.payload))
            case "double":
                self._deliver_after(delay + 5 * self._share(f"double {place}"), send)
            case "replay":
                self._attack(place)
            case "cut":
                self._cut(self._some_device("cut"))
            case _:
                pass
        self.heard.append(send)
        self._deliver_after(delay, send)

    def _cut(self, name: str) -> None:
        """A device loses its link for a while, and what is on the way with it."""
        device = next(machine for machine in self._machines if machine.name == name)
        assert isinstance(device, Device)
        if not device.connected:
            return
        device.disconnect()
        life = device.life

        def again() -> None:
            if device.life == life:
                self._act(device, device.connect)

        self._time.later(0.5 + 30 * self._share(f"away {name}"), again)

    def _damaged(self, payload: bytes) -> bytes:
        if not payload:  # a hint has nothing in it
            return payload
        damaged = bytearray(payload)
        place = self._pick("damage", 8 * len(damaged))
        damaged[place // 8] ^= 1 << place % 8
        end = 1 + self._pick("damage end", 2 * len(damaged))
        return bytes(damaged[:end])

    def _attack(self, place: str) -> None:
        """Somebody without a key sends again what was heard, perhaps on another's topic, or makes it up."""
        name = self._some_device(f"victim {place}")
        keys = DeviceKeys.of(b"x" * 32)
        forged = Peer(up(FLEET, name), keys.up, keys.down, int(EPOCH), 0)
        self._deliver_after(0.01, forged.message(Decline(RUN, 1, "Forged", "")))
        orders = [send for send in self.heard if send.payload[3:4] == bytes([Kind.ORDER])]
        heard = orders if self._share(f"which {place}") < 0.5 else self.heard
        if heard:
            old = heard[self._pick(f"replay {place}", len(heard))]
            self._deliver_after(5 * self._share("replay at"), old)
            if old.topic.endswith("/up"):
                self._deliver_after(0.03, Send(up(FLEET, name), old.payload))

    def _deliver_after(self, delay_s: float, send: Send) -> None:
        self._time.later(delay_s, partial(self._deliver, send))

    def _deliver(self, send: Send) -> None:
        """A frame reaches whoever listens."""
        topic = send.topic
        for machine in self._machines:
            if machine.listens(topic) and self._time.now >= self.deaf.get(machine.name, 0.0):
                self._act(machine, partial(machine.receive, topic, send.payload))

    def _share(self, what: str) -> float:
        return self._chance.share(f"{what} {self._time.now}")

    def _pick(self, what: str, number: int) -> int:
        return self._chance.pick(f"{what} {self._time.now}", number)

    def _some_device(self, what: str) -> str:
        return DEVICES[self._pick(what, len(DEVICES))]
