"""From assignments to orders: what a strategy asks of each device of a cohort, checked and coded.

    plan --> check --> start as a blob (equal starts are one), patch coded, the rest as Work

A device that lacks something its order needs is left out of the round. n = elements of its model, m of
that in another width.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sedge_cloud.devices.capabilities import CORRECTION, needed_features
from sedge_cloud.rounds.client_models import ClientModels, Hellos
from sedge_cloud.store.rows import ClientModelRow, OrderRow
from sedge_cloud.store.runs import Run, RunStore
from sedge_cloud.store.vectors import hash_of, magnitude
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decoded_values,
    encode,
    mask_needed,
)
from sedge_protocol.codec.patch_levels import MAX_LEVEL, encode_levels
from sedge_protocol.errors import CodecError, ConfigError, LocalError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import MAX_INLINE_BYTES, PatchChoice, Work

# A patch that the device keeps is named, so that it need not travel, unless its name is no shorter.
NAMED_BYTES = 256
# No order has this number: its seed draws the examples that a device holds out.
HOLDOUT_ROUND = 0
# Stands for a device that nobody has heard of; no device has such an id.
STRANGER = "a new device"


@dataclass(frozen=True)
class Planned:
    """A round's orders by device, and of the devices that are left out what each of them lacks."""

    orders: list[OrderRow]
    left_out: dict[str, frozenset[str]]

    @property
    def lacking(self) -> str:
        """One line on who is left out, and why."""
        parts = [f"{name} lacks {', '.join(sorted(what))}" for name, what in self.left_out.items()]
        return f"left out: {'; '.join(parts)}"


def plan_round(
    run: Run, run_store: RunStore, number: int, devices: Sequence[str], hello: Hellos
) -> Planned:
    """Plan every device's part in a round.

    Raises ``LocalError`` for an assignment that cannot be made or given.
    """
    planner = _Planner(run, run_store, number, hello)
    orders: list[OrderRow] = []
    left_out: dict[str, frozenset[str]] = {}
    for device in devices:
        try:
            assignment = planner.assignment(device)
        except (
            ConfigError,
            CodecError,
        ) as exc:  # options that do not suit the model or its bundles
            raise LocalError(f"{run.config.strategy}, {device}: {exc}") from exc
        said, work = hello(device), check_assignment(run, device, assignment)
        lacking = needed_features(work, run.config.training)
        lacking |= {CORRECTION} if assignment.correction is not None else set()
        lacking -= frozenset(said.codecs if said is not None else ())
        if lacking:
            left_out[device] = lacking
        else:
            orders.append(planner.order(device, assignment, work))
    return Planned(orders, left_out)


def plan_stranger(run: Run, run_store: RunStore) -> OrderRow:
    """What a device that nobody has heard of would be ordered in the first round.

    Raises ``LocalError`` and ``CodecError`` for an assignment that cannot be made or given.
    """
    assignment = run.strategy.plan(run_store.context(run), ClientModel())
    work = check_assignment(run, STRANGER, assignment)
    return _Planner(run, run_store, 1, lambda device: None).order(STRANGER, assignment, work)


