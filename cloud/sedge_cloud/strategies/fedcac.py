"""FedCAC: devices whose critical parameters lie at the same places learn those from each other.

Wu et al. 2023, "Bold but Cautious". For device i in round t; th_i is what it trained, m_i its critical
elements, which the server finds in what every device sends anyway:

    c = |(th_i - start_i) th_i|, m_i the largest tau of it, tensor by tensor
    C_i = the devices whose masks overlap with m_i           collaboration.py
    d_i = 1/(|C_i| + 1) sum_{j in C_i + i} th_j              what the device gets on m_i
    G   = sum_j (n_j / n) th_j                               what it gets elsewhere

After round beta nobody collaborates: d_i is th_i on m_i. BatchNorm's statistics stay on the device,
its scale and shift are parameters like all others. A device that the cloud knows nothing of starts from
G. What partial participation means: collaboration.py. FedPURIN is the same with sparse uploads. n = parameters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sedge_cloud.algorithms.averaging import average
from sedge_cloud.algorithms.collaboration import (
    Grouping,
    Masks,
    Noted,
    Places,
    group_mean,
    known,
    regrouped,
)
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import Training

# The authors' code takes a threshold of at most the first for none, and then every c above the second.
_NO_THRESHOLD = 1e-10
_NO_CHANGE = 1e-20


@dataclass(frozen=True)
class FedCAC:
    """The options of FedCAC; the defaults are those of the authors' code.

    Raises ``ConfigError`` for a value out of range.
    """

    absolute: ClassVar[bool] = True

    fraction: float = 0.5
    """tau, above 0 to 1: the share of each tensor that is critical."""
    beta: int = 100
    """The last round with collaboration, 1 or later; half of all rounds in the paper."""
    overlap_sample: int = 2**21
    """Models of more elements are compared by so many of them; 64 or more."""
    stale_rounds: int = 0
    """For so many rounds an absent device's mask is still compared; kept in the state, n/4 bytes each."""

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError("fraction", self.fraction, "a number above 0 to 1")
        self._grouping()

    @property
    def name(self) -> str:
        """``fedcac``."""
        return "fedcac"

    @property
    def coordinate_rules(self) -> bool:
        """Whether ``State.robust`` is followed: by G."""
        return True

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as the first global model."""
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """d on the device's critical elements, G elsewhere, and its own statistics."""
        keep = state.layout.statistics
        if memory.trained is None or memory.sent is None:
            return Assignment(keep=keep)
        critical = critical_places(state.layout, memory.sent, memory.trained, self.fraction)
        if critical.size == 0:
            return Assignment(keep=keep)
        if state.round > self.beta:
            values = memory.trained[critical]
        else:
            models = ((theta, None) for theta, _ in known([memory, *memory.group]))
            values = group_mean(critical, models, counted=False)
        patch = SparseVector(state.layout.size, critical.astype(np.uint32), values)
        return Assignment(patch, keep)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The weighted mean of the trained models, and the next groups."""

        def critical(update: Update, delta: SparseVector) -> Places:
            return critical_places(state.layout, delta, update.trained, self.fraction)

        grouping = self._grouping()
        masks = Masks(state.layout.size, grouping.sample)
        after = average(state, Noted(updates, masks, critical))
        groups, arrays = regrouped(state, masks, grouping)
        return replace(after, groups=groups, arrays=arrays)

    def _grouping(self) -> Grouping:
        return Grouping(self.beta, self.overlap_sample, self.stale_rounds)


def critical_places(layout: Layout, delta: SparseVector, trained: Theta, fraction: float) -> Places:
    """m, ascending: where c = |delta * trained| is among the largest ``fraction`` of its tensor.

    int(fraction * numel) elements of each parameter tensor, and those that tie with the last of them. A
    tensor with a threshold of 1e-10 or less has every c above 1e-20 instead, as in the authors' code; where
    nothing is, no element is critical (there all of them are). Statistics never are.
    """
    with np.errstate(over="ignore"):
        scores = np.abs(delta.dense() * trained)  # (n,)
    critical = np.zeros(layout.size, np.bool_)
    for tensor in layout.tensors:
        count = int(fraction * tensor.size)
        if tensor.role is Role.STATISTIC or count == 0:
            continue
        part = scores[tensor.slice]
        threshold = np.partition(part, tensor.size - count)[tensor.size - count]
        if threshold > _NO_THRESHOLD:
            critical[tensor.slice] = part >= threshold
        else:
            critical[tensor.slice] = part > _NO_CHANGE
    return np.flatnonzero(critical)
