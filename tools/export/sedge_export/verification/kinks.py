"""Finds kinks of a model within float32's rounding, such as an activation near 0 or a near tie in a window.

The gradient differs between the two sides of a kink, and rounding decides the side. So near a kink, a
correct program may disagree with torch by any amount. So may a wrong one, and the batch proves nothing.
``found`` proves a kink from the model alone. It runs the model in float64 and in float32, and compares
the distance to each kink in float64 with the rounding error of the tensor in question.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from sedge_export.subject.batches import PaddedBatch
from sedge_export.subject.source import bare_name
from sedge_export.verification.eager import Eager

Distances: TypeAlias = Callable[..., list[Tensor]]

# An element is near a kink if its distance is at most this many times the tensor's rounding error, the
# largest difference between float32 and float64. The rounding of another correct program may move the
# element across the kink.
NEAR = 4.0


def _from(*places: float) -> Distances:
    def distances(x: Tensor, *_: object) -> list[Tensor]:
        return [x - place for place in places]

    return distances


def _from_both(x: Tensor, place: float = 0.5) -> list[Tensor]:
    return [x - place, x + place]


def _from_ends(x: Tensor, low: float = -1.0, high: float = 1.0) -> list[Tensor]:
    return [x - low, x - high]


def _from_bounds(x: Tensor, *bounds: object, **named: object) -> list[Tensor]:
    given = [*bounds, *named.values()]
    return [x - bound for bound in given if isinstance(bound, Tensor | int | float)]


def _gap(rows: Tensor) -> list[Tensor]:
    """Return the distance between the two largest elements of each row of ``rows`` (N, M)."""
    if rows.shape[1] < 2:
        return []
    first, second = rows.topk(2, dim=1).values.unbind(1)
    return [first - second]


def _of_windows(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, *_: object,
) -> list[Tensor]:  # fmt: skip
    pads = [padding] * 2 if isinstance(padding, int) else list(padding) * (3 - len(padding))
    steps = stride or kernel
    far = max([steps] if isinstance(steps, int) else steps) - 1 if ceil_mode else 0
    margins = (pads[1], pads[1] + far, pads[0], pads[0] + far)
    framed = torch.nn.functional.pad(x, margins, value=-1e30)
    planes = framed.reshape(-1, 1, *framed.shape[-2:])
    columns = torch.nn.functional.unfold(planes, kernel, dilation=dilation, stride=stride or kernel)
    return _gap(columns.mT.reshape(-1, columns.shape[1]))


def _of_axes(x: Tensor, dim: Any = (), *_: object) -> list[Tensor]:
    listed = [dim] if isinstance(dim, int) else list(dim)
    over = sorted({axis % x.ndim for axis in listed} or range(x.ndim))
    kept = [axis for axis in range(x.ndim) if axis not in over]
    last = x.permute(*kept, *over)
    return _gap(last.reshape(-1, max(1, last[(0,) * len(kept)].numel())))


def _least(of: Distances) -> Distances:
    def distances(x: Tensor, *rest: object) -> list[Tensor]:
        return of(-x, *rest)

    return distances


def _neighbours(x: Tensor, dim: int, count: int, descending: bool) -> list[Tensor]:
    """Return the gaps between the first ``count`` elements along an axis, in sorted order."""
    ordered = x.sort(dim, descending).values.narrow(dim, 0, min(count, x.shape[dim]))
    return [ordered.diff(dim=dim)]


def _of_top(x: Tensor, k: int, dim: int = -1, largest: bool = True, *_: object) -> list[Tensor]:
    return _neighbours(x, dim, k + 1, largest)


def _of_sorted(x: Tensor, dim: int = -1, *_: object, **_named: object) -> list[Tensor]:
    return _neighbours(x, dim, x.shape[dim], False)


def _of_places(x: Tensor, _k: int, dim: int = -1, *_: object) -> list[Tensor]:
    return _of_sorted(x, dim)


def _of_running(x: Tensor, dim: int, *_: object) -> list[Tensor]:
    """Return the distance of each element to the largest one before it."""
    largest = x.cummax(dim).values
    return [x.narrow(dim, 1, x.shape[dim] - 1) - largest.narrow(dim, 0, x.shape[dim] - 1)]


def _from_whole(
    x: Tensor, *_: object, dtype: torch.dtype | None = None, **_named: object
) -> list[Tensor]:
    """Return the distance to the nearest integer, for values that are cast to an integer type."""
    return [x - x.round()] if dtype is None or not dtype.is_floating_point else []


def _between(x: Tensor, y: Any, *_: object) -> list[Tensor]:
    return [x - y]


# For each operator, by its bare name, functions of its arguments that are 0 at a kink.
_DISTANCES: dict[str, Distances] = {
    "relu": _from(0.0),
    "leaky_relu": _from(0.0),
    "rrelu_with_noise": _from(0.0),
    "prelu": _from(0.0),
    "prelu_kernel": _from(0.0),
    "elu": _from(0.0),
    "abs": _from(0.0),
    "sign": _from(0.0),
    "threshold": _between,
    "hardtanh": _from_ends,
    "hardswish": _from(-3.0, 3.0),
    "hardsigmoid": _from(-3.0, 3.0),
    "softshrink": _from_both,
    "hardshrink": _from_both,
    "clamp": _from_bounds,
    "clamp_min": _from_bounds,
    "clamp_max": _from_bounds,
    "max_pool2d_with_indices": _of_windows,
    **dict.fromkeys(("amax", "max", "argmax"), _of_axes),
    **dict.fromkeys(("amin", "min", "argmin"), _least(_of_axes)),
    "topk": _of_top,
    **dict.fromkeys(("sort", "median"), _of_sorted),
    "kthvalue": _of_places,
    "cummax": _of_running,
    "cummin": _least(_of_running),
    **dict.fromkeys(("ceil", "floor", "trunc", "to_copy"), _from_whole),
    **dict.fromkeys(("maximum", "minimum", "gt", "ge", "lt", "le"), _between),
}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the distances to every kink in one forward pass, with the operator's name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record the operator's distances, then let it run."""
        name = bare_name(func)
        measure = _DISTANCES.get(name)
        if measure and "backward" not in str(func) and args[0].is_floating_point():
            distances = measure(*args, **(kwargs or {}))
            self.found += [(name, distance.detach().double()) for distance in distances]
        return func(*args, **(kwargs or {}))


def found(exact: Eager, plain: Eager, batch: PaddedBatch) -> str | None:
    """Return the name of an operator with a kink within rounding of the batch's values, or None.

    ``exact`` and ``plain`` are the same model in float64 and float32, with the same theta. Both update
    their statistics.
    """
    passes: list[list[tuple[str, Tensor]]] = []
    for eager in (exact, plain):
        recorder = _Recorder()
        with recorder:
            eager.differentiate(batch)
        passes.append(recorder.found)
    for (name, right), (other, rounded) in zip(passes[0], passes[1], strict=False):
        if name != other or right.shape != rounded.shape or not right.numel():
            return None
        rounding = (right - rounded).abs().max()
        # A tie that is exact in both precisions comes from the model itself, such as the 0 that a ReLU
        # passes on.
        near = (right.abs() <= NEAR * rounding) & ~((right == 0) & (rounded == 0))
        if bool(near.any()):
            return name
    return None
