"""The arguments of ``sedge-export``."""

import argparse
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, cast, get_args

from sedge_export.defaults import BACKENDS, FROZEN_PRECISIONS, LARGEST_LOSS, TOLERANCE
from sedge_protocol.host.command_line import Commands, Parser, command
from sedge_protocol.wire.bundle import ONNXRUNTIME, TensorSpec
from sedge_protocol.wire.objective import LOSSES, METRICS, Metric, TargetKind, own_metric
from sedge_protocol.wire.parts import MAX_INTEGER


def _row_shape(text: str) -> tuple[int, ...]:
    try:
        extents = tuple(int(part) for part in text.split(",") if part)
        if any(extent < 1 for extent in extents):
            raise ValueError
    except ValueError:
        expected = "whole numbers from 1, separated by commas, such as 1,28,28"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
    return extents


class InputRow(NamedTuple):
    """A row of an input: its name ("" for a single input), its shape, and its number of token ids or 0."""

    name: str
    shape: tuple[int, ...]
    vocabulary: int


def _input_row(text: str) -> InputRow:
    if ":" not in text:
        return InputRow("", _row_shape(text), 0)
    name, shape, *below = text.split(":")
    try:
        if not name.isidentifier() or len(below) > 1:
            raise ValueError
        return InputRow(name, _row_shape(shape), _positive_integer(*below) if below else 0)
    except ValueError:
        expected = (
            f"NAME:SHAPE, or NAME:SHAPE:VOCABULARY up to {MAX_INTEGER}, such as tokens:20:9000"
        )
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None


@contextmanager
def _refusing(text: str, expected: str) -> Generator[None]:
    """Turn a ``ValueError`` into an error for argparse, which says what was expected."""
    try:
        yield
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None


def _positive_integer(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_INTEGER:
        raise ValueError(text)
    return number


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
        if shares[0] != 0 or list(shares) != sorted(set(shares)) or not shares[-1] < 1:
            raise ValueError
    except ValueError:
        expected = "0, then increasing fractions below 1, such as 0,0.5"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}") from None
    return shares


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(set(names)) < len(names) or not set(names) <= set(BACKENDS):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected one or more of {','.join(BACKENDS)}"
        )
    return names


def _loss(text: str) -> str:
    if text not in LOSSES and ":" not in text:
        expected = f"module:function, or one of {', '.join(LOSSES)}"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return text


def _metric(text: str) -> str:
    if text not in METRICS and own_metric(text) is None:
        expected = f"module:function:higher or :lower, or one of {', '.join(sorted(METRICS))}"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return text


def _weights(text: str) -> tuple[float, ...]:
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0 <= weight <= 1e6 for weight in weights):
        expected = "a number from 0 to 1e6 for each class, such as 1,2.5"
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return weights


def _tolerance(text: str) -> float:
    with _refusing(text, "a number above 0"):
        tolerance = float(text)
        if not 0 < tolerance < math.inf:
            raise ValueError(text)
    return tolerance


def _number(text: str) -> int:
    with _refusing(text, "a whole number from 0"):
        number = int(text)
        if not 0 <= number < 2**63:  # torch's limit
            raise ValueError(text)
    return number


def _positive(text: str) -> int:
    with _refusing(text, "a whole number from 1 to 65536"):
        number = int(text)
        if not 1 <= number <= 65536:
            raise ValueError(text)
    return number


def _share(text: str) -> float:
    with _refusing(text, "a number from 0 to 1"):
        share = float(text)
        if not 0 <= share <= 1:
            raise ValueError(text)
    return share


