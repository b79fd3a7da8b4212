"""FedOBP: the few parameters in which a device's model differs most from the fleet's stay personal.

From a device's last trained model th_i and the global model th_g, the server computes

    I   = (th_i - th_g)^2                  importance of every scored element       (n,)
    K   = {k : I_k > quantile_q(I)}        the personal set, quantile by linear interpolation
    th~ = th_i on K, th_g elsewhere        where the device starts

and the next th_g is the mean of all trained models weighted by ``num_examples``, personal elements
included, as in the authors' code. The scoring on the server follows arXiv 2604.16574. BatchNorm statistics
are neither scored nor averaged: counters such as num_batches_tracked would outweigh every weight.

With ``scoring = "device"`` each device scores its own model with the same functions and starts from its own
elements; its update is the difference from th_g. In this mode planning reads no device's model, no patch is
sent, and the positions in K never leave the device. Secure aggregation, in which the cloud learns only the
sum, requires this. But the mode is not secure aggregation: each update arrives individually, and th_g +
update is th_i. So the mode alone hides nothing from the cloud.

Extensions beyond the papers are ``energy`` (thresholds.py) and ``holdout``; both are off by default and
need ``scoring = "cloud"``. The model has n parameters, of which s are scored and k are personal.
"""

from collections.abc import Iterable, Sequence
from math import isqrt
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.algorithms.thresholds import by_energy
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.decimal_shares import floor_of
from sedge_protocol.errors import ConfigError, StrategyError
from sedge_protocol.importance import (
    Score,
    importance,
    kept,
    min_max,
    positions,
    quantile_for,
    select,
)
from sedge_protocol.layout import Layout, Role, Tensor, Theta
from sedge_protocol.wire.work import DeviceScoring, Work

Norm = Literal["none", "global", "layer"]
ColdStart = Literal["global", "init"]
Scoring = Literal["cloud", "device"]
Scores = NDArray[np.float32]
Share = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]

# The key of a device's smoothed importance (s,) in ``ClientModel.arrays``.
IMPORTANCE = "importance"
# The options that also apply to scoring on the device.
ON_DEVICE = ("quantile", "score", "norm", "classifier_only", "scoring")
NEEDS_GRADIENT = ("gradient", "fisher")
# The paper's quantile for Fashion-MNIST. It selects 41 of 582,026 elements, but none of 642.
PAPER_QUANTILE = 0.99993


