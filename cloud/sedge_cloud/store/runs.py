"""Runs by reference: states, client models and updates, decoded from the blobs that the store names.

A client model is never stored as a vector. It is (model blob, patch, update blob): decode the model, write
the patch over it, add the decoded delta. So the cloud stores kilobytes per device, and computes with
exactly what went over the wire.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import msgspec

from sedge_cloud.config import KeepConfig, RunConfig
from sedge_cloud.store.broadcast import (
    needs_every_element,
    next_version,
    replacing_version,
    steps_since,
    summed,
    worth_sending,
)
from sedge_cloud.store.cache import Cache
from sedge_cloud.store.database import Store
from sedge_cloud.store.retention import Pruned, prune
from sedge_cloud.store.rows import ClientModelRow, OrderRow, RunRow, UpdateRow
from sedge_cloud.store.schema import StepRow
from sedge_cloud.store.vectors import Vectors
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategy import ClientModel, Context, Groups, State, Strategy, Update, Width
from sedge_protocol.codec import ValueCoding, encode
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.bundle import BundleManifest, unpack
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.update import Report

# A blob is written before the row that names it, also by the command line while the service runs: a younger
# blob without a name is not collected.
ORPHAN_AGE_S = 60.0
# The devices that counted in full in a round, for rounds that client models name: 1000 rounds of 100
# devices fit.
CACHED_NAMES_BYTES = 16 * 2**20
NAME_BYTES = 128
# A device may lose its link in the middle of an upload and come back the next day.
PART_AGE_S = 86_400.0
R = TypeVar("R")


class RunState(msgspec.Struct, frozen=True):
    """A strategy's last ``State`` by reference; ``round`` counts the rounds closed.

    ``model`` is the global model, whole and exact. ``steps`` lead to it from earlier ones, oldest first, as
    far as they are worth sending; ``owed`` is the blob of what they left out, n float32 little endian, or
    empty. ``groups`` is the blob of ``State.groups`` in MessagePack, or empty.
    """

    model: bytes
    model_hash: bytes
    initial: bytes
    round: int = 0
    arrays: bytes = b""
    owed: bytes = b""
    steps: tuple[StepRow, ...] = ()
    groups: bytes = b""

    def blobs(self) -> set[bytes]:
        """Every blob that the state names."""
        steps = {step.blob for step in self.steps}
        return {self.model, self.initial, self.arrays, self.owed, self.groups} | steps


class _Device(msgspec.Struct, frozen=True):
    device: str
    counted: float = 1.0


class _Closed(msgspec.Struct, frozen=True):
    """The fields of a round's summary (summary.py) that tell how much each update counted."""

    devices: tuple[_Device, ...]
    distrusted: dict[str, float] = {}


class Run:
    """One run, with what planning and closing its rounds needs.

    ``bundles`` and ``manifests`` have one for each width, the whole model's first, which is ``manifest``.
    """

    def __init__(self, row: RunRow, store: Store) -> None:
        self.name = row.run
        self.status = row.status
        self.coded_config = row.config
        self.config = _read(row, row.config, RunConfig)
        self.state = state_of(row)
        blobs = row.bundles
        try:
            packed = [store.blobs.read(blob) for blob in blobs]
            self.manifests = [unpack(blob).manifest for blob in packed]
        except (StorageError, CodecError) as exc:
            raise StorageError(f"run {row.run}: its bundle cannot be read: {exc}") from exc
        self.manifest: BundleManifest = self.manifests[0]
        self.bundles: tuple[Manifest, ...] = tuple(map(describe, packed))
        self._blobs = store.blobs
        self.widths = tuple(Width(form.dropped, form.layout) for form in self.manifests)

    @cached_property
    def strategy(self) -> Strategy:
        """The run's algorithm, made on demand: an ended run answers offers without it.

        Raises ``ConfigError`` when it cannot be made, such as when a user's class has gone.
        """
        return make_strategy(self.config.strategy, self.config.options)

    def model_bytes(self) -> int:
        """The size of the global model's blob; 0 where the disk has lost it."""
        model = self.state.model
        return self._blobs.size(model) if self._blobs.has(model) else 0

    @property
    def patch_values(self) -> ValueCoding:
        """How patches and start vectors are coded."""
        return self.config.patch.values or self.strategy.patch_values

    def remarks(self, personal: int | None = None) -> tuple[str, ...]:
        """What the strategy has to say of its options with this model (``Strategy.remarks``)."""
        return self.strategy.remarks([width.layout for width in self.widths], personal)

    def layout(self, width: int) -> Layout:
        """The layout of one of the run's widths; 0 is the whole model."""
        return self.widths[width].layout


