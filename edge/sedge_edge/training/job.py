"""Carries out one order: assembles the start vector, evaluates, trains, evaluates, encodes the update.

It runs in a worker thread next to the agent's core, and reads and writes only blobs and vectors. Until the
core commits the outcome, a crash leaves only blobs that nothing refers to, which are deleted later.

``run_job`` calls ``prepare``, runs ``local_training`` (local_training.py) with the device's trainer, and
calls ``complete``.

An emulator prepares and completes each device's job separately, but trains many devices at once.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from sedge_edge.jobs.job import Job, Kept, Outcome, OutOfMemory
from sedge_edge.jobs.storage import Vectors
from sedge_edge.training.checkpoint import (
    Checkpoint,
    Responder,
    decode_checkpoint,
    encode_checkpoint,
    job_hash,
)
from sedge_edge.training.local_training import (
    Answer,
    Evaluate,
    LocalResult,
    Request,
    examples_for,
    run_to_end,
    scores_gradient,
)
from sedge_edge.training.meter import NOTHING_SPENT, JobCost, JobMeter
from sedge_edge.training.preparation import JobContext, Prepared, prepare
from sedge_edge.training.selection import select_elements, subtract_sent
from sedge_edge.training.state_coding import encode_moments
from sedge_edge.training.trainer import (
    Trainer,
    TrainingDiverged,
    TrainingState,
    TrainingStopped,
)
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decoded_values,
    encode,
    mask_bitmap,
)
from sedge_protocol.errors import SedgeError, StorageError, Unencodable
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.extensions import FEATURES
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.programs import FROZEN
from sedge_protocol.wire.refusals import OUT_OF_MEMORY
from sedge_protocol.wire.update import Metrics, Report, encode_update

# Optional abilities of this agent, which it announces (``Hello.codecs``).
CODECS = ("int4", "sign", FROZEN, *FEATURES)


_LOG = logging.getLogger("sedge.edge")


class JobStopped(SedgeError):
    """A job was stopped on purpose. If ``checkpoint`` names a blob, the job can continue from it."""

    def __init__(self, text: str, checkpoint: bytes | None) -> None:
        super().__init__(text)
        self.checkpoint = checkpoint


@dataclass(frozen=True)
class WorkerContext(JobContext):
    """The environment of a device's worker thread. ``clock`` is any clock in seconds.

    ``temperature_c`` reads the device's thermometer, and ``watts`` is its power draw. None means unknown.
    """

    open_bundle: Callable[[bytes], tuple[Bundle, Trainer]]
    stopped: Callable[[], bool]
    clock: Callable[[], float]
    temperature_c: Callable[[], float | None] = field(default=lambda: None, kw_only=True)
    watts: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class EncodedDelta:
    """An encoded delta, and the state that the device keeps after sending it."""

    payload: bytes
    kept: Kept


def run_job(job: Job, context: WorkerContext) -> Outcome:
    """Carry out the job and return its outcome.

    Raises ``JobStopped`` if told to stop. Any other failure raises ``RemoteError``, ``DataError``,
    ``ConfigError``, ``StorageError`` or ``OutOfMemory``, with a message that says what is wrong.
    """
    try:
        return _run_job(job, context)
    except MemoryError as exc:  # numpy's message says how much was requested; Python's is empty
        where = f"run {job.order.run}, round {job.order.round}"
        error = str(exc) or "none left"
        raise OutOfMemory(OUT_OF_MEMORY.format(where=where, error=error)) from exc


def _run_job(job: Job, context: WorkerContext) -> Outcome:
    bundle, trainer = context.open_bundle(job.order.bundle.sha256)
    prepared = prepare(job, context, bundle.manifest)
    meter = JobMeter(context.temperature_c, context.watts)

    def stopped() -> bool:
        meter.look()
        return context.stopped()

    def ask(request: Request, state: TrainingState | None) -> Answer:
        began = None if isinstance(request, Evaluate) else context.clock()
        answer = _answer(request, state, trainer, prepared, stopped)
        if began is not None and not isinstance(answer, Metrics):
            made = answer.steps - (0 if state is None else state.steps)
            meter.add(context.clock() - began, made)
        return answer

    order = job.order
    same = job_hash(order, job.kept, prepared.train, prepared.test)
    earlier = decode_checkpoint(job.checkpoint, same)
    if job.checkpoint is not None and earlier.is_empty:
        where = f"run {order.run}, round {order.round}"
        _LOG.info("%s: the checkpoint is from another version or job; training starts over", where)
    responder = Responder(earlier, ask, context.clock)
    try:
        result = run_to_end(prepared.local_training, responder.answer)
    except TrainingStopped as exc:
        raise JobStopped(str(exc), _keep(responder.checkpoint(exc.state), context)) from exc
    seconds = responder.seconds
    return complete(prepared, result, seconds, context, meter.spent(seconds))


def _keep(checkpoint: Checkpoint | None, context: WorkerContext) -> bytes | None:
    """Store a checkpoint. Returns its blob's name, or None if there is none or it cannot be stored."""
    try:
        return None if checkpoint is None else context.blobs.write(encode_checkpoint(checkpoint))
    except StorageError:
        return None


def _answer(
    request: Request,
    state: TrainingState | None,
    trainer: Trainer,
    prepared: Prepared,
    stopped: Callable[[], bool],
) -> Answer:
    """Answer a request of the local training with the device's trainer. Training resumes from ``state``."""
    if isinstance(request, Evaluate):
        return trainer.evaluate(
            request.theta, examples_for(request, prepared.test, prepared.held_out)
        )
    return trainer.train(request, prepared.train, stopped, state)


