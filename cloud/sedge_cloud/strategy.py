"""What a strategy is: three functions over numpy, whose whole state is in values.

    init(context)               -> State          before the first round
    plan(context, client)       -> Assignment     once for each device of a cohort
    apply(context, updates)     -> State          when a round of training closes

``Context`` is what the engine gives, ``State`` what the strategy gives back. A strategy does no I/O and
keeps nothing between calls, so the same object serves real fleets, the emulator and the tests. Shapes: n =
parameters of the model, m = those of a narrower form of it, k = elements of a patch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.robust import Robust
from sedge_protocol.axes import Axes
from sedge_protocol.codec import SparseVector
from sedge_protocol.codec.patch_levels import Levels
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Training, Work

Arrays = Mapping[str, NDArray[np.float32]]
Groups = Mapping[str, tuple[str, ...]]
Change = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True)
class Width:
    """A form of the run's model with fewer channels: the same tensors in the same order, but smaller.

    ``dropped`` (0 to below 1) is the share of the channels that it lacks.
    """

    dropped: float
    layout: Layout


@dataclass(frozen=True)
class State:
    """What a strategy gives back, from ``Context.moved`` or ``Context.replaced``: the next global model.

    ``theta`` is (n,). ``arrays`` and ``groups`` come back in the next ``Context``. With ``counts`` theta is
    a change of the model before it, and what a coded broadcast leaves out of the change is owed to the next
    rounds; without it theta is made of whole values, where whatever is left out shows again by itself.
    """

    theta: Theta
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    groups: Groups = field(default_factory=dict[str, tuple[str, ...]])
    counts: bool = True


@dataclass(frozen=True)
class Context:
    """What the engine gives a strategy; nothing in it may be written to.

    ``theta`` (n,) is the global model and ``initial`` (n,) the one that the run began with. ``training`` is
    the run's, ``robust`` the run's setting for whoever averages (``average_change``). ``round`` is the
    number of rounds of training applied; with ``measures`` the coming round is an evaluation, in which no
    device trains. ``arrays`` and ``groups`` are those of the strategy's last ``State``; ``groups`` names,
    for a device, the others that it learns with. ``widths`` are the forms in which the model is at hand,
    the whole one first, and ``axes`` tells which channels of its tensors belong together. ``devices``
    counts those that are enrolled.
    """

    layout: Layout
    theta: Theta
    initial: Theta
    training: Training = field(default_factory=Training)
    round: int = 0
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    groups: Groups = field(default_factory=dict[str, tuple[str, ...]])
    widths: tuple[Width, ...] = ()
    axes: Axes | None = None
    robust: Robust = field(default_factory=Robust)
    measures: bool = False
    devices: int = 0

    def moved(
        self,
        change: Change,
        arrays: Arrays | None = None,
        groups: Groups | None = None,
        fixed: Iterable[str] = (),
    ) -> State:
        """The global model plus ``change`` (n,), summed in float64.

        Statistics stay, and so do the tensors named in ``fixed``. Without ``arrays`` or ``groups`` there
        are none. Raises ``LocalError`` for a change of another shape, and for a sum that is not finite.
        """
        if change.shape != self.theta.shape:
            raise LocalError(f"change: found {change.shape}, expected {self.theta.shape}")
        return self._state(change + self.theta.astype(np.float64), arrays, groups, fixed, True)

    def replaced(
        self,
        theta: NDArray[np.float32] | NDArray[np.float64],
        arrays: Arrays | None = None,
        groups: Groups | None = None,
        fixed: Iterable[str] = (),
    ) -> State:
        """``theta`` (n,), made of whole values, in place of the global model; otherwise as ``moved``."""
        if theta.shape != self.theta.shape:
            raise LocalError(f"theta: found {theta.shape}, expected {self.theta.shape}")
        return self._state(theta, arrays, groups, fixed, False)

    def _state(
        self,
        wanted: NDArray[np.float32] | NDArray[np.float64],
        arrays: Arrays | None,
        groups: Groups | None,
        fixed: Iterable[str],
        counts: bool,
    ) -> State:
        with np.errstate(over="ignore"):  # found below
            theta = wanted.astype(np.float32)
        if not np.isfinite(theta).all():
            worst = int(np.argmin(np.isfinite(theta)))
            raise LocalError(
                f"the next model: element {worst} is {wanted[worst]}, expected finite numbers"
            )
        for name in (*self.layout.statistics, *fixed):
            place = self.layout.by_name[name].slice
            theta[place] = self.theta[place]
        return State(theta, arrays or {}, groups or {}, counts)


@dataclass(frozen=True)
class ClientModel:
    """What the cloud knows of one device.

    ``trained`` is the last model the device ended a round with, as the cloud decoded it, or None before
    its first update: (n,), or (m,) in the layout of ``Context.widths[width]``. ``sent`` is the change that
    led to it, with the elements the device chose; ``round`` is the round of that update, counted as
    ``Context.round``, and ``mix`` the alpha it reported. ``arrays`` is the strategy's own, as the device's
    last assignment left it. ``group`` are the models of the devices in ``Context.groups``, in that order,
    each made when it is asked for.
    ``steps`` counts that update's steps of SGD, ``step_s`` is what each took, and ``memory_mb`` what the
    device said it has; 0 is unknown.
    ``began`` gives the model that the update's round began with, made when it is asked for (``base``).
    ``trusted`` says that the update counted in full in its round: it was neither late nor shortened nor
    left out (outliers.py). In ``group`` are trusted ones only, and no ``Assignment.start`` is to be made of
    another: the outlier filter measures a patch, but not a start.
    """

    trained: Theta | None = None
    round: int = 0
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    device: str = ""
    sent: SparseVector | None = None
    group: Iterable["ClientModel"] = ()
    width: int = 0
    mix: float | None = None
    memory_mb: int = 0
    step_s: float = 0.0
    began: Callable[[], Theta] | None = None
    trusted: bool = True
    steps: int = 0

    @property
    def base(self) -> Theta | None:
        """The model (n,) that the device's last round began with, no patch in it; None if unknown."""
        return None if self.began is None else self.began()


