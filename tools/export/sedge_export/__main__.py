"""sedge-export: compiles a model into a bundle folder, from the command line.

    sedge-export package.module:function --sample-shape 1,28,28 --batch-size 32 --num-classes 10 \\
        --name avgcnn --out folder [--widths 0,0.25,0.5,0.75] [--backend onnxruntime,executorch] \\
        [--loss cross_entropy] [--target class] [--metric accuracy] [--data package.module:function]
    sedge-export show folder
    sedge-export personal package.module:function --weights pi-1.npz --sample-shape 1,28,28 \\
        --out model.onnx|model.pte [--int8 --data package.module:function]

The function or class is called without arguments and must return an nn.Module. ``--widths`` are shares of
the channels to leave out: the whole model is written to ``folder``, the form without a quarter of the
channels of every axis to ``folder-0.25``, and so on. Each is verified like any bundle.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from sedge_edge.backends.rows import Rows
from sedge_export.arguments import (
    InputRow,
    export_parser,
    inputs,
    objective,
    personal_parser,
    show_parser,
)
from sedge_export.export import export
from sedge_export.inspection import FAILS_ON_SAMPLE
from sedge_export.objective import OwnMetric
from sedge_export.personal import export_personal
from sedge_export.several_inputs import Given, one_input
from sedge_protocol.errors import ConfigError, ExportError, SedgeError
from sedge_protocol.host.console import printing
from sedge_protocol.wire.bundle import BundleManifest, Program, Verification, load
from sedge_protocol.wire.objective import LOSSES, Loss, own_metric

QUARTERS = (0.25, 0.5, 0.75)
SHOWN = 4  # tensors of an axis that ``show`` names


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 for success, 2 after one line on stderr for an error."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with printing():
            print(_run(arguments))
    except (SedgeError, OSError) as exc:
        print(
            "sedge-export:", *str(exc).split(), file=sys.stderr
        )  # on one line, whatever the message contains
        return 2
    return 0


def _run(arguments: list[str]) -> str:
    """Do what is asked; what to print of it."""
    if arguments[:1] == ["show"]:
        folder = Path(show_parser().parse_args(arguments[1:]).folder)
        return summary(load(folder)[0].manifest, folder)
    if arguments[:1] == ["personal"]:
        return _personal(personal_parser(), arguments[1:])
    made = _export(export_parser(), arguments)
    return "\n\n".join(summary(manifest, folder) for folder, manifest in made.items())


def summary(manifest: BundleManifest, folder: Path) -> str:
    """A bundle in a few lines: its contents and its measured errors."""
    layout = manifest.layout
    rows = [
        ("bundle", f"{manifest.name} in {folder}"),
        ("parameters", f"{layout.size:,} in {len(layout.tensors)} tensors"),
        ("frozen", _frozen(manifest)),
        ("statistics", ", ".join(layout.statistics) or "none"),
        ("random numbers", f"{manifest.noise:,} in a step" if manifest.noise else "none"),
        ("input", _input(manifest)),
        ("target", _target(manifest)),
        ("loss", _loss_text(manifest.loss)),
        ("metric", f"{manifest.metric.name}, {manifest.metric.better} is better"),
        ("batch size", f"{manifest.batch_size}"),
        *_axes_rows(manifest),
        *_program_rows(manifest, folder),
        *_verification_rows(manifest.verification),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def _input(manifest: BundleManifest) -> str:
    whole = f"{manifest.input.dtype} {_shape(manifest.input.shape)}"
    parts = [f"{part.name} {part.dtype} {_shape(part.shape)}" for part in manifest.parts]
    return f"{whole}: {', '.join(parts)}" if parts else whole


def _target(manifest: BundleManifest) -> str:
    target = manifest.target
    if target is None:
        return "the input"
    names = f": {', '.join(manifest.labels)}" if manifest.labels else ""
    classes = f", {manifest.num_classes} classes{names}" if manifest.num_classes else ""
    return f"{target.dtype} {_shape(target.shape)}{classes}"


def _loss_text(loss: Loss) -> str:
    smoothing = f", label smoothing {loss.label_smoothing:g}" if loss.label_smoothing else ""
    weights = ", ".join(f"{weight:g}" for weight in loss.class_weights)
    return f"{loss.name}{smoothing}{weights and f', class weights {weights}'}"


def _frozen(manifest: BundleManifest) -> str:
    if manifest.frozen is None:
        return "none"
    layout = manifest.frozen.layout
    size = f"{manifest.frozen.blob.size / 1e6:.1f} MB, which each device fetches once"
    return f"{layout.size:,} in {len(layout.tensors)} tensors, {size}"


def _verification_rows(checked: Verification | None) -> list[tuple[str, str]]:
    if checked is None:
        return [("programs", "none: devices train with code of their own")]
    errors = f"step {checked.step_error:.1e}, epoch {checked.epoch_error:.1e}"
    allowed = f"tolerance {checked.tolerance:.1e}, torch in float32 {checked.torch_error:.1e}"
    return [
        ("against torch", f"{errors}; {allowed}"),
        ("kinks met", ", ".join(checked.kinks) or "none"),
        ("verified with", ", ".join(f"{k} {v}" for k, v in sorted(checked.versions.items()))),
    ]


def _program_rows(manifest: BundleManifest, folder: Path) -> list[tuple[str, str]]:
    """Each file with its programs, its size, and what they cost."""
    rows: list[tuple[str, str]] = []
    for file, group in groupby(manifest.programs, lambda program: program.file):
        programs = list(group)
        names = ", ".join(program.name for program in programs)
        rows.append((f"{names} ({programs[0].backend})", f"{_size(folder / file):,} bytes"))
        rows += [("a step", text) for text in map(_cost, programs) if text]
    return rows


def _cost(program: Program) -> str:
    """What a training step costs; empty for another program, or where nothing is known."""
    if program.name != "gradient":
        return ""
    memory = program.memory_bytes / 1e6
    parts = [f"{program.multiply_adds / 1e6:,.1f} million multiply-adds"]
    return ", ".join([*([f"{memory:.0f} MB of memory"] if memory else []), *parts])


def _axes_rows(manifest: BundleManifest) -> list[tuple[str, str]]:
    """The axes with their tensors, and the sizes of narrower forms."""
    axes, layout = manifest.axes, manifest.layout
    if axes is None:
        return [("axes", "none: it has a single width")]
    rows: list[tuple[str, str]] = []
    for number, (channels, places) in enumerate(zip(axes.channels, axes.used, strict=True)):
        names = list(dict.fromkeys(layout.tensors[tensor].name for tensor, _ in places))
        shown = ", ".join(names[:SHOWN]) + (" and more" if len(names) > SHOWN else "")
        rows.append((f"axis {number}", f"{channels} channels of {len(names)} tensors: {shown}"))
    if manifest.dropped:
        return [("left out", f"{manifest.dropped:g} of the whole model's channels"), *rows]
    sizes = [(dropped, axes.layout(layout, axes.narrowed(dropped)).size) for dropped in QUARTERS]
    return [
        *rows,
        *((f"narrower by {dropped:g}", f"{size:,} parameters") for dropped, size in sizes),
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _size(file: Path) -> int:
    return file.stat().st_size


def _export(parser: argparse.ArgumentParser, arguments: list[str]) -> dict[Path, BundleManifest]:
    options = parser.parse_args(arguments)
    num_classes, target = objective(parser, options)
    torch.manual_seed(options.seed)
    model = _model(options.model)
    loss, metric = _loss(options), _metric(options)
    data = _data(options.data) if options.data else None
    sample = _sample(inputs(parser, options), options.seed)
    folders = {
        dropped: Path(f"{Path(options.out)}-{dropped:g}" if dropped else options.out)
        for dropped in options.widths
    }
    with _random_sample(given=data is not None):
        return {
            folder: export(
                model,
                sample,
                batch_size=options.batch_size,
                name=options.name,
                num_classes=num_classes,
                loss=loss,
                target=target,
                metric=metric,
                real_data=data,
                folder=folder,
                tolerance=options.tolerance,
                seed=options.seed,
                dropped=dropped,
                backends=options.backend,
                measure=True,
                labels=options.labels,
            )
            for dropped, folder in folders.items()
        }


@contextmanager
def _random_sample(given: bool) -> Generator[None]:
    """Say of a sample that was not given, and that the model refuses, where it came from."""
    try:
        yield
    except ExportError as exc:
        if given or FAILS_ON_SAMPLE not in str(exc):
            raise
        raise ExportError(
            f"{exc}; the sample is random numbers: --data module:function gives rows of yours, and category"
            " codes can be an input by name (--sample-shape codes:3:20)"
        ) from exc


def _loss(options: argparse.Namespace) -> Loss | Rows | None:
    """The loss that is asked for; None for the target's usual one."""
    adjusted = bool(options.label_smoothing or options.class_weights)
    name = options.loss or ("cross_entropy" if adjusted else None)
    if name is None:
        return None
    if name in LOSSES:
        return Loss(name, options.label_smoothing, options.class_weights)
    if adjusted:
        raise ConfigError(
            "--loss", name, "cross_entropy, with --label-smoothing or --class-weights"
        )
    return cast(Rows, _found("--loss", name, "module:function"))


