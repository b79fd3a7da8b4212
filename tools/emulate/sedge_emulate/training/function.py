"""Runs the user's own training function for one device after another, as real devices do."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.tasks import Task, TaskFailed, each
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.update import Metrics

_End = TypeVar("_End")


class FunctionFleet:
    """A ``FleetTrainer`` that calls the user's function "module:function", looked up in ``folder``.

    If the function fails for a device, that device declines and the others continue. Raises
    ``ConfigError`` if the function cannot be imported.
    """

    width = 1

    def __init__(self, bundle: Bundle, name: str, folder: Path) -> None:
        self.name = name
        self._trainer = open_trainer(bundle, name, 1, UserCode(folder))

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """Train each task, in order.

        Returns the results; a task that diverged or failed has ``TrainingDiverged`` as its result.
        """
        return each(lambda task: _alone(lambda: self._trainer.train(*task, lambda: False)), tasks)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Compute the mean loss and metric of each model theta (n,) on its examples, in order."""
        return each(lambda model: _alone(lambda: self._trainer.evaluate(*model)), models)


def _alone(work: Callable[[], _End]) -> _End:
    """Call ``work`` for one device. If it fails, raises ``TaskFailed``, so that other devices continue."""
    try:
        return work()
    except (ConfigError, CodecError) as exc:
        raise TaskFailed(exc) from exc
