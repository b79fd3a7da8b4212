"""One order, done: assemble the start vector, evaluate, train, evaluate, code what changed.

Runs in a worker thread beside the agent's core. It reads and writes blobs and vectors, and touches
nothing else; until the core commits the outcome, a crash leaves only orphans to collect.

    run_job = prepare, then the lesson (local_training.py) with the device's trainer, then complete

Whoever trains many devices at once prepares and completes each, and leads their lessons in his own way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sedge_edge.rounds.storage import WholeBlobs, Vectors
from sedge_edge.training.examples import Examples, check_examples, split
from sedge_edge.training.local_training import (
    FEATURES,
    Answer,
    Evaluate,
    LocalResult,
    LocalTraining,
    Request,
    Train,
    examples_for,
    check_order,
    run_to_end,
    local_training,
    scores_gradient,
)
from sedge_edge.training.start_vector import StartCandidates, assemble
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


@dataclass(frozen=True)
class Job:
    """An order whose blobs are all here, and what the device keeps of its run, by name.

    ``model`` is the device's own last one, which it predicts with; where that is a mixture, ``part`` is
    the own part of it. ``residual`` is what it still owes, ``mask`` that of its last update, ``gradient``
    that of its last batch, and ``patch`` what it sent last, coded as a patch.
    """

    order: Order
    model: bytes | None = None
    residual: bytes | None = None
    mask: bytes | None = None
    part: bytes | None = None
    gradient: bytes | None = None
    patch: bytes | None = None


@dataclass(frozen=True)
class Outcome:
    """What a finished job left: the update among the blobs, all else among the vectors, as in ``Job``."""

    run: str
    round: int
    update: bytes
    model: bytes | None
    residual: bytes | None
    report: Report
    mask: bytes | None = None
    part: bytes | None = None
    gradient: bytes | None = None
    patch: bytes | None = None

    @property
    def kept(self) -> tuple[bytes, ...]:
        """The names of everything that the device keeps for its next order of the run."""
        found = (self.model, self.residual, self.mask, self.part, self.gradient, self.patch)
        return tuple(name for name in found if name is not None)


@dataclass(frozen=True)
class JobContext:
    """What a job reads and writes. ``keeps_model`` unless nobody will ask for the device's own model."""

    blobs: WholeBlobs
    vectors: Vectors
    train: Examples
    test: Examples
    keeps_model: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class WorkerContext(JobContext):
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
    parts: StartCandidates | None = None
    held: Examples | None = None
    correction: Theta | None = None

    @property
    def local_training(self) -> LocalTraining:
        """The training itself, from its beginning."""
        layout, order = self.manifest.layout, self.job.order
        return local_training(order, layout, self.start, self.own, self.parts, self.correction)


@dataclass(frozen=True)
class Coded:
    """A coded delta, and the names of what it leaves for the next round (see ``Job``)."""

    payload: bytes
    residual: bytes | None
    mask: bytes | None
    patch: bytes | None


def run_job(job: Job, place: WorkerContext) -> Outcome:
    """Do the job.

    Raises ``RemoteError``, ``DataError``, ``StorageError`` or ``OutOfMemory``, each saying what is wrong.
    """
    try:
        return _perform(job, place)
    except MemoryError as exc:  # numpy's says how much it wanted, Python's says nothing
        where = f"run {job.order.run}, round {job.order.round}"
        text = str(exc) or "no more to be had"
        raise OutOfMemory(f"{where}: memory: {text}, expected room for the job") from exc


def _perform(job: Job, place: WorkerContext) -> Outcome:
    bundle, trainer = place.open_bundle(job.order.bundle.sha256)
    prepared = prepare(job, place, bundle.manifest)
    began = place.clock()
    learned = run_to_end(prepared.local_training, lambda request: _answer(request, trainer, prepared, place))
    return complete(prepared, learned, place.clock() - began, place)


def _answer(request: Request, trainer: Trainer, prepared: Prepared, place: WorkerContext) -> Answer:
    """What a device's own trainer says to a lesson's question."""
    if isinstance(request, Evaluate):
        return trainer.evaluate(request.theta, examples_for(request, place.test, prepared.held_out))
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


