"""The next global model as a coded change, and which changes lead a device from an older one to it.

    d         = theta' - global_r + owed_r           what the fleet should move by           (n,)
    sent      = decode(encode(largest of d))         what it will move by                    (n,)
    global_r+1 = global_r + sent                     float32, on every device and here
    owed_r+1  = d - sent                             error feedback, so that nothing is lost for good

Where theta' is made of whole values and not of changes to global_r, d of the next round has what was left
out in it already: nothing is owed. Counted twice it would be sent twice, and FedPURIN's model grew 18 times
in 20 rounds. theta' is what the strategy wants. The cloud adopts global_r+1, so it computes with the bits
that the devices hold. Nothing here knows of blobs or rounds. n = parameters of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sedge_cloud.config import BroadcastConfig
from sedge_cloud.store.schema import StepRow
from sedge_protocol.codec import SparseVector, decode, encode, top_k
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import MAX_STEPS


@dataclass(frozen=True)
class Version:
    """The next global ``theta`` (n,), the coded change ``step`` that leads to it, and ``owed`` (n,)."""

    theta: Theta
    step: bytes
    owed: Theta


def next_version(
    wanted: Theta, current: Theta, owed: Theta | None, broadcast: BroadcastConfig
) -> Version:
    """The version that the fleet gets when the strategy wants ``wanted`` (n,) after ``current`` (n,).

    Raises ``LocalError`` when the change, or the sum, is not finite in the coding.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # found by the codec, or below
        change = wanted - current
        if owed is not None:
            change += owed
    step = encode(chosen(change, broadcast.fraction), broadcast.values, broadcast.compression)
    sent = decode(step, change.size)
    theta = current.copy()
    with np.errstate(over="ignore"):
        sent.add_to(theta)
    if not np.isfinite(theta).all():
        raise LocalError(f"broadcast: element {int(np.argmin(np.isfinite(theta)))} is not finite")
    change[slice(None) if sent.indices is None else sent.indices] -= sent.values
    return Version(theta, step, change)


def chosen(change: Theta, fraction: float) -> SparseVector:
    """The share of a change (n,) that is sent: the largest in magnitude."""
    if fraction >= 1:
        return SparseVector(change.size, None, change)
    return top_k(change, max(1, round(fraction * change.size)))


def worth_sending(steps: Sequence[StepRow], model_bytes: int) -> tuple[StepRow, ...]:
    """The longest end of ``steps`` (oldest first) that is together smaller than the whole model.

    At most ``MAX_STEPS``; a device that is further behind than that fetches the model.
    """
    total, first = 0, len(steps)
    while first > max(0, len(steps) - MAX_STEPS):
        total += steps[first - 1].size
        if total >= model_bytes:
            break
        first -= 1
    return tuple(steps[first:])
