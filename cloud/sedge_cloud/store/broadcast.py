"""The next global model as a coded change, and which changes lead a device from an older one to it.

    d         = theta' - global_r + owed_r           what the fleet should move by           (n,)
    sent      = decode(encode(largest of d))         what it will move by                    (n,)
    global_r+1 = global_r + sent                     float32, on every device and here
    owed_r+1  = d - sent                             error feedback, so that nothing is lost for good

With the codings ``bf16`` and ``sign`` a version is on a grid: its elements are multiples of a power of
two. So the model whole takes 5 to 6 bits an element, without loss, in place of 27, and steps add up
exactly, in whatever order. The first model is rounded to the grid, and a step moves by multiples of the
power of two nearest to what its elements need (``on_grid``). Error feedback makes up for what that leaves
out.

Where theta' is made of whole values and not of changes to global_r, d of the next round has what was left
out in it already: nothing is owed. Counted twice it would be sent twice, and FedPURIN's model grew 18 times
in 20 rounds. theta' is what the strategy wants. The cloud adopts global_r+1, so it computes with the bits
that the devices hold. Nothing here knows of blobs or rounds. n = parameters of the model.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sedge_cloud.config import BroadcastConfig
from sedge_cloud.store.schema import StepRow
from sedge_cloud.store.vectors import hash_of
from sedge_protocol.codec import (
    SparseVector,
    ValueCoding,
    decode,
    decoded_values,
    encode,
    top_k,
)
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
    most = chosen(change, broadcast.fraction)
    if broadcast.on_grid:
        most = on_grid(most, broadcast.values)
    step = encode(most, broadcast.values, broadcast.compression)
    sent = decode(step, change.size)
    theta = current.copy()
    with np.errstate(over="ignore"):
        sent.add_to(theta)
    if not np.isfinite(theta).all():
        raise LocalError(f"broadcast: element {int(np.argmin(np.isfinite(theta)))} is not finite")
    change[slice(None) if sent.indices is None else sent.indices] -= sent.values
    return Version(theta, step, change)


def first_version(theta: Theta, statistics: Iterable[slice], broadcast: BroadcastConfig) -> Theta:
    """The model (n,) that a run begins with: on the grid where its broadcast is, but for statistics."""
    if not broadcast.on_grid:
        return theta
    found = rounded(theta, spacing(theta, broadcast.levels))
    for place in statistics:
        found[place] = theta[place]
    return found


def on_grid(sent: SparseVector, values: ValueCoding) -> SparseVector:
    """What ``sent`` becomes in the coding ``values``, as multiples of the nearest power of two but 0."""
    coded = decoded_values(sent.values, values)
    multiples = rounded(coded, spacing(coded, 1))
    moved = np.flatnonzero(multiples)
    indices = moved.astype(np.uint32) if sent.indices is None else sent.indices[moved]
    return SparseVector(sent.size, indices, multiples[moved])


def spacing(values: Theta, levels: int) -> float:
    """The power of two nearest to 1 / ``levels`` of the root mean square of values; 0 where they are 0."""
    size = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
    return 2.0 ** round(math.log2(size / levels)) if 0 < size < np.inf else 0.0


def rounded(values: Theta, grid: float) -> Theta:
    """The nearest multiples of ``grid``; the values themselves where it is 0."""
    if not grid:
        return values.copy()
    multiples: Theta = np.rint(values / np.float32(grid)) * np.float32(grid)
    multiples += 0  # of two zeros the positive one, which sums end with
    return multiples


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


def summed(steps: Iterable[SparseVector], current: Theta, held: bytes) -> SparseVector | None:
    """One step in place of those that lead from the version with the hash ``held`` to ``current`` (n,).

    None where it does not lead there bit for bit: only on a grid does a sum not depend on its order.
    """
    total = np.zeros_like(current)
    for step in steps:
        step.add_to(total)
    base = current - total
    indices = np.flatnonzero(total).astype(np.uint32)
    found = SparseVector(current.size, indices, total[indices])
    reached = base.copy()
    found.add_to(reached)
    same = reached.tobytes() == current.tobytes() and hash_of(base) == held
    return found if same else None


def steps_since(steps: Sequence[StepRow], held: bytes) -> Sequence[StepRow]:
    """The end of ``steps`` for a device that holds the version with the hash ``held``, or a later one.

    All of them where that is none of theirs.
    """
    places = (place for place, step in enumerate(steps) if step.base_hash == held)
    return steps[next(places, 0) :]
