"""Packed sequences in which every row has all steps, because a program's loops have a fixed length.

torch packs data (T, B, ...) as (T B, ...), with the number of rows at each step. Here each step has B
rows, which ``Sizes`` holds as Python numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sedge_export.subject.source import here
from sedge_protocol.errors import ExportError

_WAY = (
    "run the layer on all steps, and take each row's last one with"
    " output.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, units))"
)


class Sizes:
    """The number of rows at each step, which replaces torch's tensor of batch sizes."""

    device = torch.device("cpu")

    def __init__(self, steps: int, rows: int) -> None:
        self.steps, self.rows = steps, rows

    def __getitem__(self, step: int) -> int:
        return self.rows

    def size(self, axis: int) -> int:
        """Return the number of steps."""
        return self.steps

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ExportError(
            f"model: {getattr(func, '__name__', func)} of a packed sequence at {here()}, expected RNN, GRU,"
            f" LSTM or pad_packed_sequence: {_WAY}"
        )


def packer(values: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Sizes]]:
    """Make a replacement for ``pack_padded_sequence``.

    ``values`` returns the values of a tensor that does not depend on any input.
    """

    def pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Sizes]:
        x = input.transpose(0, 1) if batch_first else input
        try:
            known = values(lengths).tolist()
        except RuntimeError:
            known = None
        if known is None or set(known) != {len(x)}:
            found = "that depend on the data" if known is None else f"{min(known)} to {max(known)}"
            raise ExportError(
                f"model: pack_padded_sequence at {here()}: lengths {found}, expected {len(x)} for each row,"
                f" as a program's loops have one length: {_WAY}"
            )
        return x.flatten(0, 1), Sizes(*x.shape[:2])

    return pack


def padded(
    data: Tensor, sizes: Sizes, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Replace ``pad_packed_sequence``. Returns the data of all steps and the length of each row."""
    x = data.reshape(sizes.steps, sizes.rows, *data.shape[1:])
    margin = [0, 0] * (x.ndim - 1) + [0, total_length - sizes.steps]
    x = functional.pad(x, margin, value=padding_value) if margin[-1] else x
    return x.transpose(0, 1) if batch_first else x, torch.full((sizes.rows,), sizes.steps)
