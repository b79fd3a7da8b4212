"""Encodes the next global model as a change, and combines the changes that lead to it from older models.

    d          = theta' - global_r + owed_r          the change that the strategy wants      (n,)
    sent       = decode(encode(largest of d))        the change that the devices get         (n,)
    global_r+1 = global_r + sent                     in float32, on every device and here
    owed_r+1   = d - sent                            error feedback: nothing is lost for good

theta' is the strategy's next model. If it replaces global_r instead of changing it, nothing is owed, as the
next d already contains the elements left out. If they were owed as well, they would be sent twice:
FedPURIN's model once grew 18-fold in 20 rounds that way. The cloud adopts global_r+1, so it computes with
the same bits as the devices.

With bf16 values and a fraction below 1, versions are on a grid: their elements are multiples of a power of
two. So the whole model takes 5 to 7 bits per element instead of 27, without loss, and steps add up exactly
in any order. Each tensor of the first model is rounded to multiples of the power of two nearest to a sixth
of its root mean square, and every step to multiples of a power of two (codec/grid.py): with finer spacings
a model would take half as many bits again after 40 rounds.

This module knows nothing about blobs or rounds. n is the number of parameters in the model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.runs.vectors import hash_of
from sedge_cloud.store.schema import StepRow
from sedge_cloud.strategy import State
from sedge_protocol.codec import SparseVector, ValueCoding, decode, encode, top_k
from sedge_protocol.codec.grid import nearest_multiples, on_own_grid
from sedge_protocol.errors import Unencodable
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import MAX_STEPS

# Grid steps per root mean square of a tensor in the first model. Rounding the spacing to a power of two
# makes that 4 to 9 steps, and the error 3 to 7 % of the root mean square.
LEVELS = 6


@dataclass(frozen=True)
class Version:
    """The next global ``theta`` (n,), the coded change ``step`` that leads to it, and ``owed`` (n,)."""

    theta: Theta
    step: bytes
    owed: Theta


def next_version(
    wanted: Theta, current: Theta, owed: Theta | None, broadcast: BroadcastConfig
) -> Version:
    """Return the model that the fleet gets when the strategy wants ``wanted`` (n,) after ``current`` (n,).

    Raises ``Unencodable`` if the change, or its sum with the model, is not finite in the coding.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # values that overflow are rejected below
        change = wanted - current
        if owed is not None:
            change += owed
    step = encode(chosen(change, broadcast), broadcast.values, broadcast.compression)
    return _reached(current, change, step)


def needs_every_element(state: State, broadcast: BroadcastConfig) -> bool:
    """Return True if every element must be sent, not a ``fraction``, as the state replaces the model."""
    return not state.is_change and not broadcast.sends_all


def replacing_version(
    wanted: Theta, current: Theta, layout: Layout, broadcast: BroadcastConfig
) -> Version:
    """Return the model that the fleet gets when ``wanted`` (n,) replaces ``current`` (n,).

    Every element of the difference is sent, in bf16, rounded tensor by tensor like the first model. Raises
    ``Unencodable`` as ``next_version`` does.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        change = wanted - current
    whole = SparseVector(change.size, None, _on_grid(change, layout))
    return _reached(current, change, encode(whole, ValueCoding.BF16, broadcast.compression))


def _reached(current: Theta, change: Theta, step: bytes) -> Version:
    """Apply ``step``, an encoded part of ``change`` (n,). Returns the version and the remaining change."""
    sent = decode(step, change.size)
    theta = current.copy()
    with np.errstate(over="ignore"):
        sent.add_to(theta)
    if not np.isfinite(theta).all():
        raise Unencodable(f"broadcast: element {int(np.argmin(np.isfinite(theta)))} is not finite")
    change[slice(None) if sent.indices is None else sent.indices] -= sent.values
    return Version(theta, step, change)


def first_version(theta: Theta, layout: Layout, broadcast: BroadcastConfig) -> Theta:
    """Return a run's first model (n,), on the grid (except statistics) if the broadcast uses one."""
    if not broadcast.on_grid:
        return theta
    return _on_grid(theta, layout)


def _on_grid(theta: Theta, layout: Layout) -> Theta:
    """Round every tensor of a vector (n,), except statistics, to its own grid."""
    rounded = theta.copy()
    for tensor in layout.tensors:
        if tensor.role is Role.PARAMETER:
            rounded[tensor.slice] = on_own_grid(theta[tensor.slice], LEVELS)
    return rounded


def chosen(change: Theta, broadcast: BroadcastConfig) -> SparseVector:
    """Choose the part of a change (n,) to send: its largest elements, on the grid if there is one."""
    if broadcast.sends_all:
        return SparseVector(change.size, None, change)
    k = broadcast.count(change.size)
    return nearest_multiples(change, k, binary=True) if broadcast.on_grid else top_k(change, k)


def worth_sending(steps: Sequence[StepRow], model_bytes: int) -> tuple[StepRow, ...]:
    """Return the most recent ``steps`` (oldest first) that together are smaller than the whole model.

    There are at most ``MAX_STEPS``. A device that is further behind fetches the whole model.
    """
    total, first = 0, len(steps)
    while first > max(0, len(steps) - MAX_STEPS):
        total += steps[first - 1].size
        if total >= model_bytes:
            break
        first -= 1
    return tuple(steps[first:])


def summed(changes: Iterable[SparseVector], current: Theta, held: bytes) -> SparseVector | None:
    """Combine ``changes`` from the model with hash ``held`` to ``current`` (n,) into a single change.

    Returns None unless that change leads to ``current`` bit for bit: only on a grid does the order of the
    additions not matter.
    """
    total = np.zeros_like(current)
    for change in changes:
        change.add_to(total)
    base = current - total
    indices = np.flatnonzero(total).astype(np.uint32)
    found = SparseVector(current.size, indices, total[indices])
    reached = base.copy()
    found.add_to(reached)
    leads_there = reached.tobytes() == current.tobytes() and hash_of(base) == held
    return found if leads_there else None


def steps_since(steps: Sequence[StepRow], held: bytes) -> Sequence[StepRow]:
    """Return the steps that a device still needs if it has the model ``held`` (a hash) or a later one.

    Returns all of ``steps`` if none starts from ``held``.
    """
    starts = (place for place, step in enumerate(steps) if step.base_hash == held)
    return steps[next(starts, 0) :]
