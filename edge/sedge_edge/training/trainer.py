"""The interface of a backend: train, evaluate and predict with one bundle.

n is the number of the model's parameters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.examples import Examples, Inputs
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire import refusals
from sedge_protocol.wire.arrays import Arrays
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import Setting

# Converts the mean over the rows into the metric that people read (``Metric.reported``).
Reported: TypeAlias = Callable[[float], float]
# Copies a vector (n,) into another form, for example in another element order or on another processor.
Move: TypeAlias = Callable[[Theta], Theta]


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Where training was stopped: after ``steps`` steps, with these ``losses`` in the unfinished epoch.

    ``vectors`` (n,) are the models and their optimizers' state, and ``mix`` is the share of a mixture.
    ``mean`` (n,) is the mean of the models so far, if the training computes one.
    """

    steps: int
    losses: tuple[float, ...]
    vectors: tuple[Theta, ...]
    mix: float
    mean: Theta | None = None


@dataclass(frozen=True, eq=False)
class Moments:
    """An optimizer's state after a phase: its name, the number of steps made, and its vectors (n,)."""

    optimizer: str
    steps: int
    vectors: tuple[Theta, ...]


@dataclass(frozen=True, eq=False)
class SecondModel:
    """The device's own part (n,) of a mixture, which APFL trains at the same time (steppers/apfl.py).

    ``mix`` is this part's share of the mixture. If ``adaptive``, training updates the share as well.
    """

    theta: Theta
    mix: float
    adaptive: bool = False


@dataclass(frozen=True, eq=False)
class Exchange:
    """What a training function receives and returns in addition to the model: settings and arrays, by name.

    ``returns`` maps the name of each array (m,) that training must return to its number of elements.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    returns: Mapping[str, int] = field(default_factory=dict[str, int])


NOTHING = Exchange()


@dataclass(frozen=True, eq=False)
class Guidance:
    """The inputs of a guided loss, by the names in ``Guide``: reference models (n,), and arrays (m,)."""

    models: Arrays
    arrays: Arrays

    @property
    def inputs(self) -> Arrays:
        """The models and arrays together, as inputs to the program."""
        return {**self.models, **self.arrays}

    def moved(self, move: Move) -> "Guidance":
        """Return a copy with ``move`` applied to every model (n,)."""
        return replace(self, models={name: move(theta) for name, theta in self.models.items()})


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """A request for one training phase, from theta (n,), which is not modified.

    ``training`` specifies the steps. ``training.prox`` pulls towards ``anchor`` (n,), which is theta by
    default. ``gradient`` requests the last batch's gradient. ``correction`` (n,) is added to the gradient
    of every step, except in statistics, which have no gradient. The optimizer starts from the state
    ``moments``. ``second`` is trained alongside theta. ``exchange`` is only for trainers that announce
    ``settings`` and ``arrays``. With ``guidance``, the loss is the bundle's guided loss.
    """

    theta: Theta
    training: Training
    seed: int
    anchor: Theta | None = None
    gradient: bool = False
    correction: Theta | None = None
    moments: Moments | None = None
    second: SecondModel | None = None
    exchange: Exchange = NOTHING
    guidance: Guidance | None = None

    @property
    def vectors(self) -> list[Theta]:
        """Every vector (n,) that must fit the layout."""
        second = None if self.second is None else self.second.theta
        references = () if self.guidance is None else self.guidance.models.values()
        vectors = (self.theta, self.anchor, self.correction, second, *references)
        return [vector for vector in vectors if vector is not None]

    def moved(self, move: Move) -> "TrainRequest":
        """Return a copy with ``move`` applied to every vector (n,)."""
        return replace(
            self,
            theta=move(self.theta),
            anchor=_moved(self.anchor, move),
            correction=_moved(self.correction, move),
            moments=_moved_moments(self.moments, move),
            second=self.second and replace(self.second, theta=move(self.second.theta)),
            guidance=self.guidance and self.guidance.moved(move),
        )


@dataclass(frozen=True)
class Trained:
    """The result of a training phase: theta (n,), the last epoch's mean loss per example, the step count.

    ``gradient`` (n,), if requested, is the gradient of the last batch's mean loss, taken before that
    batch's step and without the prox term. It is 0 in frozen tensors and in statistics. ``num_examples`` is
    the number of training examples used, or None if all were used. ``moments`` is the optimizer's state, if
    it is to be kept. ``second`` is the model trained alongside, with its current mix. ``mean`` (n,) is the
    mean of the models after the last steps, if the request asked for one; the device then predicts with it.
    ``arrays`` (m,) are the arrays that the request's ``exchange`` asked for.
    """

    theta: Theta
    loss: float
    steps: int
    gradient: Theta | None = None
    num_examples: int | None = None
    moments: Moments | None = None
    second: SecondModel | None = None
    mean: Theta | None = None
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])

    @property
    def model(self) -> Theta:
        """The model that the device predicts with, (n,)."""
        return self.theta if self.mean is None else self.mean

    def moved(self, move: Move) -> "Trained":
        """Return a copy with ``move`` applied to every vector (n,)."""
        return replace(
            self,
            theta=move(self.theta),
            gradient=_moved(self.gradient, move),
            moments=_moved_moments(self.moments, move),
            second=self.second and replace(self.second, theta=move(self.second.theta)),
            mean=_moved(self.mean, move),
        )


def _moved(vector: Theta | None, move: Move) -> Theta | None:
    return None if vector is None else move(vector)


def _moved_moments(moments: Moments | None, move: Move) -> Moments | None:
    return moments and replace(moments, vectors=tuple(map(move, moments.vectors)))


class TrainingStopped(SedgeError):
    """Training was stopped on purpose. If there is a ``state``, training can continue from it."""

    def __init__(self, text: str, state: TrainingState | None = None) -> None:
        super().__init__(text)
        self.state = state


class TrainingDiverged(SedgeError):
    """The model or its loss is no longer finite, so the settings do not suit this device's data."""


