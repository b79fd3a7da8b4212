"""Renews the secrets (spec/enrolment.md, E14 to E16) and certificates (E19) of connected devices.

    renew  ->  join, under the old secret  ->  hello, under the new one, which invalidates the old one
    joined, with a new certificate  ->  hello, which names it

Each device's progress is in its row, so either side may be killed at any point.
"""

from collections import deque
from functools import cached_property
from hmac import compare_digest
from math import inf

from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_cloud.store.certificate_rows import CertificateRow
from sedge_cloud.store.roles import Rows
from sedge_protocol.errors import FrameError, RemoteError
from sedge_protocol.wire.effects import Effect
from sedge_protocol.wire.frame import Kind, open_frame
from sedge_protocol.wire.joining import RENEWS, Agreement, fleet_key, key_name, public_key
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Join, Joined, Renew

# A device that is online but has not answered is asked again after AGAIN_S. Every EVERY_S, at most AT_ONCE
# devices are asked.
AGAIN_S, EVERY_S, AT_ONCE = 60.0, 1.0, 100
# For each new secret, the broker's password file is rewritten and reloaded, so a device's offers are
# accepted no more often than this.
OFFER_S = 60.0


class Renewing:
    """Tracks the devices of a fleet that should change their secret."""

    def __init__(self, name: str, fleet: DeviceRegistry, store: Rows) -> None:
        self._name, self._fleet, self._store = name, fleet, store
        self._silent: set[str] = set()  # devices that have not offered a new secret yet
        self._offered: set[str] = set()
        self._stored_at: dict[str, float] = {}  # when each device's last offer was stored
        # (public point, secret) of offers that came too soon, by device
        self._held: dict[str, tuple[bytes, bytes]] = {}
        self._queue: deque[str] = deque()
        self._due: float | None = None
        self._signed: dict[str, CertificateRow] = {}  # certificates still to be sent, by device
        self._sent: dict[str, bytes] = {}  # serial number of the last certificate sent, by device

    def load(self, now: float) -> None:
        """Reread which devices must change their secret, and which must get a new certificate.

        Raises ``StorageError``.
        """
        for signed in self._store.certificates_to_send():
            if self._sent.get(signed.name) != signed.serial and self._fleet.online(signed.name):
                self._signed[signed.name] = signed
        rows = self._store.renewals()
        silent = {row.device for row in rows if not row.point}
        self._offered = {row.device for row in rows if row.point}
        for name in self._stored_at.keys() - self._offered:
            del self._stored_at[name]
            self._held.pop(name, None)
        if silent - self._silent:
            self._queue, self._due = deque(sorted(silent)), now
        self._silent = silent

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due, or None."""
        due = [self._stored_at[name] + OFFER_S for name in self._held]
        if self._silent and self._due is not None:
            due.append(self._due)
        if self._signed:
            due.append(-inf)
        return min(due, default=None)

    def poll(self, now: float) -> list[Effect]:
        """Ask the next few devices that are online, send certificates, and store offers that came too soon.

        Raises ``StorageError``.
        """
        effects = list[Effect]()
        for name in [name for name in self._held if now >= self._stored_at[name] + OFFER_S]:
            self._take(name, *self._held[name], now)
        for name in [*self._signed][:AT_ONCE]:
            effects += self._certificate(name, self._signed.pop(name))
        if self._due is None or now < self._due or not self._silent:
            return effects
        while self._queue and len(effects) < AT_ONCE:
            name = self._queue.popleft()
            if name in self._silent and self._fleet.online(name):
                effects += self.ask(self._fleet[name])
        self._due = now + (EVERY_S if self._queue else AGAIN_S)
        if not self._queue:
            self._queue.extend(sorted(self._silent))
        return effects

    def ask(self, device: Device) -> list[Effect]:
        """Return a RENEW message, if the device should change its secret and supports that.

        A device that has offered a secret is asked again after each hello, as it may have lost that secret.
        """
        name, hello = device.row.device, device.hello
        if (name not in self._silent and name not in self._offered) or hello is None:
            return []
        if RENEWS not in hello.codecs:
            return []
        return [device.peer.message(Renew(public_key(self._private)))]

    def greet(self, device: Device) -> list[Effect]:
        """Return the answers to a hello: a newer certificate, if there is one, and the result of ``ask``.

        Raises ``StorageError``.
        """
        name, hello = device.row.device, device.hello
        signed = self._store.certificate(name) if hello and hello.certificate else None
        if hello is None or signed is None:
            return self.ask(device)
        if hello.certificate != key_name(signed.der):
            return [*self._certificate(name, signed), *self.ask(device)]
        if signed.state != "held":
            self._store.hold_certificate(signed)
        return self.ask(device)

    def offered(self, device: Device, message: Join, now: float) -> None:
        """Store the secret that a device offers, or hold it back if its last offer was too recent.

        Raises ``FrameError``, ``StorageError``.
        """
        name = device.row.device
        if name not in self._silent and name not in self._offered:
            raise FrameError(f"JOIN of {name}, which was not asked for another secret")
        agreement = Agreement.of(self._private, message.point, message.point, self._name, name)
        if message.device != name or not compare_digest(agreement.asks(name), message.proof):
            raise FrameError(f"JOIN of {name}: its proof does not match its key")
        if now < self._stored_at.get(name, -inf) + OFFER_S:
            self._held[name] = (message.point, agreement.secret)
        else:
            self._take(name, message.point, agreement.secret, now)

    def heard(self, device: Device, topic: str, payload: bytes, now: float) -> Device:
        """Return the device, switched to its new secret if the frame is a HELLO sealed with that secret.

        Raises ``StorageError``.
        """
        name = device.row.device
        if name not in self._offered or _opens(payload, topic, device.row.secret):
            return device
        row = self._store.renewal(name)
        if row is None or not row.secret or not _opens(payload, topic, row.secret, Kind.HELLO):
            return device
        if self._store.end_renewal(row):
            self._offered.discard(name)
            self._held.pop(name, None)
        fresh = self._store.device(name)
        if fresh is not None:
            self._fleet.changed(device, fresh, now)
        return self._fleet[name]

    def _certificate(self, name: str, signed: CertificateRow) -> list[Effect]:
        """Return the message that sends a device its newest certificate."""
        self._sent[name] = signed.serial
        if not self._fleet.online(name):
            return []
        message = Joined(key_name(signed.der), "accepted", name, certificate=signed.der)
        return [self._fleet[name].peer.message(message)]

    def _take(self, name: str, point: bytes, secret: bytes, now: float) -> None:
        self._stored_at[name] = now
        self._store.offer_secret(name, point, secret)
        self._held.pop(name, None)
        self._silent.discard(name)
        self._offered.add(name)

    @cached_property
    def _private(self) -> int:
        return fleet_key(self._store.secret())


def _opens(payload: bytes, topic: str, secret: bytes, kind: Kind | None = None) -> bool:
    """Return True if a frame is of this kind and its MAC is valid under this secret."""
    try:
        return kind in (None, open_frame(payload, topic, DeviceKeys.of(secret).up).kind)
    except RemoteError:
        return False
