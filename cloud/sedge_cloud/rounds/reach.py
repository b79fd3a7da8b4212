"""The interface through which rounds see devices: who is online, and what each can do.

The ingest of this process implements it from its own observations (sessions.py, traffic.py). For devices of
another process the same facts are in rows: ``sessions`` says who is online or waits, ``devices`` has
enrolments, revocations and hellos, and ``traffic`` the bytes. Rounds know nothing else about an ingest; the
messages they send it are in hints.py.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from sedge_cloud.runs.asked import Presence
from sedge_cloud.runs.terms import Terms
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.wire.messages import Hello


class Reach(Protocol):
    """The devices, by id. One that is not enrolled is offline and has no hello."""

    @property
    def present(self) -> int:
        """How many devices are online."""
        ...

    @property
    def changes(self) -> int:
        """How often a device has come or gone."""
        ...

    @property
    def returning(self) -> Collection[str]:
        """The devices that were online before the last outage and have not come back yet."""
        ...

    def presence(self, device: str) -> Presence:
        """A device's presence; all False for one that is not enrolled."""
        ...

    def hello(self, device: str) -> Hello | None:
        """A device's last hello, which says whether it waits; None without one or if not enrolled."""
        ...

    def max_packet_of(self, device: str) -> int:
        """The largest MQTT packet that is known to reach a device."""
        ...

    def able(self, terms: Terms, among: Sequence[str] = ()) -> list[str]:
        """The sorted ids of the devices that are online, not waiting, and meet a run's terms.

        These are only devices that the run selects and, unless ``among`` is empty, only those in it.
        """
        ...


class Meter(Protocol):
    """The bytes of every device."""

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], tuple[int, int]]:
        """The bytes of an open round's devices so far, and those on the coordinator's link, up and down."""
        ...
