"""Replaces torch functions in a trace with others that have the same values and gradients.

It replaces functions whose gradient is an operator that cannot be decomposed, masks used as indices
(``masks``), products and running extrema (``scans``), Fourier transforms (``fourier``), and recurrent
layers, which become loops (``recurrent``). The replacements are ordinary torch, so that autograd finds
their gradients and every runtime gets simple operators. Verification compares them with the original
functions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sedge_export.recurrent.layers import RECURRENT
from sedge_export.recurrent.packed import packer, padded
from sedge_export.tracing.constants import lifted, values
from sedge_export.tracing.fourier import FOURIER
from sedge_export.tracing.masks import MASKS
from sedge_export.tracing.scans import SCANS

Replacement = Callable[..., Tensor | tuple[Tensor, ...] | None]
Matrix = NDArray[np.float64]


class Replacing(TorchFunctionMode):
    """Replaces the functions in the table. If a replacement returns None, the call is left unchanged."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the replacement, or else the function, on lifted tensors."""
        args, keywords = lifted((args, dict(kwargs or {})))
        replacement = _TABLE.get(func)
        found = replacement(*args, **keywords) if replacement else None
        return func(*args, **keywords) if found is None else found


def _resampled(x: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Multiply each spatial axis of x (B, C, ...) by its matrix (outputs, inputs)."""
    for axis, matrix in enumerate(matrices, 2):
        weights = torch.from_numpy(matrix.astype(np.float32))
        x = (x.movedim(axis, -1) @ weights.T).movedim(-1, axis)
    return x


def _windows(extent: int, count: int) -> list[tuple[int, int]]:
    """Return the start and end of each window of an adaptive pool."""
    return [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]


def _sizes(x: Tensor, given: Any, axes: int) -> list[int]:
    listed: list[int | None] = [given] * axes if isinstance(given, int) else list(given)
    return [
        e if size is None else int(size) for size, e in zip(listed, x.shape[-axes:], strict=True)
    ]


def _adaptive_average(axes: int) -> Replacement:
    def pool(input: Tensor, output_size: Any) -> Tensor | None:
        sizes = _sizes(input, output_size, axes)
        extents = input.shape[-axes:]
        if input.ndim != axes + 2:
            return None
        if all(size == 1 for size in sizes):
            return input.mean(tuple(range(2, input.ndim)), keepdim=True)
        if not any(extent % size for extent, size in zip(extents, sizes, strict=True)):
            return None
        matrices: list[Matrix] = []
        for extent, size in zip(extents, sizes, strict=True):
            matrix = np.zeros((size, extent))
            for row, (start, stop) in enumerate(_windows(extent, size)):
                matrix[row, start:stop] = 1 / (stop - start)
            matrices.append(matrix)
        return _resampled(input, matrices)

    return pool


def _adaptive_maximum(axes: int) -> Replacement:
    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor | None:
        if return_indices or input.ndim != axes + 2:
            return None
        for axis, size in enumerate(_sizes(input, output_size, axes), 2):
            parts = [
                input.narrow(axis, start, stop - start).max(axis).values
                for start, stop in _windows(input.shape[axis], size)
            ]
            input = torch.stack(parts, axis)
        return input

    return pool


def _interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor | None:  # fmt: skip
    axes = input.ndim - 2
    known = {"nearest": _nearest, "nearest-exact": _nearest_exact}
    linear = mode in ("linear", "bilinear", "trilinear")
    if antialias or not (linear or mode == "bicubic" or mode in known):
        return None
    extents = input.shape[2:]
    factors: Any = [None] * axes if scale_factor is None else scale_factor
    if isinstance(factors, int | float):
        factors = [factors] * axes
    if size is None:
        sizes = [int(e * f) for e, f in zip(extents, factors, strict=True)]
    else:
        sizes = _sizes(input, size, axes)
    if recompute_scale_factor:
        factors = [None] * axes
    matrices: list[Matrix] = []
    for extent, count, factor in zip(extents, sizes, factors, strict=True):
        step = extent / count if factor is None else 1 / factor
        if linear:
            matrices.append(_linear(extent, count, step, bool(align_corners)))
        elif mode == "bicubic":
            matrices.append(_cubic(extent, count, step, bool(align_corners)))
        else:
            matrices.append(np.eye(extent)[known[mode](np.arange(count), step, extent)])
    if mode in known and all(c % e == 0 for c, e in zip(sizes, extents, strict=True)):
        for axis, (count, extent) in enumerate(zip(sizes, extents, strict=True), 2):
            input = input.repeat_interleave(count // extent, axis)
        return input
    return _resampled(input, matrices)


def _nearest(places: NDArray[np.int64], step: float, extent: int) -> NDArray[np.int64]:
    return np.minimum((places * step).astype(np.int64), extent - 1)


def _nearest_exact(places: NDArray[np.int64], step: float, extent: int) -> NDArray[np.int64]:
    return np.minimum(((places + 0.5) * step).astype(np.int64), extent - 1)


def _places(extent: int, count: int, step: float, corners: bool) -> NDArray[np.float64]:
    places = np.arange(count, dtype=np.float64)
    if corners:
        return places * ((extent - 1) / (count - 1) if count > 1 else 0.0)
    return (places + 0.5) * step - 0.5


def _cubic(extent: int, count: int, step: float, corners: bool) -> Matrix:
    """Return the matrix of Keys' cubic interpolation with torch's a = -0.75.

    Positions are clamped to the ends.
    """
    at = _places(extent, count, step, corners)
    below = np.floor(at).astype(np.int64)
    a, found = -0.75, np.zeros((count, extent))
    for offset in (-1, 0, 1, 2):
        d = np.abs(at - below - offset)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        column = np.clip(below + offset, 0, extent - 1)
        found[np.arange(count), column] += np.where(d <= 1, near, far)
    return found


def _linear(extent: int, count: int, step: float, corners: bool) -> Matrix:
    at = np.maximum(_places(extent, count, step, corners), 0)
    below = np.minimum(at.astype(np.int64), extent - 1)
    above = np.minimum(below + 1, extent - 1)
    share = (at - below)[:, None]
    eye = np.eye(extent)
    found: Matrix = (1 - share) * eye[below] + share * eye[above]
    return found


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:  # fmt: skip
    given = (offsets, max_norm, per_sample_weights, padding_idx)
    if input.ndim != 2 or scale_grad_by_freq or any(each is not None for each in given):
        return None
    rows = functional.embedding(input, weight)
    if mode == "max":
        return rows.max(1).values
    return rows.sum(1) if mode == "sum" else rows.mean(1)


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    axis = dimension % x.ndim
    count = (x.shape[axis] - size) // step + 1
    places = torch.from_numpy(np.arange(count)[:, None] * step + np.arange(size))
    return x.movedim(axis, -1)[..., places].movedim(-2, axis)


def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else found + bias


def _margin(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor | None:  # fmt: skip
    if p != 1 or weight is not None or reduction != "none" or input.ndim != 2:
        return None
    losses = (margin - input.gather(1, target[:, None]) + input).clamp(min=0)
    others = target[:, None] != torch.arange(input.shape[1])
    return (losses * others).sum(1) / input.shape[1]


def _padded(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor | None:
    if mode != "replicate":
        return None
    for place in range(len(pad) // 2):
        axis, (before, after) = input.ndim - 1 - place, pad[2 * place : 2 * place + 2]
        first, last = max(-before, 0), input.shape[axis] - max(-after, 0) - 1
        ends = [input.narrow(axis, at, 1) for at in (first, last)]
        left = [ends[0]] * max(before, 0)
        right = [ends[1]] * max(after, 0)
        input = torch.cat([*left, input.narrow(axis, first, last + 1 - first), *right], axis)
    return input


def _response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    margins = [0, 0] * (input.ndim - 2) + [size // 2, (size - 1) // 2]
    squares = functional.pad(input.square(), margins)
    total = torch.stack([squares.narrow(1, i, input.shape[1]) for i in range(size)]).sum(0)
    return input / (total * (alpha / size) + k) ** beta


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor | None:
    """Replace torch's ``one_hot``, which reads the smallest and the largest class from the tensor."""
    if num_classes < 0:
        return None
    return (tensor[..., None] == torch.arange(num_classes)).to(torch.int64)


def _array(tensor: Tensor, dtype: Any = None, **_: bool) -> NDArray[Any]:
    return np.asarray(values(tensor).numpy(), dtype)


def _list(tensor: Tensor) -> list[Any]:
    listed: list[Any] = values(tensor).tolist()
    return listed


_private: Any = torch  # packing is missing from torch's type stubs

_TABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    # These three read a tensor's memory, which a tensor does not have while it is traced.
    Tensor.__array__: _array,
    Tensor.numpy: _array,
    Tensor.tolist: _list,
    functional.adaptive_avg_pool1d: _adaptive_average(1),
    functional.adaptive_avg_pool2d: _adaptive_average(2),
    torch.adaptive_avg_pool1d: _adaptive_average(1),
    functional.adaptive_max_pool1d: _adaptive_maximum(1),
    functional.adaptive_max_pool2d: _adaptive_maximum(2),
    functional.interpolate: _interpolate,
    functional.embedding_bag: _embedding_bag,
    functional.bilinear: _bilinear,
    functional.multi_margin_loss: _margin,
    functional.local_response_norm: _response_norm,
    functional.one_hot: _one_hot,
    functional.pad: _padded,
    Tensor.unfold: _unfold,
    **FOURIER,
    **MASKS,
    **RECURRENT,
    _private._pack_padded_sequence: packer(values),
    _private._pad_packed_sequence: padded,
    **SCANS,
}
