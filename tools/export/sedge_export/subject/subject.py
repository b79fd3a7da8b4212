"""Makes the subject of an export: checks the user's model and rows once, and converts them to one form."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sedge_edge.training.examples import check_tokens
from sedge_export.stages import Subject
from sedge_export.subject.batches import Samples
from sedge_export.subject.network import Network
from sedge_export.subject.objective import Choice
from sedge_export.subject.several_inputs import Given, one_input, packed
from sedge_protocol.errors import DataError, ExportError
from sedge_protocol.wire.parts import InputPart

MAX_BATCH_SIZE = 65536


def take(
    model: nn.Module, sample_input: Given, real_data: tuple[Given, Tensor] | None, *,
    batch_size: int, num_classes: int, choice: Choice,
) -> Subject:  # fmt: skip
    """Make the subject from ``exporter.export``'s arguments.

    Raises ``ExportError`` if the sample or the rows do not fit, or if theta cannot hold the model.
    """
    model, sample, parts = one_input(model, sample_input)
    x = _batch(sample, batch_size)
    real = None
    if real_data is not None:
        rows = _like(real_data[0], parts, x)
        x, real = _batch(rows, batch_size), Samples(rows, real_data[1].detach().cpu())
        if len(real.y) != len(rows):
            found = f"x has {len(rows)} rows and y {len(real.y)}"
            raise ExportError(f"real_data: {found}, expected the same number")
        for label, values in (("x", rows), ("y", real.y)):
            finite = values.reshape(len(values), -1).isfinite().all(1)
            if not bool(finite.all()):
                raise ExportError(
                    f"real_data: {label}[{int(finite.int().argmin())}] holds NaN or inf"
                )
    return Subject(model, Network(model, choice.rows), x, choice, num_classes, parts, real)


def _batch(given: object, batch_size: int) -> Tensor:
    """Return a batch of the sample's first rows, repeated if there are too few."""
    if not isinstance(given, Tensor):
        raise ExportError(f"sample_input: a {type(given).__name__}, expected one tensor (B, ...)")
    sample = given.detach().cpu()
    if sample.ndim < 1 or sample.numel() == 0:
        raise ExportError(f"sample_input: shape {tuple(sample.shape)}, expected (B, ...)")
    if sample.dtype not in (torch.float32, torch.int64):
        raise ExportError(f"sample_input: {sample.dtype}, expected torch.float32 or torch.int64")
    if not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise ExportError(f"batch_size: {batch_size}, expected 1 to {MAX_BATCH_SIZE}")
    return sample[torch.arange(batch_size) % len(sample)]


def _like(given: Given, parts: Sequence[InputPart], x: Tensor) -> Tensor:
    """Convert the user's rows to one tensor like x. Raises ``ExportError`` if they do not fit."""
    if not isinstance(given, Tensor):
        missing = [part.name for part in parts if part.name not in given]
        if missing or not parts:
            names = ", ".join(part.name for part in parts) or "one tensor"
            raise ExportError(f"real_data: x has {', '.join(given)}, expected {names}")
        found_parts, given = packed({part.name: given[part.name] for part in parts}, "real_data")
        if found_parts != tuple(parts):
            raise ExportError(f"real_data: x has {found_parts}, expected {tuple(parts)}")
    require_like("x", given, x)
    return given.detach().cpu()


def require_like(label: str, found: Tensor, like: Tensor) -> None:
    """Raise ``ExportError`` unless the rows ``found`` have the type and row shape of ``like``."""
    if found.dtype != like.dtype or found.shape[1:] != like.shape[1:] or not len(found):
        raise ExportError(
            f"real_data: {label} is {found.dtype} {tuple(found.shape)},"
            f" expected {like.dtype} (N, {', '.join(map(str, like.shape[1:]))})"
        )


def require_known(label: str, x: Tensor, vocabulary: int) -> None:
    """Raise ``ExportError`` if x (N, ...) contains a token outside the vocabulary; 0 accepts all tokens."""
    try:
        check_tokens(x.detach().cpu().numpy(), vocabulary, label)
    except DataError as exc:
        raise ExportError(str(exc)) from exc
