"""What a strategy is: three pure functions over numpy, with all state in values.

    init(layout, theta)          -> State                  when a run starts
    plan(state, memory)          -> Assignment             once per device of a cohort
    apply(state, updates)        -> State                  when a round closes

A strategy does no I/O, keeps nothing between calls and takes chance as an argument, so the same
object serves real fleets, the emulator and the tests. Shapes: n = parameters, k = patch elements.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.layout import Layout, Theta
from sedge_protocol.sparse import SparseVector

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class State:
    """What a run carries from round to round; saved before any effect leaves.

    ``theta`` (n,) is the global model, ``initial`` (n,) the one the run began with, ``round`` the
    number of rounds applied. ``arrays`` is the strategy's own.
    """

    layout: Layout
    theta: Theta
    initial: Theta
    round: int = 0
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])


@dataclass(frozen=True)
class Memory:
    """What the cloud knows of one device.

    ``trained`` (n,) is the last model the device ended a round with, as the cloud decoded it, or None
    before its first update; ``round`` is the round of that update. ``arrays`` is the strategy's own,
    as the device's last assignment left it.
    """

    trained: Theta | None = None
    round: int = 0
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])


@dataclass(frozen=True)
class Assignment:
    """How one device takes part in a round.

    The device starts from the global model with ``patch`` (absolute values) written over it, except
    the tensors named in ``keep``, which it takes from its own last model and never sends. ``upload``
    false means that only metrics come back. ``arrays`` replaces the device's ``Memory.arrays``.
    """

    patch: SparseVector | None = None
    keep: tuple[str, ...] = ()
    upload: bool = True
    arrays: Arrays = field(default_factory=dict[str, NDArray[np.float32]])


@dataclass(frozen=True)
class Update:
    """One device's accepted result: ``trained`` (n,) = its start + its decoded delta."""

    device: str
    num_examples: int
    trained: Theta


class Strategy(Protocol):
    """The algorithm of a run."""

    @property
    def name(self) -> str:
        """The name by which a run file asks for it."""
        ...

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state before the first round."""
        ...

    def plan(self, state: State, memory: Memory) -> Assignment:
        """What a device of the cohort starts from and what it sends."""
        ...

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The state after a round; ``updates`` come one at a time, in the order of device ids."""
        ...
