"""From references to vectors and back: what the store names, decoded.

A device's last model is never stored as a vector. It is (global blob, patch, update blob), and the
vector follows: decode the global, write the patch over it, add the decoded delta. So the cloud holds
kilobytes per device, and what it computes with is exactly what went over the wire.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_cloud.config import RunConfig
from sedge_cloud.store import OrderRow, RoundRow, RunRow, Store
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategy import Arrays, Memory, State, Strategy, Update
from sedge_protocol.bundle import BundleManifest, unpack
from sedge_protocol.errors import CodecError, Refused, StorageError
from sedge_protocol.layout import Theta
from sedge_protocol.sparse import SparseVector, ValueCoding, decode, encode
from sedge_protocol.transfer import Manifest, describe
from sedge_protocol.update import Report, decode_update

# Decoded globals kept in memory: the open round's, and a few that stale devices still refer to.
CACHED_GLOBALS = 4
# A blob is written before the row that names it; the command line does so beside the service.
ORPHAN_AGE_S = 60.0
# A device may lose its link in the middle of an update and come back the next day.
PART_AGE_S = 86_400.0


class RunState(msgspec.Struct, frozen=True):
    """A run's strategy.State in references; ``round`` counts the rounds applied."""

    model: bytes
    model_hash: bytes
    initial: bytes
    round: int = 0
    arrays: bytes = b""


class Run:
    """One run with what is needed to plan and to close its rounds."""

    def __init__(self, row: RunRow, store: Store) -> None:
        self.name = row.run
        self.status = row.status
        try:
            self.config = msgspec.msgpack.decode(row.config, type=RunConfig)
            self.state = msgspec.msgpack.decode(row.state, type=RunState)
        except ValueError as exc:  # msgspec's errors
            raise StorageError(f"run {row.run}: its row cannot be read: {exc}") from exc
        self.strategy: Strategy = make_strategy(self.config.strategy, self.config.options)
        self.bundle_hash = row.bundle
        self.manifest: BundleManifest = unpack(store.blobs.read(row.bundle)).manifest
        self.bundle: Manifest = describe(store.blobs.read(row.bundle))


