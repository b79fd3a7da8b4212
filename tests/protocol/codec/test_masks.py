"""Mask forms: the choice among them, and the promised sizes."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.codec import Compression
from sedge_protocol.codec.bitmaps import to_bitmap
from sedge_protocol.codec.gaps import from_varints, to_varints
from sedge_protocol.codec.masks import MaskForm, decode_positions, encode_positions, max_mask_bytes

Indices = NDArray[np.uint32]
LARGE = 582_026  # the CNN that PURIN and OBP are measured on
BOTH = [Compression.ZSTD, Compression.ZLIB]


def _random(seed: int, size: int, count: int) -> Indices:
    chosen = np.random.default_rng(seed).choice(size, count, replace=False)
    return np.sort(chosen).astype(np.uint32)


def _entropy_bytes(size: int, count: int) -> float:
    """n·H(k/n)/8."""
    share = count / size
    return -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) * size / 8


def _coded_bytes(
    indices: Indices, size: int, compression: Compression, context: bytes | None = None
) -> int:
    """The section's length, after a check that it decodes."""
    form, used, data = encode_positions(indices, size, compression, context)
    found = decode_positions(form, used, memoryview(data), size, indices.size, context)
    assert found.dtype == np.uint32
    assert np.array_equal(found, indices)
    assert len(data) <= max_mask_bytes(size) <= size / 8 + 1
    return len(data)


# The density of a random mask, and how many times its entropy the mask takes at most.
DENSITIES = [
    *((density, 1.03) for density in (0.5, 0.21, 0.05, 0.9)),
    *((density, 1.25) for density in (0.01, 3 / LARGE)),
]


@pytest.mark.parametrize(("density", "most"), DENSITIES)
def test_random_masks_stay_near_their_entropy(density: float, most: float) -> None:
    count = round(density * LARGE)
    indices = _random(count, LARGE, count)
    for compression in BOTH:
        assert _coded_bytes(indices, LARGE, compression) <= most * _entropy_bytes(LARGE, count) + 16


def _with_overlap(indices: Indices, size: int, overlap: float, seed: int) -> bytes:
    """An earlier mask, as a bitmap, that keeps as many positions and this share of the same ones."""
    rng = np.random.default_rng(seed)
    moved = round((1 - overlap) * indices.size)
    stayed = rng.choice(indices, indices.size - moved, replace=False)
    others = np.setdiff1d(np.arange(size, dtype=np.uint32), indices)
    return to_bitmap(
        np.sort(np.concatenate([stayed, rng.choice(others, moved, replace=False)])), size
    )


@pytest.mark.parametrize("density", [0.5, 0.01])
@pytest.mark.parametrize("overlap", [0.9, 0.0])
def test_a_context_never_costs_a_byte_and_pays_with_overlap(density: float, overlap: float) -> None:
    """Even where the changes are random, the worst case of varints and a Huffman code."""
    size = LARGE // 8
    count = round(density * size)
    indices = _random(count, size, count)
    context = _with_overlap(indices, size, overlap, 1)
    for compression in BOTH:
        alone = _coded_bytes(indices, size, compression)
        with_context = _coded_bytes(indices, size, compression, context)
        assert with_context <= alone
        if overlap >= 0.8:
            moved = round((1 - overlap) * count)  # dropped of k, and as many added to n - k
            news = _entropy_bytes(count, moved) + _entropy_bytes(size - count, moved)
            assert with_context <= 1.3 * news + 64


def test_changes_beyond_the_limit_are_not_tried() -> None:
    size, half = 8000, np.arange(4000, dtype=np.uint32)
    context = to_bitmap(np.arange(4000, 8000, dtype=np.uint32), size)
    assert encode_positions(half, size, Compression.NONE, context)[0] is not MaskForm.CHANGES


def test_what_two_masks_do_not_share_is_all_that_is_sent() -> None:
    indices = _random(5, 1000, 300)
    context = to_bitmap(indices, 1000)
    assert encode_positions(indices, 1000, Compression.ZSTD, context) == (
        MaskForm.CHANGES,
        Compression.NONE,
        b"",
    )
    # The first kept position dropped is rank 0, the first left-out one added rank 300.
    first = int(np.setdiff1d(np.arange(1000), indices)[0])
    moved = np.sort(np.append(indices[1:], np.uint32(first)))
    form, _, data = encode_positions(moved, 1000, Compression.ZSTD, context)
    assert form is MaskForm.CHANGES
    assert data == bytes([0, 299 & 127 | 128, 299 >> 7])


def test_each_form_is_chosen_where_it_is_the_smallest() -> None:
    def form(indices: Indices, size: int, compression: Compression) -> MaskForm:
        return encode_positions(indices, size, compression)[0]

    rows = np.flatnonzero(np.arange(100_000) // 400 % 2).astype(np.uint32)
    assert form(_random(1, 10_000, 5_000), 10_000, Compression.ZSTD) is MaskForm.BITMAP
    assert form(_random(1, 10_000, 1_500), 10_000, Compression.ZSTD) is MaskForm.BITMAP
    assert form(_random(1, 10_000, 9_900), 10_000, Compression.NONE) is MaskForm.GAPS
    assert form(np.array([5], np.uint32), 10_000, Compression.ZSTD) is MaskForm.GAPS
    eighth = np.arange(0, 800, 8, dtype=np.uint32)  # both have 100 bytes
    assert form(eighth, 800, Compression.NONE) is MaskForm.GAPS
    assert form(eighth, 799, Compression.NONE) is MaskForm.BITMAP
    assert encode_positions(rows, 100_000, Compression.ZSTD)[:2] == (
        MaskForm.BITMAP,
        Compression.ZSTD,
    )
    assert encode_positions(rows[::40] * 9, 900_000, Compression.ZLIB)[:2] == (
        MaskForm.GAPS,
        Compression.ZLIB,
    )


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_a_varint_has_as_few_groups_as_it_needs(groups: int) -> None:
    least, most = 2 ** (7 * groups - 7) if groups > 1 else 0, 2 ** (7 * groups) - 1
    gaps = np.array([least, most, 1, least, least + 1, most - 1], np.uint32)
    coded = to_varints(gaps)
    assert len(coded) == 5 * groups + 1
    np.testing.assert_array_equal(np.concatenate([*from_varints(coded)]), gaps)