def _folder(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def objective(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[int, TensorSpec | TargetKind | None]:
    """Return the number of classes and the target.

    Exits with an error if the options do not determine them.
    """
    classes: int = options.num_classes or 0
    target = cast(TargetKind | None, options.target)
    if options.num_classes is None and target in (None, "class"):
        parser.error("expected --num-classes, --target float or --target none")
    if options.target_shape is None:
        return classes, target
    if target == "none" or (target == "float") == (classes > 0):
        parser.error("--target-shape needs labels (--num-classes) or numbers (--target float)")
    return classes, TensorSpec("int64" if classes else "float32", options.target_shape)


def inputs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[InputRow, ...]:
    """Return the rows of the model's inputs. Exits with an error if options contradict each other."""
    rows = cast(list[InputRow], options.sample_shape)
    names = [row.name for row in rows]
    if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
        parser.error("--sample-shape: each of several inputs needs its own name")
    if options.vocabulary and names != [""]:
        parser.error(
            "--vocabulary is for a single unnamed input; for others write NAME:SHAPE:VOCABULARY"
        )
    if names == [""]:
        rows = [rows[0]._replace(vocabulary=options.vocabulary)]
    return tuple(rows)


def export_parser() -> Parser:
    """Build the parser of ``sedge-export MODULE:FUNCTION``."""
    parser = command(
        "sedge-export",
        "Export a torch model as programs that train it on a device. Other commands: `show` describes a"
        " bundle, `personal` writes a model for apps, and `bundle` writes initial parameters for devices"
        " that train with their own code.",
        examples=[
            "sedge-export my_model:build --sample-shape 1,28,28 --batch-size 32 --num-classes 10 "
            "--name cnn --out model",
            "sedge-export show model",
        ],
    )
    parser.alternative = commands_parser()
    parser.add_argument("model", help="module:function, or class, that makes the nn.Module")
    _add_input(parser)
    parser.add_argument("--batch-size", type=int, required=True)
    _add_objective(parser)
    parser.add_argument("--name", required=True, help="name of the bundle")
    parser.add_argument("--out", type=_folder, required=True, help="folder to write")
    parser.add_argument(
        "--widths",
        type=_shares,
        default=(0.0,),
        help="fractions of channels to leave out, increasing from 0 to below 1: 0,0.25,0.5,0.75",
    )
    parser.add_argument(
        "--backend",
        type=_backends,
        default=(ONNXRUNTIME,),
        help=f"runtimes to write programs for, from {', '.join(BACKENDS)} (default {ONNXRUNTIME})",
    )
    parser.add_argument(
        "--frozen",
        choices=FROZEN_PRECISIONS,
        default=FROZEN_PRECISIONS[0],
        help="precision of parameters that are not trained, which each device fetches once (default"
        " %(default)s); others need --data and are refused if they cost more than half a point of the"
        " metric on held-out rows",
    )
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        default=TOLERANCE,
        help="largest error of a tensor's gradient beyond torch's own (default %(default)s)",
    )
    parser.add_argument(
        "--data",
        help="module:function that returns (x, y): programs are verified on its rows as well",
    )
    parser.add_argument(
        "--seed", type=_number, default=0, help="seed of the initial values and test batches"
    )
    return parser


def _add_objective(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-classes",
        type=_number,
        help="number of classes, with labels from 0; only if y holds labels",
    )
    parser.add_argument(
        "--labels", type=_names, default=(), help="the classes' names, from label 0: cat,dog"
    )
    parser.add_argument(
        "--target",
        choices=get_args(TargetKind),
        help="what a row of y is: a label, numbers shaped like the outputs, or (none) the input itself",
    )
    parser.add_argument(
        "--target-shape",
        type=_row_shape,
        help="shape of one row of y: 20 for a label per token, 64,64 for a label per pixel; outputs are"
        " (B, C, 20) or (B, 20, C), and -100 marks a label that does not count",
    )
    parser.add_argument(
        "--loss",
        type=_loss,
        help=f"{', '.join(LOSSES)}, or module:function from outputs (B, ...) and targets to (B,)"
        " (default: cross_entropy for labels, otherwise mse)",
    )
    parser.add_argument(
        "--guided",
        default="",
        help="a second loss that a strategy may request: fedlc, or module:function that returns a"
        " GuidedLoss",
    )
    parser.add_argument(
        "--label-smoothing",
        type=_share,
        default=0.0,
        help="smoothing from 0 to 1 for cross_entropy",
    )
    parser.add_argument(
        "--class-weights",
        type=_weights,
        default=(),
        help="weights for cross_entropy, one per class: 1,2.5",
    )
    parser.add_argument(
        "--metric",
        type=_metric,
        help=f"the value to report besides the loss: {', '.join(sorted(METRICS))}, or"
        " module:function:higher (or :lower) from outputs and targets to (B,)"
        " (default: accuracy for labels, label_accuracy for bce_with_logits, loss if the input is the"
        " target or the loss is your own, otherwise mean_absolute_error)",
    )


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sample-shape",
        type=_input_row,
        action="append",
        required=True,
        help="shape of one input row: 1,28,28. For several inputs, repeat the option with the name that"
        " forward has for each: image:1,28,28; for integers, add the vocabulary size: tokens:20:9000",
    )
    parser.add_argument(
        "--vocabulary",
        type=_number,
        default=0,
        help="inputs are int64 below this (default: float32); only for a single unnamed input",
    )


