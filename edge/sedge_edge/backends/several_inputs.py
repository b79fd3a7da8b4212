"""A torch module with several named inputs, called with one packed row (``sedge_protocol.wire.parts``).

The module itself is unchanged, so its tensors keep their names. A hook before its forward pass splits the
rows.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sedge_protocol.wire.parts import InputPart


def take_apart(module: nn.Module, parts: Sequence[InputPart]) -> None:
    """Make the module take packed rows x (B, K) from now on.

    Its ``forward`` still receives the parts as named arguments.
    """
    module.register_forward_pre_hook(partial(_apart, tuple(parts)), with_kwargs=True)


def _apart(
    parts: tuple[InputPart, ...], _module: nn.Module, inputs: tuple[Tensor], _named: Any
) -> tuple[tuple[()], dict[str, Tensor]]:
    pieces = torch.split(inputs[0], [part.size for part in parts], dim=1)
    found: dict[str, Tensor] = {}
    for part, piece in zip(parts, pieces, strict=True):
        shaped = piece.reshape(len(piece), *part.shape)
        found[part.name] = shaped.to(torch.int64) if part.dtype == "int64" else shaped
    return (), found
