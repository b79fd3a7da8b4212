"""A link that loses, repeats and delays frames, and breaks, and a device that is killed."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.edge.disk_faults import Disk, PowerCut
from tests.edge.harness import Harness, MakeDevice
from tests.fleet import changed

from sedge_edge.rounds.state import MAX_STARTS
from sedge_protocol.codec import ValueCoding
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.work import Codec

pytestmark = pytest.mark.both_cores

ROUNDS = 10
DAY_S = 24 * 3600.0
SMALL_PACKET = 10_000  # bytes: an update has several chunks then
EFFECTS = {"connected", "finished", "failed", "told"}


class Storm:
    """An agent beyond a bad link."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.agent: Any = None
        self._late: list[tuple[str, bytes]] = []
        self.counted = Counter[str]()

    def around(self, agent: Any) -> Any:
        """Itself, in an agent's place."""
        self.agent = agent
        return self

    def _befalls(self, what: str, chance: float) -> bool:
        hit = bool(self._rng.random() < chance)
        self.counted[what] += hit
        return hit

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.agent, name)
        if name not in EFFECTS:
            return call

        def called(*args: Any, **named: Any) -> list[Any]:
            return self._sent(call(*args, **named))

        return called

    def receive(self, topic: str, payload: bytes, now: float) -> list[Any]:
        """A frame that comes, if it does, with one that should have come long ago."""
        found: list[Any] = []
        if self._late and self._befalls("late", 0.2):
            late = self._late.pop(int(self._rng.integers(len(self._late))))
            found += self.agent.receive(*late, now)
        if self._befalls("lost", 0.15):
            return self._sent(found)
        if self._befalls("delayed", 0.15):
            self._late.append((topic, payload))
            return self._sent(found)
        for _ in range(1 + self._befalls("repeated", 0.1)):
            found += self.agent.receive(topic, payload, now)
        return self._sent(found)

    def poll(self, now: float) -> list[Any]:
        """The link may break and be back at once; what is under way is late then."""
        found: list[Any] = []
        if self._befalls("broken", 0.05):
            self.agent.disconnected()
            self.agent.will()
            found += self.agent.connected(now, SMALL_PACKET)
        return self._sent([*found, *self.agent.poll(now)])

    def _sent(self, effects: list[Any]) -> list[Any]:
        arrived: list[Any] = []
        for effect in effects:
            if not isinstance(effect, Send):
                arrived.append(effect)
            elif not self._befalls("lost up", 0.15):
                arrived += [effect] * (1 + self._befalls("repeated up", 0.1))
        return arrived


def orders_of(device: Harness) -> list[Order]:
    """Whose updates leave something owed."""
    codec = Codec(values=ValueCoding.FP32, fraction=0.9, compression=device.compression)
    return [changed(order, codec=codec, keep=("norm.mean",)) for order in device.chain(1, ROUNDS)]


def ride(device: Harness, storm: Storm, disk: Disk, rng: np.random.Generator) -> None:
    """The order at hand, through as many lives as it takes; most of the first end at a write."""
    effects: list[Any] = []
    for life in range(MAX_STARTS):
        at = int(rng.integers(20)) if life < MAX_STARTS - 1 else -1
        try:
            with disk.cut(at, bool(rng.integers(2))):
                device.pump(effects)
                device.settle(DAY_S)
            return
        except PowerCut:
            storm.counted["killed"] += 1
            device.agent = storm.around(device.start())
            effects = storm.agent.connected(device.now, SMALL_PACKET)


@pytest.mark.parametrize("seed", range(3))
def test_no_storm_changes_what_a_run_leaves(
    make_device: MakeDevice, disk: Disk, tmp_path: Path, seed: int
) -> None:
    calm, device = make_device(tmp_path / "calm"), make_device(tmp_path / "storm")
    calm.pump(calm.connect(SMALL_PACKET))
    for order in orders_of(calm):
        calm.give(order)
        calm.settle()
    rng = np.random.default_rng(seed)
    storm = Storm(rng)
    device.pump(device.connect(SMALL_PACKET))
    device.agent = storm.around(device.agent)

    for order in orders_of(device):
        device.order_at_hand = order
        ride(device, storm, disk, rng)
    assert device.results() == calm.results() and len(calm.updates) == ROUNDS
    assert device.on_disk().runs == calm.on_disk().runs
    assert device.declines == []
    assert storm.counted["killed"] and min(storm.counted.values()) > 0, storm.counted