def commands_parser() -> Parser:
    """Build the parser of ``sedge-export COMMAND``."""
    parser = command("sedge-export", "Describe bundles, and write models for apps.")
    commands = parser.add_commands()
    _add_show(commands)
    _add_personal(commands)
    _add_bundle(commands)
    return parser


def _add_personal(commands: Commands) -> None:
    parser: Parser = commands.add_parser(
        "personal",
        help="write a model with a device's weights, for apps",
        examples=[
            "sedge-export personal my_model:build --weights pi-1.npz --sample-shape 1,28,28 "
            "--out model.onnx"
        ],
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
        help="largest accuracy loss from int8, or largest relative increase of a regression's error"
        " (default %(default)s)",
    )
    parser.add_argument(
        "--seed", type=_number, default=0, help="seed of values that the weights do not contain"
    )
    parser.set_defaults(parser=parser)  # reports contradictory options


def _add_show(commands: Commands) -> None:
    parser: Parser = commands.add_parser(
        "show", help="describe a bundle", examples=["sedge-export show model"]
    )
    parser.add_argument("folder", help="a bundle folder")


def _add_bundle(commands: Commands) -> None:
    parser: Parser = commands.add_parser(
        "bundle",
        help="write initial parameters for devices that train with their own code",
        examples=[
            "sedge-export bundle my_model:initial --sample-shape 28 --batch-size 32 --num-classes 10 "
            "--name own --out model"
        ],
    )
    parser.add_argument(
        "function", help="module:function that returns a list, or a dict, of arrays"
    )
    help_text = "shape of one input row: 1,28,28"
    parser.add_argument("--sample-shape", type=_row_shape, required=True, help=help_text)
    parser.add_argument("--sample-type", choices=("float32", "int64"), default="float32")
    parser.add_argument("--batch-size", type=_positive, required=True)
    parser.add_argument(
        "--num-classes", type=_positive, default=0, help="classes; without it, y has no labels"
    )
    help_text = "shape of one row of y: labels with --num-classes (default: one), otherwise numbers"
    help_text += " (default: y is x)"
    parser.add_argument("--target-shape", type=_row_shape, help=help_text)
    help_text = (
        "metric that the functions report, and whether higher or lower is better: rmse:lower"
    )
    parser.add_argument("--metric", type=_reported_metric, help=help_text)
    parser.add_argument("--name", required=True, help="name of the bundle")
    parser.add_argument("--out", type=_folder, required=True, help="folder to write")


def _reported_metric(text: str) -> Metric:
    name, _, better = text.partition(":")
    if better not in ("higher", "lower") or not 1 <= len(name) <= 64:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected NAME:higher or NAME:lower")
    return METRICS.get(name) or Metric(name, "higher" if better == "higher" else "lower")
