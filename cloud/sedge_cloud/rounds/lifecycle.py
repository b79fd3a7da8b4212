"""A run's rounds: plan a cohort, open, collect, close. Without messages, and without I/O of its own.

    run      running --every round closed, of training and of evaluation--> finished
             running --stop--> stopped
             running --everyone has answered, but fewer than min_updates with an update--> failed
             running --its strategy cannot be loaded, or not plan a round--> failed
    round    waiting --enough devices online--> open --quorum, or deadline with min_updates--> closed

What is open is in the store; this file only decides. Closing is a pure function of committed rows, so
a crash before the closing transaction repeats it with the same bytes. After a restart an open round
goes on with its full ``deadline_s``.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import msgspec
import numpy as np

from sedge_cloud.algorithms.outliers import vet
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RoundRow, UpdateRow
from sedge_cloud.store.runs import Ledger, Run, RunState
from sedge_cloud.store.schema import StepRow, steps_of
from sedge_protocol.errors import ConfigError, LocalError
from sedge_protocol.wire.messages import EVALUATE, TRAIN, Committed, Reject
from sedge_protocol.wire.update import Report

RUNNING, STOPPED, FINISHED, FAILED = "running", "stopped", "finished", "failed"


class DeviceSummary(msgspec.Struct, frozen=True):
    """One device's part in a closed round; accuracies in [0, 1]."""

    device: str
    num_examples: int
    before: float
    after: float
    update_bytes: int


class Summary(msgspec.Struct, frozen=True):
    """A closed round. ``personal`` counts patch elements by tensor, summed over the cohort: of a patch
    that a device picks from those that it has picked.

    ``failure`` says why the round ended the run; the global model is then the one before it. Whose update
    was shortened or left out is in ``distrusted``, with the factor (outliers.py).
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


@dataclass
class OpenRound:
    """The open round of a run: who was asked, who has answered, until when it waits.

    ``present`` are the devices that are online and still owe an answer.
    """

    row: RoundRow
    orders: dict[str, OrderRow]
    deadline: float
    settled: set[str] = field(default_factory=set[str])
    received: set[str] = field(default_factory=set[str])
    present: set[str] = field(default_factory=set[str])

    @cached_property
    def steps(self) -> tuple[StepRow, ...]:
        """The changes that lead to the round's model, oldest first."""
        return steps_of(self.row.steps)

    @cached_property
    def users(self) -> Counter[bytes]:
        """How many orders name a model, a patch or its mask."""
        given = self.orders.values()
        named = [(o.model or self.row.model, o.patch_blob, o.patch_context) for o in given]
        return Counter(blob for blobs in named for blob in blobs if blob)

    @cached_property
    def widths(self) -> Counter[int]:
        """How many orders are for each width."""
        return Counter(order.width for order in self.orders.values())

    def waiting_for(self, device: str) -> bool:
        """Whether this device still owes an answer."""
        return device in self.orders and device not in self.settled

    def arrive(self, device: str) -> None:
        """A device is online."""
        if self.waiting_for(device):
            self.present.add(device)

    def settle(self, device: str) -> None:
        """A device owes nothing more."""
        self.settled.add(device)
        self.present.discard(device)

    def answered(self, device: str, receipt: Committed | Reject) -> None:
        """A device that has been given its receipt, new or old, owes its round nothing more."""
        if receipt.round == self.row.round and device in self.orders:
            self.settle(device)
            if isinstance(receipt, Committed):
                self.received.add(device)

    def decline(self, device: str, reason: str) -> None:
        """A device will not do its order."""
        self.orders[device] = msgspec.structs.replace(self.orders[device], declined=reason)
        self.settle(device)


Draw: TypeAlias = Callable[[Run, int, str, Sequence[str]], list[str]]


def due(run: Run) -> tuple[int, str] | None:
    """Number and task of the next round, or None when the run is over."""
    config, number = run.config, run.state.round + 1
    if number > config.rounds_in_all:
        return None
    trains = config.trainings(number) > config.trainings(number - 1)
    return number, TRAIN if trains else EVALUATE


def cohort(run: Run, number: int, task: str, online: Sequence[str]) -> list[str]:
    """The devices of a round, drawn from those online; the same draw for the same online devices."""
    config = run.config
    if task == EVALUATE:
        size = max(config.min_updates, round(config.fraction_evaluate * len(online)))
    else:
        size = max(config.min_train_devices, round(config.fraction_train * len(online)))
    rng = np.random.default_rng([config.seed, number])
    drawn = rng.choice(len(online), min(size, len(online)), replace=False)
    return sorted(sorted(online)[i] for i in drawn)


def order_seed(seed: int, number: int, device: str) -> int:
    """The seed of one device's shuffles in one round, below 2**63."""
    digest = hashlib.sha256(f"{seed}/{number}/{device}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def make_round(
    run: Run, number: int, task: str, orders: Sequence[OrderRow], now: float
) -> OpenRound:
    """A round that could open now."""
    steps = msgspec.msgpack.encode(run.state.steps) if run.state.steps else b""
    row = RoundRow(run.name, number, task, True, run.state.model, run.state.model_hash, None, steps)
    return OpenRound(row, {o.device: o for o in orders}, now + run.config.deadline_s)


def open_round(
    run: Run, store: Store, number: int, task: str, orders: Sequence[OrderRow], now: float
) -> OpenRound:
    """Store a round with its orders, as one."""
    current = make_round(run, number, task, orders, now)
    store.open_round(current.row, orders)
    return current


