"""Aligns one model's neurons with another's by optimal transport, one axis of the network after another.

The plan T of an axis maps channels of the source model to channels of the target. Once the plans of all
preceding axes are known, it is computed from the distances between channel features:

    W^   = the tensors that output the axis's channels, with inputs mapped by the earlier plans
    C_jk = || W^_j - W_k ||,  channel j's features are its elements in all of W^ (biases and norms, too)
    T    = argmin <C, T>, uniform marginals                                        optimal_transport.py

Every tensor is then mapped along all of its axes:

    where it outputs channels    (T diag(1 / columns of T))^T W^     a mean of the channels merged
    where it reads them          W (diag(1 / rows of T) T)           each source's weights shared out

The second line preserves the function that the network computes: the outgoing weights of merged channels
add up, and the outgoing weights of a split channel are divided. ``literal`` normalises both sides by
columns, as OTFusion's code does. A residual stream is one axis and gets one plan. If axes form a cycle, as
when convolutions in a block lead from the stream back into it, each is solved from the plans known so far,
and all are solved again once every plan is known. Group normalisation is mapped like any other tensor,
although a channel that moves to another group is then normalised with that group.
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

# Stands in for the dimension of a tensor that outputs no channels.
NONE = -1


class AxisPlan(NamedTuple):
    """An axis's plan as two matrices (M, m).

    ``makes`` is for tensors that output the axis's channels, ``takes`` for tensors that read them.
    """

    makes: Values
    takes: Values


class Aligned(NamedTuple):
    """A model aligned with another's neurons, in the other's layout.

    ``cover`` is 0 for elements to which no source channel was mapped; it is None if there are no such
    elements.
    """

    theta: Theta
    cover: Theta | None


@dataclass(frozen=True)
class Aligner:
    """Aligns models with the neurons of other models, using these solver options."""

    solver: Solver = "emd"
    reg: float = 0.01
    normalisation: Normalisation = "mass"

    def align(self, theta: Theta, source: Form, target: Theta, form: Form) -> Aligned:
        """Align ``theta``, which has form ``source``, with the neurons of ``target``, which has ``form``.

        Statistics move with their channels. Raises ``StrategyError`` for a model that is not finite, and
        ``ConfigError`` when the solver is not installed.
        """
        walk = _Alignment(self, theta, source, target, form)
        plans = walk.plans()
        made = np.empty(form.layout.size, np.float32)
        for number, tensor in enumerate(form.layout.tensors):
            made[tensor.slice] = walk.carried(number, plans).ravel()
        return Aligned(made, _cover(form, plans))

    def axis_plan(self, cost: Matrix) -> AxisPlan:
        """Solve for the plan of an axis with this cost (M, m), normalised for outputs and for inputs."""
        plan = plan_between(cost, self.solver, self.reg)
        makes = _shares(plan, plan.sum(axis=0))
        if self.normalisation == "literal":
            return AxisPlan(makes, makes)
        return AxisPlan(makes, _shares(plan, plan.sum(axis=1)[:, None]))


def made_along(axes: Axes) -> tuple[int, ...]:
    """Return, for every tensor, the dimension along which it outputs channels, or ``NONE``.

    For biases, normalisations, linear layers and convolutions it is the first dimension. If no weight
    outputs an axis in this way, the axis's first tensor, such as an embedding or a transposed convolution,
    is taken to output it.
    """
    made = [0 if dims and dims[0] != FIXED else NONE for dims in axes.dims]
    for places in axes.used:
        weights = [(tensor, dim) for tensor, dim in places if len(axes.dims[tensor]) > 1]
        if weights[:1] == [places[0]] and all(made[tensor] != dim for tensor, dim in weights):
            tensor, dim = weights[0]
            made[tensor] = dim
    return tuple(made)


def in_order(axes: Axes, made: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """Sort the axes topologically, inputs first. Returns the order, and whether there is a cycle.

    The order of the tensors that output channels breaks ties and decides where a cycle is entered.
    """
    # For each axis, one set per tensor that outputs it: the axes which that tensor reads.
    makers: list[list[set[int]]] = [[] for _ in axes.channels]
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
        solved = set(order)
        ready = [axis for axis in waiting if all(fed <= solved for fed in makers[axis])]
        partly = [axis for axis in waiting if any(fed <= solved for fed in makers[axis])]
        is_cyclic |= not ready
        order.append((ready or partly or waiting)[0])
        waiting.remove(order[-1])
    return tuple(order), is_cyclic


class _Alignment:
    """Aligns one source model with one target model, tensor by tensor."""

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

    def plans(self) -> dict[int, AxisPlan]:
        """Solve for the plan of every axis."""
        order, is_cyclic = in_order(self._form.axes, self._made)
        plans: dict[int, AxisPlan] = {}
        for axis in [*order, *(order if is_cyclic else ())]:
            plans[axis] = self._aligner.axis_plan(self._cost(axis, plans))
        return plans

    def carried(self, number: int, plans: dict[int, AxisPlan], but: int = NONE) -> Values:
        """Map a source tensor's channels to target channels along all of its dimensions except ``but``."""
        values = self._source[number]
        for place, axis in enumerate(self._dims[number]):
            if axis != FIXED and place != but:
                plan = plans[axis]
                matrix = plan.makes if place == self._made[number] else plan.takes
                values = _along(values, place, matrix)
        return values

    def _cost(self, axis: int, plans: dict[int, AxisPlan]) -> Matrix:
        """Compute distances (M, m) between source and target channels, over tensors with mapped inputs."""
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
    """Compute the Euclidean distances (M, m) between rows of ``sources`` (M, f) and ``targets`` (m, f)."""
    left, right = sources.astype(np.float64), targets.astype(np.float64)
    squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
    result: Matrix = np.sqrt(np.maximum(squares - 2 * (left @ right.T), 0))
    return result


def _shares(plan: Matrix, sums: Matrix) -> Values:
    """Divide the plan by ``sums``. Where a sum is 0, the result is 0."""
    return np.divide(plan, sums, out=np.zeros_like(plan), where=sums > 0).astype(np.float32)


def _along(values: Values, place: int, matrix: Values) -> Values:
    """Map the c channels along one dimension of a tensor, each of p elements, by a matrix (c, m)."""
    shape = values.shape
    sources, targets = matrix.shape
    extent = shape[place] // sources * targets
    stacked = values.reshape(int(np.prod(shape[:place])), sources, -1)
    moved = stacked[:, :, 0] @ matrix if stacked.shape[2] == 1 else matrix.T @ stacked
    return moved.reshape(*shape[:place], extent, *shape[place + 1 :])


def _rows(values: Values, place: int, channels: int) -> Values:
    """Reshape a tensor to the features (c, f) of its channels along one dimension."""
    return np.moveaxis(values, place, 0).reshape(channels, -1)


def _cover(form: Form, plans: dict[int, AxisPlan]) -> Theta | None:
    """Return 1 for elements whose channels all come from a source, 0 for others; None if all are 1."""
    covered = {axis: plan.makes.any(axis=0) for axis, plan in plans.items()}
    if all(reached.all() for reached in covered.values()):
        return None
    cover = np.ones(form.layout.size, np.float32)
    for tensor, dims in zip(form.layout.tensors, form.axes.dims, strict=True):
        values = cover[tensor.slice].reshape(tensor.shape)
        for place, axis in enumerate(dims):
            if axis != FIXED:
                elements = tensor.shape[place] // form.axes.channels[axis]
                shape = [1] * len(dims)
                shape[place] = tensor.shape[place]
                values *= covered[axis].repeat(elements).reshape(shape)
    return cover
