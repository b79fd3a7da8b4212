"""One device as the coordinator sees it: its row, channel, last hello, and the state observed so far."""

from dataclasses import dataclass, field

import msgspec

from sedge_cloud.ingest.rate_limit import TokenBucket
from sedge_cloud.runs.terms import abilities, keeps_model
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.peer import Peer

# How many runs' models a device keeps.
MAX_RUNS = 16
UNSEEN = SessionRow("")


@dataclass
class Device:
    """One device. It is ``online`` from its hello until its goodbye, or until the coordinator's link fails.

    ``hello`` is the last one, perhaps from before the coordinator's start, and ``session`` the state
    observed so far. An old start count is not logged before ``warn_at``, nor another version refused before
    ``refuse_at``. ``repeats`` counts how often its last hello was repeated.
    """

    row: DeviceRow
    peer: Peer
    hello: Hello | None = None
    session: SessionRow = UNSEEN
    warn_at: float = 0.0
    refuse_at: float = 0.0
    repeats: int = 0
    bucket: TokenBucket = field(default_factory=TokenBucket)

    @property
    def online(self) -> bool:
        """Whether it has said hello and no goodbye since."""
        return self.session.online

    @property
    def waits(self) -> str:
        """Why it currently begins no orders, according to its last hello; empty when it does."""
        return "" if self.hello is None else self.hello.waits

    def is_another(self, hello: Hello, incarnation: int) -> bool:
        """Whether this hello comes from a restarted agent, or announces other abilities."""
        new_start = self.hello is None or incarnation != self.row.incarnation
        return new_start or abilities(hello) != abilities(self.hello)

    def keep(self, run: str) -> None:
        """Note that it now keeps a model of a run, which its last hello did not mention."""
        if (
            self.hello is not None
            and self.hello.holds is not None
            and not keeps_model(self.hello, run)
        ):
            holds = (*self.hello.holds, run)[-MAX_RUNS:]
            self.hello = msgspec.structs.replace(self.hello, holds=holds)
