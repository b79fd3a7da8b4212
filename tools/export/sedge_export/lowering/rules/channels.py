"""Converts images to channels last and back, for rules that work along rows."""

from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """Reorder (B, C, ...) to (B, ..., C)."""
    return x.permute(0, *range(2, x.ndim), 1)


def channels_first(x: Tensor) -> Tensor:
    """Reorder (B, ..., C) to (B, C, ...)."""
    return x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))
