"""``sedge-emulate run``: runs every strategy of a fleet file and writes the report."""

import argparse
import logging
import os
import platform
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console

from sedge_emulate.broker.brokers import open_broker
from sedge_emulate.broker.fleet import invited_port
from sedge_emulate.compare.comparison import compared
from sedge_emulate.compare.grids import grids, print_grids
from sedge_emulate.config import (
    EmulationConfig,
    StrategyConfig,
    load_emulation,
)
from sedge_emulate.device_classes import (
    ChurnConfig,
)
from sedge_emulate.emulation import SharedSetup, clear_away, locked, set_up, unfinished
from sedge_emulate.progress import Progress
from sedge_emulate.report.page import write_report
from sedge_emulate.report.terminal import print_table
from sedge_emulate.result import Machine, Result, StrategyResult, write_json
from sedge_emulate.strategy_run import result_of
from sedge_emulate.workers.cluster import ClusterWorkers
from sedge_emulate.workers.local import LocalWorkers
from sedge_emulate.workers.pool import WorkerPool, Workers
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.posix import require_posix
from sedge_protocol.host.toml import converted

PACKAGES = ("numpy", "onnxruntime", "torch", "paho-mqtt", "msgspec")


def run(arguments: argparse.Namespace) -> int:
    """Run the command, once for each seed. Returns its exit status."""
    console = Console()
    if arguments.seeds is None:
        _require_free(arguments)
        _run_one(arguments, console)
        return 0
    each = [
        argparse.Namespace(
            **{**vars(arguments), "seed": seed, "out": arguments.out / f"seed-{seed}"}
        )
        for seed in arguments.seeds
    ]
    for one in each:  # before the first run, which may take an hour
        _require_free(one)
    for one in each:
        if not (arguments.resume and _has_ended(one.out)):
            console.rule(f"seed {one.seed}")
            one.resume = arguments.resume and unfinished(one.out)
            _run_one(one, console)
    found = compared([one.out for one in each])
    print_grids(found, grids(found), console)
    return 0


def _require_free(arguments: argparse.Namespace) -> None:
    """Raise ``ConfigError`` if the run would silently discard an unfinished emulation."""
    if unfinished(arguments.out) and not (arguments.resume or arguments.fresh):
        expected = "--resume to continue the unfinished emulation in it, or --fresh to discard it"
        raise ConfigError("--out", str(arguments.out), expected)


def _has_ended(out: Path) -> bool:
    return (out / "result.json").exists() and not unfinished(out)


def _run_one(arguments: argparse.Namespace, console: Console) -> None:
    whole = load_emulation(arguments.fleet)
    config = overridden(whole, arguments)
    # The interrupted emulation may have had strategies that --only does not select now.
    run_fleet(config, arguments, console, whole.strategies if arguments.resume else ())


def run_fleet(
    config: EmulationConfig,
    arguments: argparse.Namespace,
    console: Console,
    others: Sequence[StrategyConfig] = (),
) -> Result:
    """Run a fleet, and write its result and report to ``arguments.out``.

    The state for resuming is deleted once the fleet's strategies and ``others`` have finished.
    """
    if arguments.ray is not None and config.link != "memory":
        raise ConfigError("link", config.link, "memory: --ray requires virtual time")
    # In virtual time, the plan deliberately fills disks and damages frames. Only the emulated devices need
    # to notice, so this is not logged.
    quiet = logging.CRITICAL if config.link == "memory" else logging.ERROR
    level = logging.INFO if arguments.verbose else quiet
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    out: Path = arguments.out
    with translated("make folder", out):  # fail now, not after minutes of work
        out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        shared, result = emulate(config, arguments, console)
        write_json(result, out / "result.json")
        write_report(result, out / "report.html")
        clear_away(shared, others or config.strategies)
    print_table(result, console, out / "report.html")
    return result


