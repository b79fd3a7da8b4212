"""The interface through which rounds see devices: which are online, and what each can do.

The ingest in this process implements it from its own observations (sessions.py, traffic.py). For devices
connected to another process, the same facts are in tables: ``sessions`` says who is online, ``devices``
has enrolments, revocations and hellos (who is waiting), and ``traffic`` has byte counts. Rounds know
nothing else about an ingest. They send it the hints in hints.py.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from sedge_cloud.runs.asked import Presence
from sedge_cloud.runs.terms import Terms
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.wire.messages import Hello


class Reach(Protocol):
    """Answers questions about the fleet's devices.

    A device that is not enrolled is offline and has no hello.
    """

    @property
    def present(self) -> int:
        """Return how many devices are online."""
        ...

    @property
    def changes(self) -> int:
        """Return how many times devices have come online or gone offline."""
        ...

    @property
    def returning(self) -> Collection[str]:
        """Return the devices that were online before the last outage and have not come back yet."""
        ...

    def presence(self, device: str) -> Presence:
        """Return a device's presence, with every field False if it is not enrolled."""
        ...

    def hello(self, device: str) -> Hello | None:
        """Return a device's last hello, which says whether the device is waiting; None if there is none."""
        ...

    def able(self, terms: Terms, among: Sequence[str] = ()) -> list[str]:
        """Return the sorted ids of the devices that are online, are not waiting, and meet a run's terms.

        Only devices that the run selects are considered; if ``among`` is not empty, only the ones it lists.
        """
        ...


class TrafficMeter(Protocol):
    """Counts the bytes that each device sends and receives."""

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], tuple[int, int]]:
        """Return each device's traffic in an open round so far, and the bytes on the coordinator's link."""
        ...
