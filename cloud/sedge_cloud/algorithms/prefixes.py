"""A patch of which each device picks a part: nested sets of the elements with the highest scores.

    part j = the sizes[j] elements with the highest scores, without those equal to the next one

For FedOBP with ``prefixes``: the device holds out some training examples, evaluates the start with each
part on them, and starts with the best. So each device has its own personal fraction, and no quantile has to
be tuned for a data set; the authors' are between .995 and .99998. s = scored elements, k = elements of the
patch.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.thresholds import above_count
from sedge_protocol.codec.patch_levels import MAX_LEVEL, Levels
from sedge_protocol.errors import ConfigError, LocalError

DEFAULT_SIZES = (0, 16, 64, 256, 1024, 4096)
# Levels travel inside the order, at most 32 KiB of them: two bytes each where they do not compress.
MAX_SIZE = 16_000


def sizes_of(prefixes: bool | tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that the option asks for; none for False.

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

    An element's level is the index of the first of the ascending ``sizes`` whose part contains it. Elements
    with equal scores are in or out together; a score of 0 is never in. Raises ``LocalError`` for a score
    that is not finite.
    """
    if not np.isfinite(scores).all():
        raise LocalError(f"scores: index {int(np.argmin(np.isfinite(scores)))} is not finite")
    chosen = above_count(scores, sizes[-1])
    levels = np.full(chosen.size, len(sizes) - 1, np.uint8)
    for level in range(len(sizes) - 2, -1, -1):
        levels[np.isin(chosen, above_count(scores, sizes[level]))] = level
    return chosen, levels
