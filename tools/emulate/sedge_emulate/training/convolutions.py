"""Computes each device's convolution as one matrix product instead of a grouped convolution.

vmap turns the convolutions of many devices into one grouped convolution. Here, the input's patches are
instead laid out as columns and multiplied by the filters, which differ between devices:

    y (O, B L) = w (O, C k) @ columns (C k, B L)        L: output positions, k: elements of a filter

The columns are k times as large as the input. On the CPU this is slower; ``docs/emulator.md`` covers
GPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sedge_emulate.training.tasks import Convolutions, Unsupported


def forms(convolutions: Convolutions) -> AbstractContextManager[object]:
    """Return a context in which all convolutions of a model are computed in the given form."""
    return Unfolded() if convolutions == "unfold" else nullcontext()


class Unfolded(TorchFunctionMode):
    """A context in which torch's 1-D and 2-D convolutions are computed as matrix products.

    Transposed convolutions are unchanged. A 3-D convolution raises ``Unsupported``, because torch cannot
    lay out its patches.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in (torch.conv1d, torch.conv2d):
            return _product(*args, **given)
        if func is torch.conv3d:
            raise Unsupported("a 3-D convolution has no unfolded form")
        return func(*args, **given)


def _product(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve ``input`` (B, C, ...) with filters (O, C / groups, ...); takes the arguments of conv2d."""
    size, axes = tuple(weight.shape[2:]), weight.ndim - 2
    steps, reaches = _each(stride, axes), _each(dilation, axes)
    if torch.is_autocast_enabled(input.device.type):  # cast before unfolding enlarges it
        input = input.to(torch.get_autocast_dtype(input.device.type))
    if isinstance(padding, str):
        if padding == "same":
            input = functional.pad(input, _same(size, reaches))
        padding = 0
    pads = _each(padding, axes)
    places = [
        (length + 2 * pad - reach * (k - 1) - 1) // step + 1
        for length, pad, reach, k, step in zip(
            input.shape[2:], pads, reaches, size, steps, strict=True
        )
    ]
    if axes == 1:  # treat the input as images with one row
        input, size = input.unsqueeze(2), (1, *size)
        steps, reaches, pads = (1, *steps), (1, *reaches), (0, *pads)
    columns = functional.unfold(input, size, reaches, pads, steps)  # (B, C k, L)
    rows, outputs, depth = len(columns), len(weight), prod(weight.shape[1:])
    columns = columns.view(rows, groups, depth, -1).permute(1, 2, 0, 3).reshape(groups, depth, -1)
    product = weight.reshape(groups, outputs // groups, depth) @ columns
    output = product.view(outputs, rows, *places).transpose(0, 1)
    if bias is not None:
        output = output + bias.to(output.dtype).view(-1, *[1] * axes)
    return output.contiguous()


def _each(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Repeat a single number for each axis; a sequence is returned as a tuple."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * axes if len(values) == 1 else values


def _same(size: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Return the padding that makes the output as large as the input, last axis first.

    If an axis needs an odd amount of padding, its end gets the larger part.
    """
    pads: list[int] = []
    for k, reach in zip(reversed(size), reversed(dilations), strict=True):
        both = reach * (k - 1)
        pads += [both // 2, both - both // 2]
    return pads