def emulate(
    config: EmulationConfig, arguments: argparse.Namespace, console: Console
) -> tuple[SharedSetup, Result]:
    """Run every strategy to completion. Returns the shared and the emulation's result."""
    out: Path = arguments.out
    with ExitStack() as stack:
        url, kind = _link(config, stack, out if arguments.resume else None)
        progress = stack.enter_context(Progress(console))
        base = arguments.fleet.absolute().parent
        shared = set_up(config, base, out, arguments.resume, progress.note, arguments.fresh)
        if arguments.ray is not None:
            progress.note(
                f"Ray ({arguments.ray}) is starting its workers; on a busy host this takes a minute"
            )
        workers = _workers(shared, arguments.ray)
        pool = stack.enter_context(closing(WorkerPool(workers, hold=url is None)))
        for text in pool.notes:
            progress.note(text)
        results = [
            result_of(shared, strategy, arguments.resume, pool, url, progress)
            for strategy in config.strategies
        ]
        progress.finished()
    return shared, _result(arguments, shared, kind, results)


def _workers(shared: SharedSetup, ray: str | None) -> Workers:
    """Start the training processes, on this host or, if ``ray`` is given, on that Ray cluster."""
    if ray is None:
        return LocalWorkers(shared.setup, shared.workers)
    return ClusterWorkers(shared.setup, ray, shared.workers)


def _result(
    arguments: argparse.Namespace, shared: SharedSetup, link: str, strategies: list[StrategyResult]
) -> Result:
    return Result(
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        # A path may not be valid UTF-8, but a result must be.
        command=shlex.join(["sedge-emulate", *arguments.argv])
        .encode(errors="backslashreplace")
        .decode(),
        dataset=shared.dataset_name,
        split=shared.split,
        devices=shared.config.devices,
        seed=shared.config.seed,
        model=shared.model,
        machine=_machine(),
        strategies=strategies,
        link=link,
        metric=shared.metric,
        settings=msgspec.to_builtins(shared.config),
        data_sha256=shared.data_sha256,
    )


def overridden(config: EmulationConfig, arguments: argparse.Namespace) -> EmulationConfig:
    """Apply the command line's options to the fleet file's settings. Raises ``ConfigError``."""
    changes: dict[str, object] = {}
    for key in ("devices", "seed", "link"):
        if getattr(arguments, key) is not None:
            changes[key] = getattr(arguments, key)
    if arguments.rounds is not None:
        changes["rounds"] = msgspec.structs.replace(config.rounds, num_rounds=arguments.rounds)
    if arguments.only:
        titles = [strategy.title for strategy in config.strategies]
        unknown = [title for title in arguments.only if title not in titles]
        if unknown:
            raise ConfigError("--only", unknown[0], f"one of {', '.join(titles)}")
        changes["strategies"] = tuple(s for s in config.strategies if s.title in arguments.only)
    changed = msgspec.structs.replace(config, **changes)
    # The fleet file's limits also apply to values from the command line.
    where = "command line"
    return converted(msgspec.to_builtins(changed), EmulationConfig, where).check(where)


def _link(
    config: EmulationConfig, stack: ExitStack, resumed: Path | None
) -> tuple[str | None, str]:
    """Start the broker, if there is one. Returns its URL (None in virtual time) and the name of the link.

    If the emulation in ``resumed`` invited real devices, its broker starts on the port that they were
    given.
    """
    if config.link == "memory":
        return None, config.link
    require_posix(f"link = {config.link!r}")
    if config.classes or config.churn != ChurnConfig():
        expected = "memory: classes and churn exist only in virtual time"
        raise ConfigError("link", config.link, expected)
    kind = "auto" if config.link == "broker" else config.link
    port = None if resumed is None else invited_port(resumed / "join", config.real)
    broker = open_broker(kind, port)
    stack.enter_context(broker)
    return broker.url, broker.kind


def _machine() -> Machine:
    return Machine(
        cpus=os.cpu_count() or 1,
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={package: version(package) for package in PACKAGES},
    )
