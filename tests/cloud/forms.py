"""Models in several widths for tests of sub-models: torch modules by channels, their layouts and axes.

The axes are written by hand; that the exporter finds the same ones is its own test.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tests.cloud import contexts
from torch import nn

from sedge_cloud.algorithms.submodels import Form
from sedge_cloud.strategy import Context, Width
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.layout import Layout, Role, Theta

K = (FIXED, FIXED)  # a kernel's extents


class Plain(nn.Module):
    """conv - pool - conv - pool - fc - classifier, as avgcnn, with c, d, e channels; 28 x 28 images."""

    def __init__(self, c: int = 32, d: int = 64, e: int = 512) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, c, 5)
        self.conv2 = nn.Conv2d(c, d, 5)
        self.fc1 = nn.Linear(d * 16, e)
        self.classifier = nn.Linear(e, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of (B, 1, 28, 28)."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        logits: torch.Tensor = self.classifier(torch.relu(self.fc1(x.flatten(1))))
        return logits


PLAIN = Axes(
    (32, 64, 512), ((0, FIXED, *K), (0,), (1, 0, *K), (1,), (2, 1), (2,), (FIXED, 2), (FIXED,))
)


class Residual(nn.Module):
    """A stem and a block on a stream of c channels, d inside; then a stream of e; BatchNorm."""

    def __init__(self, c: int = 8, d: int = 6, e: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, bias=False)
        self.norm = nn.BatchNorm2d(c)
        self.inner = nn.Conv2d(c, d, 3, padding=1, bias=False)
        self.inner_norm = nn.BatchNorm2d(d)
        self.outer = nn.Conv2d(d, c, 3, padding=1, bias=False)
        self.outer_norm = nn.BatchNorm2d(c)
        self.down = nn.Conv2d(c, e, 3, 2, bias=False)
        self.shortcut = nn.Conv2d(c, e, 1, 2, bias=False)
        self.classifier = nn.Linear(e, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B, 10) of (B, 1, H, W)."""
        x = torch.relu(self.norm(self.stem(x)))
        y = torch.relu(self.inner_norm(self.inner(x)))
        x = torch.relu(x + self.outer_norm(self.outer(y)))
        x = torch.relu(self.down(x) + self.shortcut(x[:, :, 1:-1, 1:-1]))
        logits: torch.Tensor = self.classifier(x.mean((2, 3)))
        return logits


def _norm(axis: int) -> tuple[tuple[int, ...], ...]:
    """weight, bias, running_mean, running_var, num_batches_tracked."""
    return ((axis,), (axis,), (axis,), (axis,), ())


RESIDUAL = Axes(
    (8, 6, 10),
    (
        (0, FIXED, *K), *_norm(0), (1, 0, *K), *_norm(1), (0, 1, *K), *_norm(0), (2, 0, *K),
        (2, 0, *K), (FIXED, 2), (FIXED,),
    ),
)  # fmt: skip


def layout_of(module: nn.Module) -> Layout:
    parameters = dict(module.named_parameters())
    return Layout.of(
        (name, tuple(t.shape), Role.PARAMETER if name in parameters else Role.STATISTIC)
        for name, t in module.state_dict().items()
    )


def form(module: nn.Module, axes: Axes, channels: tuple[int, ...]) -> Form:
    return Form(layout_of(module), Axes(channels, axes.dims))


def random_theta(layout: Layout, rng: np.random.Generator) -> Theta:
    """Normal parameters and positive statistics (n,)."""
    theta = rng.normal(0, 0.3, layout.size).astype(np.float32)
    for name in layout.statistics:
        place = layout.by_name[name].slice
        theta[place] = np.abs(theta[place]) + np.float32(0.5)
    return theta


def rearranged(theta: Theta, whole: Form, choice: Sequence[NDArray[np.intp]], to: Form) -> Theta:
    """A model (m,) whose channel k of axis a is channel choice[a][k] of theta (n,), outputs kept.

    Where a channel is chosen several times, its outgoing weights are shared out among the copies.
    """
    views = whole.layout.views(theta)
    made: dict[str, NDArray[np.float32]] = {}
    for tensor, dims in zip(whole.layout.tensors, whole.axes.dims, strict=True):
        values = views[tensor.name]
        for place, axis in enumerate(dims):
            if axis == FIXED:
                continue
            chosen = choice[axis]
            channels = whole.axes.channels[axis]
            shape = values.shape
            split = values.reshape(*shape[:place], channels, -1, *shape[place + 1 :])
            values = split.take(chosen, axis=place)
            if place > 0:
                copies = np.bincount(chosen, minlength=channels)[chosen].astype(np.float32)
                values = values / copies.reshape(-1, *[1] * (values.ndim - place - 1))
            values = values.reshape(*shape[:place], -1, *shape[place + 1 :])
        made[tensor.name] = values.astype(np.float32)
    return to.layout.flatten(made)


def context_of(
    layout: Layout, axes: Axes | None, theta: Theta, dropped: Sequence[float] = ()
) -> Context:
    """A run's context with forms that lack these shares of the channels, after the whole one."""
    if axes is None:
        return contexts.context_of(layout, theta)
    layouts = {share: axes.layout(layout, axes.narrowed(share)) for share in (0.0, *dropped)}
    widths = tuple(Width(*each) for each in layouts.items())
    return contexts.context_of(layout, theta, axes=axes, widths=widths)
