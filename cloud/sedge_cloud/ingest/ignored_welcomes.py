"""Handles devices that ignore their welcome because they have seen a newer start count than ours.

Such a device repeats its hello until its connection ends (WIRE.md, 5.3), but immediately accepts a start
count that is newer than all others.
"""

import logging
import math

from sedge_cloud.clocks import Wall
from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.device_cache import DeviceCache
from sedge_cloud.store.roles import Rows
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.messages import Hello

# A hello must be repeated this often before we act, because a broker may lose a welcome or two.
MOST_REPEATS = 3
# There is at most one new start count in this many seconds, because each costs a disk write. It serves all
# devices that repeat hellos.
NEW_COUNT_EVERY_S = 60.0


class IgnoredWelcomes:
    """Detects devices in ``cache`` that keep repeating a hello although it was answered.

    Methods may raise ``StorageError``.
    """

    def __init__(self, cache: DeviceCache, store: Rows, wall: Wall) -> None:
        self._cache = cache
        self._store = store
        self._wall = wall
        self._new_at = -math.inf

    def greet(self, device: Device, hello: Hello, now: float) -> list[Note]:
        """Give a device a newer start count if it keeps repeating its hello. Call this before answering.

        A hello with new contents is not a repeat.
        """
        is_repeat = device.online and hello == device.hello
        device.repeats = device.repeats + 1 if is_repeat else 0
        if device.repeats < MOST_REPEATS:
            return []
        if now >= self._new_at:
            self._cache.incarnation = self._store.next_incarnation(int(self._wall(now)))
            self._new_at = now + NEW_COUNT_EVERY_S
        if device.peer.incarnation == self._cache.incarnation:
            return []
        device.repeats, device.peer.incarnation = 0, self._cache.incarnation
        name = device.row.device
        text = f"device {name} ignores its welcome: it gets one with a newer start count"
        return [Note(logging.WARNING, text)]
