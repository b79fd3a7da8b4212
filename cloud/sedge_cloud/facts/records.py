"""The records of facts about a fleet. Commands, status page, JSON, metrics and notices all read them.

Times are timezone-aware datetimes, durations are in seconds, sizes in bytes, and accuracies range from 0 to
1. Later versions may add fields, but never change what one means. The record of a closed round never
changes.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import msgspec

from sedge_cloud.figures.numbers import rounds_text
from sedge_cloud.store.records import RoundParts, RunSums
from sedge_cloud.store.rollouts import RolloutState
from sedge_cloud.store.schema import RUNNING
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.settings import Value

# The codes of all problems, which serve as labels for metrics and are used by notices and filters. The last
# one is not a problem: a round is waiting for a device that is working.
Code = Literal[
    "coordinator_silent",
    "coordinator_error",
    "broker_down",
    "broker_limit",
    "disk_low",
    "disk_full",
    "run_failed",
    "run_waits",
    "rollout_aborted",
    "round_below_quorum",
    "round_stuck",
    "device_lost",
    "device_unheard",
    "device_never",
    "device_unable",
    "device_declined",
    "device_rejected",
    "device_distrusted",
    "device_waits",
    "device_slow",
    "device_worse",
    "device_revoked",
    "device_pending",
    "device_accountless",
    "device_certificate",
    "token_refused",
    "device_working",
]
Severity = Literal["error", "warning"]
DeviceState = Literal["online", "offline", "never", "paused", "revoked", "unknown"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that an operator should know about: whom it concerns, why and, if known, since when."""

    code: Code
    severity: Severity
    subject: str
    run: str = ""
    text: str
    since: datetime | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A device that has not yet answered in a round, and the reason."""

    device: str
    code: Code
    text: str
    since: datetime | None


class RoundFacts(RoundParts, frozen=True, kw_only=True, omit_defaults=False):
    """One round. The fields of ``RoundParts`` are complete for a closed round, and partial for an open one.

    In the ``phase`` open, a round waits for ``needed`` updates; at its ``deadline``, ``least`` of them are
    enough. ``extended`` counts the deadlines that passed with fewer. In the phase ``grace`` it has its
    quorum, and in ``offline`` every online device has answered; in both it closes at ``ends_at``. ``why``
    says what closed it, and ``usual_s`` how long recent rounds took. ``link_up`` and ``link_down`` are the
    numbers of bytes that the coordinator sent and received during the round.
    """

    run: str
    round: int
    task: str
    state: Literal["open", "closed", "newcomers", "void"]
    opened: datetime | None
    closed: datetime | None = None
    needed: int = 0
    least: int = 0
    deadline: datetime | None = None
    phase: str = ""
    ends_at: datetime | None = None
    why: str = ""
    extended: int = 0
    usual_s: float | None = None
    link_up: int = 0
    link_down: int = 0
    waiting: tuple[Waiting, ...] = ()


class PhaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The newest phase of a rollout: how many devices it adds, and how many of them have succeeded.

    ``absent`` counts the others that are offline, paused or not invited to rounds.
    """

    adds: int
    succeeded: int
    absent: int


class RolloutFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A run's newest rollout, as it stood when the last round was planned, or the newest settings rollout.

    ``run`` is empty for settings. ``bundle`` and ``sha256`` name the bundle or the settings file that it
    delivers. The rollout is in ``phase`` (from 1) of ``phases``, which covers a ``share`` of the devices
    that match ``where``; ``shares`` are those of all phases. Of its ``devices``, ``succeeded``, ``failed``
    and ``waiting`` count those that trained with the bundle or took the settings, those that failed to, and
    those without an outcome; ``awaited`` names a few of the last while the rollout is in progress.
    ``failures`` says why each failed, ``why`` why the rollout was aborted or rolled back. Only
    `rollout status` has ``added``, and it counts ``succeeded`` and ``waiting`` up to the moment.
    """

    run: str = ""
    number: int
    bundle: str
    sha256: str
    state: RolloutState
    created: datetime | None
    ended: datetime | None
    phase: int
    phases: int
    share: float
    shares: tuple[float, ...] = ()
    devices: int
    succeeded: int
    failed: int
    waiting: int
    awaited: tuple[str, ...] = ()
    where: str
    failures: dict[str, str]
    why: str
    settings: dict[str, Value] = {}
    added: PhaseFacts | None = None


class PrivacyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a private run: it allows ``rounds`` training rounds, of which ``spent`` are used up.

    All ``rounds`` together cost ``epsilon`` at ``delta``; ``noise`` is a multiple of the ``clip``.
    """

    epsilon: float
    delta: float
    clip: float
    noise: float
    rounds: int
    spent: int


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``why`` says why it failed, or what it waits for while no round is open.

    Of its ``total_rounds``, ``training_rounds`` are for training, the others for evaluation. ``rounds`` are
    its last closed rounds, and ``sums`` the totals of all closed rounds. ``groups`` lists the devices that
    learn from each other, if the strategy forms groups. ``unable`` lists devices that cannot do its work,
    and what they lack. ``tensors`` gives the size of each tensor of the model.
    """

    run: str
    status: str
    strategy: str
    created: datetime | None
    ended: datetime | None
    closed_rounds: int
    total_rounds: int
    training_rounds: int
    why: str
    open: RoundFacts | None
    rounds: tuple[RoundFacts, ...]
    sums: RunSums
    groups: dict[str, tuple[str, ...]]
    unable: dict[str, str]
    tensors: dict[str, int]
    rollout: RolloutFacts | None
    privacy: PrivacyFacts | None

    @property
    def progress(self) -> str:
        """Describe how far the run has got."""
        return rounds_text(self.closed_rounds, self.total_rounds, self.training_rounds)


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One device. ``before`` and ``after`` are its latest values of ``metric``, before and after training.

    ``history`` has the values before training in its last rounds. ``change`` says by how much the mean of
    the last three beats the best earlier mean of three, relative to that mean unless the metric is itself a
    share. ``strikes`` counts the rounds in which its update was rejected or distrusted; ``up`` and ``down``
    are the numbers of bytes that it sent and received in all closed rounds. ``seconds`` is the duration of
    its last training. ``doing`` is its progress on its last ``order`` (run and round): asked, fetching
    (with ``done`` of ``total`` chunks), training or sending. ``trouble`` says why its last update was
    ignored or only counted in part. ``enrolled`` is when it last got a secret from the coordinator.
    """

    device: str
    state: DeviceState
    since: datetime | None
    heard: datetime | None
    enrolled: datetime | None
    version: str
    backends: tuple[str, ...]
    memory_mb: int
    num_train: int
    updates: int
    metric: Metric
    before: float | None
    after: float | None
    change: float | None
    seconds: float | None
    up: int
    down: int
    strikes: int
    waits: str
    waits_since: datetime | None
    order: tuple[str, int]
    doing: str
    doing_since: datetime | None
    done: int
    total: int
    error: str
    error_since: datetime | None
    history: tuple[float, ...]
    trouble: Problem | None


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of the state folder.

    ``daily`` is the growth in bytes per day, or None until it has been measured for an hour.
    """

    path: str
    used: int
    free: int
    total: int
    daily: float | None
    watched_s: float
    full_in_days: float | None


class CoordinatorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The service: ``heard`` is its last heartbeat, ``link`` says whether it is connected to its broker.

    ``max_packet`` is the size of the largest message that the broker lets through, in bytes; 0 means not
    measured yet.
    """

    running: bool
    since: datetime | None
    heard: datetime | None
    link: bool
    link_since: datetime | None
    link_error: str
    max_packet: int
    error: str
    error_since: datetime | None
    counters: dict[str, int]


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A process that serves the fleet: when it started, how many ``shards`` it has, whether it leads."""

    process: int
    host: str
    pid: int
    since: datetime | None
    shards: int
    leads: bool


class AgentVersion(msgspec.Struct, frozen=True, kw_only=True):
    """An agent version, and how many active devices run it.

    ``behind`` is True if the version is older than the coordinator's.
    """

    version: str
    devices: int
    behind: bool


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about a fleet at one moment; ``problems`` lists the worst first.

    ``states`` counts all devices by state; ``devices`` are all of them or, in a large fleet, those that
    changed most recently. ``versions`` are the agents' versions, most common first, and ``settings`` is the
    newest rollout of settings.
    """

    fleet: str
    at: datetime
    coordinator: CoordinatorFacts
    disk: DiskFacts
    problems: tuple[Problem, ...]
    runs: tuple[RunFacts, ...]
    devices: tuple[DeviceFacts, ...]
    states: dict[DeviceState, int]
    versions: tuple[AgentVersion, ...]
    processes: tuple[ProcessFacts, ...]
    settings: RolloutFacts | None

    @property
    def is_large(self) -> bool:
        """Return True if the fleet has more devices than are in ``devices``."""
        return len(self.devices) < sum(self.states.values())

    @property
    def online(self) -> int:
        """Return how many devices are online."""
        return self.states["online"]

    @property
    def active(self) -> int:
        """Return how many devices are not revoked."""
        return sum(self.states.values()) - self.states["revoked"]

    def run(self, name: str) -> RunFacts | None:
        """Return the run with this name, or None."""
        return next((run for run in self.runs if run.run == name), None)

    def shown(self, name: str | None = None) -> RunFacts | None:
        """Return the run with this name, or else the newest running run, or else the newest run."""
        running = [run for run in self.runs if run.status == RUNNING]
        named = None if name is None else self.run(name)
        return named or next(reversed(running or self.runs), None)


@dataclass(frozen=True)
class ChangeKey:
    """The facts whose change requires redrawing the page; ``states`` holds the states of ``devices``."""

    devices: tuple[DeviceFacts, ...] = field(compare=False)
    states: tuple[object, ...]
    rest: object


def change_key(facts: Fleet, last: ChangeKey | None) -> ChangeKey:
    """Return the key for these facts, which equals ``last`` if only ages and counters have changed."""
    it = facts.coordinator
    rest = facts.problems, facts.runs, it.running, it.link
    if last is not None and last.devices is facts.devices:
        return ChangeKey(facts.devices, last.states, rest)
    states = tuple((d.device, d.state, d.updates, d.waits, d.error) for d in facts.devices)
    return ChangeKey(facts.devices, states, rest)


def printable(text: str) -> str:
    """Escape a text received from a device so that it can do no harm in the operator's terminal."""
    return " ".join(ascii(text)[1:-1].split())


def when(epoch_s: float) -> datetime | None:
    """Convert a time to a datetime with millisecond precision. Returns None for 0, which means unknown."""
    return datetime.fromtimestamp(round(epoch_s, 3), UTC) if epoch_s > 0 else None
