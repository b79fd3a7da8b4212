"""FedPURIN: devices send only the elements that their loss depends on, and share them with similar devices.

Algorithm 1 for device i in round t; th_i is its trained model, m_i the elements that it sent:

    c = |g th_i|, per tensor the largest tau of c           on the device: messages.UpdateSelection
    C_i = the devices whose masks overlap with m_i           collaboration.py
    d_i = 1/(|C_i| + 1) sum_{j in C_i + i} th_j m_j          what the device gets on m_i
    G   = sum_j (n_j / n) th_j m_j                           what it gets elsewhere
    next start: d_i on m_i, G elsewhere; BatchNorm's tensors stay on the device (FedBN)

g is the gradient of the last batch; ``gradient`` and ``hessian`` give the four rows of Table 2. After round
beta nobody collaborates: d_i is th_i on m_i, which the device has kept, so it need not be sent. A device
that has sent no elements yet starts from G. collaboration.py says how partial participation is handled.

The paper's averages take zero wherever a device did not send (``average = "shrunk"``): an element that
nobody sends is zero in G. "counted" and "filled" are our own additions; coordinate-wise robust rules can
only be used with "filled".

The paper's accuracy "before aggregation" is the accuracy of th_i m_i, measured after training with all
unsent elements set to zero: ``Report.sparse``. Its isLocal variant, in which the device's own dense model
replaces G, has no global model and is not implemented. n is the number of parameters, k the number of
elements sent.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.algorithms.collaboration import (
    Grouped,
    MaskRecorder,
    group_mean,
    next_groups,
    places,
    trained_models,
)
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Role, Theta
from sedge_protocol.wire.work import UpdateSelection, Work

Gradient = Literal["last", "delta"]
Average = Literal["shrunk", "counted", "filled"]


class FedPURIN(Grouped, frozen=True):
    """The FedPURIN strategy, by default as in the paper's Table 1 on Fashion-MNIST."""

    name: ClassVar[str] = "fedpurin"

    gradient: Gradient = "last"
    """Gradient in the criterion c: that of the ``last`` batch, or ``delta``, the change made by training,
    as in FedCAC."""
    hessian: bool = False
    """Add the second-order term to the criterion: c = |-g th + (g th)^2 / 2|."""
    half: bool = True
    """Round the last batch's gradient to fp16 first, as the authors' code does."""
    cutoff: Annotated[float, Meta(ge=0, le=1)] = 1e-10
    """Value of the criterion c up to which elements are not sent."""
    average: Average = "shrunk"
    """How an element that a device did not send counts: ``shrunk`` as zero (the paper), ``counted`` not
    at all, ``filled`` as it was before training."""

    @property
    def coordinate_rules(self) -> bool:
        """Return True only if elements that were not sent are ``filled``."""
        return self.average == "filled"

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return d on the elements that the device last sent, G elsewhere, and the next selection."""
        select = UpdateSelection(
            fraction=self.fraction,
            gradient=self.gradient,
            hessian=self.hessian,
            cutoff=self.cutoff,
            half=self.half and self.gradient == "last",
        )
        work = Work(keep=context.layout.normalisation, select=select, remember=True)
        return Assignment(self._patch(context, client), work)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the next G, and the next groups."""
        masks = self.masks(context)
        seen = MaskRecorder(updates, masks, lambda _, delta: places(delta))
        theta: Theta | NDArray[np.float64]
        if self.average == "filled":
            theta = context.theta + average_change(context, seen)
        else:
            theta = sparse_mean(seen, context.theta, self.average == "counted")
        groups = next_groups(context, masks, self.beta)
        return context.replaced(theta, groups=groups, fixed=context.layout.normalisation)

    def _patch(self, context: Context, client: ClientModel) -> SparseVector | None:
        """Return d on m; after round beta these are the device's own values, bit for bit."""
        if client.trained is None or client.sent is None or not client.sent.count:
            return None
        critical = places(client.sent)
        if context.round > self.beta:
            values = client.trained[critical]
        else:
            dense = self.average == "filled"
            members = trained_models([client, *client.group])
            models = ((theta, None if dense else sent.where) for theta, sent in members)
            values = group_mean(critical, models, self.average == "counted")
        return SparseVector(context.layout.size, client.sent.indices, values)


def sparse_mean(updates: Iterable[Update], theta: Theta, counted: bool) -> Theta:
    """Compute G (n,), the mean weighted by ``num_examples`` of models known only where they were sent.

    An element that a device did not send counts as zero or, if ``counted``, is left out of the mean. In the
    latter case an element that nobody sent keeps its value from ``theta``, the last G. With no updates, G
    is a copy of theta.
    """
    total = np.zeros(theta.size, np.float64)
    weight = np.zeros(theta.size, np.float64)
    weights = 0
    for update in updates:
        weights += update.num_examples
        if update.delta is not None:
            sent = update.delta.where
            total[sent] += np.multiply(update.trained[sent], update.num_examples, dtype=np.float64)
            if counted:
                weight[sent] += update.num_examples
    if weights == 0:
        return theta.copy()
    if not counted:
        return (total / weights).astype(np.float32)
    np.divide(total, weight, out=total, where=weight > 0)
    return np.where(weight > 0, total, theta).astype(np.float32)


class Accounted(NamedTuple):
    """One device's bytes in one round, as the paper counts them."""

    up: float
    down: float


def accounted_bytes(
    context: Context, client: ClientModel, assignment: Assignment, beta: int
) -> Accounted:
    """Count the bytes of a device's update and of its next start, as the paper's Table 3 does.

    The update is the one from round ``context.round``. Up: 4 bytes for every parameter sent, and one bit
    for every parameter. Down: 4 bytes for every nonzero element of the start, but after round beta only for
    elements outside the mask. Data that the device keeps does not count. The bytes that Sedge sends differ:
    G is sent once for the whole fleet, and everything is encoded.
    """
    layout = context.layout
    parameters = layout.mask(t.name for t in layout.tensors if t.role is Role.PARAMETER)
    up = 0.0
    if client.sent is not None:
        up = 4 * np.count_nonzero(parameters[client.sent.where]) + parameters.sum() / 8
    start = context.theta.copy()
    start[layout.mask(assignment.work.keep)] = 0
    if assignment.patch is not None:
        start[assignment.patch.where] = 0 if context.round > beta else assignment.patch.values
    return Accounted(float(up), 4.0 * np.count_nonzero(start))
