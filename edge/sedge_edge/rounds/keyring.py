"""A device's secret, and the secret that will replace it (spec/enrolment.md, E14 to E17).

The stored state becomes invalid if ``secret_file`` no longer contains the secret with which the device was
enrolled.
"""

from collections.abc import Callable

import msgspec

from sedge_edge.jobs.storage import DurableValue
from sedge_protocol.wire.joining import Agreement, private_key, public_key
from sedge_protocol.wire.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.wire.messages import Join

SCHEMA = 1


class KeptKeys(msgspec.Struct, frozen=True):
    """The stored state of a keyring. It belongs to the keys whose fingerprint is ``base``.

    ``secret`` replaces the secret from the enrolment, unless it is empty. The next secret is derived from
    the coordinator's public key ``point`` and the key pair that ``seed`` generates. If there is no next
    secret, ``point`` and ``seed`` are empty.
    """

    base: bytes
    secret: bytes = b""
    seed: bytes = b""
    point: bytes = b""


class Keyring:
    """A device's current and next keys. ``secret`` is the secret from the device's enrolment.

    ``draw`` returns the requested number of random bytes, which must be kept secret.
    """

    def __init__(
        self,
        secret: bytes,
        fleet: str,
        device: str,
        durable: DurableValue[KeptKeys],
        draw: Callable[[int], bytes],
    ) -> None:
        self.base = DeviceKeys.of(secret)
        self._secret, self._fleet, self._device = secret, fleet, device
        self._durable, self._draw = durable, draw
        kept = durable.load()
        if kept is None or kept.base != self.base.fingerprint:
            kept = KeptKeys(self.base.fingerprint)
        self._kept = kept
        self._is_next = False  # whether the next keys are in use

    @property
    def secret(self) -> bytes:
        """The current secret, even while the next one is in use."""
        return self._kept.secret or self._secret

    @property
    def keys(self) -> DeviceKeys:
        """The keys in use."""
        return DeviceKeys.of(self._agreement().secret if self._is_next else self.secret)

    def answer(self, point: bytes, version: str) -> Join:
        """Return the JOIN that answers a RENEW containing this ``point``.

        By the time this returns, the new key pair is on disk. Raises ``FrameError`` for a point that is not
        on the curve, and ``StorageError`` if the disk fails.
        """
        if self._kept.point != point:
            renewed = msgspec.structs.replace(
                self._kept, seed=self._draw(SECRET_BYTES), point=point
            )
            Agreement.of(private_key(renewed.seed), point, b"", self._fleet, self._device)
            self._durable.commit(renewed)
            self._kept = renewed
        own = public_key(private_key(self._kept.seed))
        return Join(own, self._device, self._agreement().asks(self._device), version)

    def turn(self) -> bool:
        """Switch to the device's other set of keys after the broker has refused the current set.

        Returns False if there is no other set.
        """
        self._is_next = bool(self._kept.seed) and not self._is_next
        return bool(self._kept.seed)

    def welcomed(self) -> None:
        """Record that the coordinator accepts the keys in use.

        If those are the next keys, they replace the current ones. Raises ``StorageError`` if the disk
        fails.
        """
        if self._is_next:
            kept = KeptKeys(self._kept.base, self._agreement().secret)
            self._durable.commit(kept)
            self._kept, self._is_next = kept, False

    def _agreement(self) -> Agreement:
        private = private_key(self._kept.seed)
        own, fleet, device = public_key(private), self._fleet, self._device
        return Agreement.of(private, self._kept.point, own, fleet, device)
