"""One strategy from its first round to its result, on whichever link joins the fleet."""

import resource
import shutil
import time
from contextlib import closing
from typing import TypeAlias

import msgspec

from sedge_cloud.rounds.summary import Summary
from sedge_cloud.store.database import Store
from sedge_cloud.store.runs import Run, RunStore
from sedge_emulate.broker.fleet import BrokerFleet
from sedge_emulate.config import StrategyConfig
from sedge_emulate.emulation import Course, Stage, course_of, finished, keep
from sedge_emulate.progress import Progress
from sedge_emulate.result import (
    DeviceResult,
    Engine,
    StrategyResult,
    TensorShare,
    Traffic,
    class_results,
    spread,
)
from sedge_emulate.virtual.fleet import VirtualFleet
from sedge_emulate.virtual.plan import Plan
from sedge_emulate.watch import Watch
from sedge_emulate.workers.pool import Crew
from sedge_protocol.errors import DataError
from sedge_protocol.wire.messages import TRAIN

Fleet: TypeAlias = VirtualFleet | BrokerFleet


def one_course(
    stage: Stage,
    strategy: StrategyConfig,
    resume: bool,
    crew: Crew,
    url: str | None,
    progress: Progress,
) -> StrategyResult:
    """One strategy's result, if need be from an earlier start of this emulation (``resume``)."""
    course = course_of(stage, strategy, resume)
    return finished(stage, course) or run_course(stage, course, crew, url, progress)


def run_course(
    stage: Stage, course: Course, crew: Crew, url: str | None, progress: Progress
) -> StrategyResult:
    """Run one strategy over the broker at ``url``, or (None) in virtual time.

    Raises ``LinkError`` for a fleet that stays silent, ``DataError`` when no device gave a result or the
    run did not come to its end.
    """
    began_s = time.monotonic()
    progress.strategy(course.title, course.run.num_rounds)
    trained_s = crew.train_s
    with closing(_fleet(stage, course, crew, url)) as fleet:
        if isinstance(fleet, BrokerFleet):
            _invite(stage, fleet, progress)
        watch = Watch(progress, fleet.clock, fleet.totals)
        fleet.play(watch)
        if watch.failure:
            raise DataError(f"{course.title}: {watch.failure}")
        theta = _last_model(fleet.store)
    engine = _engine(watch, crew, time.monotonic() - began_s, crew.train_s - trained_s)
    result = _result(stage, course, fleet, watch, engine)
    keep(stage, course, result, theta)
    return result


def _fleet(stage: Stage, course: Course, crew: Crew, url: str | None) -> Fleet:
    if url is None:
        # The memo is what a virtual run goes on from; all else is played again.
        shutil.rmtree(course.folder / "cloud", ignore_errors=True)
        plan = Plan(stage.config, stage.config.seed)
        name = stage.name(crew.trainer)
        return VirtualFleet(course, stage.bundle, stage.shares, plan, crew, name)
    return BrokerFleet(course, stage.bundle, stage.shares, crew, url)


def _invite(stage: Stage, fleet: BrokerFleet, progress: Progress) -> None:
    for device in stage.config.real:
        folder = stage.out / "join" / device
        fleet.invite(device, folder)
        progress.note(f"{device} may join with {folder}: sedge-edge -c {folder}/edge.toml run")


def _last_model(store: Store) -> bytes:
    """The run's global model, n float32 little endian."""
    run = Run(store.runs()[0], store)
    return RunStore(store).context(run).theta.astype("<f4").tobytes()


def _engine(watch: Watch, crew: Crew, wall_s: float, train_s: float) -> Engine:
    jobs = sum(len(summary.devices) for summary in watch.summaries)
    here = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Engine(
        wall_s=wall_s,
        train_s=train_s,
        workers=crew.workers,
        overhead=min(1.0, max(0.0, 1 - train_s / (wall_s * crew.workers))),
        device_rounds=jobs,
        peak_rss_bytes=here + crew.peak_rss,
        trainer=crew.trainer,
    )


def _result(
    stage: Stage, course: Course, fleet: Fleet, watch: Watch, engine: Engine
) -> StrategyResult:
    final = watch.summaries[-1]
    by_device = {device.device: device for device in final.devices}
    shares = stage.shares
    devices: list[DeviceResult] = []
    absent: list[DeviceResult] = []
    for number in range(len(shares)):
        device = shares.name(number)
        found = by_device.get(device)
        one = DeviceResult(
            device=device,
            num_train=shares.num_train(number),
            num_test=shares.num_test(number),
            num_classes=shares.num_classes(number) if found else 0,
            before=found.before if found else 0.0,
            after=found.after if found else 0.0,
            late=watch.late[device],
        )
        (devices if found else absent).append(msgspec.structs.replace(one, **fleet.seen(number)))
    if not devices:
        why = f"no device answered in round {final.round}"
        raise DataError(f"{course.title}: {why}; each device's reason is in the log (--verbose)")
    return StrategyResult(
        name=course.title,
        options=msgspec.to_builtins(course.run.options),
        rounds=watch.rounds,
        before=spread([device.before for device in devices]),
        after=spread([device.after for device in devices]),
        devices=devices,
        bytes=_traffic(stage, fleet, watch),
        seconds=engine.wall_s,
        personal=_personal(final),
        engine=engine,
        classes=class_results(devices, absent),
    )


def _traffic(stage: Stage, fleet: Fleet, watch: Watch) -> Traffic:
    sizes = [
        device.update_bytes
        for summary in watch.summaries
        if summary.task == TRAIN
        for device in summary.devices
    ]
    totals = fleet.totals()
    sent, received = fleet.cloud_bytes()
    return Traffic(
        device_up=totals.up,
        device_down=totals.down,
        coordinator_up=sent,
        coordinator_down=received,
        update_payload_mean=sum(sizes) / max(1, len(sizes)),
        dense_update=stage.model.dense_bytes,
        payload_up=totals.payload_up,
        payload_down=totals.payload_down,
        resent=totals.resent,
    )


def _personal(summary: Summary) -> list[TensorShare]:
    total = sum(summary.personal.values())
    return [
        TensorShare(tensor, count / max(1, summary.cohort), count / total)
        for tensor, count in summary.personal.items()
    ]
