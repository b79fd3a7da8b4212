"""A model under training, and the gradient that updates it, for any backend that computes gradients.

A backend computes the gradient of a batch's mean loss at theta, the loss, and the statistics after the
forward pass. Everything that a training method adds to these is in this folder. Vectors are arrays of numpy
or torch (``xp``), of shape (..., n), because an emulator trains many models at once. n is the number of
parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from sedge_edge.training.optimizers import Rate, optimizer
from sedge_edge.training.steppers.prox import Prox
from sedge_edge.training.steppers.scaffold import Correction
from sedge_edge.training.trainer import Moments, TrainRequest
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Theta


class Differentiated(NamedTuple):
    """A batch's gradient (..., n) and mean loss (...), and the statistics (..., s) after its forward pass.

    The caller may overwrite the gradient. ``statistics`` are in the layout's order, or None if the layout
    has none.
    """

    gradient: Theta
    loss: Any
    statistics: Theta | None = None


# Takes theta (..., n), a batch, and whether this is the last call in this training phase.
Differentiate: TypeAlias = Callable[[Theta, Any, bool], Differentiated]


class Term(Protocol):
    """A term that a method adds to every gradient."""

    def add(self, gradient: Theta, theta: Theta) -> None:
        """Add the term at theta (..., n) to a gradient (..., n), in place."""
        ...


def tensor_slices(
    layout: Layout, names: Iterable[str], key: str = "training.freeze"
) -> tuple[slice, ...]:
    """Return the slices of the tensors that ``key`` names, merging adjacent ones.

    Raises ``CodecError`` if one is missing.
    """
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


class ModelInTraining:
    """A model under training, theta (..., n), which ``advance`` updates with a gradient.

    The vectors of ``request`` are (..., n), as arrays of ``xp``. Statistics and frozen tensors have no
    gradient, term or decay.
    """

    def __init__(self, layout: Layout, request: TrainRequest, xp: Any = np) -> None:
        theta, training = request.theta, request.training
        self.theta: Theta = xp.empty_like(theta)
        self.theta[...] = theta
        self._start, self._terms = theta, _terms(request)
        self._name, self._optimizer = training.optimizer, optimizer(training, theta, xp)
        self._frozen = tensor_slices(layout, training.freeze)
        self._fixed = tensor_slices(layout, (*layout.statistics, *training.freeze))
        self._statistics = _statistic_places(layout, training.freeze)
        if request.moments is not None:
            self.resume(request.moments.steps, [self.theta, *request.moments.vectors])

    @property
    def vectors(self) -> list[Theta]:
        """theta and the optimizer's state, (..., n) each."""
        return [self.theta, *self._optimizer.vectors]

    @property
    def moments(self) -> Moments:
        """The optimizer's live state, whose vectors (..., n) change with each step."""
        return Moments(self._name, self._optimizer.steps, self._optimizer.vectors)

    def resume(self, steps: int, vectors: Sequence[Theta]) -> None:
        """Restore the state after ``steps`` steps of the optimizer, with its ``vectors`` at that point."""
        self._optimizer.steps = steps
        for vector, saved in zip(self.vectors, vectors, strict=True):
            vector[...] = saved

    def clear(self, gradient: Theta) -> None:
        """Set a gradient (..., n) to 0 in frozen tensors."""
        for tensors in self._frozen:
            gradient[..., tensors] = 0

    def advance(self, found: Differentiated, rate: Rate) -> None:
        """Make one step along a gradient at theta."""
        gradient = found.gradient
        for term in self._terms:
            term.add(gradient, self.theta)
        for tensors in self._fixed:
            gradient[..., tensors] = 0
        self._optimizer.step(self.theta, gradient, rate)
        self.settle(found.statistics)

    def settle(self, statistics: Theta | None) -> None:
        """Store statistics (..., s), and reset frozen tensors to their initial values."""
        if statistics is not None:
            for tensors, source in self._statistics:
                self.theta[..., tensors] = statistics[..., source]
        for tensors in self._frozen:  # weight decay changes them even if the gradient is 0
            self.theta[..., tensors] = self._start[..., tensors]


def _terms(request: TrainRequest) -> list[Term]:
    """Return the terms to add to the gradients. Their order matters, because float32 sums depend on it."""
    terms: list[Term] = []
    if request.training.prox:
        anchor = request.theta if request.anchor is None else request.anchor
        terms.append(Prox(request.training.prox, anchor))
    if request.correction is not None:
        terms.append(Correction(request.correction))
    return terms


def _statistic_places(layout: Layout, freeze: Sequence[str]) -> list[tuple[slice, slice]]:
    """Return, for each unfrozen statistic, its slice of theta and its slice of a program's output."""
    places: list[tuple[slice, slice]] = []
    offset = 0
    for tensor in layout.tensors:
        if tensor.name in layout.statistics:
            if tensor.name not in freeze:
                places.append((tensor.slice, slice(offset, offset + tensor.size)))
            offset += tensor.size
    return places
