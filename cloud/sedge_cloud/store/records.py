"""The MessagePack columns that describe closed rounds, and the rows written when a round closes."""

from typing import Literal, NamedTuple

import msgspec

from sedge_cloud.store.rows import HistoryRow, TrafficRow
from sedge_protocol.wire.objective import ACCURACY, Metric


class DeviceSummary(msgspec.Struct, frozen=True):
    """One device's part in a closed round, with the run's metric before and after training.

    ``counted`` is the weight of its update: 1 if it counted in full, otherwise the factor by which it was
    shortened (outliers.py).
    """

    device: str
    num_examples: int
    before: float
    after: float
    update_bytes: int
    step_s: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    counted: float = 1.0


class Summary(msgspec.Struct, frozen=True):
    """A closed round.

    ``personal`` counts patch elements per tensor, summed over the cohort; if a device picks a part of its
    patch, only that part counts. ``failure`` says why the round ended the run, whose global model then
    stays as it was. ``distrusted`` maps each device whose update was shortened or dropped to the factor
    (outliers.py), and ``late`` names the devices whose updates for earlier rounds counted in this one.
    ``replaced`` says that the strategy replaced the global model, so every element of the change is sent
    although the run's broadcast would otherwise send only a share. ``remarks`` are the strategy's remarks
    when the first devices return (``Strategy.remarks``). ``before`` and ``after`` are means of ``metric``.
    ``why_declined`` is the reason given most often by the ``declined`` devices, with the number of devices
    that gave it; reasons that differ only in numbers count as the same. If the run has ``withheld`` the
    devices' measurements, their figures and the means are 0.
    """

    run: str
    round: int
    task: str
    cohort: int
    declined: int
    devices: tuple[DeviceSummary, ...]
    train_loss: float
    before: float
    after: float
    update_bytes: int
    personal: dict[str, int]
    failure: str = ""
    distrusted: dict[str, float] = {}
    late: tuple[str, ...] = ()
    replaced: bool = False
    metric: Metric = ACCURACY
    why_declined: str = ""
    remarks: tuple[str, ...] = ()
    withheld: bool = False


class RoundParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A closed round's figures, and each device's part in it.

    The ``worst`` figures are means over the worst tenth of its devices, at least one device. ``up`` and
    ``down`` are the bytes of all its devices; ``newcomer_up`` and ``newcomer_down`` are the part caused by
    ``newcomers``, devices that got their first order in the run. ``http`` counts further bytes that devices
    report having fetched over HTTP. ``whole`` lists the devices that had a model but fetched the whole
    model instead of changes. ``personal`` counts the cohort's personal parameters per tensor.
    ``distrusted`` maps devices to how much their update counted (below 1), and ``late`` lists the devices
    whose updates for earlier rounds arrived in this one. ``missing`` devices have not answered. ``failure``
    says why the run ended with this round.
    """

    cohort: int = 0
    updates: int = 0
    metric: Metric = ACCURACY
    before: float | None = None
    before_worst: float | None = None
    after: float | None = None
    after_worst: float | None = None
    train_loss: float | None = None
    up: int = 0
    down: int = 0
    newcomer_up: int = 0
    newcomer_down: int = 0
    http: int = 0
    newcomers: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    personal: dict[str, int] = {}
    declined: dict[str, str] = {}
    rejected: dict[str, str] = {}
    distrusted: dict[str, float] = {}
    missing: tuple[str, ...] = ()
    failure: str = ""


class RunSums(msgspec.Struct, frozen=True, omit_defaults=True):
    """The totals of a run's closed rounds up to ``round``: their number, and bytes as in RoundParts.

    ``remarks`` are the remarks from the rounds' summaries, and ``returned`` says that some device has taken
    part after training in an earlier round.
    """

    round: int = 0
    closed: int = 0
    up: int = 0
    down: int = 0
    newcomer_up: int = 0
    newcomer_down: int = 0
    http: int = 0
    link_up: int = 0
    link_down: int = 0
    whole: int = 0
    remarks: tuple[str, ...] = ()
    returned: bool = False


class Shortfall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why and when a device's update did not count in a round, or counted only partly (``counted``)."""

    kind: Literal["declined", "rejected", "distrusted"]
    round: int
    detail: str = ""
    counted: float = 0.0
    at: float = 0.0


class DevicePast(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device's history in the closed rounds of a run.

    ``before`` are its last values of ``metric`` before training, ``seconds`` is how long its last training
    took, and ``strikes`` counts the rounds in which its update was rejected or distrusted. ``shortfall``
    says why its last update, or a recent one, did not count in full; ``good`` is the number of updates that
    have counted since. ``updates`` counts all of the device's updates, and ``trained`` the ones that are
    not from evaluations.
    """

    updates: int = 0
    trained: int = 0
    up: int = 0
    down: int = 0
    strikes: int = 0
    metric: Metric = ACCURACY
    before: tuple[float, ...] = ()
    after: float | None = None
    seconds: float | None = None
    shortfall: Shortfall | None = None
    good: int = 0


class Accounts(msgspec.Struct, frozen=True):
    """The totals of a closed round, as MessagePack of its ``RoundParts`` and of the run's ``RunSums``."""

    run: str
    round: int
    parts: bytes
    sums: bytes
    histories: tuple[HistoryRow, ...] = ()


# Stands for the totals of a round that has not been accounted for.
NOTHING = Accounts("", 0, b"", b"")


class ClosedRound(msgspec.Struct, frozen=True):
    """What ``Store.close_round`` writes about a round, in one transaction.

    ``receipts`` is the value of ``RoundRow.receipts`` from when the updates were read. ``summary`` and
    ``state`` are MessagePack of the round's ``Summary`` and the run's next ``RunState``, and ``status`` is
    the run's new status. ``closed`` is the time on the wall clock, and ``why`` says what closed the round.
    ``failure`` says why the run failed in this round, and is empty if it did not. ``traffic`` has the
    devices' bytes in the round; ``up`` and ``down`` are the bytes on the coordinator's own link.
    """

    run: str
    round: int
    receipts: int
    summary: bytes
    state: bytes
    status: str
    closed: float = 0.0
    why: str = ""
    failure: str = ""
    traffic: tuple[TrafficRow, ...] = ()
    up: int = 0
    down: int = 0
    accounts: Accounts = NOTHING


class Census(NamedTuple):
    """Counts of devices: all of them, and how many are revoked, have never been heard from, or are online.

    ``paused`` counts the paused devices that have been heard from, and ``paused_online`` how many of these
    are online.
    """

    all: int
    revoked: int
    never: int
    online: int
    paused: int
    paused_online: int
