"""Random numbers that any language can reproduce: rule T12 of protocol/spec/training.md.

A key and a counter determine a word, so a training can continue from any step without the earlier numbers.
The words of a key are SplitMix64's, seeded with the key.
"""

from enum import IntEnum
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
W = TypeVar("W", int, Words)

_MASK = 2**64 - 1


class Purpose(IntEnum):
    """The purposes of a seed's numbers; no two purposes share numbers."""

    SHUFFLE = 0
    NOISE = 1
    FURTHER_TRAINING = 2
    SPLIT = 3


def stream_key(seed: int, purpose: Purpose, part: int) -> int:
    """The key of one part of a seed's numbers, such as those of one epoch; 0 to 2^64 - 1."""
    return _word(_word(seed, int(purpose)), part)


def words(key: int, count: int) -> Words:
    """The first ``count`` words (count,) of a key, uniform and all different; little endian in memory."""
    return _word(key, np.arange(count, dtype=np.uint64)).astype("<u8", copy=False)


def _word(key: int, counter: W) -> W:
    """A key's words at a counter, or at an array of counters."""
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
