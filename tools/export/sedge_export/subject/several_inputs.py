"""Exports models with several inputs as models with one packed input (``sedge_protocol.wire.parts``)."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_edge.backends.several_inputs import take_apart
from sedge_export.subject.network import copied
from sedge_protocol.errors import DataError, ExportError
from sedge_protocol.wire.parts import InputPart, pack

# Rows (N, ...) of a model's only input, or of each of its inputs by name.
Given: TypeAlias = Tensor | Mapping[str, Tensor]


def one_input(model: nn.Module, sample: Given) -> tuple[nn.Module, Tensor, tuple[InputPart, ...]]:
    """Turn a model with several inputs into a model with a single packed input.

    Returns the model, a sample (N, ...) of its input, and the parts of that input; a model with one
    input is returned unchanged, without parts. Raises ``ExportError`` if an input cannot be represented
    as float32.
    """
    if not isinstance(sample, Mapping):
        return model, sample, ()
    parts, x = packed(sample, "sample_input")
    model = copied(model)
    take_apart(model, parts)
    return model, x, parts


def packed(given: Mapping[str, Tensor], where: str) -> tuple[tuple[InputPart, ...], Tensor]:
    """Pack named inputs into one. Returns the parts and the rows (N, K).

    Raises ``ExportError`` if an input is empty, not a tensor of rows, or neither float32 nor int64.
    """
    arrays: dict[str, NDArray[np.float32 | np.int64]] = {}
    for name, rows in given.items():
        if rows.dtype not in (torch.float32, torch.int64) or rows.ndim < 1 or not rows.numel():
            found = f"{name} is {rows.dtype} {tuple(rows.shape)}"
            raise ExportError(f"{where}: {found}, expected torch.float32 or torch.int64 (N, ...)")
        arrays[name] = rows.detach().cpu().numpy()
    try:
        parts, values = pack(arrays, where)
    except DataError as exc:
        raise ExportError(str(exc)) from exc
    return parts, torch.from_numpy(values)
