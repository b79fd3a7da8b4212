"""The facts as last read, shared by all parts of the service's process that use them.

Reading slows down the coordinator's loop because the two share the interpreter. The facts of a large fleet
are therefore read less often, so that reading and processing them takes at most ``SHARE`` of a CPU.
"""

import threading
import time
from collections.abc import Callable, Collection

from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.records import ChangeKey, DeviceFacts, Fleet, RunFacts, change_key
from sedge_cloud.facts.rollouts import settings_of, version_of
from sedge_cloud.facts.selection import DeviceSelection

# Facts younger than this are never read again, however many readers ask.
FRESH_S = 1.0
# If fresher facts would cost more than SHARE of a CPU, older ones are returned, up to this age.
SHARE, STALE_S = 0.005, 3.0


class Snapshot:
    """Caches the facts of a fleet and counts how often they have changed. It is thread-safe.

    The first thread that asks for facts calls ``open_reader``; after that, any thread may use its store.
    """

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open = open_reader
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._facts: Fleet | None = None
        self._change_key: ChangeKey | None = None
        self._at = 0.0
        self._spent = 0.0  # CPU seconds spent on facts since the last reading
        self._cpu: dict[int, float] = {}  # each thread's CPU time at its last call
        self._changes = 0

    def facts(self) -> Fleet:
        """Return facts that are up to ``FRESH_S`` old, or ``STALE_S`` in a large fleet.

        Raises ``SedgeError``.
        """
        return self.look()[0]

    def look(self) -> tuple[Fleet, int]:
        """Return the facts, and how many times they have changed so far. Raises ``SedgeError``."""
        with self._lock:
            self._charge()
            age = max(FRESH_S, min(self._spent / SHARE, STALE_S))
            if self._facts is None or time.monotonic() - self._at >= age:
                self._spent = 0.0
                self._facts, self._at = self._opened().read(), time.monotonic()
                now = change_key(self._facts, self._change_key)
                self._changes += now != self._change_key
                self._change_key = now
            return self._facts, self._changes

    def choose(self, facts: Fleet, wanted: DeviceSelection) -> tuple[list[DeviceFacts], int]:
        """Return a page of the wanted devices, and how many match on all pages. Raises ``SedgeError``."""
        with self._lock:
            return self._opened().choose(facts, wanted)

    def device(self, name: str) -> DeviceFacts | None:
        """Return a device's facts, even in a large fleet; None if there is no such device.

        Raises ``SedgeError``.
        """
        with self._lock:
            return self._opened().device(name)

    def tags_of(self, devices: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the tags as nested dicts, by device and key. Devices without tags are omitted.

        Raises ``SedgeError``.
        """
        with self._lock:
            return self._opened().store.tags_of(devices)

    def version_of(self, run: RunFacts | None, device: str) -> str:
        """Describe the bundle that a device has, if the run has had a rollout. Raises ``SedgeError``."""
        with self._lock:
            return version_of(self._opened().store, run, device) if run else ""

    def settings_of(self, device: str) -> str:
        """Describe the settings that a device has from rollouts. Raises ``SedgeError``."""
        with self._lock:
            return settings_of(self._opened().store, device)

    def expire(self) -> None:
        """Make the next call read the facts again, because an action has changed something."""
        with self._lock:
            self._at = 0.0

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            if self._reader is not None:
                self._reader.store.close()

    def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = self._open()
        return self._reader

    def _charge(self) -> None:
        """Add the CPU time that this thread has spent on facts since its last call."""
        thread, now = threading.get_ident(), time.thread_time()
        self._spent += now - self._cpu.get(thread, now)
        self._cpu[thread] = now
