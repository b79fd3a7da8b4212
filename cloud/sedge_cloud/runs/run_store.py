"""Reads and writes runs' states, client models and updates, which the store holds as references to blobs.

A client model is never stored as a vector, but as (model blob, patch, update blob): decode the model, write
the patch over it, add the decoded delta. So the cloud stores kilobytes per device, and computes with
exactly what was sent over the network.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from sedge_cloud.algorithms.slices import IN_PLACE, Compute
from sedge_cloud.runs.run import Run, StrategyState
from sedge_cloud.runs.updates import RoundUpdates
from sedge_cloud.runs.vectors import StoredVectors
from sedge_cloud.runs.versions import (
    needs_every_element,
    next_version,
    replacing_version,
    steps_since,
    summed,
    worth_sending,
)
from sedge_cloud.store.cache import Cache, Memory
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import ClientModelRow, OrderRow, UpdateRow
from sedge_cloud.store.schema import StepRow
from sedge_cloud.strategy import ClientModel, Context, Groups, State, Update
from sedge_protocol.codec import ValueCoding, encode
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Theta

NAME_BYTES = 128
R = TypeVar("R")


class _CountedDevice(msgspec.Struct, frozen=True):
    device: str
    counted: float = 1.0


class _Closed(msgspec.Struct, frozen=True):
    """A round's summary (summary.py), reduced to how much each update counted."""

    devices: tuple[_CountedDevice, ...]
    distrusted: dict[str, float] = {}


def _closed_round(run: Run, number: int) -> bytes:
    """Return a round's key in the cache. It has the run's creation time, as names can be reused."""
    return f"{run.name}/{run.created}/{number}".encode()


class RunStore(StoredVectors):
    """The vectors of a store's runs: models, updates, states and groups."""

    def __init__(
        self, store: Rows, memory: Memory | None = None, compute: Compute = IN_PLACE
    ) -> None:
        super().__init__(store, memory)
        self._compute = compute
        self._losses: dict[tuple[str, str], str] = {}  # by (run, device)
        # How much each device's update counted, for the rounds that client models refer to.
        self._counted: Cache[dict[str, float]] = Cache(
            self.memory, lambda names: NAME_BYTES * (1 + len(names))
        )

    def context(self, run: Run) -> Context:
        """Return the context to pass to the run's strategy now."""
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
            compute=self._compute,
        )

    def write_state(self, run: Run, state: State) -> StrategyState:
        """Store a strategy's ``State``. Returns it with blobs in place of vectors.

        If the broadcast is lossy, the next global model is the one that the devices decode (versions.py).
        If ``state.is_change``, elements that are left out are owed. Otherwise, some of the elements alone
        would not make a usable model, so every element of the change is sent. The result depends only on
        ``run.state`` and ``state``. Raises ``Unencodable`` for a model that is not finite.
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
        """Return the blob of a single step to the run's model from the model with the hash ``held``.

        Returns b"" unless that step replaces several and is smaller than all of them together.
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

    def client_model(self, run: Run, device: str, row: ClientModelRow | None = None) -> ClientModel:
        """Return a device's client model in this run, without its group or ``memory_mb``.

        Its vectors are read-only. ``row`` is the device's row, read here if not given. If the disk has lost
        a part of the model, the device counts as one with no history: the run continues, and the device's
        next update replaces the model.
        """
        row = row or self.store.client_model(run.name, device)
        if row is None:
            return ClientModel(device=device)
        try:
            return self._client_model(run, row)
        except StorageError as exc:
            if not any(map(self.store.missing_reason, row.blobs)):
                raise
            text = f"run {run.name}: the model of {device} after round {row.round} is lost: {exc}"
            self._losses.setdefault((run.name, device), text)
            return ClientModel(device=device)

    def take_losses(self) -> list[str]:
        """Return messages about client models found lost since the last call, each reported once."""
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
        """Return a client model's weighting factor in its round; 0 if it was distrusted or late."""
        name = _closed_round(run, row.round)
        counted = self._counted.get(name) or self.load_counted(run, [row.round]).get(row.round, {})
        return counted.get(row.device, 0.0)

    def load_counted(self, run: Run, numbers: Iterable[int]) -> dict[int, dict[str, float]]:
        """Load how much the updates in these rounds counted, unless it is cached.

        Returns what was loaded, by round and device.
        """
        unknown = [n for n in numbers if self._counted.get(_closed_round(run, n)) is None]
        loaded: dict[int, dict[str, float]] = {}
        for number, coded in self.store.summaries(run.name, unknown).items() if unknown else ():
            closed = msgspec.msgpack.decode(coded, type=_Closed)
            factors = {
                each.device: 0.0 if each.device in closed.distrusted else each.counted
                for each in closed.devices
            }
            loaded[number] = self._counted.put(_closed_round(run, number), factors)
        return loaded

    def with_orders(
        self,
        run: Run,
        number: int,
        rows: Iterable[UpdateRow],
        orders: Mapping[str, OrderRow] | None = None,
    ) -> list[tuple[UpdateRow, OrderRow]]:
        """Return the updates that count in a round, each with its order. A late update has an older order.

        ``orders`` are the orders of the round, by device; they are read here if not given.
        """
        if orders is None:
            orders = {order.device: order for order in self.store.orders(run.name, number)}
        pairs: list[tuple[UpdateRow, OrderRow]] = []
        for row in rows:
            order = orders.get(row.device)
            if row.round != number:
                order = self.store.order(run.name, row.round, row.device)
            if order is None:
                where = f"run {run.name}, round {row.round}"
                raise StorageError(f"{where}: found an update from {row.device} without an order")
            pairs.append((row, order))
        return pairs

    def updates(
        self,
        run: Run,
        number: int,
        base: Theta,
        rows: Iterable[UpdateRow],
        orders: Mapping[str, OrderRow] | None = None,
    ) -> RoundUpdates:
        """Return ``rows``, the updates that count in a round, to the global model ``base`` (n,).

        They are sorted by device. ``orders`` are as in ``with_orders``.
        """
        by_device = sorted(rows, key=lambda row: row.device)
        return RoundUpdates(
            run.widths, self, base, tuple(self.with_orders(run, number, by_device, orders))
        )

    def write_groups(self, groups: Groups) -> bytes:
        """Store which devices learn from which. Returns the blob, or b"" if there are no groups."""
        return self.store.blobs.write(msgspec.msgpack.encode(groups)) if groups else b""

    def read_groups(self, blob: bytes) -> Groups:
        """Read which devices learn from which."""
        if not blob:
            return {}
        return msgspec.msgpack.decode(self.store.blobs.read(blob), type=dict[str, tuple[str, ...]])
