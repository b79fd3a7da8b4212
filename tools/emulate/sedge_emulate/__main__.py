"""``sedge-emulate``: a fleet of virtual devices on one host, trained for real."""

import argparse
import importlib
import logging
import os
import platform
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from sedge_emulate.broker import open_broker
from sedge_emulate.config import EmulationConfig, load_emulation
from sedge_emulate.data import Dataset
from sedge_emulate.devices import share_out
from sedge_emulate.fleet import Host, run_strategy
from sedge_emulate.progress import Progress
from sedge_emulate.report import print_table, write_report
from sedge_emulate.result import Machine, Model, Result, StrategyResult, write_json
from sedge_protocol.disk import translated
from sedge_protocol.errors import ConfigError, SedgeError

if TYPE_CHECKING:
    import torch

PACKAGES = ("numpy", "onnxruntime", "torch", "paho-mqtt", "zstandard", "msgspec")


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 when it went well, 2 for an error, 130 when interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(argv, argparse.Namespace(argv=argv))
    try:
        return int(arguments.call(arguments))
    except SedgeError as exc:
        print(f"sedge-emulate: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sedge-emulate: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sedge-emulate", description="Virtual devices, real training.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run every strategy of a fleet file")
    run.add_argument("fleet", type=Path, help="fleet.toml")
    run.add_argument("--devices", type=int, help="instead of the file's")
    run.add_argument("--rounds", type=int, help="instead of the file's")
    run.add_argument("--seed", type=int, help="instead of the file's")
    run.add_argument("--only", action="append", help="only the strategies with this label")
    run.add_argument("--broker", default="auto", help="auto, mosquitto, amqtt or mqtt://host:port")
    run.add_argument("--out", type=Path, default=Path("runs/latest"), help="folder for the results")
    run.add_argument(
        "--verbose", action="store_true", help="show the log of agents and coordinator"
    )
    run.set_defaults(call=_run)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    level = logging.INFO if arguments.verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = _overridden(load_emulation(arguments.fleet), arguments)
    console = Console()
    out: Path = arguments.out
    base = arguments.fleet.absolute().parent
    results: list[StrategyResult] = []
    with translated("make folder", out):  # here, not after minutes of work
        out.mkdir(parents=True, exist_ok=True)
    with open_broker(arguments.broker) as broker, Progress(console) as progress:
        dataset, shares = share_out(config.data, config.devices, config.seed, base)
        progress.note(f"{_describe(config, dataset)}; broker: {broker.kind}")
        bundle = out / "bundle"
        model = _export(config, dataset, bundle, base)
        progress.note(f"exported and verified: {model.name}, {model.parameters:,} parameters")
        host = Host(out / "state", broker.url, config.workers or os.cpu_count() or 1)
        for strategy in config.strategies:
            run = config.run(strategy)
            results.append(run_strategy(strategy.title, run, bundle, shares, host, progress))
        progress.finished()
    result = Result(
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=shlex.join(["sedge-emulate", *arguments.argv]),
        dataset=dataset.name,
        split=_describe(config, dataset),
        devices=config.devices,
        seed=config.seed,
        model=model,
        machine=_machine(),
        strategies=results,
    )
    write_json(result, out / "result.json")
    write_report(result, out / "report.html")
    print_table(result, console, out / "report.html")
    return 0


def _overridden(config: EmulationConfig, arguments: argparse.Namespace) -> EmulationConfig:
    """The fleet file with the command line's changes. Raises ``ConfigError``."""
    changes: dict[str, object] = {}
    for key in ("devices", "seed"):
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
    try:  # the limits of the file hold for the command line too
        return msgspec.convert(msgspec.to_builtins(changed), EmulationConfig)
    except msgspec.ValidationError as exc:
        raise ConfigError(
            "command line", str(exc), "values within the limits of fleet.toml"
        ) from exc


def _export(config: EmulationConfig, dataset: Dataset, folder: Path, base: Path) -> Model:
    """Export the fleet's model; torch is imported here and nowhere else."""
    import torch

    from sedge_export import export
    from sedge_export.models import avgcnn, mlp

    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    if config.model.factory:
        name, model = config.model.factory, _built(config.model.factory, base)
    elif dataset.inputs.shape[1:] == (1, 28, 28):
        name, model = "avgcnn", avgcnn(classes=dataset.num_classes)
    else:
        name = "mlp"
        model = mlp(int(dataset.inputs[0].size), 200, dataset.num_classes)
    sample = torch.from_numpy(dataset.inputs[: config.model.batch_size])
    manifest = export(
        model,
        sample,
        batch_size=config.model.batch_size,
        name=name.rpartition(":")[2],
        num_classes=dataset.num_classes,
        folder=folder,
    )
    size = manifest.layout.size
    return Model(name=name, parameters=size, dense_bytes=4 * size)


def _built(name: str, base: Path) -> "torch.nn.Module":
    """The user's model. Raises ``ConfigError`` when it cannot be had."""
    import torch

    module, _, function = name.partition(":")
    expected = "module:function that gives a torch.nn.Module"
    sys.path.insert(0, str(base))
    try:
        found: object = getattr(importlib.import_module(module), function)()
    except Exception as exc:  # whatever the user's own code raises
        why = f"{expected} ({type(exc).__name__}: {exc})"
        raise ConfigError("model.factory", name, why) from exc
    finally:
        sys.path.remove(str(base))
    if not isinstance(found, torch.nn.Module):
        raise ConfigError("model.factory", name, f"{expected}, not {type(found).__name__}")
    return found


def _describe(config: EmulationConfig, dataset: Dataset) -> str:
    data = config.data
    how = (
        f"Dir({data.alpha:g})"
        if data.split == "dirichlet"
        else f"{data.classes_per_device} classes a device"
    )
    return f"{len(dataset.targets):,} examples of {dataset.name} on {config.devices} devices, {how}"


def _machine() -> Machine:
    return Machine(
        cpus=os.cpu_count() or 1,
        platform=platform.platform(),
        python=platform.python_version(),
        versions={package: version(package) for package in PACKAGES},
    )


if __name__ == "__main__":
    sys.exit(main())
