"""From references to vectors and back: what the store names, decoded.

A device's last model is never stored as a vector. It is (model blob, patch, update blob), and the
vector follows: decode the model, write the patch over it, add the decoded delta. So the cloud holds
kilobytes per device, and what it computes with is exactly what went over the wire.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.store.broadcast import next_version, steps_since, summed, worth_sending
from sedge_cloud.store.cache import Cache
from sedge_cloud.store.database import Store
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

# A blob is written before the row that names it; the command line does so beside the service.
ORPHAN_AGE_S = 60.0
# Who counted in full, by the rounds of client models: 1000 rounds of 100 devices fit.
CACHED_NAMES_BYTES = 16 * 2**20
NAME_BYTES = 128
# A device may lose its link in the middle of an update and come back the next day.
PART_AGE_S = 86_400.0
R = TypeVar("R")


class RunState(msgspec.Struct, frozen=True):
    """What a strategy gave back, in references; ``round`` counts the rounds applied.

    ``model`` is the coded global, whole and exact. ``steps`` lead to it from the versions before, oldest
    first, as far as they are worth sending; ``owed`` is the blob of what they left out, n float32 little
    endian, or empty. ``groups`` is the blob of MessagePack of ``State.groups``, or empty.
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


class _Closed(msgspec.Struct, frozen=True):
    """What of a closed round's summary (lifecycle.py) tells whose updates counted in full."""

    devices: tuple[_Device, ...]
    distrusted: dict[str, float] = {}


class Run:
    """One run with what is needed to plan and to close its rounds.

    ``bundles`` are those of its widths, the whole model's first; ``manifest`` is that one's.
    """

    def __init__(self, row: RunRow, store: Store) -> None:
        self.name = row.run
        self.status = row.status
        self.config = _read(row, row.config, RunConfig)
        self.state = _read(row, row.state, RunState)
        blobs = row.bundles
        try:
            packed = [store.blobs.read(blob) for blob in blobs]
            manifests = [unpack(blob).manifest for blob in packed]
        except (StorageError, CodecError) as exc:
            raise StorageError(f"run {row.run}: its bundle cannot be read: {exc}") from exc
        self.manifest: BundleManifest = manifests[0]
        self.bundles: tuple[Manifest, ...] = tuple(map(describe, packed))
        self.widths = tuple(Width(manifest.dropped, manifest.layout) for manifest in manifests)

    @cached_property
    def strategy(self) -> Strategy:
        """The run's algorithm, made when it is first asked for: an ended run answers offers without it.

        Raises ``ConfigError`` when it cannot be made, as where a class of the user's own is gone.
        """
        return make_strategy(self.config.strategy, self.config.options)

    def layout(self, width: int) -> Layout:
        """The layout of one of the run's widths, counted from 0, the whole model's."""
        return self.widths[width].layout


