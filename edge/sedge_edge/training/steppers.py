"""What a training does at each step, for any backend that differentiates.

A backend gives the gradient of a batch's mean loss at theta, the loss, and the statistics that the forward
pass leaves. Everything that a method adds to that is here: frozen tensors, FedProx's pull, SCAFFOLD's
correction, the optimizer, APFL's second model. Vectors are numpy's or torch's (``xp``), of shape (..., n):
an emulator steps many models side by side. n = parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.optimizers import Rate, optimizer
from sedge_edge.training.trainer import Moments, TrainingState
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Training

Arrays: TypeAlias = dict[str, NDArray[np.float32 | np.int64]]


class Differentiated(NamedTuple):
    """A batch's gradient (..., n), its mean loss (...), and the statistics after it, (..., s).

    The caller may overwrite the gradient. ``statistics`` has the layout's statistics one after the other;
    it is None for a layout without any.
    """

    gradient: Theta
    loss: Any
    statistics: Theta | None = None


# (theta (..., n), a batch, whether this is the training's last run)
Differentiate: TypeAlias = Callable[[Theta, Any, bool], Differentiated]


def tensor_slices(
    layout: Layout, names: Iterable[str], key: str = "training.freeze"
) -> tuple[slice, ...]:
    """The slices of the tensors that ``key`` names, neighbours merged. Raises ``CodecError``."""
    wanted = set(names)
    if unknown := wanted - layout.by_name.keys():
        raise CodecError(f"{key}: no tensor named {min(unknown)!r}")
    slices: list[slice] = []
    for tensor in layout.tensors:
        if tensor.name not in wanted:
            continue
        start = tensor.offset
        if slices and slices[-1].stop == start:
            start = slices.pop().start
        slices.append(slice(start, tensor.slice.stop))
    return tuple(slices)


class Stepper(Protocol):
    """The models of one training, and how a step changes them; ``mix`` is a mixture's, otherwise 0."""

    mix: float

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """One step on a batch. Returns the losses, the reported one first, as the backend gives them."""
        ...

    def models(self) -> list[Theta]:
        """Every model (n,) that must be finite, the reported one first."""
        ...

    def vectors(self) -> list[Theta]:
        """The models and their optimizers' state, as they are; a step changes them."""
        ...

    def resume(self, state: TrainingState) -> None:
        """Go on from a state of this training."""
        ...


class Model:
    """A model under training, theta (..., n): one that ``advance`` moves by a gradient.

    ``anchor`` (..., n) is where the training's prox pulls, by default the start; ``correction`` (..., n) is
    added to every gradient. Statistics and frozen tensors have neither gradient nor pull nor decay.
    """

    def __init__(
        self, layout: Layout, theta: Theta, training: Training,
        anchor: Theta | None = None, correction: Theta | None = None, xp: Any = np,
    ) -> None:  # fmt: skip
        self.theta: Theta = xp.empty_like(theta)
        self.theta[...] = theta
        self._start, self._correction = theta, correction
        self._anchor = theta if anchor is None else anchor
        self._training, self._optimizer = training, optimizer(training, theta, xp)
        self._frozen = tensor_slices(layout, training.freeze)
        self._fixed = tensor_slices(layout, (*layout.statistics, *training.freeze))
        self._statistics = _statistic_places(layout, training.freeze)

    @property
    def vectors(self) -> list[Theta]:
        """theta and the optimizer's state, (..., n) each."""
        return [self.theta, *self._optimizer.vectors]

    @property
    def moments(self) -> Moments:
        """The optimizer's state as it is; a step changes its vectors (..., n)."""
        return Moments(self._training.optimizer, self._optimizer.steps, self._optimizer.vectors)

    def resume(self, steps: int, vectors: Sequence[Theta]) -> None:
        """Go on as after ``steps`` steps, given what ``vectors`` were then."""
        self._optimizer.steps = steps
        for vector, saved in zip(self.vectors, vectors, strict=True):
            vector[...] = saved

    def clear(self, gradient: Theta) -> None:
        """Set a gradient (..., n) to 0 in frozen tensors."""
        for tensors in self._frozen:
            gradient[..., tensors] = 0

    def advance(self, found: Differentiated, rate: Rate) -> None:
        """One step along a gradient at theta."""
        gradient = found.gradient
        if self._training.prox:
            gradient += self._training.prox * (self.theta - self._anchor)
        if self._correction is not None:
            gradient += self._correction
        for tensors in self._fixed:
            gradient[..., tensors] = 0
        self._optimizer.step(self.theta, gradient, rate)
        self.settle(found.statistics)

    def settle(self, statistics: Theta | None) -> None:
        """Take over statistics (..., s), and set frozen tensors back to their start."""
        if statistics is not None:
            for tensors, source in self._statistics:
                self.theta[..., tensors] = statistics[..., source]
        for tensors in self._frozen:  # weight decay moves them without a gradient
            self.theta[..., tensors] = self._start[..., tensors]


