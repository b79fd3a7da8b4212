"""One order, done: assemble the start vector, evaluate, train, evaluate, code what changed.

Runs in a worker thread beside the agent's core. It reads and writes blobs and vectors, and touches
nothing else; until the core commits the outcome, a crash leaves only orphans to collect.

    perform = prepare, then the lesson (local_training.py) with the device's trainer, then complete

Whoever trains many devices at once prepares and completes each, and leads their lessons in his own way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_edge.rounds.storage import Shelf, Vectors
from sedge_edge.training.examples import Examples, check, split
from sedge_edge.training.local_training import (
    FEATURES,
    Answer,
    Evaluate,
    Learned,
    Lesson,
    Request,
    Train,
    asked_about,
    check_order,
    follow,
    lesson,
    scores_gradient,
)
from sedge_edge.training.start_vector import Parts, assemble
from sedge_edge.training.trainer import Trainer, TrainingDiverged
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    above,
    decode,
    decoded_values,
    encode,
    mask_bitmap,
    top_k,
)
from sedge_protocol.errors import CodecError, LocalError, SedgeError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.bundle import Bundle, BundleManifest
from sedge_protocol.wire.messages import TRAIN, Codec, Order
from sedge_protocol.wire.update import Report, encode_update

# What this agent can do that a coordinator may not count on (``Hello.codecs``).
CODECS = ("int4", "sign", *FEATURES)


class OutOfMemory(SedgeError):
    """A job needs more memory than the device has for it."""


class Kept(msgspec.Struct, frozen=True):
    """What a device keeps of a run from one order to the next: the names of vectors, a mask and a patch.

    ``model`` is the device's own last one, which it predicts with; where that is a mixture, ``part`` is
    the own part of it. ``residual`` is what it still owes, ``mask`` that of its last update, ``gradient``
    that of its last batch, and ``patch`` what it sent last, coded as a patch.
    """

    model: bytes | None = None
    residual: bytes | None = None
    mask: bytes | None = None
    part: bytes | None = None
    gradient: bytes | None = None
    patch: bytes | None = None

    def names(self) -> set[bytes]:
        """The names of all that is kept."""
        return {name for name in msgspec.structs.astuple(self) if name is not None}


NOTHING = Kept()


@dataclass(frozen=True)
class Job:
    """An order whose blobs are all here, and what the device has kept of its run."""

    order: Order
    kept: Kept = NOTHING


@dataclass(frozen=True)
class Outcome:
    """What a finished job left: the update among the blobs, and what the device keeps from now on."""

    run: str
    round: int
    update: bytes
    report: Report
    kept: Kept = NOTHING


@dataclass(frozen=True)
class Place:
    """What a job reads and writes. ``keeps_model`` unless nobody will ask for the device's own model."""

    blobs: Shelf
    vectors: Vectors
    train: Examples
    test: Examples
    keeps_model: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Workplace(Place):
    """Where a device does its jobs itself; ``clock`` counts seconds and need not be a time of day."""

    open_bundle: Callable[[bytes], tuple[Bundle, Trainer]]
    stopped: Callable[[], bool]
    clock: Callable[[], float]


@dataclass(frozen=True)
class Prepared:
    """A job that can begin: its start vector (n,), and where the tensors lie that the device keeps.

    ``base`` (n,) is what the update is counted from, and ``personal`` (k,) are the elements in which the
    device starts from its own, as in ``Start``. ``own`` (n,) is the device's own model, or its part of a
    mixture, where the order trains one. ``context`` is the mask, as a bitmap, that the update's mask is
    coded against. ``train`` are the examples to train on; ``held`` are those that the device holds out,
    to pick one of ``parts`` by. ``correction`` (n,) is added to the gradients.
    """

    job: Job
    manifest: BundleManifest
    start: Theta
    base: Theta
    personal: NDArray[np.uint32]
    kept: list[slice]
    train: Examples
    context: bytes | None = None
    own: Theta | None = None
    parts: Parts | None = None
    held: Examples | None = None
    correction: Theta | None = None

    @property
    def lesson(self) -> Lesson:
        """The training itself, from its beginning."""
        layout, order = self.manifest.layout, self.job.order
        return lesson(order, layout, self.start, self.own, self.parts, self.correction)


@dataclass(frozen=True)
class Coded:
    """A coded delta, and what the device keeps once it is sent."""

    payload: bytes
    kept: Kept


