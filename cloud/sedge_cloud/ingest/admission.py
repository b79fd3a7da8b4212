"""Decides which frames to accept at all, before a frame is queued or its MAC is checked."""

import logging
from collections import Counter

from sedge_cloud.ingest.muting import Muting
from sedge_cloud.ingest.rate_limit import LogQuota, TokenBucket, cost
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note


class FrameAdmission:
    """Drops frames from unknown senders and from devices that send too much; ``poll`` returns log lines."""

    def __init__(
        self, devices: DeviceRegistry, log: LogQuota, counters: Counter[str], muting: Muting
    ) -> None:
        self._muting = muting
        self._devices = devices
        self._log = log
        self._counters = counters
        self._notes: list[Note] = []

    def admits(self, topic: str, payload: bytes, now: float) -> bool:
        """Return True if a frame is to be processed. Call it exactly once per frame.

        If the sender cannot be looked up because the store failed, the frame is treated as lost, and the
        sender will repeat it.
        """
        try:
            return self._admits(topic, payload, now)
        except StorageError as exc:
            self._notes += self._log.admit("the store", [Note(logging.ERROR, str(exc))], now)
            return False

    def _admits(self, topic: str, payload: bytes, now: float) -> bool:
        device = self._devices.sender(topic)
        if device is None:
            bucket = self._devices.refusals.joining.bucket(topic)
            if bucket is not None:
                return self._admits_token(topic.split("/")[-2], bucket, cost(payload), now)
            self._counters["foreign"] += 1
            if self._devices.refusals.may_refuse(topic, payload, now):
                return True
            if self._devices.refusals.is_outdated(topic):  # it has already been refused and logged
                return False
            text = f"dropped a frame on {topic}: its sender is revoked or not enrolled"
            self._notes += self._log.admit("unknown senders", [Note(logging.WARNING, text)], now)
            return False
        if device.bucket.spend(now, cost(payload)):
            return True
        self._counters["flood"] += 1
        self._notes += self._devices.rate_limited(device, now)
        if device.bucket.floods:
            self._muting.mute(device.row.device, now)
        return False

    def _admits_token(self, token: str, bucket: TokenBucket, cost: int, now: float) -> bool:
        if bucket.spend(now, cost):
            return True
        self._counters["flood"] += 1
        if bucket.floods:
            self._muting.mute(token, now)
        return False

    def poll(self) -> list[Note]:
        """Return the messages to log about frames that were refused since the last call."""
        notes, self._notes = self._notes, []
        return notes
