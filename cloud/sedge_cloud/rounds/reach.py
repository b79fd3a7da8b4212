"""The interface through which rounds see devices: which are online, and what each can do.

The ingest of this process implements it from its own observations (sessions.py, traffic.py). For devices of
another process the same facts are in rows: ``sessions`` says who is online or waits, ``devices`` has
enrolments, revocations and hellos, and ``traffic`` the bytes. Rounds know nothing else about an ingest.
They send it the hints in hints.py.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from sedge_cloud.runs.asked import Presence
from sedge_cloud.runs.terms import Terms
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.wire.messages import Hello


class Reach(Protocol):
    """The devices, by id. A device that is not enrolled is offline and has no hello."""

    @property
    def present(self) -> int:
        """Return how many devices are online."""
        ...

    @property
    def changes(self) -> int:
        """Return how often a device has come or gone."""
        ...

    @property
    def returning(self) -> Collection[str]:
        """Return the devices that were online before the last outage and have not come back yet."""
        ...

    def presence(self, device: str) -> Presence:
        """Return a device's presence; all False if it is not enrolled."""
        ...

    def hello(self, device: str) -> Hello | None:
        """Return a device's last hello, which says whether it waits; None if there is none."""
        ...

    def max_packet_of(self, device: str) -> int:
        """Return the largest MQTT packet that a device can receive, as far as its hello says."""
        ...

    def able(self, terms: Terms, among: Sequence[str] = ()) -> list[str]:
        """Return the sorted ids of the devices that are online, do not wait, and meet a run's terms.

        Only devices that the run selects are considered and, unless ``among`` is empty, only those in it.
        """
        ...


class Meter(Protocol):
    """Counts the bytes of every device."""

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], tuple[int, int]]:
        """Return the bytes of an open round's devices so far, and those on the coordinator's link."""
        ...