def perform(job: Job, place: Workplace) -> Outcome:
    """Do the job.

    Raises ``RemoteError``, ``DataError``, ``StorageError`` or ``OutOfMemory``, each saying what is wrong.
    """
    try:
        return _perform(job, place)
    except MemoryError as exc:  # numpy's says how much it wanted, Python's says nothing
        where = f"run {job.order.run}, round {job.order.round}"
        text = str(exc) or "no more to be had"
        raise OutOfMemory(f"{where}: memory: {text}, expected room for the job") from exc


def _perform(job: Job, place: Workplace) -> Outcome:
    bundle, trainer = place.open_bundle(job.order.bundle.sha256)
    prepared = prepare(job, place, bundle.manifest)
    began = place.clock()
    learned = follow(prepared.lesson, lambda request: _answer(request, trainer, prepared, place))
    return complete(prepared, learned, place.clock() - began, place)


def _answer(request: Request, trainer: Trainer, prepared: Prepared, place: Workplace) -> Answer:
    """What a device's own trainer says to a lesson's question."""
    if isinstance(request, Evaluate):
        return trainer.evaluate(request.theta, asked_about(request, place.test, prepared.held))
    train, stopped = prepared.train, place.stopped
    training, seed = request.training, request.seed
    if isinstance(request, Train):
        return trainer.train(
            request.theta,
            train,
            training,
            seed,
            stopped,
            anchor=request.anchor,
            gradient=request.gradient,
            correction=request.correction,
        )
    return trainer.train_mixed(
        request.sent, request.own, request.mix, request.adaptive, train, training, seed, stopped
    )


def prepare(job: Job, place: Place, manifest: BundleManifest) -> Prepared:
    """Everything that comes before the training; the order's global model is held from then on.

    ``manifest`` is that of the order's bundle.

    Raises ``CodecError`` for what is not as the order says (``BrokenSteps`` where fetching the model
    whole may help) or cannot be done, ``DataError`` for data that do not fit the bundle, ``StorageError``
    for the disk.
    """
    order, layout, vectors = job.order, manifest.layout, place.vectors
    check(place.train, manifest)
    check(place.test, manifest)
    check_order(order, layout)
    train, held = place.train, None
    if order.work.choice is not None:
        train, held = split(train, order.work.choice.holdout, order.work.choice.seed)
    kept = _slices(layout, order.work.keep)
    start = assemble(order, place.blobs, vectors, layout, kept, job.kept.model, job.kept.gradient)
    context = None
    if (
        order.work.select is not None
        and job.kept.mask is not None
        and order.context == job.kept.mask
    ):
        context = vectors.read_mask(job.kept.mask)
    name = None
    if order.work.own_model is not None:
        name = job.kept.part if order.work.own_model.mixes else job.kept.model
    own = None if name is None else vectors.read(name, layout)
    correction = None
    if order.correction is not None:
        correction = decode(place.blobs.read(order.correction.sha256), layout.size).dense()
    return Prepared(
        job,
        manifest,
        start.theta,
        start.base,
        start.personal,
        kept,
        train,
        context,
        own,
        start.parts,
        held,
        correction,
    )


def complete(prepared: Prepared, learned: Learned, seconds: float, place: Place) -> Outcome:
    """Everything that comes after the training: report, coded update, and what the device keeps.

    Raises ``TrainingDiverged`` for a delta that cannot be sent, ``StorageError`` for the disk.
    """
    job, vectors, trained = prepared.job, place.vectors, learned.trained
    order = job.order
    report = Report(
        run=order.run,
        round=order.round,
        task=order.task,
        layout_hash=prepared.manifest.layout.hash,
        model_hash=order.model_hash,
        patch_hash=order.patch_hash,
        num_examples=len(prepared.train.targets),
        before=learned.before,
        after=learned.after,
        train_loss=trained.loss,
        steps=trained.steps,
        seconds=seconds,
        mix=learned.mix,
        sparse=learned.sparse,
        level=None if learned.picked is None else learned.picked.level,
    )
    coded = Coded(b"", job.kept)
    if order.task == TRAIN and order.work.upload:
        coded = code_delta(prepared, learned, vectors)
    update = place.blobs.write(encode_update(report, coded.payload))
    kept = coded.kept
    if order.task == TRAIN:
        slope = trained.gradient if scores_gradient(order) else None
        kept = msgspec.structs.replace(
            kept,
            model=vectors.keep(learned.model) if place.keeps_model else None,
            part=None if learned.part is None else vectors.keep(learned.part),
            gradient=None if slope is None else vectors.keep(slope),
        )
    return Outcome(order.run, order.round, update, report, kept)


