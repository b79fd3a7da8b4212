"""``sedge-edge status``: reports a device's state, as stored on its disk, in lines of text or as JSON."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from sedge_edge.config import EdgeConfig
from sedge_edge.diary import DAY_S, DiaryEntry, read_diary, result_text
from sedge_edge.gates import Gates
from sedge_edge.rounds.state import AgentState
from sedge_edge.sensors import Sensors
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.wire.settings import GatesConfig, listed, tightened

# The number of results in the text output. --json shows all that are kept.
MOST_LINES = 5


class KeptRun(msgspec.Struct, frozen=True):
    """A run that the device has taken part in. ``round`` is the last round that it took part in."""

    run: str
    round: int
    personal_model: bool


class Working(msgspec.Struct, frozen=True):
    """An order that the device is working on."""

    run: str
    round: int
    task: str


class Unsent(msgspec.Struct, frozen=True):
    """An update that has no receipt yet, and its size in bytes."""

    run: str
    round: int
    size: int


class Link(msgspec.Struct, frozen=True):
    """The agent's link to its broker. ``heard`` is when the last message arrived."""

    connected: bool = False
    since: datetime | None = None
    url: str = ""
    reason: str = ""
    heard: datetime | None = None


class Done(msgspec.Struct, frozen=True):
    """A run's metric before and after a round of training."""

    run: str
    round: int
    task: str
    before: float
    after: float
    num_examples: int
    at: datetime | None


class Disk(msgspec.Struct, frozen=True):
    """The number of bytes that the state folder uses, and the number that are free on its disk."""

    used: int = 0
    free: int = 0


class Status(msgspec.Struct, frozen=True):
    """The status of a device. Times are in UTC. ``started`` is when its agent last started, by its clock.

    ``waits`` is why the agent did no work when it last ran, such as a closed gate or a disk error.
    ``gates`` describes each gate in effect and its current state. ``settings`` lists the settings that the
    coordinator has tightened. ``up`` and ``down`` are the message bytes sent and received since midnight
    UTC. ``error`` is the last error, which occurred at ``error_at``. ``certificate`` is when the device's
    certificate for the broker expires.
    """

    device: str
    fleet: str
    started: datetime | None = None
    running: bool = False
    link: Link = Link()
    runs: tuple[KeptRun, ...] = ()
    orders: tuple[Working, ...] = ()
    pending: tuple[Unsent, ...] = ()
    results: tuple[Done, ...] = ()
    waits: str = ""
    gates: tuple[str, ...] = ()
    settings: str = ""
    error: str = ""
    error_at: datetime | None = None
    disk: Disk = Disk()
    up: int = 0
    down: int = 0
    certificate: datetime | None = None

    def lines(self) -> Iterator[str]:
        """Yield the status as lines of text for people."""
        if not self.started:
            yield f"device {self.device} of fleet {self.fleet}: has never run"
            return
        running = "running" if self.running else "not running"
        yield f"device {self.device} of fleet {self.fleet}: {running}, last started {_text(self.started)}"
        yield from self._link_lines()
        if self.waits:
            yield f"waits: {self.waits}"
        if self.settings:
            yield f"settings of the coordinator: {self.settings}"
        yield from (f"gate {gate}" for gate in self.gates)
        for run in self.runs:
            model = "has a personal model" if run.personal_model else "has no personal model"
            yield f"run {run.run}: last round {run.round}, {model}"
        for it in self.results[-MOST_LINES:]:
            yield f"run {it.run}, round {it.round} ({it.task}): {result_text(it.task, it.before, it.after)}"
        for order in self.orders:
            what = "waiting with" if self.waits else "working on"
            yield f"run {order.run}: {what} round {order.round} ({order.task})"
        for update in self.pending:
            what = f"the update of round {update.round} is pending, {update.size} bytes"
            yield f"run {update.run}: {what}"
        if self.error:
            yield f"last error, {_text(self.error_at)}: {self.error}"
        if self.certificate:
            yield f"certificate for the broker: until {_text(self.certificate)}"
        yield f"disk: {_size(self.disk.used)} used, {_size(self.disk.free)} free"
        yield f"today: {_size(self.up)} sent, {_size(self.down)} received"

    def _link_lines(self) -> Iterator[str]:
        if self.link.connected and self.running:
            yield f"connected to {self.link.url} since {_text(self.link.since)}"
        elif self.link.reason:
            yield f"not connected since {_text(self.link.since or self.started)}: {self.link.reason}"
        if self.link.heard:
            yield f"last message from the fleet: {_text(self.link.heard)}"


def status(config: EdgeConfig, state: AgentState | None, folder: Path) -> Status:
    """Return the status of this device from ``folder``. ``state`` is None if the device has never run."""
    device, fleet = config.device, config.fleet
    if state is None:
        return Status(device, fleet)
    blobs, page = BlobFolder(folder), read_diary(folder)
    own = config.certificate(folder)
    today = page.day == int(time.time() // DAY_S)
    return Status(
        device,
        fleet,
        _time(state.incarnation),
        _is_running(folder),
        Link(page.connected, _time(page.since), page.url, page.reason, _time(page.heard)),
        tuple(KeptRun(run, it.round, it.kept.model is not None) for run, it in state.runs.items()),
        tuple(Working(it.run, it.round, it.task) for it in state.orders.values()),
        tuple(Unsent(it.run, it.round, blobs.size(it.blob)) for it in state.outbox),
        tuple(_done(it) for it in page.results),
        state.waits,
        tuple(_gates(tightened(config.settings, state.settings)[0].gates)),
        listed(state.settings),
        page.error,
        _time(page.error_at),
        Disk(sum(blobs.sizes().values()), shutil.disk_usage(folder).free),
        page.up if today else 0,
        page.down if today else 0,
        None if own is None else _time(own.until.timestamp()),
    )


def _done(it: DiaryEntry) -> Done:
    return Done(it.run, it.round, it.task, it.before, it.after, it.num_examples, _time(it.at))


def _time(at: float) -> datetime | None:
    """Convert Unix seconds to a UTC time in whole seconds. Returns None for 0, which means unknown."""
    return datetime.fromtimestamp(int(at), UTC) if at else None


def _size(num_bytes: float) -> str:
    size = num_bytes / 1000
    for unit in ("kB", "MB"):
        if size < 999.95:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _text(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "?"


def _is_running(folder: Path) -> bool:
    try:
        lock_folder(folder).close()
    except StorageError:
        return True
    return False


def _gates(gates: GatesConfig) -> Iterator[str]:
    for gate in Gates(gates, Sensors()).states():
        state = "closed" if gate.closed else "open"
        yield f"{gate.key}: {state} ({gate.value or 'no such sensor'})"
