"""What a strategy is: three pure functions over numpy, with all state in values.

    init(layout, theta)            -> State                when a run starts
    plan(state, memory, training)  -> Assignment           once per device of a cohort
    apply(state, updates)          -> State                when a round closes

A strategy does no I/O, keeps nothing between calls and takes chance as an argument, so the same
object serves real fleets, the emulator and the tests. Shapes: n = parameters, k = patch elements.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.robust import Robust
from sedge_protocol.axes import Axes
from sedge_protocol.codec import SparseVector
from sedge_protocol.codec.patch_levels import Levels
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Own, Personal, Selection, Training

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Width:
    """A form of the run's model with fewer channels: the same tensors in the same order, but smaller.

    ``rate`` (0 to below 1) is the share of the channels that it lacks.
    """

    rate: float
    layout: Layout


@dataclass(frozen=True)
class State:
    """What a run carries from round to round; saved before any effect leaves.

    ``theta`` (n,) is the global model, ``initial`` (n,) the one the run began with, ``round`` the
    number of rounds applied. ``arrays`` is the strategy's own; ``groups`` names, for a device, the others
    it learns with. ``widths`` are the forms in which the model is at hand, the whole one first, and
    ``axes`` tells which channels of its tensors belong together; neither ever changes. ``robust`` is the
    run's own setting, for whoever averages (``aggregate.average``). ``measures``: the coming round is an
    evaluation, in which no device trains.
    """

    layout: Layout
    theta: Theta
    initial: Theta
    round: int = 0
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    widths: tuple[Width, ...] = ()
    axes: Axes | None = None
    robust: Robust = field(default_factory=Robust)
    measures: bool = False


@dataclass(frozen=True)
class Memory:
    """What the cloud knows of one device.

    ``trained`` is the last model the device ended a round with, as the cloud decoded it, or None before
    its first update: (n,), or (m,) in the layout of ``State.widths[width]``. ``sent`` is the change that
    led to it, with the elements the device chose; ``round`` is the round of that update, counted as
    ``State.round``, and ``mix`` the alpha it reported. ``arrays`` is the strategy's own, as the device's
    last assignment left it. ``group`` are the memories of the devices in ``State.groups``, in that order,
    each made when it is asked for.
    ``memory_mb`` is what the device said it has, ``step_s`` what a training step took it; 0 is unknown.
    ``began`` gives the model that the update's round began with, made when it is asked for (``base``).
    ``trusted`` says that the update counted in full in its round: it was neither late nor shortened nor
    left out (outliers.py). In ``group`` are trusted ones only, and no ``Assignment.start`` is to be made of
    another: the vetting measures a patch, but not a start.
    """

    trained: Theta | None = None
    round: int = 0
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    device: str = ""
    sent: SparseVector | None = None
    group: Iterable["Memory"] = ()
    width: int = 0
    mix: float | None = None
    memory_mb: int = 0
    step_s: float = 0.0
    began: Callable[[], Theta] | None = None
    trusted: bool = True

    @property
    def base(self) -> Theta | None:
        """The model (n,) that the device's last round began with, no patch in it; None if unknown."""
        return None if self.began is None else self.began()


@dataclass(frozen=True)
class Assignment:
    """How one device takes part in a round.

    The device starts from the global model with ``patch`` (absolute values) written over it, except
    the tensors named in ``keep``, which it takes from its own last model and never sends. ``upload``
    false means that only metrics come back. ``arrays`` replaces the device's ``Memory.arrays``.

    ``start`` (m,) takes the place of the global model, in the layout of ``State.widths[width]``; devices
    with equal starts share one transfer. ``training`` takes the place of the run's, ``then`` follows it;
    ``personal``, ``select`` and ``own`` are as in the order (messages.py). With ``remember`` the device
    keeps what it sends, so that a later patch of its own last elements at their own values costs nothing.

    With ``holdout`` above 0 the device keeps this share of its training examples for itself, the same ones
    in every round, and starts with the part of the patch that is best on them: ``levels`` (k,) are those
    of the patch's elements (codec/patch_levels.py), None for all 0, which leaves nothing to pick.
    """

    patch: SparseVector | None = None
    keep: tuple[str, ...] = ()
    upload: bool = True
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    start: Theta | None = None
    width: int = 0
    training: Training | None = None
    then: tuple[Training, ...] = ()
    personal: Personal | None = None
    select: Selection | None = None
    own: Own | None = None
    remember: bool = False
    levels: Levels | None = None
    holdout: float = 0.0


