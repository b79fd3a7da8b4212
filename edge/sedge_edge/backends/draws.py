"""Makes the forward pass of a torch module use given random numbers, such as those of ``training.noise``.

torch's own random functions draw from a stream that no other runtime can reproduce. Within ``draws`` they
take the next numbers of a tensor instead. This covers dropout, Bernoulli masks (stochastic depth), and
uniform, normal and exponential numbers. Other functions, such as permutations, and all calls with a
generator still use torch's stream.

Functions that vmap must see through are replaced by name, because vmap refuses random operators. For all
other cases operators are replaced: the dropout inside ``torch.lstm``, and functions that a module bound
when it was imported.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sedge_edge.backends.random_operators import RandomOperators
from sedge_edge.backends.replaced import replaced


class Draws:
    """Hands out ``numbers`` (K,) in order. Without ``numbers`` it counts how many are requested."""

    def __init__(self, numbers: Tensor | None) -> None:
        self._numbers = numbers
        self.count = 0

    def take(
        self, shape: Sequence[int], like: Tensor | None = None, of: Tensor | None = None
    ) -> Tensor:
        """Return the next numbers in this shape.

        ``of`` replaces the source's tensor of numbers: the same tensor without its wrapper, while tracing.
        """
        begin, self.count = self.count, self.count + math.prod(shape)
        numbers = self._numbers if of is None else of
        if numbers is None:
            return torch.full(tuple(shape), 0.5, device=None if like is None else like.device)
        return numbers[begin : self.count].view(tuple(shape))

    def dropped(self, x: Tensor, p: float, shape: Sequence[int]) -> Tensor:
        """Return x with each element set to 0 with probability p and otherwise divided by 1 - p.

        The mask has this ``shape``, which is broadcast to that of x.
        """
        if p >= 1:
            return x * 0
        return x * ((self.take(shape, x) >= p).to(x.dtype) / (1 - p))


@contextmanager
def draws(numbers: Tensor | None) -> Generator[Draws]:
    """Make torch's functions draw from ``numbers`` (K,) in [0, 1) within this context."""
    source = Draws(numbers)
    with ExitStack() as stack:
        for owner, name, replacement in _replacements(source):
            stack.enter_context(replaced(owner, name, replacement(getattr(owner, name))))
        stack.enter_context(RandomOperators(source, numbers))
        yield source


Replacement = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


def _replacements(source: Draws) -> list[tuple[Any, str, Replacement]]:
    return [
        (F, "dropout", lambda original: _dropout(source, original, 0)),
        (F, "dropout1d", lambda original: _dropout(source, original, 3)),
        (F, "dropout2d", lambda original: _dropout(source, original, 4)),
        (F, "dropout3d", lambda original: _dropout(source, original, 5)),
        (F, "scaled_dot_product_attention", lambda original: _attention(source, original)),
        (torch, "bernoulli", lambda original: _bernoulli(source, original)),
        (torch, "rand", lambda original: _rand(source, original)),
        (torch, "rand_like", lambda original: _rand_like(source, original)),
        (Tensor, "bernoulli_", lambda original: _bernoulli_(source, original)),
    ]


def _dropout(source: Draws, original: Callable[..., Tensor], rank: int) -> Callable[..., Tensor]:
    """Return a dropout function for elements or, given a rank, for channels of batches of that rank."""

    def dropout(
        input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or not 0 < p <= 1 or (rank and input.ndim != rank):
            return original(input, p, training, inplace)
        shape = input.shape if not rank else (*input.shape[:2], *[1] * (rank - 2))
        made = source.dropped(input, p, shape)
        return input.copy_(made) if inplace else made

    return dropout


def _attention(source: Draws, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an attention function.

    If there is dropout, it computes attention from products and a softmax, as documented by torch.
    """

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if not dropout_p or enable_gqa:
            given: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
            return original(query, key, value, attn_mask, dropout_p, is_causal, **given)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query @ key.transpose(-2, -1) * scale
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return source.dropped(scores.softmax(-1), dropout_p, scores.shape) @ value

    return attention


def _bernoulli(source: Draws, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def bernoulli(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs:
            return original(input, *args, **kwargs)
        return (source.take(input.shape, input) < input).to(input.dtype)

    return bernoulli


def _bernoulli_(source: Draws, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def bernoulli_(self: Tensor, p: float | Tensor = 0.5, **kwargs: Any) -> Tensor:
        if kwargs:
            return original(self, p, **kwargs)
        return self.copy_(source.take(self.shape, self) < p)

    return bernoulli_


def _rand(source: Draws, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rand(*size: Any, **kwargs: Any) -> Tensor:
        if kwargs.keys() - {"device", "dtype"}:
            return original(*size, **kwargs)
        shape: Sequence[int] = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return source.take(shape).to(**kwargs) if kwargs else source.take(shape)

    return rand


def _rand_like(source: Draws, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rand_like(input: Tensor, **kwargs: Any) -> Tensor:
        if kwargs or input.is_meta:  # torch only needs the shape
            return original(input, **kwargs)
        return source.take(input.shape, input).to(input.dtype)

    return rand_like
