"""Lessons led together: who is asked what with whom, and that company changes nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.emulate.workers.fleet_of_four import TRAINING, make_shares, with_backend
from tests.fleet import changed

from sedge_edge.training.examples import Examples, split
from sedge_edge.training.local_training import LocalResult, local_training
from sedge_edge.training.start_vector import StartCandidates
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.tasks import FleetTrainer, Task
from sedge_emulate.workers.lockstep import LocalRun, train_together
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Worker
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import DeviceScoring, OwnModel, PatchChoice, UpdateSelection, Work

DEVICES = 4
SHARES = make_shares(DEVICES)
BRIEF = Training(learning_rate=0.05)
Model = tuple[Theta, Examples]


class Watched:
    """A trainer that tells how many tasks each call had."""

    def __init__(self, trainer: FleetTrainer) -> None:
        self.name, self.width = trainer.name, trainer.width
        self._trainer = trainer
        self.calls: list[tuple[str, int]] = []

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        self.calls.append(("train", len(tasks)))
        return self._trainer.train(tasks)

    def evaluate(self, models: Sequence[Model]) -> list[Metrics | TrainingDiverged]:
        self.calls.append(("evaluate", len(models)))
        return self._trainer.evaluate(models)


def watched(setup: WorkerSetup, backend: str = "vectorised") -> tuple[Watched, Theta]:
    bundle, theta = load(setup.bundle)
    return Watched(Worker(with_backend(setup, backend)).trainer(bundle)), theta


def order_of(**changes: Any) -> Order:
    plain = Order(
        run="run", round=1, task="train", bundle=describe(b"b"), model=describe(b"m"),
        model_hash=bytes(32), work=Work(training=TRAINING), seed=5,
    )  # fmt: skip
    return changed(plain, **changes)


def run_of(
    setup: WorkerSetup, order: Order, device: int, start: Theta, own: Theta | None
) -> LocalRun:
    layout = load(setup.bundle)[0].manifest.layout
    return LocalRun(local_training(order, layout, start, own), *SHARES.examples(device))


ORDERS = {
    "plain": order_of(),
    "phases": order_of(then=(BRIEF, Training(prox=0.5))),
    "ditto": order_of(own_model=OwnModel(Training(prox=0.5, momentum=0.5))),
    "apfl": order_of(own_model=OwnModel(mix=0.25, adaptive=True)),
    "kept": order_of(training=Training(learning_rate=0.05, optimizer_state="keep")),
    "critical": order_of(select=UpdateSelection()),
    "own": order_of(scoring=DeviceScoring(0.9, "fisher")),
}


def bits(result: LocalResult | TrainingDiverged) -> tuple[object, ...]:
    assert isinstance(result, LocalResult)
    vectors = (result.model, result.part, result.trained.theta, result.trained.gradient)
    kept = tuple(None if v is None else v.tobytes() for v in (*vectors, result.chosen))
    told = (result.before, result.after, result.mix, result.sparse)
    return (*kept, *told, result.trained.loss, result.trained.steps)


def test_equal_requests_are_answered_together(setup: WorkerSetup) -> None:
    trainer, theta = watched(setup)
    runs = [run_of(setup, ORDERS["plain"], device, theta, None) for device in range(DEVICES)]
    results = train_together(runs, trainer)
    assert trainer.calls == [("evaluate", 4), ("train", 4), ("evaluate", 4)]
    assert len({bits(result)[0] for result in results}) == DEVICES


def test_everybody_waits_for_whoever_asks_the_same(setup: WorkerSetup) -> None:
    trainer, theta = watched(setup)
    runs = [run_of(setup, order, 0, theta, None) for order in ORDERS.values()]
    train_together(runs, trainer)
    assert trainer.calls[:3] == [("evaluate", 7), ("train", 7), ("evaluate", 5)]
    counts = {kind: sum(n for k, n in trainer.calls if k == kind) for kind, _ in trainer.calls}
    assert counts == {"evaluate": 15, "train": 10}


@pytest.mark.parametrize("backend", ["onnx", "vectorised"])
def test_company_changes_no_bit(setup: WorkerSetup, backend: str) -> None:
    trainer, theta = watched(setup, backend)
    own = theta + np.random.default_rng(0).normal(0, 0.01, theta.size).astype(np.float32)
    starts = ((0, None), (1, own))  # the second has a model of its own
    cases = [(order, device, mine) for order in ORDERS.values() for device, mine in starts]
    together = train_together([run_of(setup, o, d, theta, mine) for o, d, mine in cases], trainer)
    for (order, device, mine), result in zip(cases, together, strict=True):
        (alone,) = train_together([run_of(setup, order, device, theta, mine)], trainer)
        assert bits(alone) == bits(result)


def test_one_that_diverges_does_not_touch_the_others(setup: WorkerSetup) -> None:
    trainer, theta = watched(setup)
    wild = order_of(training=Training(local_epochs=3, learning_rate=1000.0, momentum=0.9))
    starts = [(ORDERS["phases"], theta), (wild, theta * 1e5), (ORDERS["plain"], theta * 1e38)]
    starts.append((ORDERS["critical"], theta))
    runs = [run_of(setup, order, 0, start, None) for order, start in starts]
    first, second, third, last = train_together(runs, trainer)
    assert isinstance(second, TrainingDiverged) and isinstance(third, TrainingDiverged)
    for order, result in (("phases", first), ("critical", last)):
        (alone,) = train_together([run_of(setup, ORDERS[order], 0, theta, None)], trainer)
        assert bits(alone) == bits(result)


def test_who_picks_its_start_is_asked_on_what_it_holds_out(setup: WorkerSetup) -> None:
    """Two starts for everybody, and one that has nothing to pick waits meanwhile."""
    trainer, theta = watched(setup)
    rng = np.random.default_rng(2)
    layout = load(setup.bundle)[0].manifest.layout
    order, alone = order_of(choice=PatchChoice(0.25)), list[LocalResult | TrainingDiverged]()

    def runs() -> list[LocalRun]:
        found = [run_of(setup, ORDERS["plain"], 3, theta, None)]
        for device in range(3):
            train, test = SHARES.examples(device)
            kept, held = split(train, 0.25, device)
            candidates = StartCandidates(theta, theta + wild[device])
            strategy_run = local_training(order, layout, theta, None, candidates)
            found.append(LocalRun(strategy_run, kept, test, held))
        return found

    wild = rng.normal(0, 0.2, (3, theta.size)).astype(np.float32)
    together = train_together(runs(), trainer)
    assert trainer.calls[:4] == [("evaluate", 4), ("train", 1), ("evaluate", 4), ("evaluate", 3)]
    for run in runs():
        alone += train_together([run], trainer)
    assert [bits(one) for one in together] == [bits(one) for one in alone]
    for device, found in enumerate(together[1:]):
        assert isinstance(found, LocalResult) and found.picked is not None
        held = split(SHARES.examples(device)[0], 0.25, device)[1]
        worths = trainer.evaluate([(theta, held), (theta + wild[device], held)])
        ranks = [(w.metric, -w.loss) for w in worths if isinstance(w, Metrics)]
        assert found.picked.patched == bool(ranks.index(max(ranks)))


def test_no_trainings(setup: WorkerSetup) -> None:
    trainer, _ = watched(setup)
    assert train_together([], trainer) == []
    assert trainer.calls == []
