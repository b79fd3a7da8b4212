"""The random numbers of a training step, such as dropout's: the same on every backend and platform.

Rule T12 of protocol/spec/training.md. A step's numbers depend only on the training's seed and the step, so
a training can continue from any step.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.counter_stream import Purpose, stream_key, words

_PER_WORD = 4


def noise(seed: int, step: int, count: int) -> NDArray[np.float32]:
    """``count`` numbers (count,) of step ``step``, counted from 0: uniform multiples of 2^-16 in [0, 1)."""
    drawn = words(stream_key(seed, Purpose.NOISE, step), -(-count // _PER_WORD))
    return drawn.view("<u2")[:count].astype(np.float32) * np.float32(2**-16)
