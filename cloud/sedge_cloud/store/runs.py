"""From references to vectors and back: what the store names, decoded.

A device's last model is never stored as a vector. It is (model blob, patch, update blob), and the
vector follows: decode the model, write the patch over it, add the decoded delta. So the cloud holds
kilobytes per device, and what it computes with is exactly what went over the wire.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.store.broadcast import next_version, worth_sending
from sedge_cloud.store.cache import Cache
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import MemoryRow, OrderRow, RunRow, UpdateRow
from sedge_cloud.store.schema import StepRow
from sedge_cloud.store.vectors import Vectors
from sedge_cloud.strategies.registry import make_strategy
from sedge_cloud.strategy import Memory, State, Strategy, Update, Width
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.bundle import BundleManifest, unpack
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.update import Report

# A blob is written before the row that names it; the command line does so beside the service.
ORPHAN_AGE_S = 60.0
# Who counted in full, of the rounds that memories are of: 1000 rounds of 100 devices fit.
CACHED_NAMES_BYTES = 16 * 2**20
NAME_BYTES = 128
# A device may lose its link in the middle of an update and come back the next day.
PART_AGE_S = 86_400.0
R = TypeVar("R")
Groups = Mapping[str, tuple[str, ...]]


class RunState(msgspec.Struct, frozen=True):
    """A run's strategy.State in references; ``round`` counts the rounds applied.

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
        self.widths = tuple(Width(manifest.rate, manifest.layout) for manifest in manifests)

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
    """The accepted updates of a round on the global ``base`` (n,), by device; each made when it is due.

    They can be gone through as often as is needed.
    """

    run: Run
    vectors: Vectors
    base: Theta
    orders: Mapping[str, OrderRow]
    rows: tuple[UpdateRow, ...]

    def __iter__(self) -> Iterator[Update]:
        for row in self.rows:
            order = self.orders[row.device]
            report = msgspec.msgpack.decode(row.report, type=Report)
            size = self.run.layout(order.width).size
            yield Update(
                row.device,
                report.num_examples,
                self.vectors.theta(order.model, size) if order.model else self.base,
                self.vectors.started(order, size, report.level),
                self.vectors.delta(size, row.blob, order.context),
                order.width,
                report.mix,
                order.read_details().trusted,
            )


class Ledger(Vectors):
    """Vectors of a store's runs."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._written = self._kept = 0
        self._losses: dict[tuple[str, str], str] = {}  # by run and device
        self._counted: Cache[frozenset[str]] = Cache(
            CACHED_NAMES_BYTES, lambda names: NAME_BYTES * len(names)
        )

    def state(self, run: Run) -> State:
        """The run's strategy state."""
        layout, trainings = run.manifest.layout, run.config.trainings(run.state.round)
        return State(
            layout,
            self.theta(run.state.model, layout.size),
            self.theta(run.state.initial, layout.size),
            trainings,
            self.read_arrays(run.state.arrays),
            self.read_groups(run.state.groups),
            run.widths,
            run.manifest.axes,
            run.config.robust,
            measures=run.config.trainings(run.state.round + 1) == trainings,
        )

    def write_state(self, run: Run, state: State) -> RunState:
        """Store a strategy state; what comes back names it.

        Where the broadcast is not whole, the next global is what the devices make of it (broadcast.py), and
        what it leaves out is owed unless the strategy is ``absolute``. A pure function of ``run.state`` and
        ``state``. Raises ``LocalError`` when it is not finite.
        """
        known, broadcast = run.state, run.config.broadcast
        known = msgspec.structs.replace(
            known,
            round=state.round,
            arrays=self.write_arrays(state.arrays),
            groups=self.write_groups(state.groups),
        )
        current = self.theta(known.model, run.manifest.layout.size)
        if broadcast.whole:
            if state.theta is current:
                return known
            model, model_hash, _ = self.write_model(state.theta, broadcast.compression)
            return msgspec.structs.replace(known, model=model, model_hash=model_hash)
        absolute = getattr(run.strategy, "absolute", False)
        owed = self.read_vector(known.owed) if known.owed and not absolute else None
        version = next_version(state.theta, current, owed, broadcast)
        left = b"" if absolute else self.write_vector(version.owed)
        known = msgspec.structs.replace(known, owed=left)
        model, model_hash, size = self.write_model(version.theta, broadcast.compression)
        if model_hash == known.model_hash:
            return known
        blob = self.store.blobs.write(version.step)
        step = StepRow(known.model_hash, blob, len(version.step))
        steps = worth_sending((*known.steps, step), size)
        return msgspec.structs.replace(known, model=model, model_hash=model_hash, steps=steps)

    def memory(self, run: Run, device: str) -> Memory:
        """What the cloud knows of a device in this run, but for its group and its memory's size.

        The vector is read-only: whoever plans may not change it. What the disk has lost a part of counts
        as none: the run goes on, and the device's next update takes its place.
        """
        row = self.store.memory(run.name, device)
        if row is None:
            return Memory(device=device)
        try:
            return self._memory(run, row)
        except StorageError as exc:
            if not any(map(self.store.lost, row.blobs)):
                raise
            text = f"run {run.name}: the model of {device} after round {row.round} is lost: {exc}"
            self._losses.setdefault((run.name, device), text)
            return Memory(device=device)

    def take_losses(self) -> list[str]:
        """What has been found lost since the last call, each once."""
        found = list(self._losses.values())
        self._losses.clear()
        return found

    def _memory(self, run: Run, row: MemoryRow) -> Memory:
        device = row.device
        size = run.layout(row.width).size
        delta = self.delta(size, row.blob, row.context) if row.blob else None
        base, patch = self.theta(row.model, size), self.patch(row, size)
        trained = Update(device, 0, base, patch, delta).trained
        trained.flags.writeable = False
        return Memory(
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
        )

    def trusted(self, run: Run, row: MemoryRow) -> bool:
        """Whether the update that a memory is of counted in full in its round; none that came late did."""
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

    def updates(self, run: Run, number: int, base: Theta) -> RoundUpdates:
        """The accepted updates of a round on the global ``base`` (n,), one at a time, by device."""
        orders = {o.device: o for o in self.store.orders(run.name, number)}
        return RoundUpdates(run, self, base, orders, tuple(self.store.updates(run.name, number)))

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
