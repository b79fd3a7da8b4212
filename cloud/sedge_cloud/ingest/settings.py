"""Sends devices the settings that rollouts assign to them (spec/settings.md), in the answer to their hello.

A device that is online gets another welcome when a rollout assigns new settings to it.
"""

from collections import deque
from collections.abc import Iterator

from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_cloud.runs.rollout_versions import Versions
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rollouts import FLEET, RolloutRow
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.messages import Hello, Welcome
from sedge_protocol.wire.settings import name_of

# How often rollouts are reread while one is in progress.
LOOK_S = 10.0
# In each period of EVERY_S, at most MOST_LOOKED devices are checked and AT_ONCE of them welcomed.
EVERY_S, AT_ONCE, MOST_LOOKED = 1.0, 100, 5000


class SettingsSender:
    """Decides which settings a fleet's devices should have, and sends them."""

    def __init__(self, fleet: DeviceRegistry, store: Rows) -> None:
        self._fleet, self._store = fleet, store
        self._known = list[RolloutRow](), 0
        self._versions: Versions | None = None
        self._queue = deque[str]()
        self._look_at: float | None = None
        self._next_at = 0.0

    def load(self, now: float) -> None:
        """Read rollouts, to find out which settings each device should have. Raises ``StorageError``."""
        rows = self._store.rollouts(FLEET)
        is_open = any(row.state == "in_progress" for row in rows)
        known = rows, self._store.enrolment() if rows else 0
        if known != self._known:
            self._versions, self._known = Versions(FLEET, self._store), known
            self._queue = deque(self._fleet.listed())
        self._look_at = now + LOOK_S if is_open else None

    def welcome(self, device: Device, hello: Hello) -> Welcome:
        """Return the answer to a device's hello, which is stored already. Raises ``StorageError``."""
        if self._versions is not None and hello.settings is not None:
            self._versions.look(device.row.device)
        coded = b"" if hello.settings is None else self._of(device)
        return self._fleet.welcome(hello.nonce, settings=coded)

    def _of(self, device: Device) -> bytes:
        row = None if self._versions is None else self._versions.row(device.row.device)
        return b"" if row is None else row.read_plan().settings

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        due = [self._look_at, self._next_at if self._queue else None]
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> Iterator[Send]:
        """Welcome the next few devices whose settings should change. Raises ``StorageError``."""
        if self._look_at is not None and now >= self._look_at:
            self.load(now)
        if now < self._next_at:
            return
        looked = sent = 0
        while self._queue and looked < MOST_LOOKED and sent < AT_ONCE:
            looked += 1
            name = self._queue.popleft()
            device = self._fleet[name] if self._fleet.online(name) else None
            hello = None if device is None else device.hello
            if device is None or hello is None or hello.settings is None:
                continue
            if hello.settings != name_of(self._of(device)):
                sent += 1
                yield device.peer.message(self.welcome(device, hello))
        self._next_at = now + EVERY_S
