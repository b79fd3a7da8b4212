"""The random numbers of a training step, such as dropout's: the same on every backend and platform.

Rule T12 of protocol/spec/training.md. A step's numbers depend on the training's seed and the step alone, so
that a training can go on from any step.
"""

import numpy as np
from numpy.typing import NDArray

# No order's seed has this bit: shuffles come from another stream.
_STREAM = 1 << 63
_PER_WORD = 4


def noise(seed: int, step: int, count: int) -> NDArray[np.float32]:
    """``count`` numbers (count,) of step ``step``, counted from 0: uniform multiples of 2^-16 in [0, 1)."""
    words = -(-count // _PER_WORD)
    generator = np.random.PCG64(seed | _STREAM)
    generator.advance(step * words)
    drawn = generator.random_raw(words).astype("<u8").view("<u2")[:count]
    return drawn.astype(np.float32) * np.float32(2**-16)
