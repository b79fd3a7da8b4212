"""The first ten rounds of a run that the authors of FedOBP released, replayed through the whole engine.

Partition, sampling, first weights and shuffles are theirs (tools/reproduce/released.py); orders, patches,
training, coding, transfer, aggregation and evaluation are Sedge's: coordinator and agents in virtual time.
The run is Fashion-MNIST, Dir(0.1), 100 clients, 10 a round, the score |(th_i - th_g) th_i| without norm,
q = .999705.
The figures are the pooled accuracies of each round's participants before and after they train, in percent,
as their log has them; they were computed on a GPU, so ours drift by float noise.
"""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tools.reproduce.play import ROBUST
from tools.reproduce.released import DEVICES, Released, name, partition

from sedge_cloud.coding import EXACT, WHOLE
from sedge_cloud.config import RunConfig, TrainingConfig
from sedge_cloud.events import Event, UpdateReceived
from sedge_emulate.config import EmulationConfig, ModelConfig, StrategyConfig, TrainerConfig
from sedge_emulate.data.datasets import fashion_mnist
from sedge_emulate.data.shares import Shares
from sedge_emulate.emulation import StrategyRun
from sedge_emulate.model import ModelSource, Sample, export_model
from sedge_emulate.progress import Progress
from sedge_emulate.virtual.fleet import VirtualFleet
from sedge_emulate.virtual.plan import Plan
from sedge_emulate.watch import Totals, Watch
from sedge_emulate.workers.local import LocalWorkers
from sedge_emulate.workers.pool import WorkerPool
from sedge_emulate.workers.setup import WorkerSetup
from sedge_protocol.wire.update import Report

SEED = 42
ROUNDS = 10
BEFORE = [26.19, 9.76, 73.80, 55.00, 75.06, 63.49, 67.57, 80.97, 67.54, 88.85]
AFTER = [86.33, 88.57, 94.72, 93.84, 92.69, 94.26, 90.54, 94.97, 97.01, 95.54]
# Round 10: client -> per cent before and after, and its number of test examples.
CLIENTS = {
    77: (90.16, 98.45, 193),
    81: (96.30, 98.15, 54),
    21: (81.37, 90.06, 161),
    68: (87.27, 93.64, 110),
    93: (91.53, 100.00, 59),
}


class Log(Watch):
    def __init__(self) -> None:
        progress = Progress(Console(quiet=True))
        progress.strategy("golden", ROUNDS)
        super().__init__(progress, lambda: 0.0, lambda: Totals({}))
        self.reports: dict[tuple[int, str], Report] = {}

    def observe(self, event: Event) -> None:
        if isinstance(event, UpdateReceived):
            self.reports[event.round, event.device] = event.report
        super().observe(event)

    def pooled(self, number: int) -> tuple[float, float]:
        """Accuracy before and after of a round's participants, each test example counting once."""
        reports = [report for (of, _), report in self.reports.items() if of == number]
        count = sum(report.before.num_examples for report in reports)
        before = sum(report.before.metric * report.before.num_examples for report in reports)
        after = sum(report.after.metric * report.after.num_examples for report in reports)
        return 100 * before / count, 100 * after / count


def test_the_partition_and_the_participants_are_theirs() -> None:
    parts = partition(fashion_mnist().labels, 0.1, SEED)
    sizes = [len(train) + len(test) for train, test in parts]
    assert (min(sizes), max(sizes), sum(sizes)) == (52, 3378, 70_000)
    tenth = Released(SEED, ROUNDS, evaluate_every=0).cohorts[9]
    assert tenth == [77, 81, 21, 68, 93, 31, 20, 59, 48, 34]
    assert [len(parts[client][1]) for client in tenth] == [
        193, 54, 161, 110, 59, 65, 372, 137, 79, 26,
    ]  # fmt: skip


@pytest.mark.slow
def test_ten_rounds_of_the_released_run(tmp_path: Path) -> None:
    dataset = fashion_mnist()
    shares = Shares.of(dataset, partition(dataset.labels, 0.1, SEED))
    shares.save(tmp_path / "data")
    source = ModelSource.of(ModelConfig(), dataset, tmp_path)
    export_model(source, Sample.of(source, dataset), SEED, tmp_path / "bundle")
    run = RunConfig(
        strategy="fedobp",
        options={"quantile": 0.999705, "score": "product", "cold_start": "init"},
        num_rounds=ROUNDS,
        min_available_devices=DEVICES,
        training=TrainingConfig(local_epochs=5, learning_rate=0.01, momentum=0.7),
        broadcast=WHOLE,
        codec=EXACT,
        evaluate=False,
        robust=ROBUST,
    )
    released = Released(SEED, ROUNDS, evaluate_every=0)
    setup = WorkerSetup(
        tmp_path / "data", tmp_path / "bundle", source, TrainerConfig(backend="autograd"),
        released,
    )  # fmt: skip
    plan = Plan(EmulationConfig(strategies=(StrategyConfig("fedobp"),)), SEED)
    strategy_run = StrategyRun("golden", run, tmp_path / "golden", resumed=False)
    log = Log()
    with closing(WorkerPool(LocalWorkers(setup, 2), hold=True)) as pool:
        fleet = VirtualFleet(
            strategy_run, tmp_path / "bundle", shares, plan, pool, bytes(32), released.draw
        )
        with closing(fleet):
            fleet.play(log)
    ours = np.array([log.pooled(number) for number in range(1, ROUNDS + 1)])
    print(np.round(ours, 2))
    np.testing.assert_allclose(ours[:, 0], BEFORE, atol=2.0)
    np.testing.assert_allclose(ours[:, 1], AFTER, atol=0.5)
    # The first round starts from their weights: nothing but the arithmetic of one epoch differs.
    assert ours[0, 0] == pytest.approx(BEFORE[0], abs=0.01)
    for client, (before, after, count) in CLIENTS.items():
        report = log.reports[10, name(client)]
        assert report.before.num_examples == count
        assert 100 * report.before.metric == pytest.approx(before, abs=5.0)
        assert 100 * report.after.metric == pytest.approx(after, abs=2.0)