def code_delta(prepared: Prepared, learned: Learned, vectors: Vectors) -> Coded:
    """The coded delta of a training. What is left out is owed, unless the order selects.

    Raises ``TrainingDiverged`` for a delta that the codec cannot carry: fp16 ends at 65,504.
    """
    job, order, codec = prepared.job, prepared.job.order, prepared.job.order.codec
    delta = _change(prepared, learned, vectors)
    try:
        if learned.chosen is None:
            chosen = choose(delta, codec)
        else:
            chosen = SparseVector(delta.size, learned.chosen, delta[learned.chosen.astype(np.intp)])
        payload = encode(chosen, codec.values, codec.compression, prepared.context)
        base = base_of(prepared, learned)
        patch = _remember(base, chosen, codec.values, vectors) if order.work.remember else None
    except LocalError as exc:
        where = f"run {order.run}, round {order.round}"
        raise TrainingDiverged(f"{where}: delta: {exc}") from exc
    residual, mask = None, job.kept.mask
    whole = chosen.indices is None and codec.values is ValueCoding.FP32
    if learned.chosen is None and codec.error_feedback and not whole:
        _take_out(delta, chosen, codec.values)
        residual = vectors.keep(delta)
    if learned.chosen is not None and 0 < chosen.count < chosen.size:
        mask = vectors.keep_mask(mask_bitmap(chosen))
    kept = msgspec.structs.replace(job.kept, residual=residual, mask=mask, patch=patch)
    return Coded(payload, kept)


def base_of(prepared: Prepared, learned: Learned) -> Theta:
    """What the update is counted from (n,): the start that the device has picked, if it has."""
    return prepared.base if learned.picked is None else learned.picked.start


def _change(prepared: Prepared, learned: Learned, vectors: Vectors) -> Theta:
    """What the device has to say (n,): its way from the base to the trained model, and what it owes.

    Nothing is owed in elements that are the device's own: their way is told from the global model on.
    """
    job, codec = prepared.job, prepared.job.order.codec
    owes = learned.chosen is None and codec.error_feedback
    # Two finite vectors may be too far apart; that is found when it is coded.
    with np.errstate(over="ignore"):
        delta = learned.trained.theta - base_of(prepared, learned)
        if owes and job.kept.residual is not None:
            residual = vectors.read(job.kept.residual, prepared.manifest.layout)
            place = prepared.personal.astype(np.intp)
            own = delta[place]
            delta += residual
            delta[place] = own
    for tensor in prepared.kept:
        delta[tensor] = 0.0
    return delta


def _remember(base: Theta, sent: SparseVector, values: ValueCoding, vectors: Vectors) -> bytes:
    """Keep what the coordinator will take for the device's model where it was sent; gives the name.

    Coded as the coordinator codes a patch of these elements at these values: with the same name.
    """
    decoded = decoded_values(sent.values, values)  # (k,)
    place = slice(None) if sent.indices is None else sent.indices.astype(np.intp)
    with np.errstate(over="ignore"):  # found when it is coded
        patch = SparseVector(sent.size, sent.indices, base[place] + decoded)
    return vectors.keep_mask(encode(patch, ValueCoding.FP32, Compression.NONE))


def choose(delta: Theta, codec: Codec) -> SparseVector:
    """The elements of delta (n,) that are sent."""
    k = max(1, round(codec.fraction * delta.size))
    if np.float32(codec.threshold) > 0:  # not one that float32 takes for none
        return above(delta, codec.threshold, k)
    if codec.fraction >= 1.0:
        return SparseVector(delta.size, None, delta)
    return top_k(delta, k)


def _take_out(delta: Theta, chosen: SparseVector, values: ValueCoding) -> None:
    """Leave in delta (n,) what the coordinator will not have decoded of it."""
    left = chosen.values - decoded_values(chosen.values, values)  # (k,)
    if chosen.indices is None:
        delta[:] = left
    else:  # numpy is three times as fast with its own kind of index
        delta[chosen.indices.astype(np.intp)] = left


def _slices(layout: Layout, names: tuple[str, ...]) -> list[slice]:
    """Where the named tensors lie. Raises ``CodecError`` for an unknown name."""
    for name in names:
        if name not in layout.by_name:
            raise CodecError(f"layout: no tensor named {name!r}")
    return [layout.by_name[name].slice for name in names]