def _metric(options: argparse.Namespace) -> str | OwnMetric | None:
    """The metric that is asked for; None for the usual one."""
    named: str | None = options.metric
    own = own_metric(named) if named else None
    if own is None:
        return named
    return OwnMetric(own, cast(Rows, _found("--metric", own.name, "module:function:higher")))


def _personal(parser: argparse.ArgumentParser, arguments: list[str]) -> str:
    options = parser.parse_args(arguments)
    if options.int8 != (options.data is not None):
        parser.error("--int8 and --data belong together")
    torch.manual_seed(options.seed)
    model, sample, parts = one_input(
        _model(options.model), _sample(inputs(parser, options), options.seed)
    )
    if parts and options.int8:
        parser.error("--int8 is for models of one input")
    made = export_personal(
        model,
        sample,
        weights=Path(options.weights),
        out=Path(options.out),
        batch_size=options.batch_size,
        data=cast(tuple[Tensor, Tensor], _data(options.data)) if options.int8 else None,
        largest_loss=options.largest_loss,
    )
    size = f"{made.path}: {made.size:,} bytes for {made.runtime}"
    if made.quality is not None:
        return f"{size}\n{made.quality}"
    return f"{size}\nlargest difference from torch {made.error:.1e} of the largest logit"


def _data(path: str) -> tuple[Given, Tensor]:
    """The user's rows; x is a dict by name where a model has several inputs."""
    expected = "module:function that returns (x, y) and takes no arguments"
    value = _called("--data", path, expected)
    try:
        x, y = cast(tuple[object, object], value)
        if isinstance(x, Mapping):
            several = cast(Mapping[str, object], x)
            given: Given = {name: torch.as_tensor(rows) for name, rows in several.items()}
        else:
            given = torch.as_tensor(x)
        return given, torch.as_tensor(y)
    except Exception as exc:  # whatever the user's code returned
        raise ConfigError("--data", path, f"{expected} ({exc})") from exc


