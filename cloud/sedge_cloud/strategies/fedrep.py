"""FedRep and FedBABU: head and body are trained one at a time.

FedRep (Collins et al. 2021, Algorithm 1): first the device's own head on the frozen global body, then
the body under the frozen head; only the body is sent. FedBABU (Oh et al. 2022, Algorithm 1): the fleet
trains the body under a head that nobody ever changes; a device then fits a head on it for itself. In
both a device's epochs, head and body together, are the run's ``local_epochs``, so that a round costs what
it costs other methods; where these are too few each part gets one. Each part's optimiser starts afresh.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from sedge_cloud.algorithms.averaging import average
from sedge_cloud.algorithms.layers import body, head
from sedge_cloud.strategies.fedper import FedPer
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.messages import Training


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer, but head before body. Raises ``ConfigError`` for a number of epochs out of range."""

    body_epochs: int = 1
    """The last of the ``local_epochs``, 1 to 1000: the body's. The paper and the authors' code have 1."""

    def __post_init__(self) -> None:
        if not 1 <= self.body_epochs <= 1000:
            raise ConfigError("body_epochs", self.body_epochs, "a number from 1 to 1000")

    @property
    def name(self) -> str:
        """``fedrep``."""
        return "fedrep"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The global body, the device's own head, and two trainings."""
        top, below = phases(state.layout, self.head, training, self.body_epochs)
        keep = (*state.layout.statistics, *head(state.layout, self.head))
        return Assignment(keep=keep, training=top, then=(below,))


@dataclass(frozen=True)
class FedBABU(FedPer):
    """FedAvg of the body under the run's first head; the "after" of a round has a head fitted to it.

    Raises ``ConfigError`` for a number of epochs out of range.
    """

    head_epochs: int = 1
    """The last of the ``local_epochs``, 1 to 1000: fitting the head, which then counts for nobody else."""

    def __post_init__(self) -> None:
        if not 1 <= self.head_epochs <= 1000:
            raise ConfigError("head_epochs", self.head_epochs, "a number from 1 to 1000")

    @property
    def name(self) -> str:
        """``fedbabu``."""
        return "fedbabu"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The global model with the first head, and two trainings: the body's, then the head's."""
        body_epochs = max(1, training.local_epochs - self.head_epochs)
        top, below = phases(state.layout, self.head, training, body_epochs)
        fit = msgspec.structs.replace(top, local_epochs=self.head_epochs)
        return Assignment(keep=state.layout.statistics, training=below, then=(fit,))

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The mean of the bodies under the same head."""
        return average(state, updates, fixed=head(state.layout, self.head))


def phases(
    layout: Layout, names: tuple[str, ...], training: Training, body_epochs: int
) -> tuple[Training, Training]:
    """The training of the head alone and that of the body alone, ``local_epochs`` together."""
    head_epochs = max(1, training.local_epochs - body_epochs)
    frozen = training.freeze
    replace = msgspec.structs.replace
    return (
        replace(training, local_epochs=head_epochs, freeze=(*frozen, *body(layout, names))),
        replace(training, local_epochs=body_epochs, freeze=(*frozen, *head(layout, names))),
    )
