"""Boolean masks as indices: writing through a mask becomes a ``where``; reading is refused.

A program's shapes are fixed, but how many elements a mask selects depends on the data.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from sedge_export.subject.source import here
from sedge_export.tracing.constants import known, lifted
from sedge_protocol.errors import ExportError

_WAY = "write torch.where(mask, value, x), or multiply by mask.float() and divide by its sum"


def _is_mask(part: object) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool and part.ndim > 0


def _written(x: Tensor, key: Any, value: Any) -> Tensor | None:
    """Write ``value`` to x where the mask in ``key`` is true. Returns x.

    Returns None if there is no mask, or if the value has one row for each element of a mask that is known
    while tracing (``constants``).
    """
    parts: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    masks = [part for part in parts if _is_mask(part)]
    others = [part for part in parts if not _is_mask(part)]
    if len(masks) != 1 or any(isinstance(part, Tensor | list) for part in others):
        return None
    (mask,) = masks
    view, before = _view(x, parts, mask.ndim)
    after = view.ndim - before - mask.ndim
    laid = mask.reshape(*mask.shape, *[1] * after)
    number = torch.as_tensor(value, dtype=view.dtype, device=view.device)
    if _is_one_each(number, after) and known(lifted(mask)):
        return None
    view.copy_(torch.where(laid, _laid(number, after, mask.ndim), view))
    return x


def _view(x: Tensor, parts: Sequence[Any], rank: int) -> tuple[Tensor, int]:
    """Index x by everything except the mask.

    Returns the view, and the first of the ``rank`` axes that the mask covers.
    """
    plain: list[Any] = []
    for part in parts:
        plain += [slice(None)] * rank if _is_mask(part) else [part]
    at = next(place for place, part in enumerate(parts) if _is_mask(part))
    tail = sum(not isinstance(part, Integral) for part in parts[at + 1 :])
    whole = all(part is Ellipsis or part == slice(None) for part in plain)
    view = x if whole else x[tuple(plain)]
    if Ellipsis in parts[:at]:
        return view, view.ndim - tail - rank
    return view, sum(not isinstance(part, Integral) for part in parts[:at])


def _is_one_each(value: Tensor, after: int) -> bool:
    """Return True if the value has one row for each selected element."""
    return value.ndim > after and value.shape[-1 - after] != 1


def _laid(value: Tensor, after: int, rank: int) -> Tensor:
    """Reshape a value so that it broadcasts over the mask's axes."""
    axis = value.ndim - 1 - after
    if axis < 0:
        return value
    if _is_one_each(value, after):
        raise ExportError(
            f"model: x[mask] = value at {here()}: the value has {value.shape[axis]} rows for a number"
            f" of elements that depends on the data, but programs have fixed shapes: {_WAY}"
        )
    return value.reshape(*value.shape[:axis], *[1] * rank, *value.shape[axis + 1 :])


def _scattered(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Replace ``masked_scatter``: each true element of the mask gets the next element of source."""
    chosen = mask.expand(input.shape).reshape(-1)
    places = (chosen.to(torch.int64).cumsum(0) - 1).clamp(min=0, max=source.numel() - 1)
    return torch.where(chosen, source.reshape(-1)[places], input.reshape(-1)).view(input.shape)


def _scattered_into(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    return input.copy_(_scattered(input, mask, source))


def _fixed(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function so that it is refused if the size of its result depends on the data."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        result = function(*args, **kwargs)
        found = result if isinstance(result, tuple) else (result,)
        if any(type(extent) is not int for each in found for extent in each.shape):
            raise ExportError(
                f"model: {name} at {here()} has a size that depends on the data, but programs have"
                f" fixed shapes: {_WAY}"
            )
        return result

    return call


def _taken(x: Tensor, key: Any) -> Tensor | None:
    parts = key if isinstance(key, tuple) else (key,)
    return _fixed("x[mask]", Tensor.__getitem__)(x, key) if any(map(_is_mask, parts)) else None


def _where(*args: Any, **kwargs: Any) -> Any:
    alone = len(args) + len(kwargs) == 1
    return _fixed("torch.where(mask)", torch.where)(*args, **kwargs) if alone else None


# Replacements for the torch functions that accept masks; None leaves a call unchanged.
MASKS: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.__setitem__: _written,
    Tensor.__getitem__: _taken,
    Tensor.masked_scatter: _scattered,
    Tensor.masked_scatter_: _scattered_into,
    torch.masked_scatter: _scattered,
    Tensor.masked_select: _fixed("masked_select", torch.masked_select),
    torch.masked_select: _fixed("masked_select", torch.masked_select),
    Tensor.nonzero: _fixed("nonzero", torch.nonzero),
    torch.nonzero: _fixed("nonzero", torch.nonzero),
    torch.where: _where,
}