@dataclass(frozen=True, eq=False)
class Update:
    """One device's accepted result: the model ``trained`` (n,), as ``base`` + ``patch`` + ``delta``.

    ``base`` (n,) is the global model; the device started from it with ``patch`` (absolute values) written
    over it, the part that it had picked where it could, and ended ``delta`` further on. With neither of
    them ``base`` is the trained model itself. In a device of another ``width`` all of these are (m,), of
    that width's layout. ``trusted`` is that of the memory which the device's round was planned from.
    """

    device: str
    num_examples: int
    base: Theta
    patch: SparseVector | None = None
    delta: SparseVector | None = None
    width: int = 0
    mix: float | None = None
    trusted: bool = True

    @cached_property
    def trained(self) -> Theta:
        """The model (n,) that the device ended the round with; made when it is first asked for."""
        if self.patch is None and self.delta is None:
            return self.base
        theta = self.base.copy()
        if self.patch is not None:
            self.patch.scatter_into(theta)
        if self.delta is not None:
            self.delta.add_to(theta)
        return theta

    def trained_within(self, part: slice) -> Theta:
        """``trained`` (n,) within ``part`` of the n elements, as a new vector."""
        start, stop, _ = part.indices(self.base.size)
        theta = self.base[part].copy()
        if self.patch is not None:
            where, values = _within(self.patch, start, stop)
            theta[where] = values
        if self.delta is not None:
            where, values = _within(self.delta, start, stop)
            theta[where] += values
        return theta

    def add_change(self, total: NDArray[np.float64], weight: float, theta: Theta) -> None:
        """Add ``weight`` times the way from theta (n,) to ``trained`` to ``total`` (n,), in place.

        For an update on the base theta only the elements of patch and delta are touched. Their sums are
        not rounded to float32 as ``trained`` is.
        """
        if self.base is not theta:
            total += weight * np.subtract(self.trained, theta, dtype=np.float64)
            return
        if self.patch is not None:
            where = place(self.patch)
            total[where] += weight * np.subtract(self.patch.values, theta[where], dtype=np.float64)
        if self.delta is not None:
            added = np.multiply(self.delta.values, weight, dtype=np.float64)
            where = place(self.delta)
            if isinstance(where, slice):
                total += added
            else:
                np.add.at(total, where, added)  # += copies what was there

    def change(self, theta: Theta, part: slice) -> NDArray[np.float32]:
        """The way from theta (n,) to ``trained`` within ``part`` of the n elements, as a new vector.

        Where it is longer than float32 can tell it is infinite.
        """
        with np.errstate(over="ignore"):
            if self.base is not theta:
                return self.trained[part] - theta[part]
            start, stop, _ = part.indices(theta.size)
            change = np.zeros(stop - start, np.float32)
            if self.patch is not None:
                where, values = _within(self.patch, start, stop)
                change[where] = values - theta[part][where]
            if self.delta is not None:
                where, values = _within(self.delta, start, stop)
                change[where] += values
        return change

    def scaled(self, factor: float) -> "Update":
        """The same update, but only ``factor`` (0 to 1) of the way from ``base`` to ``trained``."""
        patch = self.patch
        if patch is not None:
            base = self.base[place(patch)]
            patch = replace(patch, values=base + np.float32(factor) * (patch.values - base))
        delta = self.delta
        if delta is not None:
            delta = replace(delta, values=delta.values * np.float32(factor))
        return replace(self, patch=patch, delta=delta)


def _within(
    vector: SparseVector, start: int, stop: int
) -> tuple[slice | NDArray[np.intp], NDArray[np.float32]]:
    """The values of a vector between two positions, and where they belong, counted from the first."""
    if vector.indices is None:
        return slice(None), vector.values[start:stop]
    # Of the indices' own type: numpy would otherwise copy all of them into a wider one.
    low, high = np.searchsorted(vector.indices, np.array((start, stop), np.uint32))
    return vector.indices[low:high].astype(np.intp) - start, vector.values[low:high]


def place(vector: SparseVector) -> slice | NDArray[np.intp]:
    """Where a vector's values belong; numpy would convert unsigned indices at every use."""
    return slice(None) if vector.indices is None else vector.indices.astype(np.intp)


class Strategy(Protocol):
    """The algorithm of a run.

    One whose ``apply`` is ``aggregate.average``, and so follows ``State.robust``, says so by a class
    attribute ``coordinate_rules = True``; a run with such a rule is refused for any other.

    One whose next global model is made of the devices' whole values, and not of changes to the present one,
    says so by ``absolute = True``: what a coded broadcast leaves out is then not owed (broadcast.py).
    """

    @property
    def name(self) -> str:
        """The name by which a run file asks for it."""
        ...

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state before the first round."""
        ...

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """What a device of the cohort starts from and what it sends; ``training`` is the run's."""
        ...

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The state after a round; ``updates`` come one at a time, in the order of device ids.

        The coordinator's can be gone through again and again, so a round need not fit into memory.
        """
        ...
