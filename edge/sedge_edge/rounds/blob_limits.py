"""Limits the sizes of an order's blobs to what its bundle's layout can require, before fetching them.

A coordinator names up to 35 blobs in an order, by manifests of up to 1 GiB each. The size of a vector of n
parameters is known, so a larger blob is a mistake or an attack.
"""

from sedge_edge.jobs.storage import ReadableBlobs
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_protocol.codec.bitmaps import bitmap_bytes
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.bundle import MAX_BUNDLE_BYTES
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.refusals import BLOB_TOO_LARGE
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.update import max_coded_bytes

# Blobs above this size wait until the bundle has arrived, which shows whether they can be valid.
FIRST_BYTES = 2**24


def impossible_blob(order: Order, blobs: ReadableBlobs) -> CodecError | None:
    """Return an error if the order's bundle is invalid or one of its blobs is too large, otherwise None.

    Before the bundle has arrived, only its size is checked. Raises ``StorageError`` if the disk fails.
    """
    if order.bundle.size > MAX_BUNDLE_BYTES:
        expected = f"expected at most {MAX_BUNDLE_BYTES}"
        return CodecError(f"a bundle of {order.bundle.size} bytes, {expected}")
    facts = bundle_facts(order.bundle.sha256, blobs)
    if facts is None or facts.error is not None:
        return None if facts is None else facts.error
    for name, manifest, limit in _limits(order, facts.size):
        if manifest is not None and manifest.size > limit:
            sizes = {"size": manifest.size, "most": limit, "parameters": facts.size}
            return CodecError(BLOB_TOO_LARGE.format(blob=name, **sizes))
    return None


def may_begin(order: Order, manifest: Manifest, blobs: ReadableBlobs) -> bool:
    """Return True if a blob may be fetched now, and False if it must wait for the order's bundle."""
    bundle = order.bundle.sha256
    return manifest.size <= FIRST_BYTES or manifest.sha256 == bundle or blobs.has(bundle)


def _limits(order: Order, size: int) -> list[tuple[str, Manifest | None, int]]:
    """Return each blob except the bundle, with its name and its largest size in bytes.

    ``size`` is the number of elements of the order's vectors.
    """
    coded = max_coded_bytes(size)
    return [
        ("a model", order.model, coded),
        *(("a step", step.blob, coded) for step in order.steps),
        ("a patch", order.patch_blob, coded),
        ("a correction", order.correction, coded),
        ("a patch's context", order.patch_context, bitmap_bytes(size)),
    ]
