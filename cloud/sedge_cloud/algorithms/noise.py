"""Applies the Gaussian mechanism to a round's updates, for differential privacy of whole devices.

    sum     S = sum_i c_i min(1, C / |c_i|) + N(0, (z C)^2 I)     c_i = theta_i - theta, C the clip    (n,)
    change  S / m                                                 m fixed before the run begins
    draw    each device independently with probability q          by a secret coin for each round

(McMahan et al. 2018, Learning differentially private recurrent language models, with a fixed denominator.)
All devices have equal weight, and one that does not answer counts as a change of zero. The coordinator
clips the decoded update, so a single device changes S by at most C, whatever coding it uses and whatever it
claims.

Coins and noise are derived from the run's secret. The noise also depends on the updates that it covers. A
round that is aggregated again after a crash therefore produces the same bytes, yet the same noise never
covers two different sums. That could otherwise happen after a backup is restored, and the difference of the
two sums would be free of noise. The generator is SHAKE256, because generators made for simulations can be
predicted from their output.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Theta

# The number of noise elements to draw at once. It is even because the transform yields pairs.
BLOCK = 1 << 16


@dataclass(frozen=True)
class Noise:
    """The clip length, noise and divisor for a round's sum.

    ``deviation`` is the standard deviation (z C) of the noise on each element, ``expected`` is the divisor
    m, and ``key`` seeds the noise.
    """

    clip: float
    deviation: float
    expected: float
    key: bytes


def private_update(
    updates: Iterable[Update], theta: Theta, noise: Noise, still: Sequence[slice]
) -> Update:
    """Combine updates of theta (n,) into a single update, their noisy mean.

    The result is differentially private on its own. Elements in ``still`` do not change, and do not count
    towards an update's length.
    """
    total = np.zeros(theta.size)
    for update in updates:
        change = _without(update.change(theta, slice(None)).astype(np.float64), still)
        length = float(np.sqrt(np.square(change).sum()))
        if np.isfinite(length) and length > 0:
            total += change * min(1.0, noise.clip / length)
    total += noise.deviation * gaussian(noise.key, theta.size)
    mean = (_without(total, still) / noise.expected).astype(np.float32)
    return Update("", 1, theta, delta=SparseVector(theta.size, None, mean))


def _without(vector: NDArray[np.float64], still: Sequence[slice]) -> NDArray[np.float64]:
    for part in still:
        vector[part] = 0
    return vector


def gaussian(key: bytes, size: int) -> NDArray[np.float64]:
    """Generate standard normal numbers (size,) from a key by the Box-Muller transform."""
    values = np.empty(size + size % 2)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK]
        stream = hashlib.shake_256(key + start.to_bytes(8, "little")).digest(8 * block.size)
        uniform = (np.frombuffer(stream, "<u8") >> np.uint64(11)) * 2.0**-53  # [0, 1)
        first, second = np.split(uniform, 2)
        radius, angle = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second
        np.multiply(radius, np.cos(angle), out=block[: first.size])
        np.multiply(radius, np.sin(angle), out=block[first.size :])
    return values[:size]


def drawn(secret: bytes, share: float, number: int, able: Iterable[str]) -> list[str]:
    """Draw the devices for a round, each with an independent coin.

    If no device is drawn, all coins are tossed again.
    """
    names = sorted(able)
    for attempt in count() if names else ():
        found = [name for name in names if _coin(secret, f"{number}/{attempt}/{name}") < share]
        if found:
            return found
    return []


def _coin(secret: bytes, what: str) -> float:
    """Derive from the secret a number that is uniform in [0, 1)."""
    digest = hashlib.blake2b(what.encode(), key=secret, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