def evaluation(sums: Sequence[float], count: int, reported: Reported) -> Metrics:
    """Return the result of an evaluation over ``count`` examples. ``reported`` converts the mean metric.

    ``sums`` are the weighted sums of the losses and the metrics, and the sum of the weights. Raises
    ``TrainingDiverged`` if a mean is NaN or inf, or if all weights are 0.
    """
    loss_sum, metric_sum, weight_sum = sums
    if weight_sum == 0:
        raise TrainingDiverged(refusals.NOTHING_COUNTED.format(count=count))
    means = float(loss_sum / weight_sum), reported(float(metric_sum / weight_sum))
    for what, mean in zip(("loss", "metric"), means, strict=True):
        if not math.isfinite(mean):
            raise TrainingDiverged(f"evaluation: the mean {what} is {mean}")
    return Metrics(*means, count)


# Maps inputs (N, ...) to the model's outputs (N, C, ...). Thread-safe.
Predictor: TypeAlias = Callable[[Inputs], NDArray[np.float32]]


class Trainer(Protocol):
    """Trains and evaluates the model of one bundle, and predicts with it. Thread-safe."""

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        """Train on the examples. ``stopped`` is called before every step.

        ``resume`` is the state in which an earlier call with the same request was stopped. Training
        continues from it, and the result is bit-identical to that of an uninterrupted call. A trainer that
        cannot resume starts over, and reports no state when it is stopped.

        Raises ``TrainingStopped``, ``TrainingDiverged``, ``CodecError`` for a program that fails, a frozen
        tensor that the model does not have, or work that this backend cannot do, and ``ConfigError`` for
        user code that fails.
        """
        ...

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Return the mean loss and metric of theta (n,).

        Raises ``TrainingDiverged`` if one is not finite.
        """
        ...

    def predictor(self, theta: Theta) -> Predictor:
        """Return a function that makes any number of predictions with theta (n,).

        Work that depends only on theta is done here, once.

        Raises ``CodecError`` for a program that cannot be loaded. The returned function raises
        ``CodecError`` if the program fails, and ``ConfigError`` if user code fails.
        """
        ...
