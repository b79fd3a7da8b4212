"""sedge-export: compiles a model into a bundle folder, from the command line.

    sedge-export package.module:function --sample-shape 1,28,28 --batch-size 32 --num-classes 10 \\
        --name avgcnn --out folder [--widths 0,0.25,0.5,0.75] [--backend onnxruntime,executorch]
    sedge-export show folder
    sedge-export personal package.module:function --weights pi-1.npz --sample-shape 1,28,28 \\
        --out model.onnx|model.pte [--int8 --data package.module:function]

The function or class is called without arguments and must return an nn.Module. ``--widths`` are shares of
the channels to leave out: the whole model is written to ``folder``, the form without a quarter of the
channels of every axis to ``folder-0.25``, and so on. Each is verified like any bundle.
"""

import argparse
import importlib
import math
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from sedge_export.export import TOLERANCE, export
from sedge_export.personal import LARGEST_LOSS, export_personal
from sedge_export.target import TARGETS
from sedge_protocol.errors import ConfigError, SedgeError
from sedge_protocol.wire.bundle import ONNXRUNTIME, BundleManifest, Verification, load

QUARTERS = (0.25, 0.5, 0.75)
SHOWN = 4  # tensors of an axis that ``show`` names


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0 for success, 2 after one line on stderr for an error."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if arguments[:1] == ["show"]:
            folder = Path(_show_parser().parse_args(arguments[1:]).folder)
            text = summary(load(folder)[0].manifest, folder)
        elif arguments[:1] == ["personal"]:
            text = _personal(_personal_parser(), arguments[1:])
        else:
            made = _export(_export_parser().parse_args(arguments))
            text = "\n\n".join(summary(manifest, folder) for folder, manifest in made.items())
        print(text)
    except (SedgeError, OSError) as exc:
        print(
            "sedge-export:", *str(exc).split(), file=sys.stderr
        )  # on one line, whatever the message contains
        return 2
    return 0


