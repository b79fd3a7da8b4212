"""Frozen values as a blob and back."""

import msgspec
import numpy as np
import pytest

from sedge_protocol.codec.compression import Compression
from sedge_protocol.codec.values import ValueCoding
from sedge_protocol.codec.vector import HEAD_BYTES, SparseVector, encode, stated
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.frozen import frozen_blob, frozen_data
from sedge_protocol.wire.transfer import describe

VALUES = np.linspace(3, 4, 6).astype(np.float32)
HELD = frozen_data(Layout.of([("base", (2, 3), Role.PARAMETER)]), VALUES)


def test_half_of_the_memory_is_for_frozen_data() -> None:
    data = msgspec.structs.replace(HELD, layout=Layout.of([("base", (500_000,), Role.PARAMETER)]))
    assert [data.fits(memory_mb) for memory_mb in (0, 3, 4)] == [True, False, True]


def test_an_order_may_cut_the_blob_otherwise_but_not_name_another() -> None:
    cut, another = describe(frozen_blob(VALUES), 2**12), describe(frozen_blob(VALUES + 1))
    longer = msgspec.structs.replace(cut, size=cut.size + 1)
    found = [HELD.cut_as(manifest) for manifest in (cut, another, longer, None)]
    assert cut != HELD.blob and found == [cut, HELD.blob, HELD.blob, HELD.blob]


@pytest.mark.parametrize("values", [VALUES[:-1], VALUES.astype(np.float64)])
def test_values_of_another_length_or_type_are_refused(values: Theta) -> None:
    with pytest.raises(CodecError, match=r"theta: float\d\d \(\d,\), expected float32 \(6,\)"):
        frozen_data(HELD.layout, values)


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        (VALUES, ValueCoding.FP32),
        (
            np.array([0.5, -3, 1e-40, -0.0, 0, 192], np.float32) * np.float32(1 << 16),
            ValueCoding.FP32,
        ),
        (np.array([0.5, -3, 2.0**-100, -0.0, 0, 192], np.float32), ValueCoding.BF16),
    ],
)
def test_frozen_values_lose_nothing(values: Theta, coding: ValueCoding) -> None:
    blob = frozen_blob(values)
    head = stated(blob)
    assert head is not None
    assert head.coding is coding
    assert HELD.values(blob).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("blob", "text"),
    [
        (bytes(23), "frozen data: coded vector: version 0"),
        (frozen_blob(VALUES)[:11], "frozen data: coded vector: 11 bytes, the header alone has"),
        (
            VALUES.tobytes(),
            "6 float32 values without a header, as an earlier version exported them; export the bundle",
        ),
        (frozen_blob(VALUES[:5]), "frozen data: coded vector: n=5, expected 6"),
        (
            encode(SparseVector(6, np.arange(2, dtype=np.uint32), VALUES[:2])),
            "2 of 6 values, expected all",
        ),
        (  # refused by its header: nothing behind it is read
            encode(SparseVector(6, None, VALUES), ValueCoding.INT4, Compression.ZLIB)[:HEAD_BYTES],
            "int4 values with compression zlib, expected fp32, fp16, bf16 or int8 with none or zlib",
        ),
        (
            encode(SparseVector(6, None, VALUES), ValueCoding.FP32)[:HEAD_BYTES],
            "fp32 values with compression zstd, expected",
        ),
    ],
)
def test_a_blob_that_is_not_the_frozen_values(blob: bytes, text: str) -> None:
    with pytest.raises(CodecError, match=text):
        HELD.values(blob)
