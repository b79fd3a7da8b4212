"""One model in the neurons of another: optimal transport along a network's axes, one after the other.

The plan T of an axis tells which channels of the source model become which of the target's. It follows
from the distance of their features, once the plans of the axes before it are known:

    W^   = the tensors that make the axis's channels, their inputs carried by the plans known so far
    C_jk = || W^_j - W_k ||,  features of channel j: what it has in all of W^, biases and norms among them
    T    = argmin <C, T>, uniform marginals                                        optimal_transport.py

and every tensor is then carried along all of its axes:

    where it makes channels    (T diag(1 / columns of T))^T W^     a mean of the channels merged
    where it takes them        W (diag(1 / rows of T) T)           each source's weights shared out

The second line is what keeps the function: merged channels' outgoing weights add up, and those of a split
one are divided. ``literal`` normalises both sides by columns, as OTFusion's code does. A residual stream is
one axis and gets one plan. An axis in a cycle, as block convolutions between stream and stream, is solved
from what is known, and all of them once more when every plan is. Normalisation by groups of channels is
carried as any other, though a channel that leaves its group is no longer normalised with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.optimal_transport import Matrix, Solver, plan_between
from sedge_cloud.algorithms.submodels import Form
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.layout import Role, Theta

Normalisation = Literal["mass", "literal"]
Values: TypeAlias = NDArray[np.float32]

# A dimension that no axis makes channels along.
NONE = -1


class Carry(NamedTuple):
    """The plan of an axis as two matrices (M, m): for tensors that make its channels and that take them."""

    makes: Values
    takes: Values


class Carried(NamedTuple):
    """A model in another's neurons, in that one's layout.

    ``cover`` is 0 for the elements that no source channel became, or None where there are none.
    """

    theta: Theta
    cover: Theta | None


@dataclass(frozen=True)
class Aligner:
    """How models are brought into each other's neurons."""

    solver: Solver = "emd"
    reg: float = 0.01
    normalisation: Normalisation = "mass"

    def align(self, theta: Theta, source: Form, target: Theta, form: Form) -> Carried:
        """The model ``theta`` of the form ``source`` in the neurons of ``target``, which is of ``form``.

        Statistics go along with their channels. Raises ``LocalError`` for a model that is not finite and
        ``ConfigError`` when the solver is not installed.
        """
        walk = _Walk(self, theta, source, target, form)
        plans = walk.plans()
        made = np.empty(form.layout.size, np.float32)
        for number, tensor in enumerate(form.layout.tensors):
            made[tensor.slice] = walk.carried(number, plans).ravel()
        return Carried(made, _cover(form, plans))

    def carry(self, cost: Matrix) -> Carry:
        """The plan for an axis with this cost (M, m), normalised for either side."""
        plan = plan_between(cost, self.solver, self.reg)
        makes = _shares(plan, plan.sum(axis=0))
        if self.normalisation == "literal":
            return Carry(makes, makes)
        return Carry(makes, _shares(plan, plan.sum(axis=1)[:, None]))


def made_along(axes: Axes) -> tuple[int, ...]:
    """For every tensor the dimension along which it makes channels, ``NONE`` for those that make none.

    That is the first dimension of biases, normalisations, linear layers and convolutions. Where so no
    weight makes the channels of an axis, the tensor that it begins with does: an embedding, a transposed
    convolution.
    """
    made = [0 if dims and dims[0] != FIXED else NONE for dims in axes.dims]
    for places in axes.used:
        weights = [(tensor, dim) for tensor, dim in places if len(axes.dims[tensor]) > 1]
        if weights[:1] == [places[0]] and all(made[tensor] != dim for tensor, dim in weights):
            tensor, dim = weights[0]
            made[tensor] = dim
    return tuple(made)


