"""Turns a strategy's assignments into orders: checks and encodes what each device of a cohort must do.

    plan --> check --> start as a blob (equal starts share one), patch coded, everything else as Work

A device that lacks a feature that its order needs is left out of the round. n, m and k are the numbers of
elements in the whole model, a narrower form and a patch.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np

from sedge_cloud.rounds.assignments import check_assignment
from sedge_cloud.runs.capabilities import memory_of, terms_of
from sedge_cloud.runs.client_models import ClientModels, Hellos
from sedge_cloud.runs.past import Past
from sedge_cloud.runs.rollout_versions import Versions
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.terms import keeps_model, packet_limit, without_memory
from sedge_cloud.runs.vectors import hash_of, magnitude
from sedge_cloud.store.rows import ClientModelRow, OrderRow
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decoded_values,
    encode,
    mask_needed,
)
from sedge_protocol.errors import CodecError, ConfigError, StrategyError, Unencodable
from sedge_protocol.layout import Theta
from sedge_protocol.wire.extensions import CORRECTION, needed_by_work
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES
from sedge_protocol.wire.work import Work

# A patch that the device has kept is sent only as a hash, unless it has at most this many bytes.
NAMED_BYTES = 256
# The id of a hypothetical device with no history. Its spaces keep it from clashing with a real id.
NEWCOMER = "a new device"


@dataclass(frozen=True)
class Planned:
    """A round's orders, and the features missing on each device that was left out."""

    orders: list[OrderRow]
    left_out: dict[str, frozenset[str]]


def plan_round(
    run: Run, run_store: RunStore, number: int, devices: Sequence[str], hello: Hellos
) -> Planned:
    """Plan every device's order for a round. Raises ``StrategyError`` for an unusable assignment."""
    planner = _Planner(run, run_store, number, hello, devices)
    orders: list[OrderRow] = []
    left_out: dict[str, frozenset[str]] = {}
    for device in devices:
        try:
            assignment = planner.assignment(device)
            work = check_assignment(run, device, assignment)
            lacking = _lacking(run, assignment, work, hello(device))
            if lacking:
                left_out[device] = lacking
            else:
                orders.append(planner.order(device, assignment, work))
        except (ConfigError, CodecError, Unencodable) as exc:
            # The options do not suit the model or its bundles, or values cannot be encoded.
            raise StrategyError(f"{run.config.strategy}, {device}: {exc}") from exc
    planner.forget(orders)
    return Planned(orders, left_out)


def _lacking(run: Run, assignment: Assignment, work: Work, hello: Hello | None) -> frozenset[str]:
    """Return the features and memory that an order needs but the device lacks."""
    needed = needed_by_work(work, run.config.training_in(run.state.round + 1))
    if assignment.correction is not None:
        needed |= {CORRECTION}
    if hello is None:
        return needed
    memory = without_memory(memory_of(run, assignment.width, work), hello)
    return needed.difference(hello.codecs) | frozenset(memory)


def save_terms(run: Run, run_store: RunStore, stored: bytes) -> None:
    """Store a run's requirements on devices, unless ``stored`` has them already."""
    terms = terms_of(run)
    with suppress(StrategyError, ConfigError):  # planning a round will report the error
        assignment = run.strategy.plan(run_store.context(run), ClientModel())
        work = check_assignment(run, NEWCOMER, assignment)
        terms, features = terms_of(run, work), _lacking(run, assignment, work, None)
        if run.config.schedule.steps:  # orders of some rounds need this feature
            features |= {"schedule"}
        terms = msgspec.structs.replace(terms, features=tuple(sorted(features)))
    coded = msgspec.msgpack.encode(terms)
    if coded != stored:
        run_store.store.set_terms(run.name, coded)


def plan_newcomer(run: Run, run_store: RunStore) -> OrderRow:
    """Return the order that a device with no history would get in the first round.

    Raises ``StrategyError``, ``CodecError`` or ``Unencodable`` for an assignment that cannot be used.
    """
    assignment = run.strategy.plan(run_store.context(run), ClientModel())
    work = check_assignment(run, NEWCOMER, assignment)
    return _Planner(run, run_store, 1, lambda device: None, ()).order(NEWCOMER, assignment, work)


