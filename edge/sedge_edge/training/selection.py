"""Selects which elements of a delta to send, if the order does not."""

import numpy as np

from sedge_protocol.codec import SparseVector, ValueCoding, above, decoded_values, top_k
from sedge_protocol.codec.grid import nearest_multiples
from sedge_protocol.layout import Theta
from sedge_protocol.wire.work import Codec


def select_elements(delta: Theta, codec: Codec) -> SparseVector:
    """Return the elements of delta (n,) to send."""
    k = max(1, round(codec.fraction * delta.size))
    if np.float32(codec.threshold) > 0:  # a threshold that becomes 0 in float32 counts as none
        return above(delta, codec.threshold, k)
    if codec.fraction >= 1.0:
        return SparseVector(delta.size, None, delta)
    if codec.values is ValueCoding.BF16 and codec.error_feedback:
        return nearest_multiples(delta, k)
    return top_k(delta, k)


def subtract_sent(delta: Theta, chosen: SparseVector, values: ValueCoding) -> None:
    """Subtract from delta (n,) the values that the coordinator will decode."""
    delta[chosen.where] -= decoded_values(chosen.values, values)  # (k,)
