"""The contract of a strategy: three pure functions over numpy arrays.

    init(context)               -> State          before the first round
    plan(context, client)       -> Assignment     once for each device of a cohort
    apply(context, updates)     -> State          when a round of training closes

The engine passes a ``Context``, and the strategy returns a ``State``. A strategy does no I/O and keeps no
state between calls, so the same object serves real fleets, the emulator and the tests. In shapes, n is the
number of parameters in the model, m in a narrower form of it, and k the number of elements in a patch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.algorithms.slices import IN_PLACE, Compute
from sedge_protocol.axes import Axes
from sedge_protocol.codec import SparseVector, ValueCoding
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.arrays import Arrays
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Codec, Work

Groups = Mapping[str, tuple[str, ...]]
Change = NDArray[np.float32] | NDArray[np.float64]

# How devices encode their updates by default. LARGEST_ELEMENTS is for strategies that average changes:
# elements left out are added to the next change. EVERY_ELEMENT is for strategies that need all elements.
LARGEST_ELEMENTS = Codec(ValueCoding.BF16, 0.04)
EVERY_ELEMENT = Codec(ValueCoding.INT8, 1.0)


@dataclass(frozen=True)
class Width:
    """A form of the run's model with fewer channels: the same tensors in the same order, but smaller.

    ``dropped`` (0 to below 1) is the share of the channels left out.
    """

    dropped: float
    layout: Layout


@dataclass(frozen=True)
class State:
    """The next global model, as returned by ``Context.moved`` or ``Context.replaced``.

    ``theta`` is (n,). ``arrays`` and ``groups`` come back in the next ``Context``. ``is_change`` says that
    theta is the previous model plus a change. A lossy broadcast then adds the elements that it left out to
    the changes of the next rounds. Values that replace the model need no such carry-over, because these
    elements are part of the next difference anyway.
    """

    theta: Theta
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    groups: Groups = field(default_factory=dict[str, tuple[str, ...]])
    is_change: bool = True


@dataclass(frozen=True)
class Context:
    """The read-only input that the engine passes to a strategy.

    ``theta`` (n,) is the global model, ``initial`` (n,) the run's first. ``training`` and ``robust`` are
    the run's settings; ``average_change`` follows ``robust``. ``round`` counts the training rounds applied
    so far; ``is_evaluation`` says that no device trains in the next round. ``arrays`` and ``groups`` are
    from the strategy's last ``State``; ``groups`` maps a device to the other devices that it learns from.
    ``widths`` are the run's forms of the model, the whole model first, and ``axes`` tells which channels of
    its tensors belong together. ``devices`` is the number of enrolled devices. ``compute`` runs work that
    is large enough to be split into slices.
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
    is_evaluation: bool = False
    devices: int = 0
    compute: Compute = IN_PLACE

    def moved(
        self,
        change: Change,
        arrays: Arrays | None = None,
        groups: Groups | None = None,
        fixed: Iterable[str] = (),
    ) -> State:
        """Return the global model plus ``change`` (n,), summed in float64.

        BatchNorm statistics and the tensors named in ``fixed`` keep their values. ``arrays`` and ``groups``
        replace the previous ones, and are empty if omitted. Raises ``StrategyError`` if ``change`` has
        another shape or the sum is not finite.
        """
        if change.shape != self.theta.shape:
            raise StrategyError(f"change: found {change.shape}, expected {self.theta.shape}")
        return self._state(change + self.theta.astype(np.float64), arrays, groups, fixed, True)

    def replaced(
        self,
        theta: NDArray[np.float32] | NDArray[np.float64],
        arrays: Arrays | None = None,
        groups: Groups | None = None,
        fixed: Iterable[str] = (),
    ) -> State:
        """Return ``theta`` (n,) in place of the global model; otherwise like ``moved``."""
        if theta.shape != self.theta.shape:
            raise StrategyError(f"theta: found {theta.shape}, expected {self.theta.shape}")
        return self._state(theta, arrays, groups, fixed, False)

    def _state(
        self,
        values: NDArray[np.float32] | NDArray[np.float64],
        arrays: Arrays | None,
        groups: Groups | None,
        fixed: Iterable[str],
        is_change: bool,
    ) -> State:
        with np.errstate(over="ignore"):  # overflow is checked below
            theta = values.astype(np.float32)
        if not np.isfinite(theta).all():
            worst = int(np.argmin(np.isfinite(theta)))
            raise StrategyError(
                f"the next model: element {worst} is {values[worst]}, expected finite numbers"
            )
        for name in (*self.layout.statistics, *fixed):
            place = self.layout.by_name[name].slice
            theta[place] = self.theta[place]
        return State(theta, arrays or {}, groups or {}, is_change)


