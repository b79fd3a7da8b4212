"""The tasks and results of the emulator's trainers. Does not import torch."""

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
    """Raised if a trainer cannot train this model, at least not on this machine; the message says why."""


class TaskFailed(TrainingDiverged):
    """Raised if one device's training or evaluation fails with ``error`` rather than diverging."""

    def __init__(self, error: SedgeError) -> None:
        super().__init__(str(error))
        self.error = error


class Task(NamedTuple):
    """A request to train, and the examples of the device that it is for."""

    request: TrainRequest
    examples: Examples


class FleetTrainer(Protocol):
    """A model that is ready to train for any number of devices. Used by one thread only.

    A task gives bit-identical results whichever other tasks it is trained together with.
    """

    name: str
    """The trainer's name, as in ``open_trainer``.

    On a GPU it also contains everything else that a device's exact results may depend on.
    """

    width: int
    """How many tasks it trains at once. A call with a multiple of this many tasks uses it fully."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """Train each task, in order. Returns the results.

        A task that diverged has ``TrainingDiverged`` as its result. Raises ``CodecError`` if a task
        freezes a tensor that the model does not have.
        """
        ...

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Compute the mean loss and metric of each model theta (n,) on its examples, in order."""
        ...


def each(work: Callable[[_Item], _End], items: Sequence[_Item]) -> list[_End | TrainingDiverged]:
    """Apply ``work`` to each item.

    If it raises ``TrainingDiverged``, that exception is the item's result.
    """
    ends: list[_End | TrainingDiverged] = []
    for item in items:
        try:
            ends.append(work(item))
        except TrainingDiverged as exc:
            ends.append(exc)
    return ends