def resume(run: Run, store: Store, now: float) -> OpenRound | None:
    """The run's open round as the store has it, with a fresh deadline."""
    row = store.current_round(run.name)
    if row is None:
        return None
    orders = {o.device: o for o in store.orders(run.name, row.round)}
    answers = [store.update(run.name, row.round, device) for device in orders]
    settled = {o.device for o in orders.values() if o.declined}
    settled |= {answer.device for answer in answers if answer is not None}
    received = {a.device for a in answers if a is not None and not a.rejected}
    return OpenRound(row, orders, now + run.config.deadline_s, settled, received)


def complete(run: Run, current: OpenRound, now: float) -> bool:
    """Whether the round can close: everyone or the quorum has answered, or time is up."""
    if len(current.settled) == len(current.orders):
        return True
    # As the decimal that was written: in binary .07 * 100 is above 7, and would wait for 8.
    quorum = math.ceil(Fraction(str(run.config.quorum)) * len(current.orders))
    enough = run.config.min_updates if now >= current.deadline else quorum
    return len(current.received) >= max(enough, run.config.min_updates)


def close_round(run: Run, ledger: Ledger, current: OpenRound) -> Summary:
    """Fold the updates into the next global and store the result; ``run.state`` moves on.

    With too few updates, or a result that cannot be kept, the run has failed and its state stays.
    Deterministic: the same rows give the same bytes, however often a crash repeats it.
    """
    number, store = current.row.round, ledger.store
    summary = summarise(run, ledger, current, store.updates(run.name, number))
    state, failure, distrusted = run.state, _shortage(run, summary), dict[str, float]()
    if not failure:
        try:
            state, distrusted = _fold(run, ledger, current.row)
        except (LocalError, ConfigError) as exc:  # such as a change above what its coding holds
            failure = f"the next global model cannot be kept: {exc}"
    summary = msgspec.structs.replace(summary, failure=failure, distrusted=distrusted)
    over = number >= run.config.rounds_in_all
    status = FAILED if failure else FINISHED if over else RUNNING
    store.close_round(
        run.name, number, msgspec.msgpack.encode(summary), msgspec.msgpack.encode(state), status
    )
    run.state, run.status = state, status
    return summary


def fail(run: Run, store: Store) -> None:
    """End a run that cannot go on, without an aggregate; a stopped one stays stopped."""
    with suppress(ConfigError):
        store.set_status(run.name, FAILED)
    run.status = FAILED


def _fold(run: Run, ledger: Ledger, row: RoundRow) -> tuple[RunState, dict[str, float]]:
    """The run's state after a round's updates, its blobs stored, and whose update did not count in full."""
    state, distrusted = run.state, dict[str, float]()
    if row.task == TRAIN:
        before = ledger.state(run)
        updates = vet(ledger.updates(run, row.round, before.theta), run.config.robust)
        distrusted = updates.distrusted
        state = ledger.write_state(run, run.strategy.apply(before, updates))
    return msgspec.structs.replace(state, round=row.round), distrusted


def _shortage(run: Run, summary: Summary) -> str:
    """Why a round has too few updates to go on; empty when it has enough."""
    good, needed = len(summary.devices), run.config.min_updates
    if good >= needed:
        return ""
    rejected = summary.cohort - good - summary.declined
    return (
        f"{good} of {summary.cohort} devices sent an update that counts, expected min_updates = "
        f"{needed}; {summary.declined} declined, {rejected} were rejected"
    )


def summarise(run: Run, ledger: Ledger, current: OpenRound, rows: Sequence[UpdateRow]) -> Summary:
    """What a round came to: means over the devices that answered, each device counted once."""
    reports = [(row, msgspec.msgpack.decode(row.report, type=Report)) for row in rows]
    picked = {row.device: report.level for row, report in reports}
    devices = tuple(
        DeviceSummary(
            row.device, report.num_examples, report.before.accuracy, report.after.accuracy, row.size
        )
        for row, report in reports
    )
    count = max(1, len(reports))
    sent = {device.device for device in devices}
    declined = {order.device for order in current.orders.values() if order.declined} - sent
    return Summary(
        run=run.name,
        round=current.row.round,
        task=current.row.task,
        cohort=len(current.orders),
        declined=len(declined),
        devices=devices,
        train_loss=math.fsum(report.train_loss / count for _, report in reports),
        before=sum(device.before for device in devices) / count,
        after=sum(device.after for device in devices) / count,
        update_bytes=sum(device.update_bytes for device in devices),
        personal=personal_elements(run, ledger, list(current.orders.values()), picked),
    )


def personal_elements(
    run: Run, ledger: Ledger, orders: Sequence[OrderRow], picked: Mapping[str, int | None]
) -> dict[str, int]:
    """How many patch elements lie in each tensor, summed over the orders.

    Of a patch of which the device picks a part, only what it has ``picked``.
    """
    found: Counter[str] = Counter()
    for order in orders:
        layout, level = run.layout(order.width), picked.get(order.device)
        patch = ledger.started(order, layout.size, level)
        unknown = level is None and order.read_details().choice is not None
        if patch is None or unknown:
            continue
        if patch.indices is None:
            counts = [tensor.size for tensor in layout.tensors]
        else:  # they are sorted: so many lie before the end of each tensor
            ends = np.searchsorted(patch.indices, [t.slice.stop for t in layout.tensors])
            counts = np.diff(ends, prepend=0).tolist()
        found.update({t.name: k for t, k in zip(layout.tensors, counts, strict=True) if k})
    return {t.name: found[t.name] for t in run.manifest.layout.tensors if found[t.name]}
