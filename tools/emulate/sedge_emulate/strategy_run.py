"""Runs one strategy from its first round to its result, in virtual time or over a broker."""

import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias

import msgspec

from sedge_cloud.runs.run import Run, state_of
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategy import ClientModel, Context, Groups
from sedge_emulate.broker.fleet import BrokerFleet
from sedge_emulate.config import StrategyConfig
from sedge_emulate.emulation import SharedSetup, StrategyRun, finished, keep, strategy_run_of
from sedge_emulate.progress import Progress
from sedge_emulate.result import (
    CentralTest,
    DeviceResult,
    Engine,
    RunTraffic,
    StrategyResult,
    class_results,
    spread,
)
from sedge_emulate.summaries import personal_elements, personal_shares
from sedge_emulate.training.memory import peak_bytes
from sedge_emulate.virtual.absence import cohort_without
from sedge_emulate.virtual.fleet import VirtualFleet
from sedge_emulate.virtual.plan import Plan
from sedge_emulate.watch import Watch
from sedge_emulate.workers.pool import WorkerPool
from sedge_protocol.errors import DataError, SedgeError
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.messages import TRAIN

Fleet: TypeAlias = VirtualFleet | BrokerFleet


def result_of(
    shared: SharedSetup,
    strategy: StrategyConfig,
    resume: bool,
    pool: WorkerPool,
    url: str | None,
    progress: Progress,
) -> StrategyResult:
    """Return a strategy's result.

    With ``resume``, a result that was saved before the interruption is reused.
    """
    strategy_run = strategy_run_of(shared, strategy, resume)
    return finished(shared, strategy_run) or run_strategy(shared, strategy_run, pool, url, progress)


def run_strategy(
    shared: SharedSetup,
    strategy_run: StrategyRun,
    pool: WorkerPool,
    url: str | None,
    progress: Progress,
) -> StrategyResult:
    """Run one strategy over the broker at ``url``, or in virtual time if that is None.

    Raises ``LinkError`` if the fleet stays silent, and ``DataError`` if no device sent a result or the run
    failed before its end.
    """
    began_s = time.monotonic()
    progress.strategy(strategy_run.title, strategy_run.config.num_rounds, shared.metric)
    for remark in _remarks(shared, strategy_run):
        progress.note(remark)
    trained_s = pool.train_s
    with closing(_fleet(shared, strategy_run, pool, url)) as fleet:
        if isinstance(fleet, BrokerFleet):
            _invite(shared, fleet, progress)
        watch = Watch(progress, fleet.clock, fleet.totals, lambda: _last_groups(fleet.store))
        fleet.play(watch)
        if watch.failure:
            raise DataError(f"{strategy_run.title}: {watch.failure}")
        context = _last_context(fleet.store)
        theta = context.theta
        judged = pool.judge(theta) if len(shared.shares.central) else None
    engine = _engine(watch, pool, time.monotonic() - began_s, pool.train_s - trained_s)
    result = _result(shared, strategy_run, fleet, watch, engine)
    result = msgspec.structs.replace(
        result,
        central=_central(shared, result.devices, judged),
        epochs=_epochs(strategy_run, context),
        partners={device: dict(others) for device, others in watch.partners.items()},
    )
    keep(shared, strategy_run, result, theta.astype("<f4").tobytes())
    return result


def _fleet(
    shared: SharedSetup, strategy_run: StrategyRun, pool: WorkerPool, url: str | None
) -> Fleet:
    if url is None:
        # A virtual run is replayed from its start, with cached job results, so its old store is deleted.
        shutil.rmtree(strategy_run.folder / "cloud", ignore_errors=True)
        plan = Plan(shared.config, shared.config.seed)
        name = shared.name(pool.trainer)
        absent = {
            shared.shares.name(number): plan.device(number).config.absent_rounds
            for number in range(shared.config.devices)
            if plan.device(number).config.absent_rounds
        }
        draw = cohort_without(absent)
        return VirtualFleet(strategy_run, shared.bundle, shared.shares, plan, pool, name, draw)
    return BrokerFleet(strategy_run, shared.bundle, shared.shares, pool, url)


def _invite(shared: SharedSetup, fleet: BrokerFleet, progress: Progress) -> None:
    for device in shared.config.real:
        folder = shared.out / "join" / device
        fleet.invite(device, folder)
        progress.note(f"{device} can join from {folder}: sedge-edge -c {folder}/edge.toml run")


def _last_context(store: Store) -> Context:
    """Return the context that the strategy would get for the next round."""
    run = Run(store.runs()[0], store)
    return RunStore(store).context(run)


def _last_groups(store: Store) -> Groups:
    """Return the groups of devices that would learn together in the next round."""
    return RunStore(store).read_groups(state_of(store.runs()[0]).groups)


