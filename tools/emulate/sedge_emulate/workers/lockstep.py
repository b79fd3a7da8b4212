"""Many lessons at once: where they ask the same kind of question, all of them are answered together.

A lesson (``sedge_edge.training.local_training``) is what one device does with one order.
The trainers of the emulator are fastest with many devices, so the lessons of a group wait for each other
at every evaluation and training. A lesson has the same result whichever others it is led together with.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sedge_edge.training.examples import Examples
from sedge_edge.training.local_training import (
    Answer,
    Evaluate,
    Learned,
    Lesson,
    Request,
    Train,
    TrainMixed,
    asked_about,
)
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.training.tasks import FleetTrainer, MixedTask, Task


class LocalRun:
    """A lesson on its way, over a device's examples: what it asks for now, or what came of it.

    ``held`` are the examples that the device holds out, where it picks its start.
    """

    def __init__(
        self, lesson: Lesson, train: Examples, test: Examples, held: Examples | None = None
    ) -> None:
        self._lesson = lesson
        self.train, self.test, self.held = train, test, held
        self.asks: Request | None = next(lesson)
        self.result: Learned | TrainingDiverged | None = None

    def hear(self, answer: Answer | TrainingDiverged) -> None:
        """Go on with the answer, up to the next question or the end."""
        self.asks = None
        if isinstance(answer, TrainingDiverged):
            self.result = answer
            return
        try:
            self.asks = self._lesson.send(answer)
        except StopIteration as end:
            self.result = end.value
        except TrainingDiverged as exc:
            self.result = exc


def lead(runs: Sequence[LocalRun], trainer: FleetTrainer) -> list[Learned | TrainingDiverged]:
    """What came of each lesson, in order; one that diverges does not touch the others."""

    def evaluate(asked: "_Asked[Evaluate]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.evaluate([
            (request.theta, asked_about(request, run.test, run.held))
            for run, request in asked
        ])  # fmt: skip

    def train(asked: "_Asked[Train]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.train([
            Task(r.theta, run.train, r.training, r.seed, r.anchor, r.gradient, r.correction)
            for run, r in asked
        ])  # fmt: skip

    def train_mixed(asked: "_Asked[TrainMixed]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.train_mixed([
            MixedTask(r.sent, r.own, r.mix, r.adaptive, run.train, r.training, r.seed)
            for run, r in asked
        ])  # fmt: skip

    while any(run.asks is not None for run in runs):
        _answer(runs, Evaluate, evaluate)
        _answer(runs, Train, train)
        _answer(runs, TrainMixed, train_mixed)
    return [run.result for run in runs if run.result is not None]


Q = TypeVar("Q", Evaluate, Train, TrainMixed)
_Asked = list[tuple[LocalRun, Q]]


def _answer(
    runs: Sequence[LocalRun],
    kind: type[Q],
    answer: Callable[[_Asked[Q]], Sequence[Answer | TrainingDiverged]],
) -> None:
    """Answer everyone who now asks a question of this kind."""
    asked = [(run, run.asks) for run in runs if isinstance(run.asks, kind)]
    if asked:
        for (run, _), answered in zip(asked, answer(asked), strict=True):
            run.hear(answered)
