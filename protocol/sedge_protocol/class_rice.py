"""Ones among elements that are sorted into classes, as Rice codes with a parameter for each class.

Within a class ones are about as likely everywhere, so the gaps between them are nearly geometric, and while
ones are the rarer kind the Rice code of the right parameter is within 5 % of their entropy. A class's gaps
begin anew at its start.

m = number of ones, K = number of classes. Byte for byte: WIRE.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError
from sedge_protocol.gaps import MAX_RICE_BITS

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClassRice:
    """``counts`` (K,) ones with parameters ``bits`` (K,), and the code itself."""

    counts: Integers
    bits: Integers
    code: bytes


def to_class_rice(ones: Integers, ends: Integers) -> ClassRice:
    """The code of the ones at ascending places ``ones`` (m,), in classes that end before ``ends`` (K,)."""
    counts = np.diff(np.searchsorted(ones, ends), prepend=0)
    present = np.flatnonzero(counts)
    firsts = (np.cumsum(counts) - counts)[present]
    gaps = np.diff(ones, prepend=-1) - 1
    gaps[firsts] = ones[firsts] - (np.concatenate([[0], ends[:-1]]))[present]
    bits = np.zeros(ends.size, np.int64)
    if present.size:
        bits[present] = _parameters(gaps, firsts, counts[present])
    each = np.repeat(bits, counts)  # (m,)
    stops = np.cumsum((gaps >> each) + 1) - 1
    unary = np.zeros(int(stops[-1]) + 1 if stops.size else 0, np.uint8)
    unary[stops] = 1
    planes = [gaps[each > plane] >> plane & 1 for plane in range(int(bits.max(initial=0)))]
    low = np.concatenate(planes).astype(np.uint8) if planes else np.zeros(0, np.uint8)
    parts = (np.packbits(part, bitorder="little").tobytes() for part in (unary, low))
    return ClassRice(counts, bits, b"".join(parts))


def _parameters(gaps: Integers, firsts: Integers, counts: Integers) -> Integers:
    """The best parameter of each class that has ones, given where its gaps begin."""
    mean = np.add.reduceat(gaps, firsts) / counts
    # For geometric gaps the best 2**b is near .69 of the mean; one step on either side covers the rest.
    near = np.floor(np.log2(np.maximum(0.69 * mean, 1.0))).astype(np.int64)
    tried = [np.clip(near + step, 0, MAX_RICE_BITS) for step in (-1, 0, 1)]
    lengths = [
        counts * bits + np.add.reduceat(gaps >> np.repeat(bits, counts), firsts) for bits in tried
    ]
    best: Integers = np.choose(np.argmin(lengths, axis=0), tried)
    return best


def from_class_rice(coded: ClassRice) -> Integers:
    """The gaps (m,). Raises ``CodecError`` unless the code is exactly that of so many ones.

    The classes need not be known yet, so a code that is none is found before they are made.
    """
    counts, bits = coded.counts, coded.bits
    wrong = (bits > MAX_RICE_BITS) | ((counts == 0) & (bits > 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise CodecError(f"mask.class[{at}]: {counts[at]} ones with b={bits[at]}")
    low_bits = int((counts * bits).sum())
    unary_bytes = len(coded.code) - -(-low_bits // 8)
    count = int(counts.sum())
    if unary_bytes < 0:
        raise CodecError(f"mask: {len(coded.code)} bytes for {low_bits} low bits of {count} codes")
    code = np.frombuffer(coded.code, np.uint8)
    stops = np.flatnonzero(np.unpackbits(code[:unary_bytes], bitorder="little"))
    least = 8 * (unary_bytes - 1)
    if stops.size != count or (stops[-1] < least if count else unary_bytes):
        raise CodecError(f"mask: {stops.size} Rice codes in {unary_bytes} bytes, expected {count}")
    low = np.unpackbits(code[unary_bytes:], bitorder="little")
    if low[low_bits:].any():
        raise CodecError("mask: bits past the last Rice code")
    return _with_low_bits(stops, low, np.repeat(bits, counts))


def _with_low_bits(stops: Integers, low: NDArray[np.uint8], bits: Integers) -> Integers:
    """The gaps, given where each ends in the unary string, all low bits, and each one's parameter."""
    gaps = np.diff(stops, prepend=-1).astype(np.int64) - 1 << bits
    start = 0
    for plane in range(int(bits.max(initial=0))):
        reached = np.flatnonzero(bits > plane)
        gaps[reached] |= low[start : start + reached.size].astype(np.int64) << plane
        start += reached.size
    return gaps


def to_places(gaps: Integers, counts: Integers, ends: Integers) -> Integers:
    """The places (m,) of ones with these gaps. Raises ``CodecError`` for one outside its class."""
    sizes = np.diff(ends, prepend=0)
    many = counts > sizes
    if many.any():
        at = int(np.argmax(many))
        raise CodecError(f"mask.class[{at}]: {counts[at]} ones, {sizes[at]} elements")
    within = np.cumsum(gaps + 1)  # the gaps sum to less than 2**57
    firsts = np.cumsum(counts) - counts
    before = np.concatenate([[0], within])[firsts]
    within -= np.repeat(before, counts) + 1
    outside = within >= np.repeat(sizes, counts)
    if outside.any():
        raise CodecError(f"mask: one {int(np.argmax(outside))} lies outside its class")
    places: Integers = within + np.repeat(ends - sizes, counts)
    return places
