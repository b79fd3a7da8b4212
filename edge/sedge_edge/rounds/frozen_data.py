"""Reads from bundles the facts that are needed before a job: the vectors' size, and the frozen data.

An order names the bundle, and the bundle's manifest names the blob with the frozen data. So a device learns
of that blob only once it has the bundle, and then fetches it like any other. Bundles with the same values
share it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sedge_edge.jobs.job import OutOfMemory
from sedge_edge.jobs.storage import ReadableBlobs
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.bundle import Bundle, unpack
from sedge_protocol.wire.frozen import FrozenData

# The number of bundles to remember: more than the runs that a device keeps. All devices in one process
# share the facts, because these depend only on the bundle.
_CAPACITY = 64


class BundleFacts(NamedTuple):
    """Facts about a bundle: the ``size`` n of its vectors, and its frozen data, or the ``error`` in it.

    ``manifest_hash`` is the SHA-256 of the manifest, by which policies name the bundle, and ``layout_hash``
    is the hash of the layout.
    """

    size: int = 0
    frozen: FrozenData | None = None
    manifest_hash: bytes = b""
    layout_hash: bytes = b""
    error: CodecError | None = None


_known: dict[bytes, BundleFacts] = {}


def bundle_facts(bundle: bytes, blobs: ReadableBlobs) -> BundleFacts | None:
    """Return the facts about a bundle, or None if it is not in ``blobs``.

    Raises ``StorageError`` if the disk fails.
    """
    if not blobs.has(bundle):
        return None
    if bundle not in _known:
        try:
            found = unpack(blobs.read(bundle))
            layout, frozen = found.manifest.layout, found.manifest.frozen
            facts = BundleFacts(layout.size, frozen, found.manifest_hash, layout.hash)
        except CodecError as exc:
            facts = BundleFacts(error=exc)
        while len(_known) >= _CAPACITY:
            _known.pop(next(iter(_known)), None)
        _known[bundle] = facts
    return _known[bundle]


def known_base(sha256: bytes) -> FrozenData | None:
    """Return the frozen data in this blob, or None if no bundle seen by this process names the blob."""
    named = (facts.frozen for facts in list(_known.values()))
    return next((one for one in named if one is not None and one.blob.sha256 == sha256), None)


def frozen_names(bundles: Iterable[bytes], blobs: ReadableBlobs) -> set[bytes]:
    """Return the names of the blobs with these bundles' frozen data.

    This works even if a bundle has been damaged since it arrived.
    """
    known = (_known.get(bundle) or bundle_facts(bundle, blobs) for bundle in bundles)
    return {one.frozen.blob.sha256 for one in known if one is not None and one.frozen is not None}


def read_bundle(
    blobs: ReadableBlobs, sha256: bytes, memory_mb: int = 0, others: Iterable[Bundle] = ()
) -> Bundle:
    """Read a bundle with its frozen values, sharing them with any of ``others`` that has the same values.

    Raises ``StorageError`` for a missing or damaged blob, ``CodecError`` for an invalid bundle, and
    ``OutOfMemory`` if the values take more than half of ``memory_mb``. If ``memory_mb`` is 0, there is no
    limit.
    """
    bundle = unpack(blobs.read(sha256))
    frozen = bundle.manifest.frozen
    if frozen is None:
        return bundle
    if not frozen.fits(memory_mb):
        found = f"frozen data of {frozen.memory_bytes / 1e6:.0f} MB"
        expected = f"at most half of this device's {memory_mb} MB of memory"
        raise OutOfMemory(f"bundle {bundle.manifest.name!r}: {found}, expected {expected}")
    for other in others:
        if other.manifest.frozen is not None and other.manifest.frozen.blob == frozen.blob:
            return Bundle(bundle.manifest, bundle.files, other.frozen)
    return Bundle(bundle.manifest, bundle.files, frozen.values(blobs.read(frozen.blob.sha256)))
