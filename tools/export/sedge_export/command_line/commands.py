"""The commands of ``sedge-export`` that need torch: exporting bundles and models for apps."""

import argparse
import importlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from sedge_edge.backends.guided_losses import guided_loss
from sedge_edge.backends.rows import Rows
from sedge_export.apps.personal import export_personal
from sedge_export.command_line.arguments import InputRow, inputs, objective
from sedge_export.command_line.summary import summary
from sedge_export.exporter import export
from sedge_export.inspection.operators import FAILS_ON_SAMPLE, ON_A_CARD
from sedge_export.subject.objective import OwnMetric
from sedge_export.subject.several_inputs import Given, one_input
from sedge_protocol.errors import ConfigError, ExportError
from sedge_protocol.wire.objective import LOSSES, Loss, own_metric


def export_bundles(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Write a bundle for each width. Returns the text to print.

    Raises ``ConfigError`` for invalid options, and ``ExportError`` for a model that cannot be exported.
    """
    num_classes, target = objective(parser, options)
    if options.frozen != "float32" and not options.data:
        parser.error(f"--frozen {options.frozen} needs --data, on which its cost is measured")
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
        made = {
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
                frozen=options.frozen,
                guided=guided_loss(options.guided, Path(), "--guided"),
            )
            for dropped, folder in folders.items()
        }
    return "\n\n".join(summary(manifest, folder) for folder, manifest in made.items())


@contextmanager
def _random_sample(given: bool) -> Generator[None]:
    """If the model rejects a random sample, explain in the error where the sample came from."""
    try:
        yield
    except ExportError as exc:
        if str(exc).startswith("sample_input["):
            raise ExportError(f"--vocabulary: larger than the model's: {exc}") from exc
        if given or FAILS_ON_SAMPLE not in str(exc) or ON_A_CARD in str(exc):
            raise
        raise ExportError(
            f"{exc}; the sample is random numbers of --sample-shape: token ids need --vocabulary, several"
            " inputs a name each (--sample-shape codes:3:20), and --data module:function gives your rows"
        ) from exc


def _loss(options: argparse.Namespace) -> Loss | Rows | None:
    """Return the loss given on the command line, or None for the target's default loss."""
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
    """Return the metric given on the command line, or None for the target's default metric."""
    named: str | None = options.metric
    own = own_metric(named) if named else None
    if own is None:
        return named
    return OwnMetric(own, cast(Rows, _found("--metric", own.name, "module:function:higher")))


def personal_model(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Write a model for apps. Returns the text to print.

    Raises the errors of ``export_personal``, and ``ConfigError`` for invalid options.
    """
    if options.int8 != (options.data is not None):
        parser.error("--int8 and --data must be given together")
    torch.manual_seed(options.seed)
    model, sample, parts = one_input(
        _model(options.model), _sample(inputs(parser, options), options.seed)
    )
    if parts and options.int8:
        parser.error("--int8 supports only models with one input")
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
    if made.costs is not None:
        plain, small = made.costs
        shares = f"{small.size / plain.size:.2f} of the size"
        if plain.seconds:
            shares += f" and {small.seconds / plain.seconds:.2f} of the time"
        return f"{size}\n{made.quality}\nfloat32 {plain}; int8 {small}: {shares}"
    return f"{size}\nlargest difference from torch: {made.error:.1e} of the largest logit"


def _data(path: str) -> tuple[Given, Tensor]:
    """Load the user's rows. Returns (x, y); x is a dict by name if a model has several inputs."""
    expected = "module:function that returns (x, y) and takes no arguments"
    value = _called("--data", path, expected)
    try:
        x, y = cast(tuple[object, object], value)
        if isinstance(x, Mapping):
            several = cast(Mapping[str, object], x)
            given: Given = {name: _tensor(rows) for name, rows in several.items()}
        else:
            given = _tensor(x)
        return given, _tensor(y)
    except Exception as exc:  # the user's function may return anything
        raise ConfigError("--data", path, f"{expected} ({exc})") from exc


def _tensor(rows: object) -> Tensor:
    """Convert rows to a tensor. Objects such as pandas data frames are first converted to arrays."""
    to_numpy: Callable[[], object] | None = getattr(rows, "to_numpy", None)
    return torch.as_tensor(rows if to_numpy is None else to_numpy())


def _sample(rows: Sequence[InputRow], seed: int) -> Given:
    """Return two random rows of a single input, or of each input by name.

    The last token id is the largest possible one, so that a vocabulary larger than the model's is
    noticed.
    """
    rng = torch.Generator().manual_seed(seed)
    drawn: dict[str, Tensor] = {}
    for row in rows:
        size = (2, *row.shape)
        drawn[row.name] = (
            torch.randint(row.vocabulary, size, generator=rng)
            if row.vocabulary
            else torch.randn(size, generator=rng)
        )
        if row.vocabulary:
            drawn[row.name].view(-1)[-1] = row.vocabulary - 1
    return drawn.get("", drawn)


def _model(path: str) -> nn.Module:
    expected = "module:function that returns an nn.Module and takes no arguments"
    model = _called("model", path, expected)
    if not isinstance(model, nn.Module):
        raise ConfigError("model", path, f"an nn.Module, not a {type(model).__name__}")
    return model


def _called(key: str, path: str, expected: str) -> object:
    """Call the user's function. If it fails, raises a ``ConfigError`` that contains ``expected``."""
    function = _found(key, path, expected)
    try:
        return cast(Callable[[], object], function)()
    except (Exception, SystemExit) as exc:  # the user's code may raise anything
        raise ConfigError(key, path, f"{expected} ({exc})") from exc


def _found(key: str, path: str, expected: str) -> object:
    """Import the user's "module:name".

    If that fails, raises a ``ConfigError`` that contains ``expected``.
    """
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:  # also search the working directory, as python -m does
        sys.path.insert(0, "")
    try:
        value: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
        return value
    except (Exception, SystemExit) as exc:  # the user's code may raise anything
        raise ConfigError(key, path, f"{expected} ({exc})") from exc