@dataclass(frozen=True)
class ClientModel:
    """The last known model of one device, and what the device reported about itself.

    ``trained`` is the model at the end of the device's last round, as the cloud decoded it, or None before
    its first update: (n,), or (m,) in the layout of ``Context.widths[width]``. ``sent`` is the change in
    that update, with the elements that the device chose; ``round`` is the update's round, counted like
    ``Context.round``, and ``mix`` is the alpha that the update reported. ``arrays`` are from the device's
    last ``Assignment``. ``group`` has the models of the devices in ``Context.groups``, in that order; each
    is decoded when the iteration reaches it. ``steps`` counts the update's SGD steps, ``step_s`` is the
    time per step, and ``memory_mb`` is the device's memory; 0 means unknown. ``widest`` is the first width
    that fits in it, according to the bundles. ``load_base`` decodes the global model of the update's round,
    for ``base``.

    ``counted`` is the factor by which the update was scaled in the global model (outliers.py); 0 if the
    update was late, dropped or shortened so much that it is not ``trusted``. ``group`` has trusted models
    only, each ``shortened`` by its factor. Do not make an ``Assignment.start`` from an untrusted model: the
    outlier filter measures patches but not starts.
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
    widest: int = 0
    step_s: float = 0.0
    load_base: Callable[[], Theta] | None = None
    counted: float = 1.0
    steps: int = 0

    @property
    def trusted(self) -> bool:
        """Return True if other devices may learn from the model."""
        return self.counted > 0

    @property
    def shortened(self) -> "ClientModel":
        """Return the model as it counted in its round: the share ``counted`` of the way from ``base``."""
        base, factor = self.base, np.float32(self.counted)
        if base is None or self.trained is None or self.sent is None:
            return self
        sent = replace(self.sent, values=factor * self.sent.values)
        return replace(self, trained=base + factor * (self.trained - base), sent=sent)

    @property
    def base(self) -> Theta | None:
        """Return the global model (n,) from the device's last round, without a patch; None if unknown."""
        return None if self.load_base is None else self.load_base()


@dataclass(frozen=True)
class Assignment:
    """What one device does in a round.

    The device starts from the global model with ``patch`` (absolute values) written over it. Two kinds of
    tensors come from its own last model instead and are never sent: those in ``work.keep`` and, unless
    ``shares_statistics``, BatchNorm's statistics. ``work`` is everything else that the order asks for
    (wire/work.py); without ``work.training`` the run's training applies. ``arrays`` replaces the device's
    ``ClientModel.arrays``.

    ``start`` (m,) replaces the global model, in the layout of ``Context.widths[width]``. Devices with equal
    starts share one transfer. With ``holdout`` above 0 the device holds out this share of its training
    examples, the same ones in every round, and applies the patch only if the patch improves results on
    them. ``correction`` (m,) is added to every gradient of the model that the device sends (SCAFFOLD). It
    is sent exactly, and cannot be combined with a mixture (OwnModel). ``send`` has small arrays (m,) by
    name, 32 KiB in all, for the device's own training function; ``work.settings`` has numbers and strings
    for it, and ``work.returns`` names the arrays that the function returns, which arrive as
    ``Update.arrays``.
    """

    patch: SparseVector | None = None
    work: Work = field(default_factory=Work)
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])
    start: Theta | None = None
    width: int = 0
    holdout: float = 0.0
    shares_statistics: bool = False
    correction: Theta | None = None
    send: Arrays = field(default_factory=dict[str, NDArray[np.float32]])