@dataclass(frozen=True)
class RoundUpdates:
    """Accepted updates on the global model ``base`` (n,), each decoded when the iteration reaches it.

    They can be iterated more than once. A device counts with at most the examples in its hello, and with
    one if that says none. A late update counts as the same change, but from ``base``: so neither its change
    nor what the fleet has learned since is lost.
    """

    run: Run
    vectors: Vectors
    base: Theta
    accepted: tuple[tuple[UpdateRow, OrderRow], ...]

    def __iter__(self) -> Iterator[Update]:
        for row, order in self.accepted:
            report = msgspec.msgpack.decode(row.report, type=Report)
            size = self.run.layout(order.width).size
            yield Update(
                row.device,
                min(report.num_examples, max(1, order.num_train)),
                self.vectors.theta(order.model, size) if order.model else self.base,
                self.vectors.applied_patch(order, size, report.level),
                self.vectors.delta(size, row.blob, order.context),
                order.width,
                report.mix,
                order.trusted,
                report.steps,
            )


class RunStore(Vectors):
    """The vectors of a store's runs. ``keep`` says what a collection leaves of runs that have ended."""

    def __init__(self, store: Store, keep: KeepConfig | None = None) -> None:
        super().__init__(store)
        self._keep = keep or KeepConfig()
        self._written = self._kept = 0
        self._losses: dict[tuple[str, str], str] = {}  # by run and device
        self._counted: Cache[dict[str, float]] = Cache(
            CACHED_NAMES_BYTES, lambda names: NAME_BYTES * len(names)
        )

    def context(self, run: Run) -> Context:
        """What the run's strategy is passed now."""
        layout, trainings = run.manifest.layout, run.config.training_rounds(run.state.round)
        return Context(
            layout,
            self.theta(run.state.model, layout.size),
            self.theta(run.state.initial, layout.size),
            run.config.training_in(run.state.round + 1),
            trainings,
            self.read_arrays(run.state.arrays),
            self.read_groups(run.state.groups),
            run.widths,
            run.manifest.axes,
            run.config.robust,
            is_evaluation=run.config.training_rounds(run.state.round + 1) == trainings,
            devices=self.store.enrolled(),
        )

    def write_state(self, run: Run, state: State) -> RunState:
        """Store a strategy's ``State``; the result names its blobs.

        Where the broadcast is coded, the next global model is the one that the devices decode
        (broadcast.py), and what it leaves out is owed if the state ``is_change``. If it is not, a part of
        the elements would be no model, and every element of the change is sent. The result depends on
        ``run.state`` and ``state`` only. Raises ``Unencodable`` for a model that is not finite.
        """
        broadcast = run.config.broadcast
        last = msgspec.structs.replace(
            run.state,
            arrays=self.write_arrays(state.arrays),
            groups=self.write_groups(state.groups),
        )
        current = self.theta(last.model, run.manifest.layout.size)
        needs_all = needs_every_element(state, broadcast)
        if broadcast.whole or (needs_all and broadcast.values is ValueCoding.FP32):
            if state.theta is current:
                return last
            model, model_hash, _ = self.write_model(state.theta, broadcast.compression)
            return msgspec.structs.replace(
                last, model=model, model_hash=model_hash, owed=b"", steps=()
            )
        owed = self.read_vector(last.owed) if last.owed and state.is_change else None
        if needs_all:
            version = replacing_version(state.theta, current, run.manifest.layout, broadcast)
        else:
            version = next_version(state.theta, current, owed, broadcast)
        still_owed = self.write_vector(version.owed) if state.is_change else b""
        last = msgspec.structs.replace(last, owed=still_owed)
        model, model_hash, size = self.write_model(version.theta, broadcast.compression)
        if model_hash == last.model_hash:
            return last
        blob = self.store.blobs.write(version.step)
        step = StepRow(last.model_hash, blob, len(version.step))
        steps = worth_sending((*last.steps, step), size)
        return msgspec.structs.replace(last, model=model, model_hash=model_hash, steps=steps)

    def summed_step(self, run: Run, held: bytes) -> bytes:
        """The blob of one step to the run's model from the one with the hash ``held``.

        Empty unless it replaces several and is smaller than they are together.
        """
        steps, size = steps_since(run.state.steps, held), run.manifest.layout.size
        if len(steps) < 2 or steps[0].base_hash != held:
            return b""
        changes = (self.decode(self.store.blobs.read(step.blob), size, b"") for step in steps)
        total = summed(changes, self.theta(run.state.model, size), held)
        if total is None:
            return b""
        coded = encode(total, ValueCoding.FP32, run.config.broadcast.compression)
        is_smaller = len(coded) < sum(step.size for step in steps)
        return self.store.blobs.write(coded) if is_smaller else b""

    def client_model(self, run: Run, device: str) -> ClientModel:
        """A device's client model in this run, without its group and ``memory_mb``; vectors are read-only.

        If the disk has lost a part of it, the device counts as one without a past: the run goes on, and the
        device's next update replaces the model.
        """
        row = self.store.client_model(run.name, device)
        if row is None:
            return ClientModel(device=device)
        try:
            return self._client_model(run, row)
        except StorageError as exc:
            if not any(map(self.store.lost, row.blobs)):
                raise
            text = f"run {run.name}: the model of {device} after round {row.round} is lost: {exc}"
            self._losses.setdefault((run.name, device), text)
            return ClientModel(device=device)

    def take_losses(self) -> list[str]:
        """The client models found lost since the last call, each once."""
        losses = list(self._losses.values())
        self._losses.clear()
        return losses

    def _client_model(self, run: Run, row: ClientModelRow) -> ClientModel:
        device = row.device
        size = run.layout(row.width).size
        delta = self.delta(size, row.blob, row.context) if row.blob else None
        base, patch = self.theta(row.model, size), self.patch(row, size)
        trained = Update(device, 0, base, patch, delta).trained
        trained.flags.writeable = False
        return ClientModel(
            trained,
            run.config.training_rounds(row.round),
            self.read_arrays(row.arrays),
            device,
            delta,
            width=row.width,
            mix=row.mix,
            step_s=row.step_s,
            load_base=partial(self.theta, row.model, size),
            counted=self.counted(run, row),
            steps=row.steps,
        )

    def counted(self, run: Run, row: ClientModelRow) -> float:
        """The factor of a client model's update in its round; 0 for a distrusted or a late one."""
        name = f"{run.name}/{row.round}".encode()
        counted = self._counted.get(name)
        if counted is None:
            round_ = self.store.round(run.name, row.round)
            if round_ is None or round_.summary is None:
                return 0.0
            closed = msgspec.msgpack.decode(round_.summary, type=_Closed)
            factors = {
                each.device: 0.0 if each.device in closed.distrusted else each.counted
                for each in closed.devices
            }
            counted = self._counted.put(name, factors)
        return counted.get(row.device, 0.0)

    def with_orders(
        self, run: Run, number: int, rows: Iterable[UpdateRow]
    ) -> list[tuple[UpdateRow, OrderRow]]:
        """Updates that count in a round, each with its order; a late one's is from an earlier round."""
        orders = {order.device: order for order in self.store.orders(run.name, number)}
        pairs: list[tuple[UpdateRow, OrderRow]] = []
        for row in rows:
            order = orders.get(row.device)
            if row.round != number:
                order = self.store.order(run.name, row.round, row.device)
            if order is None:
                where = f"run {run.name}, round {row.round}"
                raise StorageError(f"{where}: an update of {row.device}, but no order")
            pairs.append((row, order))
        return pairs

    def updates(
        self, run: Run, number: int, base: Theta, rows: Iterable[UpdateRow] | None = None
    ) -> RoundUpdates:
        """The updates of a round by device, on the global model ``base`` (n,).

        ``rows`` are those that count; by default, those that came in time.
        """
        counted = self.store.updates(run.name, number) if rows is None else rows
        by_device = sorted(counted, key=lambda row: row.device)
        return RoundUpdates(run, self, base, tuple(self.with_orders(run, number, by_device)))

    def write_groups(self, groups: Groups) -> bytes:
        """Store who learns with whom; the blob, or empty for none."""
        return self.store.blobs.write(msgspec.msgpack.encode(groups)) if groups else b""

    def read_groups(self, blob: bytes) -> Groups:
        """Who learns with whom."""
        if not blob:
            return {}
        return msgspec.msgpack.decode(self.store.blobs.read(blob), type=dict[str, tuple[str, ...]])

    def named_blobs(self) -> set[bytes]:
        """Every blob that the store refers to."""
        named = self.store.named_blobs()
        for row in self.store.runs():
            named |= state_of(row).blobs()
            named.update(row.bundles)
        return named - {b""}

    def prune(self, dry_run: bool = False) -> Pruned:
        """Delete the rows that ``keep`` does not allow, or with ``dry_run`` only find them."""
        return prune(self.store, self._keep, self.named_blobs, dry_run)

    def used_bytes(self) -> int:
        """The size of the blobs that the store refers to."""
        named = self.named_blobs()
        return sum(size for sha256, size in self.store.blobs.sizes().items() if sha256 in named)

    def collect(self) -> int:
        """Delete what ``keep`` does not allow, and blobs that nothing refers to; the bytes freed."""
        with self.store.may_collect() as may:
            if not may:  # a backup is being written
                return 0
            self.prune()
            keep = self.named_blobs()
            self._written, self._kept = 0, len(keep)
            freed = self.store.blobs.collect(keep, ORPHAN_AGE_S, PART_AGE_S)
            self.store.drop_small_updates()  # last: on a full disk it needs the space just freed
        return freed

    def collect_if_due(self, orders: int) -> None:
        """Count a closed round's orders; collect when they reach the number of blobs kept last time.

        An update leaves up to three blobs: itself, its mask, its device's arrays. So garbage stays within a
        small multiple of what is in use, and a collection's cost per update does not grow with the fleet.
        """
        self._written += orders
        if self._written >= self._kept:
            self.collect()


def state_of(row: RunRow) -> RunState:
    """A run's state. Raises ``StorageError`` when it cannot be read."""
    return _read(row, row.state, RunState)


def _read(row: RunRow, coded: bytes, kind: type[R]) -> R:
    """Decode a column of a run's row. Raises ``StorageError`` when it cannot be read."""
    try:
        return msgspec.msgpack.decode(coded, type=kind)
    except ValueError as exc:  # msgspec's errors
        raise StorageError(f"run {row.run}: its row cannot be read: {exc}") from exc
