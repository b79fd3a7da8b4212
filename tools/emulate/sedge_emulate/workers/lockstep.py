"""Runs many devices' local trainings side by side, so that the trainer gets their requests as batches.

A device's work on one order is a generator of requests (``sedge_edge.training.local_training``). The
emulator's trainers are fastest with many devices at once, so a group's generators wait for each other
at every request to train or evaluate. A device's result does not depend on the other devices in its
group.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sedge_edge.training.examples import Examples
from sedge_edge.training.local_training import (
    Answer,
    Evaluate,
    LocalResult,
    LocalTraining,
    Request,
    examples_for,
)
from sedge_edge.training.trainer import TrainingDiverged, TrainRequest
from sedge_emulate.training.tasks import FleetTrainer, Task


class LocalRun:
    """One device's local training in progress, with its current ``request`` or its final ``result``.

    ``held`` are the examples that a device holds out to choose the model that it starts from. Every
    evaluation on the test examples is repeated on ``central``, and ``on_central`` collects the metrics in
    order.
    """

    def __init__(
        self,
        lesson: LocalTraining,
        train: Examples,
        test: Examples,
        held: Examples | None = None,
        central: Examples | None = None,
    ) -> None:
        self._lesson = lesson
        self.central = central
        self.on_central: list[float] = []
        self.train, self.test, self.held = train, test, held
        self.request: Request | None = next(lesson)
        self.result: LocalResult | TrainingDiverged | None = None

    def resume(self, answer: Answer | TrainingDiverged) -> None:
        """Pass ``answer`` to the training, and run it up to its next request or its end."""
        self.request = None
        if isinstance(answer, TrainingDiverged):
            self.result = answer
            return
        try:
            self.request = self._lesson.send(answer)
        except StopIteration as end:
            self.result = end.value
        except TrainingDiverged as exc:
            self.result = exc


def train_together(
    runs: Sequence[LocalRun], trainer: FleetTrainer
) -> list[LocalResult | TrainingDiverged]:
    """Run the training of all devices to completion. Returns the results, in order.

    A training that diverges does not affect the others.
    """

    def evaluate(asked: "_Asked[Evaluate]") -> Sequence[Answer | TrainingDiverged]:
        _evaluate_on_central(asked, trainer)
        return trainer.evaluate([
            (request.theta, examples_for(request, run.test, run.held))
            for run, request in asked
        ])  # fmt: skip

    def train(asked: "_Asked[TrainRequest]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.train([Task(request, run.train) for run, request in asked])

    while any(run.request is not None for run in runs):
        _answer(runs, Evaluate, evaluate)
        _answer(runs, TrainRequest, train)
    return [run.result for run in runs if run.result is not None]


Q = TypeVar("Q", Evaluate, TrainRequest)
_Asked = list[tuple[LocalRun, Q]]


def _evaluate_on_central(asked: _Asked[Evaluate], trainer: FleetTrainer) -> None:
    """Repeat the test evaluations in ``asked`` on the central test set, for runs that have one."""
    wanted = [
        (run, request.theta, run.central)
        for run, request in asked
        if run.central is not None and not request.held_out
    ]
    if wanted:
        metrics = trainer.evaluate([(theta, central) for _, theta, central in wanted])
        for (run, _, _), found in zip(wanted, metrics, strict=True):
            run.on_central += [] if isinstance(found, TrainingDiverged) else [found.metric]


def _answer(
    runs: Sequence[LocalRun],
    kind: type[Q],
    answer: Callable[[_Asked[Q]], Sequence[Answer | TrainingDiverged]],
) -> None:
    """Answer all current requests of type ``kind`` together."""
    asked = [(run, run.request) for run in runs if isinstance(run.request, kind)]
    if asked:
        for (run, _), answered in zip(asked, answer(asked), strict=True):
            run.resume(answered)
