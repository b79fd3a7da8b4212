"""Runs one cell through the whole engine in virtual time, with the published run's random choices."""

import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tools.reproduce.accounting import Mean, accounted
from tools.reproduce.cells import Cell, Table
from tools.reproduce.costs import sizes
from tools.reproduce.outcome import Checkpoint, Outcome, Point, file_name

from sedge_cloud.config import RobustConfig, RunConfig
from sedge_cloud.events import Event, RoundOpened, UpdateReceived
from sedge_emulate.config import EmulationConfig, StrategyConfig, TrainerConfig
from sedge_emulate.data.shares import Shares
from sedge_emulate.emulation import SharedSetup, StrategyRun, export_forms, worker_setup
from sedge_emulate.model import ModelSource
from sedge_emulate.progress import Progress
from sedge_emulate.result import ModelSize, spread
from sedge_emulate.virtual.fleet import VirtualFleet
from sedge_emulate.virtual.plan import Plan
from sedge_emulate.watch import Watch
from sedge_emulate.workers.local import LocalWorkers
from sedge_emulate.workers.pool import WorkerPool
from sedge_emulate.workers.setup import VERSIONS
from sedge_protocol.errors import DataError
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.update import Metrics, Report

AUTO = TrainerConfig().backend
# No published fleet has hostile devices, so updates are averaged. Only updates more than five times as long
# as the median are shortened.
ROBUST = RobustConfig(clip=5.0, rule="mean", max_weight=100.0)


@dataclass(frozen=True)
class Trial:
    """A cell of a table with its seed, number of rounds and trainer."""

    table: Table
    cell: Cell
    seed: int
    rounds: int
    backend: str = AUTO

    @property
    def file(self) -> str:
        """The name of the trial's outcome file."""
        return file_name(
            self.table.name, self.cell.name, self.seed, self.rounds, self.asked_backend
        )

    @property
    def asked_backend(self) -> str:
        """The name of the requested trainer; empty for the default."""
        return "" if self.backend == AUTO else self.backend

    @property
    def title(self) -> str:
        """The trial's name in progress messages."""
        return f"{self.table.name} {self.cell.name} seed {self.seed}"


class Log(Watch):
    """A ``Watch`` that also records each round's reports, and its bytes as the paper counts them."""

    def __init__(self, progress: Progress, fleet: VirtualFleet) -> None:
        super().__init__(progress, fleet.clock, fleet.totals)
        self.reports: dict[int, list[Report]] = defaultdict(list)
        self.accounted: dict[int, Mean] = {}
        self._store = fleet.store

    def trainings(self) -> list[list[Report]]:
        """Return the reports of every training round."""
        return [self.reports[summary.round] for summary in self.summaries if summary.task == TRAIN]

    def observe(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, UpdateReceived) and not event.late:
            self.reports[event.round].append(event.report)
        if isinstance(event, RoundOpened):
            mean = accounted(self._store, event.cohort)
            if mean is not None:
                self.accounted[mean.round] = mean
        super().observe(event)


def play(trial: Trial, home: Path, workers: int, progress: Progress) -> Outcome:
    """Run the cell. Jobs that an earlier, killed process has left in ``home`` are not computed again.

    Raises ``DataError`` if the run failed.
    """
    began = time.monotonic()
    shared = _shared(trial, home)
    streams = trial.table.setting.streams(trial.seed, trial.rounds)
    setup = replace(shared.setup, shuffles=streams.shuffles)
    folder = home / "state" / "strategy_run"
    strategy_run = StrategyRun(
        trial.cell.name, _run(trial), folder, resumed=True, narrower=shared.narrower
    )
    progress.strategy(trial.title, trial.rounds)
    with closing(WorkerPool(LocalWorkers(setup, workers), hold=True)) as pool:
        # Only the finished jobs of a killed process are kept; the coordinator starts from scratch.
        shutil.rmtree(strategy_run.folder / "cloud", ignore_errors=True)
        jobs, plan = shared.name(pool.trainer), Plan(shared.config, trial.seed)
        fleet = VirtualFleet(
            strategy_run, shared.bundle, shared.shares, plan, pool, jobs, streams.draw
        )
        with closing(fleet):
            log = Log(progress, fleet)
            fleet.play(log)
            if log.failure:
                raise DataError(f"{trial.title}: {log.failure}")
            totals, found = fleet.totals(), sizes(shared, fleet, log)
        trainer = pool.trainer
    shutil.rmtree(home, ignore_errors=True)
    return Outcome(
        table=trial.table.name,
        cell=trial.cell.name,
        strategy=trial.cell.strategy,
        options=trial.cell.options,
        seed=trial.seed,
        rounds=trial.rounds,
        created=time.strftime("%Y-%m-%d"),
        versions={package: version(package) for package in VERSIONS},
        trainer=trainer,
        backend=trial.asked_backend,
        workers=workers,
        seconds=round(time.monotonic() - began, 1),
        checkpoints=tuple(_checkpoints(log)),
        points=tuple(_points(log)),
        bytes_up=totals.up,
        bytes_down=totals.down,
        parameters=shared.model.parameters,
        participants=max(len(reports) for reports in log.trainings()),
        sizes=found,
    )


