"""Answers senders that are not active devices, with the reason or the progress of their join.

Devices that are revoked or speak protocol version 1 are refused; devices with a token may join
(joining.py).
"""

import logging
from collections.abc import Callable
from contextlib import suppress

from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.device_cache import DeviceCache
from sedge_cloud.ingest.first_version import WHY, FirstVersion
from sedge_cloud.ingest.joining import Joining
from sedge_cloud.ingest.rate_limit import cost
from sedge_protocol.errors import RemoteError
from sedge_protocol.wire.effects import Effect, Note
from sedge_protocol.wire.frame import asks
from sedge_protocol.wire.messages import Refusal

# A warning about a device's old start count is logged once an hour: anybody who can publish to the device's
# topic can replay its old frames, and must not be able to fill the log.
WARN_EVERY_S = 3600.0
# Refusals are sent at most at this rate: a frame's version is read before its MAC is checked, so anybody
# who can publish to the topic can provoke one.
REFUSE_EVERY_S = 60.0
REVOKED = Refusal("revoked", "this device no longer takes part until `sedge-cloud device reissue`")


class Refusals:
    """Answers devices in ``cache`` that must be refused, and devices that ask ``joining`` for admission.

    ``failed`` is called to record why a frame was dropped.
    """

    def __init__(
        self,
        first_version: FirstVersion,
        cache: DeviceCache,
        failed: Callable[[Device, str, float], None],
        joining: Joining,
    ) -> None:
        self.joining = joining
        self._first_version = first_version
        self._cache = cache
        self._failed = failed

    def may_refuse(self, topic: str, payload: bytes, now: float) -> bool:
        """Return True if ``refuse`` may answer a frame whose sender is not an active device."""
        outdated = self._outdated(topic)
        device = outdated or self._cache.sender(topic)
        is_doctor = outdated is None and asks(payload)
        if device is None or (now < device.refuse_at and not is_doctor):
            return False
        return device.bucket.spend(now, cost(payload))

    def refuse(self, topic: str, payload: bytes, now: float) -> list[Effect]:
        """Return the answer to a sender that is not an active device.

        A device that is revoked or speaks protocol version 1 is only answered now and then, but a doctor's
        check is answered at once. A device that asks to join always gets an answer.
        """
        if self.joining.bucket(topic) is not None:
            return self.joining.receive(topic, payload, now)
        outdated = self._outdated(topic)
        if outdated is not None:
            row = outdated.row
            effects = self._first_version.refuse(row.device, row.secret, topic, payload)
            if not effects:
                return []
            outdated.refuse_at = now + REFUSE_EVERY_S
            self._failed(outdated, WHY, now)
            if now >= outdated.warn_at:
                outdated.warn_at = now + WARN_EVERY_S
                effects.append(Note(logging.WARNING, f"device {row.device} is refused: {WHY}"))
            return effects
        device = self._cache.sender(topic)
        if device is None:
            return []
        with suppress(RemoteError):
            device.peer.peek(payload, topic)
            device.refuse_at = now + REFUSE_EVERY_S
            return [device.peer.message(REVOKED)]
        return []

    def is_outdated(self, topic: str) -> bool:
        """Return True if this is a device's topic in protocol version 1."""
        return self._outdated(topic) is not None

    def _outdated(self, topic: str) -> Device | None:
        """Return the device that publishes to this topic in protocol version 1; None for other topics."""
        name = self._first_version.sender(topic)
        return None if name is None else self._cache.find(name)
