"""The interface through which rounds see devices: who is online, and what each can do.

The ingest of this process keeps these promises by what it sees (sessions.py, traffic.py). Where the
devices are another's, rows say the same: ``sessions`` who is online and waits, ``devices`` who is
enrolled, revoked, and its hello, ``traffic`` the bytes. Rounds know nothing else of an ingest; what they
tell it is in hints.py.
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
        """How many are online."""
        ...

    @property
    def changes(self) -> int:
        """How often one has come or gone."""
        ...

    @property
    def returning(self) -> Collection[str]:
        """The devices that were online before the last outage and have not come back yet."""
        ...

    def presence(self, device: str) -> Presence:
        """Whether it is there; of one that is not enrolled nothing is so."""
        ...

    def hello(self, device: str) -> Hello | None:
        """Its last hello, which says whether it waits; None for a device without one, or not enrolled."""
        ...

    def max_packet_of(self, device: str) -> int:
        """The largest MQTT packet that comes through to it."""
        ...

    def able(self, terms: Terms, among: Sequence[str] = ()) -> list[str]:
        """Ids, sorted, of the devices that are online, do not wait, and can do a run's work by its terms.

        They are those that the run selects, and of these ``among``, if any.
        """
        ...


class Meter(Protocol):
    """The bytes of every device."""

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], tuple[int, int]]:
        """The bytes of an open round's devices so far, and those on the coordinator's link, up and down."""
        ...
