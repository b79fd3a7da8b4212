"""SubFLOT: each device trains a narrow model that optimal transport cuts for it out of the fleet's.

From public notes on the paper (CVPR 2026, arXiv 2604.06631; there is no code). For device i of rate rho
(the share of channels that it lacks) with last trained sub-model W_i, and the global model W_G:

    OTP   W_al = T(W_G), the global model in the neurons of W_i               neuron_alignment.py
          W~_i = a W_al + (1 - a) W_i                                         where the device starts
    SAR   loss + lam rho ||W - W~_i||^2                                       prox = 2 lam rho
    OTA   W_G' = sum_i p_i T_i(W_i), W_i in the neurons of W_G                likewise, the other way round

A device without a past in its width, or with one that is not trusted (``strategy.Memory``), starts from the
first channels of W_G: no W~_i is made of a change that was not vetted. What the notes leave open and is
ours: uniform marginals, plain distances, no transport of classes and inputs, and the ``mass`` rule, without
which shrinking loses the function. BatchNorm's statistics stay on the device, whose neurons keep their
order. With ``assign`` the channels of W_G that no device's became keep their values.
n = parameters, m = those of a width.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import msgspec
import numpy as np

from sedge_cloud.algorithms.averaging import moved
from sedge_cloud.algorithms.neuron_alignment import Aligner, Normalisation
from sedge_cloud.algorithms.optimal_transport import MIN_REG, Solver, require
from sedge_cloud.algorithms.submodels import (
    WHOLE,
    Places,
    Tally,
    count_average,
    form_of,
    places_of,
    prefix,
)
from sedge_cloud.algorithms.width_policy import Sized
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.errors import ConfigError
from sedge_protocol.importance import importance, positions, select
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import Training

Weighting = Literal["examples", "uniform", "width"]


@dataclass(frozen=True)
class SubFLOT(Sized):
    """The options of SubFLOT: who gets which width (``Sized``), and the method's own.

    Raises ``ConfigError`` for a value out of range.
    """

    coordinate_rules: ClassVar[bool] = False
    absolute: ClassVar[bool] = True

    mix: float = 0.5
    """a, 0 to 1: the share of the global model in a device's start."""
    lam: float = 1.0
    """lam of SAR, 0 or more."""
    solver: Solver = "emd"
    """``emd`` merges neurons, ``sinkhorn`` more softly, ``assign`` leaves some out (optimal_transport.py)."""
    reg: float = 0.01
    """Of the largest distance, .002 to 1: how soft the plans of ``sinkhorn`` are."""
    normalisation: Normalisation = "mass"
    """``literal``: tensors that take channels are normalised as those that make them."""
    weighting: Weighting = "examples"
    """p_i by ``num_examples``, all alike, or ``num_examples`` times (1 - rho)."""
    otp: bool = True
    """False: every start is the first channels of W_G. It goes with ``literal``, ``assign`` or without OTA:
    the mass rule shares a narrow model's weights out to all channels of W_G, of which a slice has few."""
    sar: bool = True
    """False: no pull towards the start beyond the run's own ``prox``."""
    ota: bool = True
    """False: every element is the mean over the devices that have it at its position (HeteroFL)."""
    quantile: float | None = None
    """q, 0 to 1: the start is W_al but for the elements whose (W_i - W_al)^2 lies above their q-quantile,
    which stay W_i (FedOBP's choice). It takes the place of ``mix``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = (("solver", Solver), ("normalisation", Normalisation), ("weighting", Weighting))
        for key, options in named:
            if getattr(self, key) not in get_args(options):
                raise ConfigError(key, getattr(self, key), f"one of {get_args(options)}")
        if not 0 <= self.mix <= 1:
            raise ConfigError("mix", self.mix, "a number from 0 to 1")
        if not 0 <= self.lam <= 1e5:
            raise ConfigError("lam", self.lam, "a number from 0 to 100000")
        if not MIN_REG <= self.reg <= 1:
            raise ConfigError("reg", self.reg, f"a number from {MIN_REG} to 1")
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise ConfigError("quantile", self.quantile, "a number from 0 to 1")

    @property
    def name(self) -> str:
        """``subflot``."""
        return "subflot"

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as the first global model. Raises ``ConfigError`` without SciPy."""
        if self.otp or self.ota:
            require(self.solver)
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """W~_i, the pull towards it, and the device's own statistics."""
        width, arrays = self.width_of(state, memory)
        start = None
        past = memory.trained if memory.trusted and memory.width == width else None
        if self.otp and past is not None:
            start = self._extracted(state, past, width)
        elif width:
            start = state.theta[_prefix(state, width)]
        pulled = None
        if self.sar and width:
            prox = training.prox + 2 * self.lam * state.widths[width].rate
            pulled = msgspec.structs.replace(training, prox=prox)
        return Assignment(
            keep=state.layout.statistics,
            arrays=arrays,
            start=start,
            width=width,
            training=pulled,
        )

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The weighted mean of the trained models in the neurons of the global one."""

        def weight(update: Update) -> float:
            if self.weighting == "uniform":
                return 1
            rate = state.widths[update.width].rate if update.width else 0.0
            return update.num_examples * (1 - rate if self.weighting == "width" else 1)

        if not self.ota:
            return count_average(state, updates, lambda width: _prefix(state, width), weight)
        tally = Tally(state.theta)
        for update in updates:
            carried = self._aligner.align(
                update.trained, form_of(state, update.width), state.theta, form_of(state, 0)
            )
            tally.vector(carried.theta, weight(update), WHOLE, carried.cover)
        return moved(state, tally.mean())

    @property
    def _aligner(self) -> Aligner:
        return Aligner(self.solver, self.reg, self.normalisation)

    def _extracted(self, state: State, own: Theta, width: int) -> Theta:
        """W~_i (m,) for the last model ``own`` (m,) of a device."""
        form = form_of(state, width)
        aligned = self._aligner.align(state.theta, form_of(state, 0), own, form).theta
        if self.quantile is None:
            return (own + self.mix * (aligned - own)).astype(np.float32, copy=False)
        scored = tuple(t for t in form.layout.tensors if t.role is Role.PARAMETER)
        scores = importance(own, aligned, scored, "squared")
        personal = positions(select(scores, self.quantile), scored).astype(np.intp)
        aligned[personal] = own[personal]
        return aligned


def _prefix(state: State, width: int) -> Places:
    form = form_of(state, width)
    return places_of(form_of(state, 0), form, prefix(form))
