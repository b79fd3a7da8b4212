"""The frozen data of bundles: which blob a bundle names, and a bundle together with its values.

An order names the bundle, and the bundle's manifest names the blob. So a device learns of the blob once it
has the bundle, and fetches it like any other. Bundles with the same values share it.
"""

from collections.abc import Iterable

from sedge_edge.rounds.storage import ReadableBlobs
from sedge_edge.training.job import OutOfMemory
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.bundle import Bundle, FrozenData, unpack

# More bundles than the runs that a device keeps. What a bundle says follows from its hash, so all devices
# in one process share what was found.
_CAPACITY = 64
_found: dict[bytes, FrozenData | None] = {}


def frozen_data(bundle: bytes, blobs: ReadableBlobs) -> FrozenData | None:
    """What the bundle says of frozen data; None while it is not in ``blobs``, and for an invalid one.

    Raises ``StorageError`` when the disk refuses.
    """
    if not blobs.has(bundle):
        return None
    if bundle not in _found:
        try:
            found = unpack(blobs.read(bundle)).manifest.frozen
        except CodecError:  # the job will say what is wrong with it
            found = None
        while len(_found) >= _CAPACITY:
            _found.pop(next(iter(_found)), None)
        _found[bundle] = found
    return _found[bundle]


def frozen_names(bundles: Iterable[bytes], blobs: ReadableBlobs) -> set[bytes]:
    """The blobs of the frozen data of these bundles, also of one that has been damaged since it came."""
    found = (_found.get(bundle) or frozen_data(bundle, blobs) for bundle in bundles)
    return {one.blob.sha256 for one in found if one is not None}


def read_bundle(
    blobs: ReadableBlobs, sha256: bytes, memory_mb: int = 0, others: Iterable[Bundle] = ()
) -> Bundle:
    """A bundle with its frozen values, which it shares with any of ``others`` that has the same.

    Raises ``StorageError`` for a blob that is missing or damaged, ``CodecError`` for an invalid bundle,
    ``OutOfMemory`` where the values take more than half of ``memory_mb``, unless that is 0.
    """
    bundle = unpack(blobs.read(sha256))
    frozen = bundle.manifest.frozen
    if frozen is None:
        return bundle
    if not frozen.fits(memory_mb):
        found = f"frozen data of {frozen.blob.size / 1e6:.0f} MB"
        expected = f"at most half of this device's {memory_mb} MB of memory"
        raise OutOfMemory(f"bundle {bundle.manifest.name!r}: {found}, expected {expected}")
    for other in others:
        if other.manifest.frozen is not None and other.manifest.frozen.blob == frozen.blob:
            return Bundle(bundle.manifest, bundle.files, other.frozen)
    return Bundle(bundle.manifest, bundle.files, frozen.values(blobs.read(frozen.blob.sha256)))
