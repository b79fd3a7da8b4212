"""Makes torch's random operators use given numbers u, uniform in [0, 1), at a level below autograd.

Dropout keeps an element if u >= p. torch reduces dropout to ``bernoulli_(1 - p)``, which is therefore 1
if u >= p. Normal numbers use Box and Muller's method: sqrt(-2 ln(1 - u)) cos(2 pi v). Exponential numbers
are -ln(1 - u - 2^-17). The last term moves u, a multiple of 2^-16, to the middle of its step, because a 0
would make Gumbel's noise infinite.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_private: Any = torch  # torch's typed interface does not include functionalization

Take: TypeAlias = Callable[[Sequence[int]], Tensor]
Draw: TypeAlias = Callable[..., Tensor]


class RandomSource(Protocol):
    """Provides successive random numbers."""

    def take(
        self, shape: Sequence[int], like: Tensor | None = None, of: Tensor | None = None
    ) -> Tensor:
        """Return the next numbers in this shape."""
        ...


class RandomOperators(TorchDispatchMode):
    """Makes random operators use the next numbers of a source, unless a generator is passed."""

    def __init__(self, source: RandomSource, numbers: Tensor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source
        # While tracing, operators arrive here without the wrapper that tensors have at higher levels.
        wrapped = numbers is not None and _private._is_functional_tensor(numbers)
        self._numbers = _private._from_functional_tensor(numbers) if wrapped else numbers

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the operator, or its replacement."""
        keywords = dict(kwargs or {})
        draw = _DRAWS.get(func)
        shape_only = any(isinstance(each, Tensor) and each.is_meta for each in args)
        # Operators called by torch.from_numpy and the like arrive here while modes at higher levels are
        # still active.
        with _private._C.DisableTorchFunction():
            if draw is None or shape_only or keywords.pop("generator", None) is not None:
                return func(*args, **dict(kwargs or {}))
            drawn = draw(self._take, *args, **keywords)
            return args[0].copy_(drawn) if func in _IN_PLACE else drawn

    def _take(self, shape: Sequence[int]) -> Tensor:
        return self._source.take(shape, self._numbers, self._numbers)


def _as(x: Tensor, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.to(like.device, dtype or like.dtype)


def _gaussian(take: Take, shape: Sequence[int]) -> Tensor:
    radius = (-2 * torch.log(1 - take(shape))).sqrt()
    return radius * torch.cos(2 * math.pi * take(shape))


def _uniform(take: Take, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return _as(take(x.shape), x) * (high - low) + low


def _bernoulli(take: Take, p: Tensor) -> Tensor:
    return _as(take(p.shape) < p, p)


def _bernoulli_of(take: Take, x: Tensor, p: float | Tensor = 0.5) -> Tensor:
    held = take(x.shape) < p if isinstance(p, Tensor) else take(x.shape) >= 1 - p
    return _as(held, x)


def _normal_of(take: Take, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _as(_gaussian(take, x.shape), x) * std + mean


def _normal(
    take: Take, mean: float | Tensor = 0.0, std: float | Tensor = 1.0,
    size: Sequence[int] = (), **_: Any,
) -> Tensor:  # fmt: skip
    given = [each for each in (mean, std) if isinstance(each, Tensor)]
    both: Tensor | None = sum(given[1:], given[0]) if given else None
    return _gaussian(take, size if both is None else both.shape) * std + mean


def _exponential(take: Take, x: Tensor, rate: float = 1.0) -> Tensor:
    return _as(-torch.log(1 - 2**-17 - take(x.shape)), x) / rate


def _new(draw: Callable[[Take, Sequence[int]], Tensor]) -> Draw:
    def made(take: Take, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return draw(take, size).to(dtype or torch.get_default_dtype())

    return made


def _like(draw: Callable[[Take, Sequence[int]], Tensor]) -> Draw:
    def made(take: Take, x: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return _as(draw(take, x.shape), x, dtype)

    return made


def _numbers(take: Take, shape: Sequence[int]) -> Tensor:
    return take(shape)


_IN_PLACE: dict[OpOverload, Draw] = {
    aten.bernoulli_.float: _bernoulli_of,
    aten.bernoulli_.Tensor: _bernoulli_of,
    aten.uniform_.default: _uniform,
    aten.normal_.default: _normal_of,
    aten.exponential_.default: _exponential,
}
_DRAWS: dict[OpOverload, Draw] = {
    **_IN_PLACE,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli_of,
    aten.bernoulli.Tensor: _bernoulli_of,
    aten.uniform.default: _uniform,
    aten.exponential.default: _exponential,
    aten.normal_functional.default: _normal_of,
    aten.normal.float_float: _normal,
    aten.normal.Tensor_float: _normal,
    aten.normal.float_Tensor: _normal,
    aten.normal.Tensor_Tensor: _normal,
    aten.rand.default: _new(_numbers),
    aten.rand_like.default: _like(_numbers),
    aten.randn.default: _new(_gaussian),
    aten.randn_like.default: _like(_gaussian),
}
