"""Planes in the order of their exponents are smaller."""

import numpy as np
import pytest

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.codec.exponent_order import ordered


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


def test_a_new_code_begins_where_the_many_values_of_an_exponent_end() -> None:
    many, few = 2**16, 10
    highest = np.repeat(np.array([2, 4, 6], np.uint8), [many, few, many])
    plane = np.arange(highest.size).astype(np.uint8)
    mixed = np.random.default_rng(0).permutation(highest.size)
    in_order, cuts = ordered(plane[mixed], highest[mixed])
    assert cuts == [many]
    assert np.array_equal(np.sort(in_order[many : many + few]), np.sort(plane[many : many + few]))
    assert ordered(plane[:few], highest[:few])[1] == []