def _run(trial: Trial) -> RunConfig:
    """Return the settings of the published run."""
    setting = trial.table.setting
    return RunConfig(
        strategy=trial.cell.strategy,
        options=trial.cell.options,
        num_rounds=trial.rounds,
        min_available_devices=setting.devices,
        evaluate_every=setting.checkpoint,
        seed=trial.seed,
        training=setting.training,
        codec=trial.cell.codec,
        broadcast=trial.cell.broadcast,
        patch=trial.cell.patch,
        robust=ROBUST,
    )


def _shared(trial: Trial, home: Path) -> SharedSetup:
    """Prepare the data, the split and the model, once per cell."""
    setting = trial.table.setting
    dataset = setting.dataset()
    source = ModelSource.of(setting.model, dataset, home)
    config = EmulationConfig(
        devices=setting.devices,
        seed=trial.seed,
        model=setting.model,
        trainer=TrainerConfig(trial.backend),
        strategies=(StrategyConfig(trial.cell.strategy, options=trial.cell.options),),
    )
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        Shares.of(dataset, list(setting.parts(dataset.labels, trial.seed))).save(
            home / "state" / "data"
        )
        export_forms(worker_setup(config, source, home), dataset, config)
        (home / "ready").touch()
    size = load(home / "bundle")[0].manifest.layout.size
    model = ModelSize(name=source.name, parameters=size, dense_bytes=4 * size)
    shares = Shares.open(home / "state" / "data")
    return SharedSetup(config, dataset.name, trial.table.title, shares, model, source, home)


def _checkpoints(log: Log) -> Iterable[Checkpoint]:
    """Yield a checkpoint for each round in which all devices were evaluated."""
    trained = 0
    for summary in log.summaries:
        trained += summary.task == TRAIN
        if summary.task == TRAIN:
            continue
        reports = log.reports[summary.round]
        before = spread([report.before.metric for report in reports])
        after = spread([report.after.metric for report in reports])
        yield Checkpoint(
            round=trained,
            before=_pooled([report.before for report in reports]),
            after=_pooled([report.after for report in reports]),
            before_mean=before.mean,
            after_mean=after.mean,
            before_worst_tenth=before.worst_tenth,
            after_worst_tenth=after.worst_tenth,
        )


def _points(log: Log) -> Iterable[Point]:
    """Yield a point for each training round."""
    pairs = zip(log.trainings(), log.rounds, strict=True)
    for place, (reports, result) in enumerate(pairs, start=1):
        sparse = [report.sparse for report in reports if report.sparse is not None]
        counted = log.accounted.get(place)
        yield Point(
            round=place,
            before=_pooled([report.before for report in reports]),
            after=_pooled([report.after for report in reports]),
            sparse=_pooled(sparse) if sparse else None,
            bytes_up=result.bytes_up,
            bytes_down=result.bytes_down,
            accounted_up=None if counted is None else counted.up,
            accounted_down=None if counted is None else counted.down,
        )


def _pooled(found: Sequence[Metrics]) -> float:
    """Return the accuracy over all devices, where each test example counts once."""
    count = sum(metrics.num_examples for metrics in found)
    right = sum(metrics.metric * metrics.num_examples for metrics in found)
    return round(right / count, 6)