def _sample(rows: Sequence[InputRow], seed: int) -> Given:
    """Two random rows of the only input, or of each by name."""
    rng = torch.Generator().manual_seed(seed)
    drawn: dict[str, Tensor] = {}
    for row in rows:
        size = (2, *row.shape)
        drawn[row.name] = (
            torch.randint(row.vocabulary, size, generator=rng)
            if row.vocabulary
            else torch.randn(size, generator=rng)
        )
    return drawn.get("", drawn)


def _model(path: str) -> nn.Module:
    expected = "module:function that returns an nn.Module and takes no arguments"
    model = _called("model", path, expected)
    if not isinstance(model, nn.Module):
        raise ConfigError("model", path, f"an nn.Module, not a {type(model).__name__}")
    return model


def _called(key: str, path: str, expected: str) -> object:
    """What the user's function returns. Raises ``ConfigError`` with ``expected`` when it fails."""
    function = _found(key, path, expected)
    try:
        return cast(Callable[[], object], function)()
    except (Exception, SystemExit) as exc:  # the user's code may raise anything
        raise ConfigError(key, path, f"{expected} ({exc})") from exc


def _found(key: str, path: str, expected: str) -> object:
    """The user's object at "module:name". Raises ``ConfigError`` with ``expected`` without one."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:  # find a module in the working folder, as python -m does
        sys.path.insert(0, "")
    try:
        value: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
        return value
    except (Exception, SystemExit) as exc:  # the user's code may raise anything
        raise ConfigError(key, path, f"{expected} ({exc})") from exc


if __name__ == "__main__":
    sys.exit(main())
