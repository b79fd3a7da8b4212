"""Random numbers that are easy to reproduce in any language: rule T12 of protocol/spec/training.md.

Each word depends only on a key and a counter, so training can continue from any step without generating the
earlier numbers. A key's words are the output of SplitMix64 seeded with that key.
"""

from enum import IntEnum
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
W = TypeVar("W", int, Words)

_MASK = 2**64 - 1


class Purpose(IntEnum):
    """The purposes of a seed's numbers. Each purpose gets different numbers."""

    SHUFFLE = 0
    NOISE = 1
    FURTHER_TRAINING = 2
    SPLIT = 3


def stream_key(seed: int, purpose: Purpose, part: int) -> int:
    """Return the key, 0 to 2^64 - 1, for one part of a seed's numbers, such as one epoch's."""
    return _word(_word(seed, int(purpose)), part)


def words(key: int, count: int) -> Words:
    """Return the first ``count`` words for a key, (count,), stored little-endian. No two are the same."""
    return _word(key, np.arange(count, dtype=np.uint64)).astype("<u8", copy=False)


def _word(key: int, counter: W) -> W:
    """Return a key's word at a counter, or its words at an array of counters."""
    word = counter + 1
    word *= 0x9E3779B97F4A7C15
    word += key
    word &= _MASK
    word ^= word >> 30
    word *= 0xBF58476D1CE4E5B9
    word &= _MASK
    word ^= word >> 27
    word *= 0x94D049BB133111EB
    word &= _MASK
    word ^= word >> 31
    return word