@dataclass(frozen=True)
class RoundUpdates:
    """Accepted updates on the global ``base`` (n,), each made when it is due.

    They can be gone through as often as is needed. No device counts with more examples than it said hello
    with. A late one counts as the same change from ``base``: what it has changed since its own round began
    is kept, and what the fleet has learned meanwhile is, too.
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
                min(report.num_examples, order.num_train or report.num_examples),
                self.vectors.theta(order.model, size) if order.model else self.base,
                self.vectors.started(order, size, report.level),
                self.vectors.delta(size, row.blob, order.context),
                order.width,
                report.mix,
                order.trusted,
                report.steps,
            )


class RunStore(Vectors):
    """Vectors of a store's runs."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._written = self._kept = 0
        self._losses: dict[tuple[str, str], str] = {}  # by run and device
        self._counted: Cache[frozenset[str]] = Cache(
            CACHED_NAMES_BYTES, lambda names: NAME_BYTES * len(names)
        )

    def context(self, run: Run) -> Context:
        """What the run's strategy is given now."""
        layout, trainings = run.manifest.layout, run.config.trainings(run.state.round)
        return Context(
            layout,
            self.theta(run.state.model, layout.size),
            self.theta(run.state.initial, layout.size),
            run.config.training,
            trainings,
            self.read_arrays(run.state.arrays),
            self.read_groups(run.state.groups),
            run.widths,
            run.manifest.axes,
            run.config.robust,
            measures=run.config.trainings(run.state.round + 1) == trainings,
            devices=self.store.enrolled(),
        )

    def write_state(self, run: Run, state: State) -> RunState:
        """Store what a strategy gives back; the result names it.

        Where the broadcast is coded, the next global model is what the devices make of it (broadcast.py),
        and what it leaves out is owed where the state ``counts``. Where it does not, a part of the elements
        is no model: it then travels whole. A pure function of ``run.state`` and ``state``. Raises
        ``LocalError`` when the next global model is not finite.
        """
        known, broadcast = run.state, run.config.broadcast
        known = msgspec.structs.replace(
            known, arrays=self.write_arrays(state.arrays), groups=self.write_groups(state.groups)
        )
        current = self.theta(known.model, run.manifest.layout.size)
        if broadcast.whole or not (state.counts or broadcast.fraction >= 1):
            if state.theta is current:
                return known
            model, model_hash, _ = self.write_model(state.theta, broadcast.compression)
            return msgspec.structs.replace(
                known, model=model, model_hash=model_hash, owed=b"", steps=()
            )
        owed = self.read_vector(known.owed) if known.owed and state.counts else None
        version = next_version(state.theta, current, owed, broadcast)
        left = self.write_vector(version.owed) if state.counts else b""
        known = msgspec.structs.replace(known, owed=left)
        model, model_hash, size = self.write_model(version.theta, broadcast.compression)
        if model_hash == known.model_hash:
            return known
        blob = self.store.blobs.write(version.step)
        step = StepRow(known.model_hash, blob, len(version.step))
        steps = worth_sending((*known.steps, step), size)
        return msgspec.structs.replace(known, model=model, model_hash=model_hash, steps=steps)

    def summed_step(self, run: Run, held: bytes) -> bytes:
        """The blob of one step from the version with the hash ``held`` to the run's model; empty for none.

        There is one where it takes the place of several, and is smaller.
        """
        steps, size = steps_since(run.state.steps, held), run.manifest.layout.size
        if len(steps) < 2 or steps[0].base_hash != held:
            return b""
        vectors = (self.decode(self.store.blobs.read(step.blob), size, b"") for step in steps)
        found = summed(vectors, self.theta(run.state.model, size), held)
        if found is None:
            return b""
        coded = encode(found, ValueCoding.FP32, run.config.broadcast.compression)
        smaller = len(coded) < sum(step.size for step in steps)
        return self.store.blobs.write(coded) if smaller else b""

    def client_model(self, run: Run, device: str) -> ClientModel:
        """What the cloud knows of a device in this run, but for its group and its memory's size.

        The vector is read-only: whoever plans may not change it. What the disk has lost a part of counts
        as none: the run goes on, and the device's next update takes its place.
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
        """What has been found lost since the last call, each once."""
        found = list(self._losses.values())
        self._losses.clear()
        return found

    def _client_model(self, run: Run, row: ClientModelRow) -> ClientModel:
        device = row.device
        size = run.layout(row.width).size
        delta = self.delta(size, row.blob, row.context) if row.blob else None
        base, patch = self.theta(row.model, size), self.patch(row, size)
        trained = Update(device, 0, base, patch, delta).trained
        trained.flags.writeable = False
        return ClientModel(
            trained,
            run.config.trainings(row.round),
            self.read_arrays(row.arrays),
            device,
            delta,
            width=row.width,
            mix=row.mix,
            step_s=row.step_s,
            began=partial(self.theta, row.model, size),
            trusted=self.trusted(run, row),
            steps=row.steps,
        )

    def trusted(self, run: Run, row: ClientModelRow) -> bool:
        """Whether the update of a client model counted in full in its round; none that came late did."""
        name = f"{run.name}/{row.round}".encode()
        counted = self._counted.get(name)
        if counted is None:
            round_ = self.store.round(run.name, row.round)
            if round_ is None or round_.summary is None:
                return False
            closed = msgspec.msgpack.decode(round_.summary, type=_Closed)
            names = frozenset(device.device for device in closed.devices)
            counted = self._counted.put(name, names - closed.distrusted.keys())
        return row.device in counted

    def with_orders(
        self, run: Run, number: int, rows: Iterable[UpdateRow]
    ) -> list[tuple[UpdateRow, OrderRow]]:
        """Updates that count in a round, each with its order; a late one's is of an earlier round."""
        orders = {order.device: order for order in self.store.orders(run.name, number)}
        found: list[tuple[UpdateRow, OrderRow]] = []
        for row in rows:
            order = orders.get(row.device)
            if row.round != number:
                order = self.store.order(run.name, row.round, row.device)
            if order is None:
                where = f"run {run.name}, round {row.round}"
                raise StorageError(f"{where}: an update of {row.device}, but no order")
            found.append((row, order))
        return found

    def updates(
        self, run: Run, number: int, base: Theta, rows: Iterable[UpdateRow] | None = None
    ) -> RoundUpdates:
        """The updates that count in a round, by device; without ``rows`` those that came in time.

        They are on the global ``base`` (n,).
        """
        given = self.store.updates(run.name, number) if rows is None else rows
        by_device = sorted(given, key=lambda row: row.device)
        return RoundUpdates(run, self, base, tuple(self.with_orders(run, number, by_device)))

    def write_groups(self, groups: Groups) -> bytes:
        """Store who learns with whom; the blob's hash, or empty bytes for none."""
        return self.store.blobs.write(msgspec.msgpack.encode(groups)) if groups else b""

    def read_groups(self, blob: bytes) -> Groups:
        """Who learns with whom."""
        if not blob:
            return {}
        return msgspec.msgpack.decode(self.store.blobs.read(blob), type=dict[str, tuple[str, ...]])

    def collect(self) -> int:
        """Delete the blobs that nothing refers to; bytes freed."""
        keep = self.store.named_blobs()
        for row in self.store.runs():
            keep |= _read(row, row.state, RunState).blobs()
            keep.update(row.bundles)
        self._written, self._kept = 0, len(keep)
        freed = self.store.blobs.collect(keep, ORPHAN_AGE_S, PART_AGE_S)
        self.store.drop_small_updates()  # last: on a full disk it needs the room that was just freed
        return freed

    def tidy(self, orders: int) -> None:
        """A round of so many orders has closed: collect when they add up to what was kept last time.

        An update leaves up to three blobs: itself, its mask, its device's arrays. So what nothing refers
        to is a small multiple of what something does, and the cost of looking through all of it, shared
        among the updates, does not grow with the fleet.
        """
        self._written += orders
        if self._written >= self._kept:
            self.collect()


def _read(row: RunRow, coded: bytes, kind: type[R]) -> R:
    """A part of a run's row. Raises ``StorageError`` when it cannot be read."""
    try:
        return msgspec.msgpack.decode(coded, type=kind)
    except ValueError as exc:  # msgspec's errors
        raise StorageError(f"run {row.run}: its row cannot be read: {exc}") from exc
