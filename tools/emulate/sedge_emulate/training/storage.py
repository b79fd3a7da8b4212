"""Stores theta in an order that suits the layers: the axes of each tensor may be permuted."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sedge_protocol.layout import Layout, Theta


class AxisOrder:
    """The storage order of a tensor of shape ``shape``: its axes are stored in the order ``axes``."""

    def __init__(self, shape: Sequence[int], axes: Sequence[int]) -> None:
        self.shape, self.axes = tuple(shape), tuple(axes)
        self.stored = tuple(self.shape[axis] for axis in self.axes)
        self.back = tuple(self.axes.index(axis) for axis in range(len(self.axes)))


class Storage:
    """Converts between theta and vectors (n,) on any torch device, in which tensors have permuted axes."""

    def __init__(self, layout: Layout, orders: Mapping[str, AxisOrder]) -> None:
        plain = {t.name: AxisOrder(t.shape, range(len(t.shape))) for t in layout.tensors}
        self._layout = layout
        self._orders = {**plain, **orders}
        self._theta = torch.empty(layout.size)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a stored vector (n,) as tensors by name, each with its axes in storage order."""
        orders = self._orders
        return {t.name: vector[t.slice].view(orders[t.name].stored) for t in self._layout.tensors}

    def write(self, theta: Theta, vector: Tensor) -> None:
        """Write theta (n,) to ``vector`` (n,) in storage order."""
        self._theta.numpy()[:] = theta
        for order, stored, plain in self._pairs(vector):
            stored.copy_(plain.permute(order.axes))

    def read(self, vector: Tensor) -> Theta:
        """Read theta (n,) from ``vector`` (n,), which is in storage order."""
        for order, stored, plain in self._pairs(vector):
            plain.copy_(stored.permute(order.back))
        return self._theta.numpy().copy()

    def _pairs(self, vector: Tensor) -> Iterator[tuple[AxisOrder, Tensor, Tensor]]:
        stored = self.views(vector)
        for tensor in self._layout.tensors:
            order = self._orders[tensor.name]
            yield order, stored[tensor.name], self._theta[tensor.slice].view(order.shape)