def in_order(axes: Axes, made: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """The axes such that each comes after those that feed it, and whether some are in a cycle.

    Ties, and the start of a cycle, are decided by the order of the tensors that make the channels.
    """
    makers: list[list[set[int]]] = [
        [] for _ in axes.channels
    ]  # of each axis: what feeds each weight
    first = [len(axes.dims)] * len(axes.channels)
    for tensor, (dims, dim) in enumerate(zip(axes.dims, made, strict=True)):
        if dim == NONE:
            continue
        first[dims[dim]] = min(first[dims[dim]], tensor)
        if len(dims) > 1:
            others = [axis for place, axis in enumerate(dims) if place != dim and axis != FIXED]
            makers[dims[dim]].append(set(others))
    waiting = sorted(range(len(axes.channels)), key=lambda axis: first[axis])
    order: list[int] = []
    is_cyclic = False
    while waiting:
        known = set(order)
        ready = [axis for axis in waiting if all(fed <= known for fed in makers[axis])]
        partly = [axis for axis in waiting if any(fed <= known for fed in makers[axis])]
        is_cyclic |= not ready
        order.append((ready or partly or waiting)[0])
        waiting.remove(order[-1])
    return tuple(order), is_cyclic


class _Walk:
    """One alignment, tensor by tensor."""

    def __init__(
        self, aligner: Aligner, theta: Theta, source: Form, target: Theta, form: Form
    ) -> None:
        self._aligner = aligner
        self._channels = source.axes.channels
        self._form = form
        self._dims = form.axes.dims
        self._made = made_along(form.axes)
        self._source = list(source.layout.views(theta).values())
        self._target = list(form.layout.views(target).values())

    def plans(self) -> dict[int, Carry]:
        """The plan of every axis."""
        order, is_cyclic = in_order(self._form.axes, self._made)
        plans: dict[int, Carry] = {}
        for axis in [*order, *(order if is_cyclic else ())]:
            plans[axis] = self._aligner.carry(self._cost(axis, plans))
        return plans

    def carried(self, number: int, plans: dict[int, Carry], but: int = NONE) -> Values:
        """A source tensor carried along all its dimensions; not along ``but``."""
        values = self._source[number]
        for place, axis in enumerate(self._dims[number]):
            if axis != FIXED and place != but:
                plan = plans[axis]
                matrix = plan.makes if place == self._made[number] else plan.takes
                values = _along(values, place, matrix)
        return values

    def _cost(self, axis: int, plans: dict[int, Carry]) -> Matrix:
        """The distances (M, m) of source and target channels, by the tensors whose inputs have plans."""
        sources: list[Values] = []
        targets: list[Values] = []
        for number, place in self._form.axes.used[axis]:
            others = [a for p, a in enumerate(self._dims[number]) if p != place and a != FIXED]
            is_scored = self._form.layout.tensors[number].role is Role.PARAMETER
            if is_scored and place == self._made[number] and all(a in plans for a in others):
                values = self.carried(number, plans, place)
                sources.append(_rows(values, place, self._channels[axis]))
                targets.append(_rows(self._target[number], place, self._form.axes.channels[axis]))
        if not sources:
            return np.zeros((self._channels[axis], self._form.axes.channels[axis]))
        return distances(np.concatenate(sources, axis=1), np.concatenate(targets, axis=1))


def distances(sources: Values, targets: Values) -> Matrix:
    """The Euclidean distances (M, m) of the rows of (M, f) and (m, f)."""
    left, right = sources.astype(np.float64), targets.astype(np.float64)
    squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
    found: Matrix = np.sqrt(np.maximum(squares - 2 * (left @ right.T), 0))
    return found


def _shares(plan: Matrix, sums: Matrix) -> Values:
    """The plan divided by ``sums``; 0 where they are."""
    return np.divide(plan, sums, out=np.zeros_like(plan), where=sums > 0).astype(np.float32)


def _along(values: Values, place: int, matrix: Values) -> Values:
    """Values with the c channels of one dimension, p elements to each, carried by a matrix (c, m)."""
    shape = values.shape
    sources, targets = matrix.shape
    extent = shape[place] // sources * targets
    stacked = values.reshape(int(np.prod(shape[:place])), sources, -1)
    moved = stacked[:, :, 0] @ matrix if stacked.shape[2] == 1 else matrix.T @ stacked
    return moved.reshape(*shape[:place], extent, *shape[place + 1 :])


def _rows(values: Values, place: int, channels: int) -> Values:
    """The features (c, f) of the channels along one dimension."""
    return np.moveaxis(values, place, 0).reshape(channels, -1)


def _cover(form: Form, plans: dict[int, Carry]) -> Theta | None:
    """1 for the elements whose channels some source became, 0 for others; None when there are none."""
    covered = {axis: plan.makes.any(axis=0) for axis, plan in plans.items()}
    if all(reached.all() for reached in covered.values()):
        return None
    cover = np.ones(form.layout.size, np.float32)
    for tensor, dims in zip(form.layout.tensors, form.axes.dims, strict=True):
        values = cover[tensor.slice].reshape(tensor.shape)
        for place, axis in enumerate(dims):
            if axis != FIXED:
                beside = tensor.shape[place] // form.axes.channels[axis]
                shape = [1] * len(dims)
                shape[place] = tensor.shape[place]
                values *= covered[axis].repeat(beside).reshape(shape)
    return cover