def order_seed(seed: int, number: int, device: str) -> int:
    """The seed of one device's shuffles in one round, below 2**63."""
    digest = hashlib.sha256(f"{seed}/{number}/{device}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def check_assignment(run: Run, device: str, assignment: Assignment) -> Work:
    """What an assignment asks besides start and patch, complete.

    Raises ``LocalError`` for anything that a device would have to refuse.
    """
    where, work = f"{run.config.strategy}, {device}", assignment.work
    if not 0 <= assignment.width < len(run.widths):
        raise LocalError(
            f"{where}: width {assignment.width}, the run has {len(run.widths)} bundles"
        )
    layout = run.layout(assignment.width)
    if assignment.width and assignment.start is None:
        raise LocalError(f"{where}: width {assignment.width} without a start of its own")
    patch = assignment.patch
    for name in ("start", "correction"):
        found: Theta | None = getattr(assignment, name)
        if found is not None and (found.shape != (layout.size,) or found.dtype != np.float32):
            expected = f"float32 ({layout.size},)"
            raise LocalError(f"{where}: {name} {found.dtype} {found.shape}, expected {expected}")
    if patch is not None and patch.size != layout.size:
        raise LocalError(f"{where}: a patch of n={patch.size}, expected {layout.size}")
    if work.scoring is not None and (patch is not None or work.own_model is not None):
        raise LocalError(f"{where}: device scoring together with a patch or a model of its own")
    if assignment.correction is not None and work.own_model is not None and work.own_model.mixes:
        raise LocalError(f"{where}: a correction together with a mixture")
    _require_choice(where, assignment)
    _require_names(where, layout, work)
    stays = () if assignment.shares_statistics else layout.statistics
    keep = (*stays, *(name for name in work.keep if name not in stays))
    work = msgspec.structs.replace(work, keep=keep, choice=_choice(run, device, assignment))
    try:  # ranges hold for what is decoded, and a training may be of a run file's stricter kind
        return msgspec.msgpack.decode(msgspec.msgpack.encode(work), type=Work)
    except ValueError as exc:  # msgspec's errors
        raise LocalError(f"{where}: {exc}") from exc


def _require_choice(where: str, assignment: Assignment) -> None:
    """Raise ``LocalError`` for levels that are not the patch's, or that nobody can pick by."""
    levels, patch = assignment.levels, assignment.patch
    if levels is not None:
        count = 0 if patch is None else patch.count
        if levels.dtype != np.uint8 or levels.shape != (count,):
            raise LocalError(
                f"{where}: levels {levels.dtype} {levels.shape}, expected uint8 ({count},)"
            )
        if levels.max(initial=0) > MAX_LEVEL:
            raise LocalError(f"{where}: level {levels.max()}, expected 0 to {MAX_LEVEL}")
        if not assignment.holdout:
            raise LocalError(f"{where}: levels without a holdout to pick one by")
    if assignment.work.choice is not None:
        raise LocalError(f"{where}: a choice, which follows from levels and holdout")
    alone = assignment.work.scoring is None and assignment.work.own_model is None
    if assignment.holdout and not alone:
        raise LocalError(f"{where}: a holdout together with device scoring or a model of its own")


def _choice(run: Run, device: str, assignment: Assignment) -> PatchChoice | None:
    """What a device picks from, if it may; the same examples are held out in every round of a run."""
    if not assignment.holdout:
        return None
    seed = order_seed(run.config.seed, HOLDOUT_ROUND, device)
    coded = b""
    if assignment.levels is not None:
        coded = encode_levels(assignment.levels, run.config.patch.compression)
    return PatchChoice(assignment.holdout, seed, coded)


def _require_names(where: str, layout: Layout, work: Work) -> None:
    named: list[Iterable[str]] = [work.keep, *(phase.freeze for phase in work.trainings)]
    named += [work.scoring.tensors] if work.scoring else []
    for name in {name for names in named for name in names}:
        if name not in layout.by_name:
            raise LocalError(f"{where}: no tensor named {name!r}")


class _Planner:
    """The planning of one round."""

    def __init__(self, run: Run, run_store: RunStore, number: int, hello: Hellos) -> None:
        self._run = run
        self._run_store = run_store
        self._number = number
        self._hello = hello
        self._context: Context = run_store.context(run)
        self._clients = ClientModels(run, run_store, self._context.groups, hello)
        self._starts: dict[bytes, tuple[bytes, bytes]] = {}
        self._sums: dict[bytes, bytes] = {}

    def assignment(self, device: str) -> Assignment:
        return self._run.strategy.plan(self._context, self._clients.of(device))

    def order(self, device: str, assignment: Assignment, work: Work) -> OrderRow:
        """A device's part as it is stored. Raises ``LocalError`` for one that cannot be given."""
        run, run_store = self._run, self._run_store
        known, said = run_store.store.client_model(run.name, device), self._hello(device)
        trusted = known is None or run_store.trusted(run, known)
        if known is not None and known.width != assignment.width:
            known = None  # its mask and what it remembers are of another layout
        model, model_hash = self._start(assignment.start)
        is_own = self._is_own(device, assignment.patch, known)
        holds = self._held(known)
        patch, patch_context = self._patch(assignment.patch, known, is_own)
        inline = len(patch) <= (NAMED_BYTES if is_own else MAX_INLINE_BYTES)
        return OrderRow(
            run=run.name,
            round=self._number,
            device=device,
            patch=patch if inline else b"",
            work=msgspec.msgpack.encode(work),
            arrays=run_store.write_arrays(assignment.arrays),
            context=b"" if work.select is None else self._mask(known),
            model=model,
            model_hash=model_hash,
            width=assignment.width,
            patch_blob=b"" if inline else run_store.store.blobs.write(patch),
            patch_context=patch_context,
            trusted=trusted,
            num_train=0 if said is None else said.num_train,
            correction=self._correction(assignment.correction),
            holds=holds,
            step=b"" if known is None or model else self._sum(known, holds),
        )

    def _held(self, known: ClientModelRow | None) -> bytes:
        """The hash of the global model that a device began its last update with; empty for none."""
        row = known and self._run_store.store.round(self._run.name, known.round)
        return row.model_hash if known and row and row.model == known.model else b""

    def _sum(self, known: ClientModelRow, holds: bytes) -> bytes:
        """The blob of one step for all that a device has missed; empty where it may not need all of it."""
        order, run = self._run_store.store.order, self._run.name
        if any(order(run, n, known.device) for n in range(known.round + 1, self._number)):
            return b""
        if holds not in self._sums:
            self._sums[holds] = self._run_store.summed_step(self._run, holds)
        return self._sums[holds]

    def _start(self, start: Theta | None) -> tuple[bytes, bytes]:
        """Blob and hash of a start vector; both empty where it is the run's model."""
        if start is None:
            return b"", b""
        name = hash_of(start)
        if name == self._run.state.model_hash:
            return b"", b""
        if name not in self._starts:
            coding = self._run.config.patch
            values = _held_in(coding.values, start)
            written = self._run_store.write_model(start.copy(), coding.compression, values)
            self._starts[name] = written[:2]
        return self._starts[name]

    def _correction(self, correction: Theta | None) -> bytes:
        """The blob of what is added to a device's gradients; empty where nothing is."""
        if correction is None:
            return b""
        whole = SparseVector(correction.size, None, correction)
        coded = encode(whole, ValueCoding.FP32, self._run.config.patch.compression)
        return self._run_store.store.blobs.write(coded)

    def _is_own(
        self, device: str, patch: SparseVector | None, known: ClientModelRow | None
    ) -> bool:
        """Whether a patch is what the device keeps: what it sent last, at the values that it then had."""
        if patch is None or known is None or not known.remembered:
            return False
        client = self._clients.of(device)
        return client.trained is not None and _same(patch, client.sent, client.trained)

    def _mask(self, known: ClientModelRow | None) -> bytes:
        """The blob of a device's last mask; empty where there is none, or the disk has lost it."""
        if known is None or not known.mask or not self._run_store.store.blobs.has(known.mask):
            return b""
        return known.mask

    def _patch(
        self, patch: SparseVector | None, known: ClientModelRow | None, is_own: bool
    ) -> tuple[bytes, bytes]:
        """The coded patch, and the blob of the mask it needs; both empty where there is none."""
        if patch is None:
            return b"", b""
        if is_own:  # not compressed, the bytes are a function of the vector: those that it keeps
            return encode(patch, ValueCoding.FP32, Compression.NONE), b""
        coding = self._run.config.patch
        values = _held_in(coding.values, patch.values)
        mask = b"" if 4 * patch.count <= MAX_INLINE_BYTES else self._mask(known)
        if not mask:
            return encode(patch, values, coding.compression), b""
        context = self._run_store.store.blobs.read(mask)
        coded = encode(patch, values, coding.compression, context)
        return coded, mask if mask_needed(coded) else b""


def _held_in(wanted: ValueCoding, values: Theta) -> ValueCoding:
    """The coding that is wanted or, where it does not hold the largest of the values (k,), fp32.

    Every device knows that one, and a coded vector names its own. A single device's wild value is not to
    end the run for all.
    """
    try:
        decoded_values(np.array([magnitude(values)], np.float32), wanted)
    except LocalError:
        return ValueCoding.FP32
    return wanted


def _same(patch: SparseVector, sent: SparseVector | None, trained: Theta) -> bool:
    """Whether a patch is ``trained`` (n,) at the elements that were sent."""
    if sent is None or sent.count != patch.count:
        return False
    if patch.indices is None or sent.indices is None:
        return patch.count == patch.size and bool(np.array_equal(patch.values, trained))
    own = trained[sent.indices.astype(np.intp)]
    return bool(np.array_equal(patch.indices, sent.indices) and np.array_equal(patch.values, own))
