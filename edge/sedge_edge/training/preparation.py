"""Prepares a job: checks the order, loads the run's kept state and the examples, assembles the start."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sedge_edge.jobs.job import Job, Kept
from sedge_edge.jobs.storage import Vectors, WholeBlobs
from sedge_edge.training.examples import Examples, fitting, split
from sedge_edge.training.label_prior import with_prior
from sedge_edge.training.local_training import LocalTraining, check_order, local_training
from sedge_edge.training.start_vector import StartCandidates, assemble
from sedge_edge.training.state_coding import decode_moments
from sedge_edge.training.steppers.model import tensor_slices
from sedge_edge.training.trainer import Guidance, Moments
from sedge_protocol.codec import decode
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.arrays import check_guided, unpack_arrays
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.objective import CONSTANTS, COUNTS
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Work


@dataclass(frozen=True)
class JobContext:
    """The storage and examples of a job. The device's own model is stored only if ``keeps_model``."""

    blobs: WholeBlobs
    vectors: Vectors
    train: Examples
    test: Examples
    keeps_model: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to train.

    ``start`` (n,), ``base`` (n,), ``personal`` (k,) and ``candidates`` are explained in ``Start``.
    ``train`` and ``test`` are the device's examples in the form that the model takes. ``local_slices`` are
    the slices of theta whose tensors stay on the device. ``own`` (n,) is the device's own model or its part
    of a mixture, if the order trains one, or its last model, if the order blends models. ``mask_context``
    is the bitmap that the update's mask is coded against. ``held_out`` are the examples on which the device
    compares ``candidates``: examples left out of ``train`` or, for class shares, all of ``train``.
    ``correction`` (n,) is added to the gradients, and ``guidance`` holds the inputs of a guided loss.
    """

    job: Job
    manifest: BundleManifest
    start: Theta
    base: Theta
    personal: NDArray[np.uint32]
    local_slices: Sequence[slice]
    train: Examples
    test: Examples
    mask_context: bytes | None = None
    own: Theta | None = None
    candidates: StartCandidates | None = None
    held_out: Examples | None = None
    correction: Theta | None = None
    moments: Moments | None = None
    guidance: Guidance | None = None

    @property
    def local_training(self) -> LocalTraining:
        """The local training, which has not begun yet."""
        return local_training(
            self.job.order,
            self.manifest.layout,
            self.start,
            self.own,
            self.candidates,
            self.correction,
            self.manifest.metric,
            self.moments,
            self.guidance,
        )


def prepare(job: Job, context: JobContext, manifest: BundleManifest) -> Prepared:
    """Check an order, store its global model, and return everything that the training needs.

    ``manifest`` is the bundle's. Raises ``CodecError`` for an order that cannot be carried out or inputs
    that do not match it (``BrokenSteps`` if fetching the whole model may help), ``DataError`` for data that
    do not fit the bundle, and ``StorageError`` for a disk error.
    """
    order, layout, vectors = job.order, manifest.layout, context.vectors
    train, test, held_out = fitting(context.train, manifest), fitting(context.test, manifest), None
    check_order(order, layout)
    check_guided(order.work, manifest.guide)
    if order.work.choice is not None:
        train, held_out = split(train, order.work.choice.holdout, order.work.choice.seed)
    local_slices, kept = tensor_slices(layout, order.work.keep, "keep"), job.kept
    start = assemble(order, context.blobs, vectors, layout, local_slices, kept.model, kept.gradient)
    candidates = start.candidates
    informed = _informed(order, manifest, start.theta, train)
    if informed is not None:
        candidates, held_out = informed, train
    mask_context = None
    if order.work.select is not None and kept.mask is not None and order.context == kept.mask:
        mask_context = vectors.read_mask(kept.mask)
    own_name = None
    if order.work.own_model is not None:
        own_name = kept.part if order.work.own_model.mixes else kept.model
    if order.work.blend is not None and order.work.blend.mix > 0:
        own_name = kept.model
    own = None if own_name is None else vectors.read(own_name, layout)
    correction = None
    if order.correction is not None:
        correction = decode(context.blobs.read(order.correction.sha256), layout.size).dense()
    return Prepared(
        job,
        manifest,
        start.theta,
        start.base,
        start.personal,
        local_slices,
        train,
        test,
        mask_context,
        own,
        candidates,
        held_out,
        correction,
        _moments(order.training, kept, vectors, layout),
        _guidance(order.work, manifest, kept, vectors, train),
    )


def _informed(
    order: Order, manifest: BundleManifest, theta: Theta, train: Examples
) -> StartCandidates | None:
    """Return theta (n,) with and without the device's class shares, or None if they do not apply.

    They apply if the order asks for them and the model has a bias for each class.
    """
    if order.work.blend is None or not order.work.blend.prior:
        return None
    bias = manifest.layout.by_name[order.work.blend.prior]
    if bias.size != manifest.num_classes:
        return None
    return StartCandidates(theta, with_prior(theta, bias.slice, train.targets))


def _guidance(
    work: Work, manifest: BundleManifest, kept: Kept, vectors: Vectors, train: Examples
) -> Guidance | None:
    """Return the inputs of the work's guided loss. An empty model (0,) stands for the start."""
    guide = manifest.guide
    if not work.loss or guide is None:
        return None
    models: dict[str, Theta] = {name: np.empty(0, np.float32) for name in guide.models}
    if "previous" in models and kept.model is not None:
        models["previous"] = vectors.read(kept.model, manifest.layout)
    arrays = {CONSTANTS: unpack_arrays(work)[CONSTANTS]} if guide.constants else {}
    if guide.counts:
        labels = train.targets[train.targets >= 0]
        arrays[COUNTS] = np.bincount(labels.ravel(), minlength=manifest.num_classes).astype("f4")
    return Guidance(models, arrays)


def _moments(training: Training, kept: Kept, vectors: Vectors, layout: Layout) -> Moments | None:
    """Return the kept state of the optimizer; None to start from zeros, as after a change of optimizer."""
    if not training.keeps_state or kept.moments is None:
        return None
    moments = decode_moments(vectors.read_mask(kept.moments))
    fits = moments.optimizer == training.optimizer
    return moments if fits and all(v.shape == (layout.size,) for v in moments.vectors) else None