class FedOBP(Strategy, frozen=True):
    """The FedOBP strategy; by default, the paper's method with a quantile that suits any model size.

    ``product`` is |(th_i - th_g) th_i|, the score in the authors' released logs; ``gradient`` is |g| and
    ``fisher`` is g^2, with the gradient g of the last batch. Raises ``ConfigError`` for mutually
    exclusive options.
    """

    name: ClassVar[str] = "fedobp"

    quantile: Share | Literal["auto", "paper"] = "auto"
    """Share of the scored elements that stays global: ``auto`` keeps the square root of their number
    personal, ``paper`` is 0.99993 (41 of 582,026)."""
    score: Score = "squared"
    """Score of an element: ``squared`` or ``product``, or the paper's baselines ``gradient`` and
    ``fisher``, which need `scoring = "device"`."""
    norm: Norm = "none"
    """Normalisation of the scores: ``layer`` is min-max per tensor; ``global`` equals ``none``, as
    min-max keeps the order."""
    classifier_only: bool | tuple[str, ...] = False
    """Elements to score: true for the last module only, or the names of tensors; ``quantile`` then refers
    to these."""
    ema: BelowOne = 0.0
    """Weight a of the past in a device's smoothed importance, E <- (1 - a) I + a E; 0 turns it off."""
    cold_start: ColdStart = "global"
    """Where a device without history starts: ``global`` from the global model, ``init`` as if its last
    model had been the run's first one."""
    scoring: Scoring = "cloud"
    """Where elements are scored: in the ``cloud``, or on each ``device``, as secure aggregation requires;
    on its own, that hides nothing."""
    energy: BelowOne = 0.0
    """Select the fewest elements whose scores add up to this share of the total, instead of by
    ``quantile``; 0 turns it off."""
    most: Annotated[float, Meta(gt=0, le=1)] = 0.01
    """Maximum share of the scored elements that ``energy`` may select."""
    holdout: BelowOne = 0.0
    """Share of its training examples on which a device checks that its personal elements help before it
    starts with them; 0 turns it off."""

    def __post_init__(self) -> None:
        if self.classifier_only == ():
            raise ConfigError("classifier_only", (), "true, false or names of tensors")
        if self.scoring == "cloud" and self.score in NEEDS_GRADIENT:
            expected = 'squared or product; the others need a gradient, thus scoring = "device"'
            raise ConfigError("score", self.score, expected)
        for option in msgspec.structs.fields(self) if self.scoring == "device" else ():
            if option.name not in ON_DEVICE and getattr(self, option.name) != option.default:
                expected = f'{option.default!r} with scoring = "device": the cloud scores nothing'
                raise ConfigError(option.name, getattr(self, option.name), expected)

    @property
    def coordinate_rules(self) -> bool:
        """Return True, as such a rule can replace the mean."""
        return True

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Warn if so few elements are personal that the method is equivalent to FedAvg, or nearly so."""
        said: list[str] = []
        size = sum(tensor.size for tensor in self.scored(layouts[0]))
        number = kept(size, self._share(size))
        if not self.energy and number <= 1:
            said.append(
                f"quantile {self._share(size):g} of {size:,} elements keeps at most {number} personal, "
                f"which amounts to FedAvg; omit quantile to keep {kept(size, FedOBP()._share(size))}"
            )
        most = floor_of(self.most, size)
        if self.energy and most <= 1:
            said.append(
                f"most = {self.most:g} of {size:,} elements keeps at most {most} personal,"
                " which amounts to FedAvg"
            )
        if personal == 0 and self.scoring == "cloud":
            said.append(
                "no element is personal, as in FedAvg; tied scores, such as those of a two-class head's "
                "rows, are left out together"
            )
        return tuple(f"{self.name}: {text}" for text in said)

    def init(self, context: Context) -> State:
        """Return the run's first model. Raises ``ConfigError`` if ``classifier_only`` has a bad name."""
        self.scored(context.layout)
        return super().init(context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the patch of the device's personal parameters, with its own statistics."""
        if self.scoring == "device":
            return Assignment(work=Work(scoring=self._scoring(context.layout)))
        first = context.initial if self.cold_start == "init" else None
        history = first if client.trained is None else client.trained
        if history is None:
            return Assignment(holdout=self.holdout)
        tensors = self.scored(context.layout)
        scores = importance(history, context.theta, tensors, self.score)
        arrays: dict[str, NDArray[np.float32]] = {}
        if self.ema > 0:
            scores = smooth(scores, client.arrays.get(IMPORTANCE), self.ema)
            arrays[IMPORTANCE] = scores
        if self.norm == "layer":
            scores = min_max(scores, tensors)
        patch = self._patch(scores, tensors, context.layout, history)
        return Assignment(patch, arrays=arrays, holdout=self.holdout)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the weighted mean of the trained models, personal elements included."""
        return context.moved(average_change(context, updates))

    def scored(self, layout: Layout) -> tuple[Tensor, ...]:
        """Return the tensors that are scored.

        Raises ``ConfigError`` if a name is not that of a parameter.
        """
        parameters = {t.name: t for t in layout.tensors if t.role is Role.PARAMETER}
        if self.classifier_only is False:
            return tuple(parameters.values())
        names = layout.head if self.classifier_only is True else self.classifier_only
        unknown = [name for name in names if name not in parameters]
        if unknown:
            raise ConfigError("classifier_only", unknown, f"names among {sorted(parameters)}")
        return tuple(t for t in parameters.values() if t.name in names)

    def _scoring(self, layout: Layout) -> DeviceScoring:
        """Return the part of an order that tells a device how to score its own model."""
        names = () if self.classifier_only is False else tuple(t.name for t in self.scored(layout))
        size = sum(tensor.size for tensor in self.scored(layout))
        return DeviceScoring(self._share(size), self.score, self.norm, names)

    def _share(self, size: int) -> float:
        """Return the quantile for this number of scored elements."""
        if self.quantile == "auto":
            return quantile_for(isqrt(size), size)
        return PAPER_QUANTILE if self.quantile == "paper" else self.quantile

    def _chosen(self, scores: Scores) -> NDArray[np.uint32]:
        """Return K as sorted indices into the scores (s,).

        Raises ``LocalError`` if a score is not finite.
        """
        if self.energy > 0:
            return by_energy(scores, self.energy, self.most)
        return select(scores, self._share(scores.size))

    def _patch(
        self, scores: Scores, tensors: tuple[Tensor, ...], layout: Layout, history: Theta
    ) -> SparseVector | None:
        """Return the personal elements with their values; None if there are none."""
        chosen = self._chosen(scores)
        if chosen.size == 0:
            return None
        indices = positions(chosen, tensors)
        return SparseVector(layout.size, indices, history[indices])


def smooth(scores: Scores, past: Scores | None, ema: float) -> Scores:
    """Return E (s,) = (1 - ema) * scores + ema * past; without ``past``, the scores themselves.

    ``past`` is the E of the device's last plan. Raises ``StrategyError`` if ``past`` has another shape.
    """
    if past is None:
        return scores
    if past.shape != scores.shape:
        raise StrategyError(f"{IMPORTANCE}: shape {past.shape} in memory, expected {scores.shape}")
    return np.multiply(scores, np.float32(1 - ema)) + np.multiply(past, np.float32(ema))
