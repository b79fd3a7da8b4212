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


class Pupil:
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


def lead(pupils: Sequence[Pupil], trainer: FleetTrainer) -> list[Learned | TrainingDiverged]:
    """What came of each lesson, in order; one that diverges does not touch the others."""

    def evaluate(asked: "_Asked[Evaluate]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.evaluate([
            (request.theta, asked_about(request, pupil.test, pupil.held))
            for pupil, request in asked
        ])  # fmt: skip

    def train(asked: "_Asked[Train]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.train([
            Task(r.theta, pupil.train, r.training, r.seed, r.anchor, r.gradient, r.correction)
            for pupil, r in asked
        ])  # fmt: skip

    def train_mixed(asked: "_Asked[TrainMixed]") -> Sequence[Answer | TrainingDiverged]:
        return trainer.train_mixed([
            MixedTask(r.sent, r.own, r.mix, r.adaptive, pupil.train, r.training, r.seed)
            for pupil, r in asked
        ])  # fmt: skip

    while any(pupil.asks is not None for pupil in pupils):
        _answer(pupils, Evaluate, evaluate)
        _answer(pupils, Train, train)
        _answer(pupils, TrainMixed, train_mixed)
    return [pupil.result for pupil in pupils if pupil.result is not None]


Q = TypeVar("Q", Evaluate, Train, TrainMixed)
_Asked = list[tuple[Pupil, Q]]


def _answer(
    pupils: Sequence[Pupil],
    kind: type[Q],
    answer: Callable[[_Asked[Q]], Sequence[Answer | TrainingDiverged]],
) -> None:
    """Answer everyone who now asks a question of this kind."""
    asked = [(pupil, pupil.asks) for pupil in pupils if isinstance(pupil.asks, kind)]
    if asked:
        for (pupil, _), answered in zip(asked, answer(asked), strict=True):
            pupil.hear(answered)
