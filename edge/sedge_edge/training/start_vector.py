"""Assembles the start vector of a round: the global model with the device's personal elements."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sedge_edge.jobs.global_model import global_model
from sedge_edge.jobs.storage import Vectors, WholeBlobs
from sedge_protocol.codec import SparseVector, decode
from sedge_protocol.errors import CodecError
from sedge_protocol.importance import importance, min_max, positions, select
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.refusals import WRONG_PATCH
from sedge_protocol.wire.work import DeviceScoring


@dataclass(frozen=True, eq=False)
class StartCandidates:
    """The start vectors that a device can choose between.

    ``bare`` (n,) is the one without the patch or the class shares. ``whole`` (n,) is the one with them, or
    None if there are none.
    """

    bare: Theta
    whole: Theta | None


@dataclass(frozen=True, eq=False)
class Start:
    """The vector ``theta`` (n,) to start from, and ``base`` (n,), to which the update is relative.

    ``base`` is read-only. It is theta itself, or the global model if the device has written its own
    ``personal`` elements (k,) into it without a patch. If the device chooses whether to apply its patch,
    ``candidates`` replace both.
    """

    theta: Theta
    base: Theta
    personal: NDArray[np.uint32]
    candidates: StartCandidates | None = None


def assemble(
    order: Order,
    blobs: WholeBlobs,
    vectors: Vectors,
    layout: Layout,
    kept: Sequence[slice],
    model: bytes | None = None,
    gradient: bytes | None = None,
) -> Start:
    """Return the global model, overwritten with the patch or own elements, then with the kept tensors.

    ``model`` and ``gradient`` name the device's vectors from its last round. Raises ``CodecError`` if the
    global model or the patch does not match the order.
    """
    shared = global_model(order, blobs, vectors, layout)
    theta = shared.copy()
    bare = theta if order.work.choice is None else shared.copy()
    patch = _patch(order, blobs, vectors, layout)
    if patch is not None:
        patch.scatter_into(theta)
    personal = np.empty(0, np.uint32)
    if model is not None and (kept or order.work.scoring is not None):
        own = vectors.read(model, layout)
        if order.work.scoring is not None:
            last = None if gradient is None else vectors.read(gradient, layout)
            personal = own_elements(own, shared, layout, order.work.scoring, last)
            indices = personal.astype(np.intp)
            theta[indices] = own[indices]
        for tensor in kept:
            theta[tensor] = bare[tensor] = own[tensor]
    candidates = None
    if order.work.choice is not None:
        candidates = StartCandidates(bare, None if patch is None else theta)
    return Start(theta, theta if order.work.scoring is None else shared, personal, candidates)


def own_elements(
    own: Theta, shared: Theta, layout: Layout, wanted: DeviceScoring, gradient: Theta | None
) -> NDArray[np.uint32]:
    """Return the sorted indices (k,) of the personal elements, scoring own (n,) against shared (n,).

    The scores are FedOBP's. If they need the gradient and the device no longer has it, no element is
    personal.
    """
    tensors = tuple(
        t
        for t in layout.tensors
        if t.role is Role.PARAMETER and (not wanted.tensors or t.name in wanted.tensors)
    )
    if wanted.score in ("gradient", "fisher") and gradient is None:
        return np.empty(0, np.uint32)
    scores = importance(own, shared, tensors, wanted.score, gradient)
    if wanted.norm == "layer":
        scores = min_max(scores, tensors)
    return positions(select(scores, wanted.quantile), tensors)


def _patch(
    order: Order, blobs: WholeBlobs, vectors: Vectors, layout: Layout
) -> SparseVector | None:
    """Return an order's patch, or None if it has none."""
    coded, context = order.patch, None
    if order.patch_blob is not None:
        coded = _read(order.patch_blob.sha256, blobs, vectors)
    if not coded and not order.patch_hash:
        return None
    if hashlib.sha256(coded).digest() != order.patch_hash:
        where = f"run {order.run}, round {order.round}"
        raise CodecError(WRONG_PATCH.format(where=where))
    if order.patch_context is not None:
        context = _read(order.patch_context.sha256, blobs, vectors)
    return decode(coded, layout.size, context)


def _read(sha256: bytes, blobs: WholeBlobs, vectors: Vectors) -> bytes:
    """Return a mask or patch that the device has kept or fetched."""
    return vectors.read_mask(sha256) if vectors.has(sha256) else blobs.read(sha256)
