"""Windows that move along one axis: the elements that they read, and the sums of what they write back.

Convolution and pooling over several axes handle one axis after the other. XNNPACK slices only with step
1. So for a stride s, an axis of N s elements is viewed as (N, s), and tap t of every window reads
consecutive blocks at phase t mod s. The s phases and the axes after them are one axis, so that a slice
copies whole rows, in onnxruntime, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True)
class WindowAxis:
    """How a window of ``kernel`` taps moves over an axis of ``extent`` elements, to ``count`` positions."""

    axis: int
    extent: int
    count: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def places(self) -> list[tuple[int, int]]:
        """The block and the phase that each tap of the first window reads."""
        return [divmod(tap * self.dilation, self.stride) for tap in range(self.kernel)]

    @property
    def blocks(self) -> int:
        """The number of blocks of ``stride`` elements that all windows read."""
        return self.places[-1][0] + self.count

    def taps(self, x: Tensor, fill: float = 0.0) -> list[Tensor]:
        """Return the elements of x that each tap reads in all windows, ``count`` along the axis."""
        if self.kernel == self.stride == 1 and not self.padding and self.extent == self.count:
            return [x]
        # The padding at the end may be negative, to cut elements that no window reads.
        after = self.blocks * self.stride - self.extent - self.padding
        whole = pad(x, self.axis, self.padding, after, fill)
        outer, inner = x.shape[: self.axis], x.shape[self.axis + 1 :]
        size = math.prod(inner)
        rows = whole.reshape(*outer, self.blocks, self.stride * size)
        phases = {
            phase: cut(rows, self.axis + 1, phase * size, size).reshape(*outer, self.blocks, *inner)
            for _, phase in self.places
        }
        return [cut(phases[phase], self.axis, block, self.count) for block, phase in self.places]

    def sum(self, taps: Sequence[Tensor]) -> Tensor:
        """Return the gradient of ``taps``: each tap's elements, added where it read them."""
        if self.kernel == self.stride == 1 and not self.padding and self.extent == self.count:
            return taps[0]
        outer, inner = taps[0].shape[: self.axis], taps[0].shape[self.axis + 1 :]
        phases = [
            self._phase(taps, phase).reshape(*outer, self.blocks, math.prod(inner))
            for phase in range(self.stride)
        ]
        rows = torch.cat(phases, self.axis + 1)
        whole = rows.reshape(*outer, self.blocks * self.stride, *inner)
        after = self.extent + self.padding - self.blocks * self.stride
        return pad(whole, self.axis, -self.padding, after)

    def _phase(self, taps: Sequence[Tensor], wanted: int) -> Tensor:
        laid = [
            pad(tap, self.axis, block, self.blocks - self.count - block)
            for tap, (block, phase) in zip(taps, self.places, strict=True)
            if phase == wanted
        ]
        if not laid:
            return pad(torch.zeros_like(taps[0]), self.axis, 0, self.blocks - self.count)
        return reduce(add, laid)


def cut(x: Tensor, axis: int, start: int, count: int) -> Tensor:
    """Return ``count`` elements along an axis, from ``start`` on."""
    return x if count == x.shape[axis] else x.narrow(axis, start, count)


def pad(x: Tensor, axis: int, before: int, after: int, fill: float = 0.0) -> Tensor:
    """Return x padded along an axis; negative margins crop."""
    start, stop = max(-before, 0), x.shape[axis] - max(-after, 0)
    x = cut(x, axis, start, stop - start)
    if before <= 0 and after <= 0:
        return x
    margins = [0, 0] * (x.ndim - axis - 1) + [max(before, 0), max(after, 0)]
    padded: Tensor = aten.constant_pad_nd(x, margins, fill)
    return padded
