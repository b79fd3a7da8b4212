"""One order, done: assemble the start vector, evaluate, train, evaluate, code what changed.

Runs in a worker thread beside the agent's core. It reads blobs and writes new ones, and touches
nothing else; until the core commits the outcome, a crash leaves only orphans to collect.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sedge_edge.data import Examples, check
from sedge_edge.trainer import Trainer, TrainingDiverged
from sedge_protocol.blobs import BlobFolder
from sedge_protocol.bundle import Bundle, BundleManifest
from sedge_protocol.errors import CodecError, LocalError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.messages import TRAIN, Codec, Order
from sedge_protocol.sparse import SparseVector, ValueCoding, decode, decoded_values, encode, top_k
from sedge_protocol.update import Report, encode_update


@dataclass(frozen=True)
class Job:
    """An order whose blobs are all here, with the device's own last model and what it still owes."""

    order: Order
    model: bytes | None
    residual: bytes | None


@dataclass(frozen=True)
class Outcome:
    """What a finished job left in the blob folder, by hash."""

    run: str
    round: int
    update: bytes
    model: bytes | None
    residual: bytes | None
    report: Report


@dataclass(frozen=True)
class Workplace:
    """What a job needs beside its order; ``clock`` counts seconds and need not be a time of day."""

    blobs: BlobFolder
    train: Examples
    test: Examples
    open_bundle: Callable[[bytes], tuple[Bundle, Trainer]]
    stopped: Callable[[], bool]
    clock: Callable[[], float]


def perform(job: Job, place: Workplace) -> Outcome:
    """Do the job. Raises ``RemoteError``, ``DataError`` or ``StorageError``, each saying what is wrong."""
    order = job.order
    bundle, trainer = place.open_bundle(order.bundle.sha256)
    manifest = bundle.manifest
    check(place.train, manifest)
    check(place.test, manifest)
    layout = manifest.layout
    own = None if job.model is None else read_theta(place.blobs, job.model, layout)
    start = assemble(order, place.blobs, layout, own)
    began = place.clock()
    before = trainer.evaluate(start, place.test)
    trained = trainer.train(start, place.train, order.training, order.seed, place.stopped)
    after = trainer.evaluate(trained.theta, place.test)
    report = Report(
        run=order.run,
        round=order.round,
        task=order.task,
        layout_hash=layout.hash,
        model_hash=order.model_hash,
        patch_hash=order.patch_hash,
        num_examples=len(place.train.targets),
        before=before,
        after=after,
        train_loss=trained.loss,
        steps=trained.steps,
        seconds=place.clock() - began,
    )
    if order.task != TRAIN:
        update = place.blobs.write(encode_update(report, b""))
        return Outcome(order.run, order.round, update, job.model, job.residual, report)
    payload, residual = code_delta(order, manifest, place.blobs, job.residual, start, trained.theta)
    update = place.blobs.write(encode_update(report, payload))
    model = place.blobs.write(trained.theta.astype("<f4").tobytes())
    return Outcome(order.run, order.round, update, model, residual, report)


def read_theta(blobs: BlobFolder, sha256: bytes, layout: Layout) -> Theta:
    """A vector (n,) that this device stored itself."""
    theta = np.frombuffer(blobs.read(sha256), "<f4").astype(np.float32)
    layout.check(theta)
    return theta


def assemble(order: Order, blobs: BlobFolder, layout: Layout, own: Theta | None) -> Theta:
    """The start vector (n,): the global model, the patch written over it, then the kept tensors.

    Raises ``CodecError`` when the decoded global or the patch is not the one the order names.
    """
    start = decode(blobs.read(order.model.sha256), layout.size).dense()
    if hashlib.sha256(start.astype("<f4").tobytes()).digest() != order.model_hash:
        raise CodecError(
            f"run {order.run}, round {order.round}: model_hash does not match the model"
        )
    coded = blobs.read(order.patch_blob.sha256) if order.patch_blob is not None else order.patch
    if coded or order.patch_hash:
        if hashlib.sha256(coded).digest() != order.patch_hash:
            raise CodecError(f"run {order.run}, round {order.round}: patch_hash does not match")
        decode(coded, layout.size).scatter_into(start)
    if order.keep and own is not None:
        kept = layout.mask(order.keep)
        start[kept] = own[kept]
    return start


def code_delta(
    order: Order,
    manifest: BundleManifest,
    blobs: BlobFolder,
    residual: bytes | None,
    start: Theta,
    trained: Theta,
) -> tuple[bytes, bytes | None]:
    """The coded delta, and the hash of what it left out when the next round is to make up for it.

    Raises ``TrainingDiverged`` for a delta that the codec cannot carry: fp16 ends at 65,504.
    """
    if not order.upload:
        return b"", residual
    layout = manifest.layout
    with np.errstate(over="ignore"):  # two finite vectors may be too far apart; found below
        delta = trained - start
        if order.codec.error_feedback and residual is not None:
            delta += read_theta(blobs, residual, layout)
    if order.keep:
        delta[layout.mask(order.keep)] = 0.0
    try:
        chosen = choose(delta, order.codec)
        payload = encode(chosen, order.codec.values, order.codec.compression)
    except LocalError as exc:
        raise TrainingDiverged(f"run {order.run}, round {order.round}: delta: {exc}") from exc
    lossless = order.codec.values is ValueCoding.FP32 and order.codec.fraction >= 1.0
    if lossless or not order.codec.error_feedback:
        return payload, None
    sent = SparseVector(
        chosen.size, chosen.indices, decoded_values(chosen.values, order.codec.values)
    )
    return payload, blobs.write((delta - sent.dense()).astype("<f4").tobytes())


def choose(delta: Theta, codec: Codec) -> SparseVector:
    """The elements of delta (n,) that are sent."""
    if codec.fraction >= 1.0:
        return SparseVector(delta.size, None, delta)
    return top_k(delta, max(1, round(codec.fraction * delta.size)))
