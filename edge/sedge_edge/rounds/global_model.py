"""The global model from what is already here: held, a few coded deltas away, or fetched whole.

A device keeps the decoded global of its last order. An order names deltas that lead from older
versions to its own, and a snapshot for everyone else. What is needed follows from what is held, and is
asked anew each time: a version that turns out damaged is no longer held, and the snapshot is.
"""

import hashlib
from collections.abc import Callable

import numpy as np

from sedge_edge.rounds.storage import WholeBlobs, Vectors
from sedge_protocol.codec import decode
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Order, Step
from sedge_protocol.wire.transfer import Manifest


class BrokenSteps(CodecError):
    """An order's steps do not lead to its model; its snapshot may."""


def steps_left(order: Order, has: Callable[[bytes], bool]) -> tuple[Step, ...] | None:
    """The steps from the newest version that is here: none from the model itself, None from nowhere."""
    if has(order.model_hash):
        return ()
    for place in reversed(range(len(order.steps))):
        if has(order.steps[place].base_hash):
            return order.steps[place:]
    return None


def needed_blobs(order: Order, has: Callable[[bytes], bool]) -> list[Manifest]:
    """The blobs that an order needs, given which versions, masks and patches are here."""
    left = steps_left(order, has)
    model = [order.model] if left is None else [step.blob for step in left]
    return [order.bundle, *model, *(m for m in _own_blobs(order) if not has(m.sha256))]


def named_blobs(order: Order) -> list[Manifest]:
    """Every blob that an order may come to need."""
    steps = [step.blob for step in order.steps]
    return [order.bundle, order.model, *steps, *_own_blobs(order)]


def base_versions(order: Order) -> list[bytes]:
    """The names of all global models that an order can start from."""
    return [order.model_hash, *(step.base_hash for step in order.steps)]


def global_model(order: Order, blobs: WholeBlobs, vectors: Vectors, layout: Layout) -> Theta:
    """The order's global model (n,), not to be written to, and from now on held.

    Raises ``CodecError`` for a snapshot that is not what the order says, ``BrokenSteps`` for steps that
    are not, and ``StorageError`` for something that is not here or damaged.
    """
    left = steps_left(order, vectors.has)
    if left == ():
        return vectors.read(order.model_hash, layout)
    where = f"run {order.run}, round {order.round}"
    if left is None:
        whole = decode(blobs.read(order.model.sha256), layout.size)
        theta = whole.values if whole.indices is None else whole.dense()
        if _hash(theta) != order.model_hash:
            raise CodecError(f"{where}: model_hash does not match the model")
    else:
        try:
            theta = _walk(left, blobs, vectors, layout)
        except CodecError as exc:
            raise BrokenSteps(f"{where}: {exc}") from exc
        if _hash(theta) != order.model_hash:
            raise BrokenSteps(f"{where}: model_hash does not match the last of {len(left)} steps")
    vectors.keep_version(theta, order.model_hash)
    return theta


def _walk(left: tuple[Step, ...], blobs: WholeBlobs, vectors: Vectors, layout: Layout) -> Theta:
    """The version that the first step builds on, and every delta added to it in turn, in float32."""
    theta = vectors.read(left[0].base_hash, layout).copy()
    with np.errstate(over="ignore", invalid="ignore"):  # a wrong sum has a wrong hash
        for step in left:
            decode(blobs.read(step.blob.sha256), layout.size).add_to(theta)
    return theta


def _hash(theta: Theta) -> bytes:
    return hashlib.sha256(theta.astype("<f4", copy=False).data).digest()


def _own_blobs(order: Order) -> list[Manifest]:
    """The patch, the mask that it is coded against, and the correction, where they are blobs."""
    found = (order.patch_blob, order.patch_context, order.correction)
    return [m for m in found if m is not None]
