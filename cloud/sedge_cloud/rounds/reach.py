"""All that rounds need of devices: who is there, what each can do, and a way to tell it something.

The ingest keeps these promises (sessions.py, traffic.py); rounds know nothing else of it.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from sedge_cloud.runs.run import Run
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.wire.effects import Effect, Send
from sedge_protocol.wire.messages import Cancel, Hello, Order


class Reach(Protocol):
    """The devices, by id. What is asked of a device that is not enrolled raises ``KeyError``."""

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
        """Those that were online before the last outage, and have not come back yet."""
        ...

    def online(self, device: str) -> bool:
        """Whether it has said hello, and no goodbye since."""
        ...

    def hello(self, device: str) -> Hello | None:
        """Its last hello, which says whether it waits; None for a device without one, or not enrolled."""
        ...

    def is_revoked(self, device: str) -> bool:
        """Whether it takes part no longer."""
        ...

    def max_packet_of(self, device: str) -> int:
        """The largest MQTT packet that comes through to it."""
        ...

    def able(self, run: Run) -> list[str]:
        """Ids, sorted, of the devices that are online, do not wait, and can do the run's work."""
        ...

    def ask(self, device: str, order: Order, now: float) -> Send:
        """Its order, as a frame."""
        ...

    def cancel(self, device: str, cancel: Cancel) -> Send:
        """The end of its order, as a frame."""
        ...

    def refuse(self, name: str, run: str, what: Iterable[str]) -> list[Effect]:
        """Tell a device, and the log, what it lacks for a run's work."""
        ...

    def refuse_unable(self, run: Run, devices: Iterable[str] | None = None) -> list[Effect]:
        """Refuse those of the devices, or of all, that are online and cannot do the run's work."""
        ...


class Enrolled(Protocol):
    """Takes over which devices there are."""

    def load(self, now: float) -> list[Effect]:
        """Who is enrolled now, as the store has it; at the start, who was online before."""
        ...


class Meter(Protocol):
    """The bytes of every device."""

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], tuple[int, int]]:
        """The bytes of an open round's devices so far, and those on the coordinator's link, up and down."""
        ...
