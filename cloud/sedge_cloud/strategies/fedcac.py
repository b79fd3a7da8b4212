"""FedCAC: devices whose critical parameters are at the same places learn these from each other.

Wu et al. 2023, "Bold but Cautious". For device i in round t, th_i is its trained model and m_i its critical
elements, which the server finds in the update:

    c = |(th_i - start_i) th_i|, m_i the largest tau of c, tensor by tensor
    C_i = the devices whose masks overlap with m_i           collaboration.py
    d_i = 1/(|C_i| + 1) sum_{j in C_i + i} th_j              what the device gets on m_i
    G   = sum_j (n_j / n) th_j                               what it gets elsewhere

After round beta nobody collaborates: d_i is th_i on m_i. BatchNorm's statistics stay on the device, while
its scale and shift are parameters like all others. A device without history starts from G. collaboration.py
says how partial participation is handled. FedPURIN is the same with sparse uploads. n is the number of
parameters.
"""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.algorithms.collaboration import (
    Grouped,
    MaskRecorder,
    Places,
    group_mean,
    next_groups,
    trained_models,
)
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Layout, Role, Theta

# As in the authors' code: a threshold no larger than the first constant is ignored, and then every c above
# the second constant is critical.
_NO_THRESHOLD = 1e-10
_NO_CHANGE = 1e-20


class FedCAC(Grouped, frozen=True):
    """The FedCAC strategy; the defaults of its options are the ones in the authors' code."""

    name: ClassVar[str] = "fedcac"

    @property
    def coordinate_rules(self) -> bool:
        """Return True, as such a rule can replace the mean G."""
        return True

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return d on the device's critical elements, G elsewhere, and its own statistics."""
        if client.trained is None or client.sent is None:
            return Assignment()
        critical = critical_places(context.layout, client.sent, client.trained, self.fraction)
        if critical.size == 0:
            return Assignment()
        if context.round > self.beta:
            values = client.trained[critical]
        else:
            models = ((theta, None) for theta, _ in trained_models([client, *client.group]))
            values = group_mean(critical, models, counted=False)
        patch = SparseVector(context.layout.size, critical.astype(np.uint32), values)
        return Assignment(patch)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the weighted mean of the trained models, and the next groups."""

        def critical(update: Update, delta: SparseVector) -> Places:
            return critical_places(context.layout, delta, update.trained, self.fraction)

        masks = self.masks(context)
        change = average_change(context, MaskRecorder(updates, masks, critical))
        groups = next_groups(context, masks, self.beta)
        return context.replaced(context.theta + change, groups=groups)


def critical_places(layout: Layout, delta: SparseVector, trained: Theta, fraction: float) -> Places:
    """Return m, the ascending places at which c = |delta * trained| is in its tensor's top ``fraction``.

    These are int(fraction * numel) elements of each parameter tensor, plus any that tie with the smallest
    of these. If that smallest c is 1e-10 or less, every c above 1e-20 is critical instead, as in the
    authors' code; if no c is, no element is critical (in the authors' code, all are). Statistics are never
    critical.
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