def _epochs(strategy_run: StrategyRun, context: Context) -> int:
    """Return how many epochs a device trains in the last round, counting every model that it trains.

    A mixture of two models counts twice, because it computes two gradients per batch. Returns 0 if the
    strategy raises an error: the run is over, and its result matters more than this figure.
    """
    last = replace(context, is_evaluation=False, round=max(0, context.round - 1))
    try:
        strategy = make_strategy(strategy_run.config.strategy, strategy_run.config.options)
        work = strategy.plan(last, ClientModel()).work
    except SedgeError:
        return 0
    first, own = work.training or context.training, work.own_model
    trainings = [first, *work.then]
    if own is not None:
        trainings.append(first if own.mixes else own.training)
    return sum(training.local_epochs for training in trainings)


def _remarks(
    shared: SharedSetup, strategy_run: StrategyRun, personal: int | None = None
) -> tuple[str, ...]:
    """Return the strategy's remarks on its options with this model.

    After the run, they also take the number of ``personal`` parameters sent into account.
    """
    strategy = make_strategy(strategy_run.config.strategy, strategy_run.config.options)
    forms = (shared.bundle, *strategy_run.narrower)
    try:
        return strategy.remarks([load(form)[0].manifest.layout for form in forms], personal)
    except SedgeError as exc:
        if personal is None:
            raise
        return (str(exc),)  # the run has finished, so its result must not be lost


def _engine(watch: Watch, pool: WorkerPool, wall_s: float, train_s: float) -> Engine:
    jobs = sum(len(summary.devices) for summary in watch.summaries)
    here = peak_bytes()
    return Engine(
        wall_s=wall_s,
        train_s=train_s,
        workers=pool.workers,
        overhead=min(1.0, max(0.0, 1 - train_s / (wall_s * pool.workers))),
        device_rounds=jobs,
        peak_rss_bytes=here + pool.peak_rss,
        trainer=pool.trainer,
    )


def _result(
    shared: SharedSetup, strategy_run: StrategyRun, fleet: Fleet, watch: Watch, engine: Engine
) -> StrategyResult:
    final = watch.summaries[-1]
    by_device = {device.device: device for device in final.devices}
    shares = shared.shares
    devices: list[DeviceResult] = []
    absent: list[DeviceResult] = []
    for number in range(len(shares)):
        device = shares.name(number)
        evaluated = by_device.get(device)
        one = DeviceResult(
            device=device,
            num_train=shares.num_train(number),
            num_test=shares.num_test(number),
            num_classes=shares.num_classes(number) if evaluated else 0,
            before=evaluated.before if evaluated else 0.0,
            after=evaluated.after if evaluated else 0.0,
            late=watch.late[device],
        )
        (devices if evaluated else absent).append(
            msgspec.structs.replace(one, **fleet.seen(number))
        )
    if not devices:
        why = f"; most declined because {final.why_declined}" if final.declined else ""
        raise DataError(f"{strategy_run.title}: no device answered in round {final.round}{why}")
    return StrategyResult(
        name=strategy_run.title,
        options=msgspec.to_builtins(strategy_run.config.options),
        rounds=watch.rounds,
        before=spread([device.before for device in devices], shared.metric),
        after=spread([device.after for device in devices], shared.metric),
        devices=devices,
        bytes=_traffic(shared, fleet, watch),
        seconds=engine.wall_s,
        personal=personal_shares(final),
        engine=engine,
        classes=class_results(devices, absent),
        remarks=list(_remarks(shared, strategy_run, personal_elements(watch.summaries))),
    )


def _central(
    shared: SharedSetup, devices: Sequence[DeviceResult], judged: float | None
) -> CentralTest | None:
    """Summarise the metrics on the central test set, or return None if no device has any."""
    found = [device.central for device in devices if device.central is not None]
    if not found:
        return None
    return CentralTest(
        examples=len(shared.shares.central),
        before=spread([before for before, _ in found], shared.metric),
        after=spread([after for _, after in found], shared.metric),
        global_model=judged,
    )


def _traffic(shared: SharedSetup, fleet: Fleet, watch: Watch) -> RunTraffic:
    sizes = [
        device.update_bytes
        for summary in watch.summaries
        if summary.task == TRAIN
        for device in summary.devices
    ]
    totals = fleet.totals()
    return RunTraffic(
        device_up=totals.up,
        device_down=totals.down,
        coordinator_up=totals.coordinator[0],
        coordinator_down=totals.coordinator[1],
        update_payload_mean=sum(sizes) / max(1, len(sizes)),
        dense_update=shared.model.dense_bytes,
        payload_up=totals.payload_up,
        payload_down=totals.payload_down,
        resent=totals.resent,
    )