def complete(
    prepared: Prepared,
    result: LocalResult,
    seconds: float,
    context: JobContext,
    spent: JobCost = NOTHING_SPENT,
) -> Outcome:
    """Finish a job after its training: write the report and the encoded update. Returns the outcome.

    The outcome includes the state to keep. Raises ``TrainingDiverged`` for a delta that cannot be encoded,
    and ``StorageError`` for a disk error.
    """
    job, vectors, trained = prepared.job, context.vectors, result.trained
    order = job.order
    arrays = trained.arrays if order.task == TRAIN else {}
    report = Report(
        run=order.run,
        round=order.round,
        task=order.task,
        layout_hash=prepared.manifest.layout.hash,
        model_hash=order.model_hash,
        patch_hash=order.patch_hash,
        num_examples=trained.num_examples or len(prepared.train.targets),
        before=result.before,
        after=result.after,
        train_loss=trained.loss,
        steps=trained.steps,
        seconds=seconds,
        mix=result.mix,
        sparse=result.sparse,
        patched=None if result.picked is None else result.picked.patched,
        step_s=spent.step_s,
        temperature_c=spent.temperature_c,
        energy_j=spent.energy_j,
        http_bytes=job.http_bytes,
        arrays={name: array.size for name, array in arrays.items()},
    )
    encoded = EncodedDelta(b"", job.kept)
    if order.task == TRAIN and order.work.upload:
        encoded = encode_delta(prepared, result, vectors)
    update = context.blobs.write(encode_update(report, encoded.payload, arrays))
    kept = encoded.kept
    if order.task == TRAIN:
        last = trained.gradient if scores_gradient(order) else None
        kept = msgspec.structs.replace(
            kept,
            model=vectors.keep(result.model) if context.keeps_model else None,
            part=None if result.part is None else vectors.keep(result.part),
            gradient=None if last is None else vectors.keep(last),
            moments=_kept_moments(result, vectors),
            start=None,
        )
    elif kept.model is None and context.keeps_model:
        start = None if result.informed is None else vectors.keep(result.informed)
        kept = msgspec.structs.replace(kept, start=start)
    return Outcome(order.run, order.round, update, report, kept)


def _kept_moments(result: LocalResult, vectors: Vectors) -> bytes | None:
    """Store the optimizer's state if the order says so. Returns its blob's name."""
    if result.moments is None:
        return None
    return vectors.keep_mask(encode_moments(result.moments))


def encode_delta(prepared: Prepared, result: LocalResult, vectors: Vectors) -> EncodedDelta:
    """Encode the delta that training produced.

    Whatever part of the delta is not sent goes to the residual, unless the order selects elements.

    Raises ``TrainingDiverged`` for a delta that the codec cannot represent, such as a value above 65,504 in
    fp16.
    """
    job, order, codec = prepared.job, prepared.job.order, prepared.job.order.codec
    delta = _delta(prepared, result, vectors)
    try:
        if result.chosen is None:
            chosen = select_elements(delta, codec)
        else:
            chosen = SparseVector(delta.size, result.chosen, delta[result.chosen.astype(np.intp)])
        payload = encode(chosen, codec.values, codec.compression, prepared.mask_context)
        base = update_base(prepared, result)
        patch = _keep_sent(base, chosen, codec.values, vectors) if order.work.remember else None
    except Unencodable as exc:
        where = f"run {order.run}, round {order.round}"
        raise TrainingDiverged(f"{where}: delta: {exc}") from exc
    residual, mask = None, job.kept.mask
    whole = chosen.indices is None and codec.values is ValueCoding.FP32
    if result.chosen is None and codec.error_feedback and not whole:
        subtract_sent(delta, chosen, codec.values)
        residual = vectors.keep(delta)
    if result.chosen is not None and 0 < chosen.count < chosen.size:
        mask = vectors.keep_mask(mask_bitmap(chosen))
    kept = msgspec.structs.replace(job.kept, residual=residual, mask=mask, patch=patch)
    return EncodedDelta(payload, kept)


def update_base(prepared: Prepared, result: LocalResult) -> Theta:
    """Return the vector (n,) that the update is relative to. It is the picked start if there is one."""
    return prepared.base if result.picked is None else result.picked.start


def _delta(prepared: Prepared, result: LocalResult, vectors: Vectors) -> Theta:
    """Return the delta (n,) to send: the trained model minus its base, plus the residual.

    The device's personal elements get no residual, because their delta is already relative to the global
    model.
    """
    job, codec = prepared.job, prepared.job.order.codec
    feeds_back = result.chosen is None and codec.error_feedback
    # The difference of two finite vectors may overflow, which the encoder detects.
    with np.errstate(over="ignore"):
        delta = result.trained.theta - update_base(prepared, result)
        if feeds_back and job.kept.residual is not None:
            residual = vectors.read(job.kept.residual, prepared.manifest.layout)
            personal = prepared.personal.astype(np.intp)
            without = delta[personal]
            delta += residual
            delta[personal] = without
    for tensor in prepared.local_slices:
        delta[tensor] = 0.0
    return delta


def _keep_sent(base: Theta, sent: SparseVector, values: ValueCoding, vectors: Vectors) -> bytes:
    """Store the sent elements of the model, with the values that the coordinator will decode.

    Returns the stored patch's name. The coordinator encodes a patch of these elements identically, so both
    sides arrive at the same name.
    """
    decoded = decoded_values(sent.values, values)  # (k,)
    with np.errstate(over="ignore"):  # the encoder detects an overflow
        patch = SparseVector(sent.size, sent.indices, base[sent.where] + decoded)
    return vectors.keep_mask(encode(patch, ValueCoding.FP32, Compression.NONE))
