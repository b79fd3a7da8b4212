"""The tasks and results of the emulator's trainers. Loads no torch."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained, TrainingDiverged, TrainRequest
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Metrics

Precision: TypeAlias = Literal["fp32", "bf16"]
_Item = TypeVar("_Item")
_End = TypeVar("_End")
Convolutions: TypeAlias = Literal["grouped", "unfold"]


class Unsupported(SedgeError):
    """A backend cannot train this model, or not on this machine; the message says why."""


class TaskFailed(TrainingDiverged):
    """One device's training or evaluation has ended by an ``error`` of another kind."""

    def __init__(self, error: SedgeError) -> None:
        super().__init__(str(error))
        self.error = error


class Task(NamedTuple):
    """One device's training, over the device's examples."""

    request: TrainRequest
    examples: Examples


class FleetTrainer(Protocol):
    """One model, ready to train for any number of devices. Belongs to one thread.

    A task gives the same bits whatever tasks it is trained together with.
    """

    name: str
    """Its name for ``open_trainer``; on a GPU with everything else that a device's bits may depend on."""

    width: int
    """How many tasks it trains at once; calls with a multiple of it waste nothing."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """The end of each training, in order; one that diverges does not touch the others.

        Raises ``CodecError`` for a frozen tensor that the model does not have.
        """
        ...

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Mean loss and metric of each theta (n,), in order."""
        ...


def each(work: Callable[[_Item], _End], items: Sequence[_Item]) -> list[_End | TrainingDiverged]:
    """The result of each item, in order; one that diverges does not affect the others."""
    ends: list[_End | TrainingDiverged] = []
    for item in items:
        try:
            ends.append(work(item))
        except TrainingDiverged as exc:
            ends.append(exc)
    return ends