@dataclass(frozen=True, eq=False)
class Update:
    """One device's accepted result: the model ``trained`` (n,), given as ``base`` + ``patch`` + ``delta``.

    ``base`` (n,) is the global model. The device wrote ``patch`` (absolute values; None if the device chose
    to start without one) over it, and training changed the result by ``delta``. If both are None, ``base``
    is the trained model. For another ``width`` all of these are (m,), in that width's layout. ``trusted``
    is copied from the client model that the round's plan used, and ``steps`` is the number of SGD steps
    that the device reported. ``arrays`` were returned by the device's own training function; they are
    finite and have the lengths given in ``work.returns``. No robust rule or outlier filter checks them.
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
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])

    @cached_property
    def trained(self) -> Theta:
        """Return the model (n,) that the device ended the round with; computed once, on demand."""
        if self.patch is None and self.delta is None:
            return self.base
        theta = self.base.copy()
        if self.patch is not None:
            self.patch.scatter_into(theta)
        if self.delta is not None:
            self.delta.add_to(theta)
        return theta

    def trained_within(self, part: slice) -> Theta:
        """Return the part of ``trained`` within the slice ``part``, as a new vector."""
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
        """Add ``weight * (trained - theta)`` to ``total`` (n,), in place.

        If theta (n,) is the update's ``base``, only the elements in the patch and the delta are touched,
        and their sums are not rounded to float32 as ``trained`` is.
        """
        if self.base is not theta:
            total += weight * np.subtract(self.trained, theta, dtype=np.float64)
            return
        if self.patch is not None:
            where = self.patch.where
            total[where] += weight * np.subtract(self.patch.values, theta[where], dtype=np.float64)
        if self.delta is not None:
            added = np.multiply(self.delta.values, weight, dtype=np.float64)
            where = self.delta.where
            if isinstance(where, slice):
                total += added
            else:
                np.add.at(total, where, added)  # += would copy the selected elements first

    def change(self, theta: Theta, part: slice) -> NDArray[np.float32]:
        """Return the part of ``trained - theta`` within the slice ``part``, as a new vector.

        A difference beyond float32's range is infinite.
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
        """Return the same update, moved only ``factor`` (0 to 1) of the way to ``trained``."""
        patch = self.patch
        if patch is not None:
            base = self.base[patch.where]
            patch = replace(patch, values=base + np.float32(factor) * (patch.values - base))
        delta = self.delta
        if delta is not None:
            delta = replace(delta, values=delta.values * np.float32(factor))
        return replace(self, patch=patch, delta=delta)


def _within(
    vector: SparseVector, start: int, stop: int
) -> tuple[slice | NDArray[np.intp], NDArray[np.float32]]:
    """Return the places, relative to ``start``, and the values of the elements between two positions."""
    if vector.indices is None:
        return slice(None), vector.values[start:stop]
    # The bounds have the indices' own type; otherwise numpy would copy all indices into a wider one.
    low, high = np.searchsorted(vector.indices, np.array((start, stop), np.uint32))
    return vector.indices[low:high].astype(np.intp) - start, vector.values[low:high]


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The algorithm of a run. Each strategy is a subclass, and its fields are its options.

    A range is part of the field's type, ``mu: Annotated[float, Meta(ge=0)] = 0.01``, and is checked when a
    run file is read. ``__post_init__`` checks constraints between options and raises ``ConfigError``. A
    strategy whose ``apply`` uses ``average_change``, and so follows ``Context.robust``, sets
    ``coordinate_rules``; a run that combines a coordinate-wise rule with any other strategy is refused.
    """

    name: ClassVar[str] = ""
    """The strategy's name in a run file."""

    @property
    def coordinate_rules(self) -> bool:
        """Return True if this strategy follows robust rules that work coordinate by coordinate."""
        return False

    @property
    def widths_vary(self) -> bool:
        """Return True if ``plan`` may give devices a narrower form of the model, to save memory."""
        return False

    @property
    def codec(self) -> Codec:
        """Return how devices encode their updates unless the run file says otherwise."""
        return LARGEST_ELEMENTS

    @property
    def later_words(self) -> tuple[str, ...]:
        """Return extensions that a device's orders use only after the first; a policy must allow them."""
        return ()

    @property
    def patch_values(self) -> ValueCoding:
        """Return how patches and start vectors are encoded unless the run file says otherwise."""
        return ValueCoding.FP32

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Return remarks on these options with this model, one sentence each; usually none.

        A remark says, for example, that with these options the method is equivalent to another. Remarks
        appear when a run starts, when devices first return, and in the run's report. ``layouts`` are the
        layouts of the run's forms, the whole model first; ``personal`` is the number of patch elements in
        the first round with returning devices, or in all rounds of a run that has ended.
        """
        return ()

    def init(self, context: Context) -> State:
        """Return the state before the first round: the model that the run was started with."""
        return State(context.theta)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return one device's assignment for a round. By default, the device trains the global model."""
        return Assignment()

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the state after a round of training.

        ``updates`` are decoded one at a time, in the order of device ids, so a round need not fit in
        memory. They can be iterated more than once.
        """
        raise NotImplementedError