@dataclass(frozen=True)
class Assignment:
    """How one device takes part in a round.

    The device starts from the global model with ``patch`` (absolute values) written over it, except for the
    tensors in ``work.keep``, which it takes from its own last model and never sends, and for BatchNorm's
    statistics, which stay on the device unless ``shares_statistics``. ``work`` is the rest of what it is
    asked, as it stands in the order (messages.Work); with ``work.training`` None the run's. ``arrays``
    replaces the device's ``ClientModel.arrays``.

    ``start`` (m,) takes the place of the global model, in the layout of ``Context.widths[width]``; devices
    with equal starts share one transfer.

    With ``holdout`` above 0 the device keeps this share of its training examples for itself, the same ones
    in every round, and starts with the part of the patch that is best on them: ``levels`` (k,) are those
    of the patch's elements (patch_levels.py), None for all 0, which leaves nothing to pick.

    ``correction`` (m,) is added to every gradient of the model that the device sends (SCAFFOLD); it
    travels exactly. Not together with a mixture (OwnModel).
    """

    patch: SparseVector | None = None
    work: Work = field(default_factory=Work)
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    start: Theta | None = None
    width: int = 0
    levels: Levels | None = None
    holdout: float = 0.0
    shares_statistics: bool = False
    correction: Theta | None = None


@dataclass(frozen=True, eq=False)
class Update:
    """One device's accepted result: the model ``trained`` (n,), as ``base`` + ``patch`` + ``delta``.

    ``base`` (n,) is the global model; the device started from it with ``patch`` (absolute values) written
    over it, the part that it had picked where it could, and ended ``delta`` further on. With neither of
    them ``base`` is the trained model itself. In a device of another ``width`` all of these are (m,), of
    that width's layout. ``trusted`` is that of the client model which the device's round was planned from,
    and ``steps`` counts the steps of SGD that the device says it took.
    """

    device: str
    num_examples: int
    base: Theta
    patch: SparseVector | None = None
    delta: SparseVector | None = None
    width: int = 0
    mix: float | None = None
    trusted: bool = True
    steps: int = 0

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


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The algorithm of a run. A strategy is a subclass; its fields are its options.

    A range is said in the field's type, ``mu: Annotated[float, Meta(ge=0)] = 0.01``, and checked when a run
    file is read; what concerns several options is checked in ``__post_init__``, which raises
    ``ConfigError``. One whose ``apply`` uses ``average_change``, and so follows ``Context.robust``, sets
    ``coordinate_rules``; a run with such a rule is refused for any other.
    """

    name: ClassVar[str] = ""
    """What a run file calls it."""

    @property
    def coordinate_rules(self) -> bool:
        """Whether the run's robust rules that work coordinate by coordinate are followed."""
        return False

    def init(self, context: Context) -> State:
        """The state before the first round: the model that the run was started with."""
        return State(context.theta)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """What a device of the cohort starts from, trains and sends: the global model, as the run says."""
        return Assignment()

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """The state after a round of training; ``updates`` come one at a time, in the order of device ids.

        The coordinator's can be gone through again and again, so a round need not fit into memory.
        """
        raise NotImplementedError