def _statistic_places(layout: Layout, freeze: Sequence[str]) -> list[tuple[slice, slice]]:
    """Where each statistic that is not frozen lies in theta, and in a program's output."""
    places: list[tuple[slice, slice]] = []
    offset = 0
    for tensor in layout.tensors:
        if tensor.name in layout.statistics:
            if tensor.name not in freeze:
                places.append((tensor.slice, slice(offset, offset + tensor.size)))
            offset += tensor.size
    return places


class PlainStepper:
    """``Stepper`` of one model; with ``wants_gradient`` the last step sets ``gradient`` (..., n)."""

    def __init__(
        self, differentiate: Differentiate, model: Model, wants_gradient: bool = False
    ) -> None:
        self.model = model
        self.mix = 0.0
        self.gradient: Theta | None = None
        self._differentiate = differentiate
        self._wants_gradient = wants_gradient

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """One step on a batch. Returns the loss."""
        found = self._differentiate(self.model.theta, batch, last)
        if last and self._wants_gradient:
            self.gradient = 1 * found.gradient  # a copy in any array library
            self.model.clear(self.gradient)
        self.model.advance(found, rate)
        return [found.loss]

    def models(self) -> list[Theta]:
        """theta (n,)."""
        return [self.model.theta]

    def vectors(self) -> list[Theta]:
        """theta (n,) and the optimizer's state."""
        return self.model.vectors

    def resume(self, state: TrainingState) -> None:
        """Go on from a state of this training."""
        self.model.resume(state.earlier + state.steps, state.vectors)


class MixtureStepper:
    """``Stepper`` of the model that is sent and the device's own beside it; see ``Trainer.train_mixed``."""

    def __init__(
        self, differentiate: Differentiate, layout: Layout, sent: Theta, own: Theta, mix: float,
        adaptive: bool, training: Training, xp: Any = np,
    ) -> None:  # fmt: skip
        alone = msgspec.structs.replace(training, prox=0.0)
        self.sent = Model(layout, sent, training, xp=xp)
        self.own = Model(layout, own, alone, xp=xp)
        self.mix = mix
        self._differentiate, self._xp = differentiate, xp
        self._adapts = adaptive

    def step(self, batch: Any, rate: float, last: bool) -> list[Any]:
        """One step of both on a batch. Returns the sent model's loss and the mixture's."""
        mixed = (1 - self.mix) * self.sent.theta
        mixed += self.mix * self.own.theta
        found = self._differentiate(mixed, batch, False)
        self.own.clear(found.gradient)
        mix = self._next_mix(found.gradient, rate)
        gradient = found.gradient
        gradient *= self.mix
        self.own.advance(found, rate)
        self.mix = mix
        sent = self._differentiate(self.sent.theta, batch, last)
        self.sent.advance(sent, rate)
        return [sent.loss, found.loss]

    def models(self) -> list[Theta]:
        """The sent model (n,) and the own one."""
        return [self.sent.theta, self.own.theta]

    def vectors(self) -> list[Theta]:
        """Both models (n,), each with its optimizer's state."""
        return [*self.sent.vectors, *self.own.vectors]

    def resume(self, state: TrainingState) -> None:
        """Go on from a state of this training."""
        half = len(state.vectors) // 2
        self.sent.resume(state.steps, state.vectors[:half])
        self.own.resume(state.steps, state.vectors[half:])
        self.mix, self._adapts = state.mix, self._adapts and not state.steps

    def _next_mix(self, gradient: Theta, rate: float) -> float:
        """The mix after this step, given the mixture's gradient (n,)."""
        if not self._adapts:
            return self.mix
        self._adapts = False
        products = self.own.theta - self.sent.theta
        products *= gradient
        derivative = float(self._xp.sum(products, dtype=self._xp.float64))
        return min(max(self.mix - rate * derivative, 0.0), 1.0)
