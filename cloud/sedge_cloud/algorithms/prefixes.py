"""A patch of which each device picks a part: the personal elements in the order of their scores.

    part j = the sizes[j] elements with the highest scores, without those equal to the next one

For FedOBP with ``prefixes``: the device keeps some of its training examples for itself, evaluates the start
with each part on them, and begins with the best. So the personal fraction is the device's own, and no
quantile has to be found for a data set; the authors' differ by data set from .99998 to .995. s = scored
elements, k = elements of the patch.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.thresholds import above_count
from sedge_protocol.codec.patch_levels import MAX_LEVEL, Levels
from sedge_protocol.errors import ConfigError, LocalError

DEFAULT_SIZES = (0, 16, 64, 256, 1024, 4096)
# Levels travel inside the order, two bytes of 32 KiB each where they do not get shorter.
MAX_SIZE = 16_000


def sizes_of(prefixes: bool | tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that an option asks for, none for False.

    Raises ``ConfigError`` for sizes that do not grow, or are too many or too large.
    """
    if isinstance(prefixes, bool):
        return DEFAULT_SIZES if prefixes else ()
    grow = all(low < high for low, high in pairwise(prefixes))
    if not (0 < len(prefixes) <= MAX_LEVEL + 1 and grow and 0 <= prefixes[0] <= prefixes[-1]):
        expected = f"1 to {MAX_LEVEL + 1} sizes, each larger than the one before, true or false"
        raise ConfigError("prefixes", prefixes, expected)
    if prefixes[-1] > MAX_SIZE:
        raise ConfigError("prefixes", prefixes, f"sizes up to {MAX_SIZE}")
    return prefixes


def nested(
    scores: NDArray[np.float32], sizes: tuple[int, ...]
) -> tuple[NDArray[np.uint32], Levels]:
    """The sorted indices (k,) of the largest part of the scores (s,), and their levels (k,).

    An element's level is the place of the first of the ``sizes``, ascending, whose part it is in. Elements
    with equal scores are in or out together, and none with a score of 0 is in. Raises ``LocalError`` for a
    score that is not finite.
    """
    if not np.isfinite(scores).all():
        raise LocalError(f"scores: index {int(np.argmin(np.isfinite(scores)))} is not finite")
    chosen = above_count(scores, sizes[-1])
    levels = np.full(chosen.size, len(sizes) - 1, np.uint8)
    for level in range(len(sizes) - 2, -1, -1):
        levels[np.isin(chosen, above_count(scores, sizes[level]))] = level
    return chosen, levels
