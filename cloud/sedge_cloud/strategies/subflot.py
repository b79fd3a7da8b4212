"""SubFLOT: each device trains a narrow model that optimal transport derives from the fleet's.

Implemented from public notes on the paper (CVPR 2026, arXiv 2604.06631), as there is no code. For device i,
which lacks the share rho of the channels, with last trained sub-model W_i, and the global model W_G:

    OTP   W_al = T(W_G), the global model in the neurons of W_i               neuron_alignment.py
          W~_i = a W_al + (1 - a) W_i                                         where the device starts
    SAR   loss + lam rho ||W - W~_i||^2                                       prox_for, below
    OTA   W_G' = sum_i p_i T_i(W_i), W_i in the neurons of W_G                in the other direction

A device without history in its width, or with an untrusted one (``strategy.ClientModel``), starts from the
first channels of W_G, as no W~_i may be derived from an unfiltered change. Where the notes leave choices
open, this uses uniform marginals, plain distances, no transport of classes and inputs, and the ``mass``
rule, without which a smaller model would not preserve the function. BatchNorm's statistics stay on the
device, whose neurons keep their order. With ``assign``, channels of W_G to which no device's channel was
assigned keep their values.

The effect of lambda depends on how far a round's steps can move a model, so the same value does not suit
different training lengths. Instead, the option ``pull`` is the share of a model's distance from its start
that the term alone would take back in a round: .11 for the paper's lambda of 1 in 59 steps of rate .001.
``prox_for`` computes the strength for the number of steps that the device took in its last round. Before a
device's first update that number is unknown, and there is no pull. The model has n parameters, and a width
m of them.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta

from sedge_cloud.algorithms.neuron_alignment import Aligner, Normalisation
from sedge_cloud.algorithms.optimal_transport import MIN_REG, Solver, require_solver
from sedge_cloud.algorithms.submodels import (
    WHOLE,
    ElementMean,
    Places,
    count_change,
    form_of,
    places_of,
    prefix,
)
from sedge_cloud.algorithms.width_policy import WidthPolicy
from sedge_cloud.strategy import EVERY_ELEMENT, Assignment, ClientModel, Context, State, Update
from sedge_protocol.codec import ValueCoding
from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import MAX_PROX, Training
from sedge_protocol.wire.work import Codec, Work

Weighting = Literal["examples", "uniform", "width"]


class SubFLOT(WidthPolicy, frozen=True):
    """The SubFLOT strategy, with the options of ``WidthPolicy`` and its own.

    Without ``otp``, use ``literal`` or ``assign``, or turn off ``ota`` as well: the mass rule spreads a
    narrow model's weights over all channels of W_G, and a slice of these channels then gets only a few of
    the weights.
    """

    name: ClassVar[str] = "subflot"

    mix: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Share of the global model in a device's start; the paper's a."""
    pull: Annotated[float, Meta(ge=0, lt=1)] = 0.11
    """Share of a model's distance from its start that SAR undoes per round if all channels are missing;
    0.11 is about the paper's lambda."""
    solver: Solver = "emd"
    """Transport plan: ``emd`` merges neurons, ``sinkhorn`` merges them more softly, ``assign`` leaves
    some out."""
    reg: Annotated[float, Meta(ge=MIN_REG, le=1)] = 0.01
    """Softness of the plans that ``sinkhorn`` makes, as a share of the largest distance."""
    normalisation: Normalisation = "mass"
    """How tensors that read channels are normalised: by ``mass``, which preserves the function, or
    ``literal``, like those that output channels."""
    weighting: Weighting = "examples"
    """Weight of a device: by its ``examples``, ``uniform``, or ``width``, its examples times the share of
    channels that it has."""
    otp: bool = True
    """Derive each start from the global model by transport; without it, every start is the first channels
    of W_G."""
    sar: bool = True
    """Pull every device's model towards its start during training, in addition to the run's ``prox``."""
    ota: bool = True
    """Average in the neurons of the global model; without it, average by position, as HeteroFL does."""

    @property
    def codec(self) -> Codec:
        """Return the codec that sends every element, as a partly known model cannot be aligned."""
        return EVERY_ELEMENT

    @property
    def patch_values(self) -> ValueCoding:
        """Return int8, as every device gets its own start."""
        return ValueCoding.INT8

    def init(self, context: Context) -> State:
        """Return the run's first model. Raises ``ConfigError`` if SciPy is needed but missing."""
        if self.otp or self.ota:
            require_solver(self.solver)
        return super().init(context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return W~_i, the pull towards it, and the device's own statistics."""
        width, arrays = self.width_of(context, client)
        start = None
        past = client.trained if client.trusted and client.width == width else None
        if self.otp and past is not None:
            start = self._extracted(context, past, width)
        elif width:
            start = context.theta[_prefix(context, width)]
        pulled = None
        if self.sar and width and client.steps:
            share = 1 - (1 - self.pull) ** context.widths[width].dropped
            prox = context.training.prox + prox_for(share, context.training, client.steps)
            prox = min(prox, MAX_PROX)  # huge if a device reports few steps at tiny rates
            pulled = msgspec.structs.replace(context.training, prox=prox)
        return Assignment(work=Work(training=pulled), arrays=arrays, start=start, width=width)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the weighted mean of the trained models, each aligned with the global model's neurons."""

        def weight(update: Update) -> float:
            if self.weighting == "uniform":
                return 1
            dropped = context.widths[update.width].dropped if update.width else 0.0
            return update.num_examples * (1 - dropped if self.weighting == "width" else 1)

        if not self.ota:
            change = count_change(context, updates, lambda width: _prefix(context, width), weight)
            return context.replaced(context.theta + change)
        mean = ElementMean(context.theta)
        for update in updates:
            carried = self._aligner.align(
                update.trained, form_of(context, update.width), context.theta, form_of(context, 0)
            )
            mean.add_vector(carried.theta, weight(update), WHOLE, carried.cover)
        return context.replaced(context.theta + mean.change())

    @property
    def _aligner(self) -> Aligner:
        return Aligner(self.solver, self.reg, self.normalisation)

    def _extracted(self, context: Context, own: Theta, width: int) -> Theta:
        """Compute W~_i (m,) from a device's last model ``own`` (m,)."""
        form = form_of(context, width)
        aligned = self._aligner.align(context.theta, form_of(context, 0), own, form).theta
        return (own + self.mix * (aligned - own)).astype(np.float32, copy=False)


def prox_for(share: float, training: Training, steps: int) -> float:
    """Return the ``prox`` that alone would take back a share (below 1) of a distance in ``steps`` steps.

    Each step keeps the same part of the distance, 1 - prox * rate, at the mean of the scheduled rates.
    Momentum m moves a model 1 / (1 - m) times as far. With Adam, which normalises the sum of gradient and
    pull, the share is nominal.
    """
    kept: float = (1 - share) ** (1 / steps)
    return (1 - kept) * (1 - training.momentum) / training.mean_rate(steps)


def _prefix(context: Context, width: int) -> Places:
    form = form_of(context, width)
    return places_of(form_of(context, 0), form, prefix(form))
