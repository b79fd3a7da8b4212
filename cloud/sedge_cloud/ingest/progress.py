"""Tracks each device's progress on its order, from what the coordinator itself observes.

    asked      its order was sent
    fetching   it requests a blob; its GET says how many of the chunks it has
    training   it has requested and been sent everything that it lacked, and has stopped requesting
    sending    it offers an update, or sends chunks of one

A device repeats requests for chunks that do not arrive, at growing intervals (transfer.Fetch). If a device
is silent for a short time after its first request for a blob's last chunks, they have therefore arrived;
after a repeated request it must be silent for longer.
"""

from dataclasses import dataclass

from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_protocol.wire.messages import Get
from sedge_protocol.wire.transfer import RETRY_MAX_S, SILENCE_S, from_bitmap

TRAINING, SENDING = "training", "sending"
FETCHING = "fetching "  # followed by the name of the blob
# A device that has been silent for this long has received what it requested. If it had to repeat a request,
# the silence must also exceed the longest interval between repeats.
QUIET_S, REPEATED_QUIET_S = 2 * SILENCE_S + 1, RETRY_MAX_S + 2 * SILENCE_S


@dataclass(frozen=True)
class _Asked:
    """A device's last request. ``is_all`` is True if it named all missing chunks of the transfer."""

    run: str
    round: int
    transfer: bytes
    missing: bytes
    is_all: bool
    quiet_at: float


class OrderProgress:
    """Tracks devices' progress on their orders, and records it in their sessions."""

    def __init__(self, devices: DeviceRegistry) -> None:
        self._devices = devices
        self._fetching: dict[str, _Asked] = {}

    def fetches(
        self, device: Device, transfer: bytes, get: Get, blob: str, count: int, now: float
    ) -> None:
        """Record that a device has requested chunks of the named blob, which has ``count`` chunks."""
        name, chunks = device.row.device, from_bitmap(get.missing, count)
        # A request for a single chunk names the first missing one, so all before it have arrived.
        done = min(chunks, default=0) if len(chunks) == 1 else count - len(chunks)
        last = self._fetching.get(name)
        again = last is not None and (last.transfer, last.missing) == (transfer, get.missing)
        quiet_s = REPEATED_QUIET_S if again else QUIET_S
        is_all = done + len(chunks) == count
        self._fetching[name] = _Asked(
            get.run, get.round, transfer, get.missing, is_all, now + quiet_s
        )
        self._enter(device, get.run, get.round, FETCHING + blob, now, done, count)

    def sends(self, device: Device, run: str, number: int, now: float) -> None:
        """Record that a device has offered its update or sent part of it."""
        self._fetching.pop(device.row.device, None)
        self._enter(device, run, number, SENDING, now)

    def poll(self, now: float) -> None:
        """Mark devices that have downloaded everything as training."""
        quiet = [name for name, asked in self._fetching.items() if now >= asked.quiet_at]
        for name in quiet:
            asked = self._fetching.pop(name)
            if not asked.is_all or not self._devices.online(name):
                continue
            device = self._devices[name]
            order = device.session.run, device.session.round
            if order == (asked.run, asked.round):
                self._enter(device, *order, TRAINING, now)

    def _enter(
        self,
        device: Device,
        run: str,
        number: int,
        state: str,
        now: float,
        done: int = 0,
        total: int = 0,
    ) -> None:
        session = device.session
        if (session.run, session.round, session.state) != (run, number, state):
            at = self._devices.wall(now)
            self._devices.note(device, run=run, round=number, state=state, state_since=at)
        if (session.done, session.total) != (done, total):
            self._devices.note(device, done=done, total=total)