class _Planner:
    """Plans the orders of one round."""

    def __init__(
        self, run: Run, run_store: RunStore, number: int, hello: Hellos, devices: Sequence[str]
    ) -> None:
        self._run = run
        self._run_store = run_store
        self._number = number
        self._hello = hello
        self._context: Context = run_store.context(run)
        groups = self._context.groups
        everyone = {name for device in devices for name in (device, *groups.get(device, ()))}
        self._past = Past(run, run_store, everyone)
        self._clients = ClientModels(run, run_store, groups, hello, self._past.rows)
        self._versions = Versions(run.name, run_store.store)
        self._starts: dict[bytes, tuple[bytes, bytes]] = {}
        self._sums: dict[bytes, bytes] = {}

    def assignment(self, device: str) -> Assignment:
        return self._run.strategy.plan(self._context, self._clients.of(device))

    def forget(self, orders: Sequence[OrderRow]) -> None:
        """Free the data cached for this plan only; the next plan will use newer updates."""
        state = self._run.state
        keep = {state.model, state.initial, *(order.patch_hash for order in orders)}
        self._clients.forget()
        self._run_store.drop_past(self._past.rows.values(), keep)

    def order(self, device: str, assignment: Assignment, work: Work) -> OrderRow:
        """Return a device's order as a row. Raises ``Unencodable`` for values that cannot be encoded."""
        run, run_store = self._run, self._run_store
        client, hello = self._past.rows.get(device), self._hello(device)
        trusted = client is None or run_store.counted(run, client) > 0
        if client is not None and client.width != assignment.width:
            client = None  # the data it kept has another width's layout
        if not keeps_model(hello, run.name):
            client = None  # the device has lost its patch, mask and model
        model, model_hash = self._start(assignment.start)
        is_own = self._is_own(device, assignment.patch, client)
        patch, patch_context = self._patch(assignment.patch, client, is_own)
        holds = b"" if client is None else self._past.holds(client)
        limit = packet_limit(hello)
        inline = len(patch) <= (NAMED_BYTES if is_own else min(MAX_INLINE_BYTES, limit // 4))
        return OrderRow(
            run=run.name,
            round=self._number,
            device=device,
            patch=patch if inline else b"",
            work=msgspec.msgpack.encode(work),
            arrays=run_store.write_arrays(assignment.arrays),
            context=b"" if work.select is None else self._mask(client),
            model=model,
            model_hash=model_hash,
            width=assignment.width,
            patch_blob=b"" if inline else run_store.store.blobs.write(patch),
            patch_context=patch_context,
            trusted=trusted,
            num_train=0 if hello is None else hello.num_train,
            correction=self._correction(assignment.correction),
            holds=holds,
            step=b"" if client is None or model else self._sum(client, holds),
            bundle=self._versions.bundle(device),
        )

    def _sum(self, client: ClientModelRow, holds: bytes) -> bytes:
        """Return the blob of a single step that combines all changes since the model ``holds``.

        Returns b"" if that saves nothing, or if the device has had an order since its last update and so
        may have a newer model.
        """
        if holds not in self._sums:
            self._sums[holds] = self._run_store.summed_step(self._run, holds)
        if self._sums[holds] and self._past.was_asked_since(client):
            return b""
        return self._sums[holds]

    def _start(self, start: Theta | None) -> tuple[bytes, bytes]:
        """Return the blob and hash of a start vector; both are empty if it is the run's own model."""
        if start is None:
            return b"", b""
        name = hash_of(start)
        if name == self._run.state.model_hash:
            return b"", b""
        if name not in self._starts:
            compression = self._run.config.patch.compression
            values = _held_in(self._run.patch_values, start)
            written = self._run_store.write_model(start.copy(), compression, values)
            self._starts[name] = written[:2]
        return self._starts[name]

    def _correction(self, correction: Theta | None) -> bytes:
        """Return the blob of the vector that a device adds to its gradients; b"" if there is none."""
        if correction is None:
            return b""
        whole = SparseVector(correction.size, None, correction)
        coded = encode(whole, ValueCoding.FP32, self._run.config.patch.compression)
        return self._run_store.store.blobs.write(coded)

    def _is_own(
        self, device: str, patch: SparseVector | None, client: ClientModelRow | None
    ) -> bool:
        """Return True if the device already has this patch: the elements it last sent, and their values."""
        if patch is None or client is None or not client.remembered:
            return False
        model = self._clients.of(device)
        return model.trained is not None and _same(patch, model.sent, model.trained)

    def _mask(self, client: ClientModelRow | None) -> bytes:
        """Return the blob of a device's last mask; b"" if it has none, or if the disk has lost it."""
        if client is None or not client.mask or not self._run_store.store.blobs.has(client.mask):
            return b""
        return client.mask

    def _patch(
        self, patch: SparseVector | None, client: ClientModelRow | None, is_own: bool
    ) -> tuple[bytes, bytes]:
        """Return the encoded patch, and the blob of the mask needed to decode it; each may be empty."""
        if patch is None:
            return b"", b""
        if is_own:  # uncompressed, as the device must derive the same bytes from its vector
            return encode(patch, ValueCoding.FP32, Compression.NONE), b""
        compression = self._run.config.patch.compression
        values = _held_in(self._run.patch_values, patch.values)
        mask = b"" if 4 * patch.count <= MAX_INLINE_BYTES else self._mask(client)
        if not mask:
            return encode(patch, values, compression), b""
        context = self._run_store.store.blobs.read(mask)
        coded = encode(patch, values, compression, context)
        return coded, mask if mask_needed(coded) else b""


def _held_in(wanted: ValueCoding, values: Theta) -> ValueCoding:
    """Return the ``wanted`` coding, or fp32 if ``wanted`` cannot hold the largest of the values (k,).

    One device's extreme value must not end the run. Every device can decode fp32, and an encoded vector
    names its coding.
    """
    try:
        decoded_values(np.array([magnitude(values)], np.float32), wanted)
    except Unencodable:
        return ValueCoding.FP32
    return wanted


def _same(patch: SparseVector, sent: SparseVector | None, trained: Theta) -> bool:
    """Return True if a patch has the indices of ``sent`` and, there, the values of ``trained`` (n,)."""
    if sent is None or sent.count != patch.count:
        return False
    if patch.indices is None or sent.indices is None:
        return patch.count == patch.size and bool(np.array_equal(patch.values, trained))
    own = trained[sent.indices.astype(np.intp)]
    return bool(np.array_equal(patch.indices, sent.indices) and np.array_equal(patch.values, own))