class Ledger:
    """Vectors of a store's runs, with a small cache of decoded globals."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._globals: OrderedDict[bytes, Theta] = OrderedDict()

    def write_model(self, theta: Theta, values: ValueCoding) -> tuple[bytes, bytes, Theta]:
        """Store a global (n,): its blob, the hash of the decoded vector, and the decoded vector.

        Where the coding is lossy the decoded vector replaces the global, so that cloud and fleet
        always hold the same bytes.
        """
        coded = encode(SparseVector(theta.size, None, theta), values)
        decoded = decode(coded, theta.size).dense()
        blob = self.store.blobs.write(coded)
        return blob, hashlib.sha256(decoded.astype("<f4").tobytes()).digest(), decoded

    def theta(self, blob: bytes, size: int) -> Theta:
        """A global (n,), read-only."""
        if blob not in self._globals:
            theta = decode(self.store.blobs.read(blob), size).dense()
            theta.flags.writeable = False
            self._globals[blob] = theta
            if len(self._globals) > CACHED_GLOBALS:
                self._globals.popitem(last=False)
        self._globals.move_to_end(blob)
        return self._globals[blob]

    def state(self, run: Run) -> State:
        """The run's strategy state."""
        layout = run.manifest.layout
        return State(
            layout,
            self.theta(run.state.model, layout.size),
            self.theta(run.state.initial, layout.size),
            run.state.round,
            self.read_arrays(run.state.arrays),
        )

    def write_state(self, run: Run, state: State) -> RunState:
        """Store a strategy state; what comes back names it."""
        values = run.config.model_values
        if state.theta is self._globals.get(run.state.model):
            model, model_hash = run.state.model, run.state.model_hash
        else:
            model, model_hash, _ = self.write_model(state.theta, values)
        arrays = self.write_arrays(state.arrays)
        return RunState(model, model_hash, run.state.initial, state.round, arrays)

    def memory(self, run: Run, device: str) -> Memory:
        """What the cloud knows of a device in this run."""
        row = self.store.memory(run.name, device)
        if row is None:
            return Memory()
        blob = self.store.blobs.read(row.blob) if row.blob else b""
        trained = self._trained(run, row.model, row.patch, blob)
        return Memory(trained, row.round, self.read_arrays(row.arrays))

    def updates(self, run: Run, number: int, model: bytes) -> Iterator[Update]:
        """The accepted updates of a round, decoded one at a time, by device."""
        patches = {o.device: o.patch for o in self.store.orders(run.name, number)}
        for row in self.store.updates(run.name, number):
            blob = self.store.blobs.read(row.blob)
            report, _ = decode_update(blob)
            trained = self._trained(run, model, patches[row.device], blob)
            yield Update(row.device, report.num_examples, trained)

    def check_update(self, run: Run, round_: RoundRow, order: OrderRow, blob: bytes) -> Report:
        """The report of a received update, wholly validated.

        Raises ``Refused`` with the reason when it does not belong to this order, ``CodecError`` when
        its bytes are malformed; the payload is decoded to its last element.
        """
        report, payload = decode_update(blob)
        layout = run.manifest.layout
        patch_hash = hashlib.sha256(order.patch).digest() if order.patch else b""
        expected: list[tuple[str, object, object]] = [
            ("run", report.run, run.name),
            ("round", report.round, round_.round),
            ("task", report.task, round_.task),
            ("layout_hash", report.layout_hash, layout.hash),
            ("model_hash", report.model_hash, round_.model_hash),
            ("patch_hash", report.patch_hash, patch_hash),
        ]
        for name, found, wanted in expected:
            if found != wanted:
                raise Refused(
                    "mismatch", f"update.{name}: {_show(found)}, expected {_show(wanted)}"
                )
        if report.num_examples < 1:
            raise Refused("invalid", "update.num_examples: 0, expected at least 1")
        if bool(payload) != (order.upload and round_.task == "train"):
            raise Refused("mismatch", f"update has {len(payload)} payload bytes, not as ordered")
        self._trained(run, round_.model, order.patch, blob)
        return report

    def write_arrays(self, arrays: Arrays) -> bytes:
        """Store a strategy's own arrays; the blob's hash, or empty bytes for none."""
        if not arrays:
            return b""
        packed = {
            name: (array.shape, np.ascontiguousarray(array, "<f4").tobytes())
            for name, array in arrays.items()
        }
        return self.store.blobs.write(msgspec.msgpack.encode(packed))

    def read_arrays(self, blob: bytes) -> dict[str, NDArray[np.float32]]:
        """A strategy's own arrays."""
        if not blob:
            return {}
        packed = msgspec.msgpack.decode(
            self.store.blobs.read(blob), type=dict[str, tuple[tuple[int, ...], bytes]]
        )
        return {
            name: np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)
            for name, (shape, data) in packed.items()
        }

    def collect(self) -> int:
        """Delete the blobs that nothing refers to; bytes freed."""
        keep = self.store.named_blobs()
        for row in self.store.runs():
            state = msgspec.msgpack.decode(row.state, type=RunState)
            keep |= {state.model, state.initial, state.arrays}
        return self.store.blobs.collect(keep, ORPHAN_AGE_S, PART_AGE_S)

    def _trained(self, run: Run, model: bytes, patch: bytes, blob: bytes) -> Theta:
        """global + patch + delta, (n,)."""
        size = run.manifest.layout.size
        theta = self.theta(model, size).copy()
        if patch:
            decode(patch, size).scatter_into(theta)
        if blob:
            _, payload = decode_update(blob)
            if payload:
                with np.errstate(over="ignore"):  # found below, and refused
                    decode(payload, size).add_to(theta)
        if not np.isfinite(theta).all():
            raise CodecError(f"run {run.name}: an update makes a model that is not finite")
        return theta


def _show(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)
