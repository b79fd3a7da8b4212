"""``sedge-edge status``: the contents of a device's disk, as lines of text or as JSON."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from sedge_edge.rounds.state import AgentState
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.frame import start_time


class Kept(msgspec.Struct, frozen=True):
    """A run that the device has taken part in; ``round`` is the last one."""

    run: str
    round: int
    personal_model: bool


class Working(msgspec.Struct, frozen=True):
    """An order that the device is working on."""

    run: str
    round: int
    task: str


class Unsent(msgspec.Struct, frozen=True):
    """An update without a receipt, and its size in bytes."""

    run: str
    round: int
    size: int


class Status(msgspec.Struct, frozen=True):
    """A device; ``started`` is its agent's last start, by its clock, empty for none.

    ``waits`` is why the agent did no work when it last ran: a closed gate, a disk that refused.
    """

    device: str
    fleet: str
    started: str = ""
    runs: tuple[Kept, ...] = ()
    orders: tuple[Working, ...] = ()
    pending: tuple[Unsent, ...] = ()
    waits: str = ""

    def lines(self) -> Iterator[str]:
        """The same for a person."""
        started = f"last started {self.started}" if self.started else "has never run"
        yield f"device {self.device} of fleet {self.fleet}: {started}"
        if self.waits:
            yield f"waits: {self.waits}"
        for run in self.runs:
            model = "has a personal model" if run.personal_model else "has no personal model"
            yield f"run {run.run}: last round {run.round}, {model}"
        for order in self.orders:
            what = "waits with" if self.waits else "working on"
            yield f"run {order.run}: {what} round {order.round} ({order.task})"
        for update in self.pending:
            what = f"the update of round {update.round} is pending, {update.size} bytes"
            yield f"run {update.run}: {what}"


def status(device: str, fleet: str, state: AgentState | None, folder: Path) -> Status:
    """The state of this device in ``folder``; None for a device that has never run."""
    if state is None:
        return Status(device, fleet)
    blobs = BlobFolder(folder)
    return Status(
        device,
        fleet,
        start_time(state.incarnation),
        tuple(Kept(run, it.round, it.kept.model is not None) for run, it in state.runs.items()),
        tuple(Working(it.run, it.round, it.task) for it in state.orders.values()),
        tuple(Unsent(it.run, it.round, blobs.size(it.blob)) for it in state.outbox),
        state.waits,
    )
