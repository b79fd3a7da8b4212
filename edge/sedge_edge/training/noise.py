"""The random numbers of a training step, such as those for dropout. They are the same on every platform.

This is rule T12 of protocol/spec/training.md. A step's numbers depend only on the training's seed and on
the step, so training can continue from any step.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.counter_stream import Purpose, stream_key, words

_PER_WORD = 4


def noise(seed: int, step: int, count: int) -> NDArray[np.float32]:
    """Return ``count`` numbers (count,) for a step: uniform multiples of 2^-16 in [0, 1).

    Steps are counted from 0.
    """
    drawn = words(stream_key(seed, Purpose.NOISE, step), -(-count // _PER_WORD))
    return drawn.view("<u2")[:count].astype(np.float32) * np.float32(2**-16)
