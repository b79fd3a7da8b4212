"""Reads what bundles state about other blobs: the size of vectors, and frozen data with its values.

An order names the bundle, and the bundle's manifest names the blob. So a device learns of the blob once it
has the bundle, and fetches it like any other. Bundles with the same values share it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sedge_edge.jobs.job import OutOfMemory
from sedge_edge.jobs.storage import ReadableBlobs
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.bundle import Bundle, unpack
from sedge_protocol.wire.frozen import FrozenData

# More bundles than a device keeps runs. The facts follow from a bundle's hash, so all devices in one
# process share them.
_CAPACITY = 64


class BundleFacts(NamedTuple):
    """The ``size`` n of a bundle's vectors and its frozen data, or the ``error`` of an invalid bundle.

    ``manifest_hash`` is the SHA-256 of its manifest, which policies refer to, and ``layout_hash`` that of
    its layout.
    """

    size: int = 0
    frozen: FrozenData | None = None
    manifest_hash: bytes = b""
    layout_hash: bytes = b""
    error: CodecError | None = None


_known: dict[bytes, BundleFacts] = {}


def bundle_facts(bundle: bytes, blobs: ReadableBlobs) -> BundleFacts | None:
    """The facts that a bundle states about other blobs; None while it is not in ``blobs``.

    Raises ``StorageError`` when the disk refuses.
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
    """The frozen data with this blob, from the bundles that this process has seen; None if none has it."""
    named = (facts.frozen for facts in list(_known.values()))
    return next((one for one in named if one is not None and one.blob.sha256 == sha256), None)


def frozen_names(bundles: Iterable[bytes], blobs: ReadableBlobs) -> set[bytes]:
    """The frozen data's blobs of these bundles, even if a bundle has been damaged since it arrived."""
    known = (_known.get(bundle) or bundle_facts(bundle, blobs) for bundle in bundles)
    return {one.frozen.blob.sha256 for one in known if one is not None and one.frozen is not None}


def read_bundle(
    blobs: ReadableBlobs, sha256: bytes, memory_mb: int = 0, others: Iterable[Bundle] = ()
) -> Bundle:
    """A bundle with its frozen values, which it shares with any of ``others`` that has the same.

    Raises ``StorageError`` for a missing or damaged blob, ``CodecError`` for an invalid bundle,
    ``OutOfMemory`` if the values take more than half of ``memory_mb``, unless that is 0.
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
