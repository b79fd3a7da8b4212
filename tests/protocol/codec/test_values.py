"""Value codings: exactness, rounding, range, planes."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.codec import SparseVector, ValueCoding, decoded_values, encode
from sedge_protocol.codec.values import INT4_BLOCK, INT8_BLOCK, SIGN_BLOCK
from sedge_protocol.errors import Unencodable

Floats = NDArray[np.float32]


def _finite(seed: int, count: int) -> Floats:
    """Random bit patterns: every exponent, denormals and both zeros included."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, np.uint32)
    values = bits.view(np.float32)
    return np.concatenate(
        [values[np.isfinite(values)], np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)]
    )


def _usual(seed: int, count: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 1e-3, count).astype(np.float32)


def _float(bits: int) -> Floats:
    return np.array([bits], np.uint32).view(np.float32)


def _nearest_bf16(value: np.float32) -> Floats:
    """By exact arithmetic: the nearer neighbour, of two equally near the one with an even mantissa."""
    bits = int.from_bytes(struct.pack("<f", value), "little") & 0xFFFF0000
    near = [_float(bits), _float(bits + 0x10000)]
    exact = [abs(Fraction(float(n[0])) - Fraction(float(value))) for n in near]
    if exact[0] == exact[1]:
        return near[bits >> 16 & 1]
    return near[exact[1] < exact[0]]


def test_bf16_rounds_to_nearest_even() -> None:
    values = _finite(5, 3000)
    values = values[np.abs(values) < 3.38e38]
    ties = np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32).view(np.float32)
    for value, found in zip(values, decoded_values(values, ValueCoding.BF16), strict=True):
        assert found.tobytes() == _nearest_bf16(value).tobytes(), value
    for value, found in zip(ties, decoded_values(ties, ValueCoding.BF16), strict=True):
        assert found.tobytes() == _nearest_bf16(value).tobytes(), value


def test_fp16_is_what_struct_packs() -> None:
    values = _finite(6, 3000)
    values = values[np.abs(values) < 65_519]
    expected = [struct.unpack("<e", struct.pack("<e", value))[0] for value in values]
    assert decoded_values(values, ValueCoding.FP16).tolist() == expected


@pytest.mark.parametrize(
    ("coding", "block", "most"),
    [(ValueCoding.INT8, INT8_BLOCK, 127), (ValueCoding.INT4, INT4_BLOCK, 7)],
)
def test_codes_err_by_half_a_step_of_their_block(
    coding: ValueCoding, block: int, most: int
) -> None:
    for values in (_usual(7, 6400), _finite(8, 6000)[:5952]):
        values = values[np.abs(values) < 3e38][: values.size // 64 * 64 - 64]
        blocks = values[: values.size // 64 * 64].reshape(-1, block)
        found = decoded_values(blocks.reshape(-1), coding).reshape(blocks.shape)
        # bf16 has 8 bits: the scale, rounded up, is at most 1/128 above max/most; 2**-133 is the least.
        step = np.abs(blocks).max(1).astype(np.float64) / most * (1 + 1 / 128) + 2.0**-133
        error = np.abs(found.astype(np.float64) - blocks).max(1)
        assert (error <= step * (0.5 + 1e-5)).all()


def test_sign_sends_the_mean_magnitude_of_each_block() -> None:
    rng = np.random.default_rng(12)
    values = rng.normal(0, 1e-3, 10 * SIGN_BLOCK + 5).astype(np.float32)
    values[3:5] = [0.0, -0.0]  # 0 takes part in the mean and arrives as its sign bit says
    found = decoded_values(values, ValueCoding.SIGN)
    assert np.array_equal(np.signbit(found), np.signbit(values))
    for start in range(0, values.size, SIGN_BLOCK):
        mean = sum(abs(float(value)) for value in values[start : start + SIGN_BLOCK])
        mean /= len(values[start : start + SIGN_BLOCK])
        assert (np.abs(found[start : start + SIGN_BLOCK]) == _nearest_bf16(np.float32(mean))).all()


LIMITS = [
    (ValueCoding.FP32, 3.4028235e38, np.inf),
    (ValueCoding.FP16, 65_519.0, 65_520.0),
    (ValueCoding.BF16, 3.3961e38, 3.3962e38),
    (ValueCoding.INT8, 3.4028235e38, np.inf),
    (ValueCoding.INT4, 3.3961e38, 3.3962e38),
    (ValueCoding.SIGN, 3.3961e38, 3.3962e38),
]


@pytest.mark.parametrize(("coding", "most", "over"), LIMITS)
def test_a_value_that_would_not_arrive_is_the_encoders_error(
    coding: ValueCoding, most: float, over: float
) -> None:
    values = np.array([0.5, most, -1.0, -most], np.float32)
    assert np.isfinite(decoded_values(values, coding)).all()
    for bad in (-over, np.nan, np.inf):
        values[3] = bad
        with pytest.raises(Unencodable, match=r"value\[3\]"):
            encode(SparseVector(4, None, values), coding)
        with pytest.raises(Unencodable, match=r"value\[3\]"):
            decoded_values(values, coding)
