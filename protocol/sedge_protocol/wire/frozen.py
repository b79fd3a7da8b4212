"""Frozen data: the tensors that no device trains. Devices download them once, as a coded vector."""

import msgspec
import numpy as np

from sedge_protocol.codec.compression import Compression
from sedge_protocol.codec.values import ValueCoding, decoded_values
from sedge_protocol.codec.vector import HEAD_BYTES, SparseVector, decode, encode, stated
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.transfer import Manifest, describe

# The codings that every device with the extension can read (X14). Any other coding would expand more when
# decoded.
_CODINGS = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.INT8)
_COMPRESSIONS = (Compression.NONE, Compression.ZLIB)


class FrozenData(msgspec.Struct, frozen=True):
    """The tensors that no device trains: their layout in one vector (m,), and the blob with its values.

    The blob is the coded vector. Bundles with the same values share it.
    """

    layout: Layout
    blob: Manifest

    @property
    def memory_bytes(self) -> int:
        """The vector's size in bytes on a device, as float32."""
        return 4 * self.layout.size

    def fits(self, memory_mb: int) -> bool:
        """Return True if the vector takes at most half of a machine's memory.

        ``memory_mb`` is 0 if it is unknown; the vector then counts as fitting.
        """
        return not memory_mb or 2 * self.memory_bytes <= memory_mb * 10**6

    def cut_as(self, manifest: Manifest | None) -> Manifest:
        """Return ``manifest``, which an order names, if it describes the same blob, otherwise our own."""
        if manifest is None or (manifest.sha256, manifest.size) != (
            self.blob.sha256,
            self.blob.size,
        ):
            return self.blob
        return manifest

    def values(self, data: bytes) -> Theta:
        """Decode the vector (m,) in the blob.

        Raises ``CodecError`` unless there are m values, coded as rule X14 requires. A wrong header is
        rejected before any value is decoded.
        """
        self._check_header(data)
        try:
            return decode(data, self.layout.size).values
        except CodecError as exc:
            raise CodecError(f"frozen data: {exc}") from exc

    def _check_header(self, data: bytes) -> None:
        """Raise ``CodecError`` for a missing or wrong header; ``decode`` checks everything else."""
        header, size = stated(data[:HEAD_BYTES]), self.layout.size
        if len(data) == 4 * size and (header is None or header.size != size):
            found = f"{size} float32 values without a header, as an earlier version exported them"
            raise CodecError(f"frozen data: {found}; export the bundle again")
        if header is None:
            return
        if header.kept != header.size:
            raise CodecError(f"frozen data: {header.kept} of {header.size} values, expected all")
        if header.coding not in _CODINGS or header.compression not in _COMPRESSIONS:
            found = f"{header.coding} values with compression {header.compression}"
            expected = f"{_either(_CODINGS)} with {_either(_COMPRESSIONS)}"
            raise CodecError(f"frozen data: {found}, expected {expected}")


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def frozen_blob(values: Theta) -> bytes:
    """Encode frozen values (m,) losslessly: as bf16 if that is exact for all of them, else as float32.

    Raises ``Unencodable`` for a value that is not finite.
    """
    bf16 = np.array_equal(decoded_values(values, ValueCoding.BF16), values)
    coding = ValueCoding.BF16 if bf16 else ValueCoding.FP32
    # Every device supports zlib, and it is not known yet which devices will train.
    return encode(SparseVector(values.size, None, values), coding, Compression.ZLIB)


def frozen_data(layout: Layout, values: Theta) -> FrozenData:
    """Describe frozen values (m,) for a manifest. Raises the same errors as ``frozen_blob``."""
    layout.check(values)
    return FrozenData(layout, describe(frozen_blob(values)))
