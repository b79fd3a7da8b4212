"""Obtains an order's global model: it is on disk, is rebuilt from coded deltas, or is fetched whole.

A device keeps the global model of its last order. It stores the model itself, or an older one and the coded
deltas ("steps") that lead from it to the model, because writing the deltas takes a hundredth of the bytes.
An order names steps that lead from older versions to its own, and a snapshot for devices that have none of
these versions. Which blobs to fetch is determined again each time, because a version may turn out to be
damaged, in which case the snapshot is needed after all.
"""

import hashlib
from collections.abc import Callable

import msgspec
import numpy as np

from sedge_edge.jobs.storage import ReadableBlobs, Vectors, WholeBlobs
from sedge_protocol.codec import decode
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.refusals import WRONG_MODEL, WRONG_STEPS
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.work import Step


class BrokenSteps(CodecError):
    """An order's steps do not lead to its model. The snapshot may still work."""


def steps_left(order: Order, has: Callable[[bytes], bool]) -> tuple[Step, ...] | None:
    """Return the steps to apply to the newest version that the device has.

    Returns () if the newest version is the model itself, and None if the device has no version.
    """
    if has(order.model_hash):
        return ()
    for first in reversed(range(len(order.steps))):
        if has(order.steps[first].base_hash):
            return order.steps[first:]
    return None


def with_held_steps(
    order: Order, base: bytes, held: tuple[Step, ...], has: Callable[[bytes], bool]
) -> Order:
    """Return the order with its steps appended to those that the device holds, which lead to ``base``.

    The order is unchanged if the device's steps share no version with the order's, or if one of their
    deltas is lost.
    """
    if not held:
        return order
    ours = [*(step.base_hash for step in held), base]
    theirs = [*(step.base_hash for step in order.steps), order.model_hash]
    first = next((i for i in reversed(range(len(theirs))) if theirs[i] in ours), None)
    if first is None:
        return order
    before = held[: ours.index(theirs[first])]
    if not all(has(step.blob.sha256) for step in before):
        return order
    return msgspec.structs.replace(order, steps=(*before, *order.steps[first:]))


def needed_blobs(order: Order, has: Callable[[bytes], bool]) -> list[Manifest]:
    """Return the blobs that an order needs, depending on which versions, masks and patches are on disk."""
    left = steps_left(order, has)
    model = [order.model] if left is None else [step.blob for step in left]
    return [order.bundle, *model, *(m for m in _own_blobs(order) if not has(m.sha256))]


def named_blobs(order: Order) -> list[Manifest]:
    """Return every blob that an order may ever need."""
    steps = [step.blob for step in order.steps]
    return [order.bundle, order.model, *steps, *_own_blobs(order)]


def repeats(order: Order, other: Order) -> bool:
    """Return True if an update for one of these orders of a run is also one for the other (WIRE.md, 5.7).

    A coordinator that was restored from a backup or set up anew has other orders of the same rounds.
    """
    return _wanted(order) == _wanted(other)


def _wanted(order: Order) -> tuple[object, ...]:
    bundle = order.bundle.sha256
    return order.round, order.task, bundle, order.model_hash, order.patch_hash


def recut(order: Order, repeated: Order) -> Order:
    """Return the order with chunk sizes and download locations taken from its repetition."""
    cut = {(manifest.sha256, manifest.size): manifest for manifest in named_blobs(repeated)}

    def again(manifest: Manifest) -> Manifest:
        return cut.get((manifest.sha256, manifest.size), manifest)

    def maybe(manifest: Manifest | None) -> Manifest | None:
        return None if manifest is None else again(manifest)

    return msgspec.structs.replace(
        order,
        bundle=again(order.bundle),
        model=again(order.model),
        steps=tuple(Step(step.base_hash, again(step.blob)) for step in order.steps),
        patch_blob=maybe(order.patch_blob),
        patch_context=maybe(order.patch_context),
        correction=maybe(order.correction),
        frozen=repeated.frozen,
        places=repeated.places,
    )


def base_versions(order: Order) -> list[bytes]:
    """Return the hashes of all global models that an order can start from."""
    return [order.model_hash, *(step.base_hash for step in order.steps)]


def global_model(order: Order, blobs: WholeBlobs, vectors: Vectors, layout: Layout) -> Theta:
    """Return the order's global model (n,), read-only. ``vectors`` keeps it or its steps from now on.

    Raises ``CodecError`` for a snapshot that does not match the order, ``BrokenSteps`` for steps that do
    not, and ``StorageError`` for a missing or damaged blob or vector.
    """
    left = steps_left(order, vectors.has)
    if left == ():
        return vectors.read(order.model_hash, layout)
    where = f"run {order.run}, round {order.round}"
    if left is None:
        whole = decode(blobs.read(order.model.sha256), layout.size)
        theta = whole.values if whole.indices is None else whole.dense()
        if _hash(theta) != order.model_hash:
            raise CodecError(WRONG_MODEL.format(where=where))
    else:
        try:
            theta = _apply_steps(left, blobs, vectors, layout)
        except CodecError as exc:
            raise BrokenSteps(f"{where}: {exc}") from exc
        if _hash(theta) != order.model_hash:
            raise BrokenSteps(WRONG_STEPS.format(where=where, steps=len(left)))
    vectors.keep_version(theta, order.model_hash, left or ())
    return theta


def held_model(
    base: bytes, steps: tuple[Step, ...], blobs: ReadableBlobs, vectors: Vectors, layout: Layout
) -> Theta:
    """Return the global model (n,) named ``base``, kept as a vector or as ``steps`` that lead to it.

    Raises ``CodecError`` for steps that do not lead to the model, and ``StorageError`` for a missing or
    damaged blob or vector.
    """
    if not steps or vectors.has(base):
        return vectors.read(base, layout)
    theta = _apply_steps(steps, blobs, vectors, layout)
    if _hash(theta) != base:
        raise CodecError(f"the {len(steps)} stored steps do not lead to model {base.hex()}")
    return theta


def _apply_steps(
    left: tuple[Step, ...], blobs: ReadableBlobs, vectors: Vectors, layout: Layout
) -> Theta:
    """Apply the steps, in float32, to the version from which the first one starts. Returns the result."""
    theta = vectors.read(left[0].base_hash, layout).copy()
    with np.errstate(over="ignore", invalid="ignore"):  # the hash check detects overflows
        for step in left:
            decode(blobs.read(step.blob.sha256), layout.size).add_to(theta)
    return theta


def _hash(theta: Theta) -> bytes:
    return hashlib.sha256(theta.astype("<f4", copy=False).data).digest()


def _own_blobs(order: Order) -> list[Manifest]:
    """Return the patch, the mask that it is coded against, and the correction, if they are blobs."""
    manifests = (order.patch_blob, order.patch_context, order.correction)
    return [m for m in manifests if m is not None]