def summary(manifest: BundleManifest, folder: Path) -> str:
    """A bundle in a few lines: its contents and its measured errors."""
    layout, target = manifest.layout, manifest.target
    rows = [
        ("bundle", f"{manifest.name} in {folder}"),
        ("parameters", f"{layout.size:,} in {len(layout.tensors)} tensors"),
        ("frozen", _frozen(manifest)),
        ("statistics", ", ".join(layout.statistics) or "none"),
        ("random numbers", f"{manifest.noise:,} in a step" if manifest.noise else "none"),
        ("input", f"{manifest.input.dtype} {_shape(manifest.input.shape)}"),
        ("target", f"{target.dtype} {_shape(target.shape)}, {manifest.num_classes} classes"),
        ("batch size", f"{manifest.batch_size}"),
        *_axes_rows(manifest),
        *_program_rows(manifest, folder),
        *_verification_rows(manifest.verification),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


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
    """Each file with its programs and its size."""
    rows: list[tuple[str, str]] = []
    for file, group in groupby(manifest.programs, lambda program: program.file):
        programs = list(group)
        names = ", ".join(program.name for program in programs)
        rows.append((f"{names} ({programs[0].backend})", f"{_size(folder / file):,} bytes"))
    return rows


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


def _export(options: argparse.Namespace) -> dict[Path, BundleManifest]:
    torch.manual_seed(options.seed)
    model = _model(options.model)
    sample = _sample(options.sample_shape, options.vocabulary, options.seed)
    folders = {
        dropped: Path(f"{Path(options.out)}-{dropped:g}" if dropped else options.out)
        for dropped in options.widths
    }
    return {
        folder: export(
            model,
            sample,
            batch_size=options.batch_size,
            name=options.name,
            num_classes=options.num_classes,
            folder=folder,
            tolerance=options.tolerance,
            seed=options.seed,
            dropped=dropped,
            backends=options.backend,
        )
        for dropped, folder in folders.items()
    }


def _personal(parser: argparse.ArgumentParser, arguments: list[str]) -> str:
    options = parser.parse_args(arguments)
    if options.int8 != (options.data is not None):
        parser.error("--int8 and --data belong together")
    torch.manual_seed(options.seed)
    made = export_personal(
        _model(options.model),
        _sample(options.sample_shape, options.vocabulary, options.seed),
        weights=Path(options.weights),
        out=Path(options.out),
        batch_size=options.batch_size,
        data=_data(options.data) if options.int8 else None,
        largest_loss=options.largest_loss,
    )
    size = f"{made.path}: {made.size:,} bytes for {made.runtime}"
    if made.quality is not None:
        return f"{size}\n{made.quality}"
    return f"{size}\nlargest difference from torch {made.error:.1e} of the largest logit"


def _data(path: str) -> tuple[Tensor, Tensor]:
    expected = "module:function that returns (x, y) and takes no arguments"
    value = _called("--data", path, expected)
    try:
        x, y = cast(tuple[object, object], value)
        return torch.as_tensor(x), torch.as_tensor(y)
    except Exception as exc:  # whatever the user's code returned
        raise ConfigError("--data", path, f"{expected} ({exc})") from exc


def _sample(shape: tuple[int, ...], vocabulary: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    size = (2, *shape)
    if vocabulary:
        return torch.randint(vocabulary, size, generator=rng)
    return torch.randn(size, generator=rng)


def _model(path: str) -> nn.Module:
    expected = "module:function that returns an nn.Module and takes no arguments"
    model = _called("model", path, expected)
    if not isinstance(model, nn.Module):
        raise ConfigError("model", path, f"an nn.Module, not a {type(model).__name__}")
    return model


def _called(key: str, path: str, expected: str) -> object:
    """What the user's function returns. Raises ``ConfigError`` with ``expected`` when it fails."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:  # find a module in the working folder, as python -m does
        sys.path.insert(0, "")
    try:
        value: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
        return cast(Callable[[], object], value)()
    except (Exception, SystemExit) as exc:  # the user's code may raise anything
        raise ConfigError(key, path, f"{expected} ({exc})") from exc


def _row_shape(text: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(part) for part in text.split(",") if part)
        if any(extent < 1 for extent in extents):
            raise ValueError
    except ValueError:
        expected = "whole numbers from 1 with commas between, such as 1,28,28"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
    return extents


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
        if shares[0] != 0 or list(shares) != sorted(set(shares)) or not shares[-1] < 1:
            raise ValueError
    except ValueError:
        expected = "0 and then rising shares below 1, such as 0,0.5"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
    return shares


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(TARGETS):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected of {','.join(TARGETS)}")
    return names


def _tolerance(text: str) -> float:
    tolerance = float(text)
    if not 0 < tolerance < math.inf:
        raise ValueError(text)
    return tolerance


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**63:  # torch takes no larger one
        raise ValueError(text)
    return number


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65536:
        raise ValueError(text)
    return number


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def _folder(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sedge-export",
        description="Export a torch model as programs that train it on a device.",
        epilog="`sedge-export show FOLDER` prints what a bundle holds.",
    )
    parser.add_argument("model", help="module:function, or class, that makes the nn.Module")
    _add_input(parser)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--num-classes", type=int, required=True, help="0 for regression")
    parser.add_argument("--name", required=True, help="name of the bundle")
    parser.add_argument("--out", type=_folder, required=True, help="folder to write")
    parser.add_argument(
        "--widths",
        type=_shares,
        default=(0.0,),
        help="shares of channels to leave out, rising from 0 to below 1: 0,0.25,0.5,0.75",
    )
    parser.add_argument(
        "--backend",
        type=_backends,
        default=(ONNXRUNTIME,),
        help=f"runtimes that get programs, of {', '.join(TARGETS)} (default {ONNXRUNTIME})",
    )
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        default=TOLERANCE,
        help="largest error of a tensor's gradient beyond torch's own (default %(default)s)",
    )
    parser.add_argument(
        "--seed", type=_number, default=0, help="seed of the initial values and test batches"
    )
    return parser


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sample-shape", type=_row_shape, required=True, help="shape of one input row: 1,28,28"
    )
    parser.add_argument(
        "--vocabulary",
        type=_number,
        default=0,
        help="inputs are int64 below this (default: float32)",
    )


def _personal_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sedge-export personal",
        description="Write a model with a device's weights in it, for apps.",
    )
    parser.add_argument("model", help="module:function, or class, that makes the nn.Module")
    parser.add_argument(
        "--weights",
        required=True,
        help=".npz from `sedge-edge export`, or a bundle's folder for its initial weights",
    )
    _add_input(parser)
    parser.add_argument("--batch-size", type=_positive, default=1, help="default %(default)s")
    parser.add_argument("--out", type=_folder, required=True, help="file to write: .onnx or .pte")
    parser.add_argument("--int8", action="store_true", help="quantise weights and activations")
    parser.add_argument(
        "--data", help="module:function that returns (x, y): calibrates int8, and measures its cost"
    )
    parser.add_argument(
        "--largest-loss",
        type=_share,
        default=LARGEST_LOSS,
        help="what int8 may cost in accuracy, or add to a regression's relative error"
        " (default %(default)s)",
    )
    parser.add_argument(
        "--seed", type=_number, default=0, help="seed of what the weights leave out"
    )
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sedge-export show")
    parser.add_argument("folder", help="a bundle folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
