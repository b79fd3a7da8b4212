"""Planes in the order of their exponents are smaller."""

import numpy as np
import pytest

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.BF16])
@pytest.mark.parametrize("compression", [Compression.ZLIB, Compression.ZSTD])
def test_bell_curves_take_fewer_bytes_and_come_back(
    coding: ValueCoding, compression: Compression
) -> None:
    values = np.random.default_rng(0).normal(0, 1e-2, 140_000).astype(np.float32)
    vector = SparseVector(values.size, None, values)
    coded = encode(vector, coding, compression)
    by_position = encode(vector, coding, Compression.NONE)
    assert (coded[3], by_position[3]) == (1, 0)
    found = decode(coded, values.size).values
    assert found.tobytes() == decode(by_position, values.size).values.tobytes()
    lengths = np.frombuffer(coded[12 : 16 + 4 * (4 if coding == "fp32" else 2)], np.uint32)
    assert lengths[-2] < values.size  # by position this plane does not compress at all
