"""One device as the coordinator sees it: its row, channel, last hello, and the state observed so far."""

from dataclasses import dataclass, field

import msgspec

from sedge_cloud.ingest.rate_limit import TokenBucket
from sedge_cloud.runs.terms import abilities, keeps_model
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_protocol.wire.messages import MAX_RUNS, Hello
from sedge_protocol.wire.peer import Peer


@dataclass
class Device:
    """One device. It is ``online`` from its hello until its goodbye, or until the coordinator's link fails.

    ``hello`` is the last hello, possibly received before the coordinator was restarted, and ``session`` the
    state observed so far. The next warning about an old start count is logged no earlier than ``warn_at``,
    and the next refusal is sent no earlier than ``refuse_at``. ``repeats`` counts how often the last hello
    was repeated.
    """

    row: DeviceRow
    peer: Peer
    hello: Hello | None = None
    session: SessionRow = field(default_factory=SessionRow)
    warn_at: float = 0.0
    refuse_at: float = 0.0
    repeats: int = 0
    bucket: TokenBucket = field(default_factory=TokenBucket)

    @property
    def online(self) -> bool:
        """Return True if the device has said hello and has not said goodbye since."""
        return self.session.online

    @property
    def waits(self) -> str:
        """Return the reason, from its last hello, why the device starts no orders; "" if it does."""
        return "" if self.hello is None else self.hello.waits

    def is_another(self, hello: Hello, incarnation: int) -> bool:
        """Return True if this hello comes from a restarted agent, or announces other capabilities."""
        new_start = incarnation != self.row.incarnation
        return new_start or abilities(hello) != abilities(self.hello)

    def keep(self, run: str) -> None:
        """Record that the device now keeps a model of this run, even if its last hello did not say so."""
        if (
            self.hello is not None
            and self.hello.holds is not None
            and not keeps_model(self.hello, run)
        ):
            holds = (*self.hello.holds, run)[-MAX_RUNS:]
            self.hello = msgspec.structs.replace(self.hello, holds=holds)
