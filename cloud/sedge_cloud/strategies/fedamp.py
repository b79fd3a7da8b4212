"""FedAMP: each device learns most from the devices whose models are like its own.

Huang et al. 2021, Personalized Cross-Silo Federated Learning on Non-IID Data, in the form for deep networks
(HeurFedAMP), which compares models by the angle between them. With w_i device i's last model, over all
devices j that have sent one:

    x_ij = (1 - own) e^{sigma cos(w_i, w_j)} / sum_{h != i} e^{sigma cos(w_i, w_h)}      for j != i
    u_i  = own w_i + sum_{j != i} x_ij w_j
    w_i <- min over v of F_i(v) + pull/2 ||v - u_i||^2       by the run's training, which starts from u_i

``pull`` is the paper's lambda / alpha. The paper leaves open where a training starts. Angles are between
parameters: BatchNorm's statistics stay on the device. A device without a past, or whose last model is not
trusted, starts from the mean of the round's models by examples.

Every device gets a vector of its own, and planning a round compares each of its N devices with all M that
are known: N M n operations. The paper means tens or hundreds of devices. n = parameters.
"""

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.strategy import (
    EVERY_ELEMENT,
    Assignment,
    ClientModel,
    Context,
    State,
    Strategy,
    Update,
)
from sedge_protocol.codec import ValueCoding
from sedge_protocol.layout import Theta
from sedge_protocol.wire.work import Codec, Work


class FedAMP(Strategy, frozen=True):
    """The options of FedAMP."""

    name: ClassVar[str] = "fedamp"

    own: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """Weight of a device's own model in its start vector; the others share the rest."""
    sigma: Annotated[float, Meta(ge=0, le=300)] = 50.0
    """How much a device prefers similar models; 0 weights all others equally."""
    pull: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.1
    """Strength of the pull towards the start vector, instead of ``training.prox``."""

    @property
    def coordinate_rules(self) -> bool:
        """Yes, for the model of devices without a past."""
        return True

    @property
    def codec(self) -> Codec:
        """Everything: the coordinator has to know each device's model."""
        return EVERY_ELEMENT

    @property
    def patch_values(self) -> ValueCoding:
        """int8: every device gets its own vector."""
        return ValueCoding.INT8

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """u_i, and a training that is pulled towards it."""
        work = Work(training=msgspec.structs.replace(context.training, prox=self.pull))
        if client.trained is None or not client.trusted:
            return Assignment(work=work)
        statistics = context.layout.mask(context.layout.statistics)
        total, weights = np.zeros(client.trained.size), 0.0
        for other in client.group:
            if other.trained is not None:
                angle = _cosine(client.trained, other.trained, statistics)
                weight = math.exp(self.sigma * (angle - 1))
                total += weight * other.trained
                weights += weight
        start = client.trained.astype(np.float64)
        if weights:
            start = self.own * start + (1 - self.own) / weights * total
        return Assignment(work=work, start=start.astype(np.float32))

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """The mean of the trained models, and who is known: each device's others."""
        known = {*context.groups, *(update.device for update in updates)}
        groups = {name: tuple(sorted(known - {name})) for name in known}
        return context.moved(average_change(context, updates), groups=groups)


def _cosine(one: Theta, other: Theta, statistics: NDArray[np.bool_]) -> float:
    """The cosine of the angle between two models (n,), without ``statistics``; 0 where either is 0."""
    a, b = one[~statistics].astype(np.float64), other[~statistics].astype(np.float64)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else 0.0