def prepare(job: Job, place: JobContext, manifest: BundleManifest) -> Prepared:
    """Everything that comes before the training; the order's global model is held from then on.

    ``manifest`` is that of the order's bundle.

    Raises ``CodecError`` for what is not as the order says (``BrokenSteps`` where fetching the model
    whole may help) or cannot be done, ``DataError`` for data that do not fit the bundle, ``StorageError``
    for the disk.
    """
    order, layout, vectors = job.order, manifest.layout, place.vectors
    check_examples(place.train, manifest)
    check_examples(place.test, manifest)
    check_order(order, layout)
    train, held = place.train, None
    if order.work.choice is not None:
        train, held = split(train, order.work.choice.holdout, order.work.choice.seed)
    kept = _slices(layout, order.work.keep)
    start = assemble(order, place.blobs, vectors, layout, kept, job.model, job.gradient)
    context = None
    if order.work.select is not None and job.mask is not None and order.context == job.mask:
        context = vectors.read_mask(job.mask)
    name = None
    if order.work.own_model is not None:
        name = job.part if order.work.own_model.mixes else job.model
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


def complete(prepared: Prepared, learned: LocalResult, seconds: float, place: JobContext) -> Outcome:
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
    coded = Coded(b"", job.residual, job.mask, job.patch)
    if order.task == TRAIN and order.work.upload:
        coded = encode_delta(prepared, learned, vectors)
    update = place.blobs.write(encode_update(report, coded.payload))
    model, part, gradient = job.model, job.part, job.gradient
    if order.task == TRAIN:
        slope = trained.gradient if scores_gradient(order) else None
        model = vectors.keep(learned.model) if place.keeps_model else None
        part = None if learned.part is None else vectors.keep(learned.part)
        gradient = None if slope is None else vectors.keep(slope)
    return Outcome(
        order.run,
        order.round,
        update,
        model,
        coded.residual,
        report,
        coded.mask,
        part,
        gradient,
        coded.patch,
    )


def encode_delta(prepared: Prepared, learned: LocalResult, vectors: Vectors) -> Coded:
    """The coded delta of a training. What is left out is owed, unless the order selects.

    Raises ``TrainingDiverged`` for a delta that the codec cannot carry: fp16 ends at 65,504.
    """
    job, order, codec = prepared.job, prepared.job.order, prepared.job.order.codec
    delta = _change(prepared, learned, vectors)
    try:
        if learned.chosen is None:
            chosen = select_elements(delta, codec)
        else:
            chosen = SparseVector(delta.size, learned.chosen, delta[learned.chosen.astype(np.intp)])
        payload = encode(chosen, codec.values, codec.compression, prepared.context)
        base = update_base(prepared, learned)
        patch = _remember(base, chosen, codec.values, vectors) if order.work.remember else None
    except LocalError as exc:
        where = f"run {order.run}, round {order.round}"
        raise TrainingDiverged(f"{where}: delta: {exc}") from exc
    residual, mask = None, job.mask
    whole = chosen.indices is None and codec.values is ValueCoding.FP32
    if learned.chosen is None and codec.error_feedback and not whole:
        _take_out(delta, chosen, codec.values)
        residual = vectors.keep(delta)
    if learned.chosen is not None and 0 < chosen.count < chosen.size:
        mask = vectors.keep_mask(mask_bitmap(chosen))
    return Coded(payload, residual, mask, patch)


def update_base(prepared: Prepared, learned: LocalResult) -> Theta:
    """What the update is counted from (n,): the start that the device has picked, if it has."""
    return prepared.base if learned.picked is None else learned.picked.start


def _change(prepared: Prepared, learned: LocalResult, vectors: Vectors) -> Theta:
    """What the device has to say (n,): its way from the base to the trained model, and what it owes.

    Nothing is owed in elements that are the device's own: their way is told from the global model on.
    """
    job, codec = prepared.job, prepared.job.order.codec
    owes = learned.chosen is None and codec.error_feedback
    # Two finite vectors may be too far apart; that is found when it is coded.
    with np.errstate(over="ignore"):
        delta = learned.trained.theta - update_base(prepared, learned)
        if owes and job.residual is not None:
            residual = vectors.read(job.residual, prepared.manifest.layout)
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


def select_elements(delta: Theta, codec: Codec) -> SparseVector:
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
