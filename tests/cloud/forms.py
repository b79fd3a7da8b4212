"""Models in several widths for tests of sub-models: their layouts by channels, and their axes.

The axes are written by hand; that the exporter finds the same ones is its own test.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tests.cloud import contexts
from tests.cloud.contexts import a_layout

from sedge_cloud.algorithms.submodels import Form
from sedge_cloud.strategy import Context, Width
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.layout import Layout, Theta

K = (FIXED, FIXED)  # a kernel's extents
PLAIN = Axes(
    (32, 64, 512), ((0, FIXED, *K), (0,), (1, 0, *K), (1,), (2, 1), (2,), (FIXED, 2), (FIXED,))
)


def plain(c: int = 32, d: int = 64, e: int = 512) -> Form:
    """conv - pool - conv - pool - fc - classifier, as avgcnn, with c, d, e channels; 28 x 28 images."""
    shapes: dict[str, tuple[int, ...]] = {
        "conv1.weight": (c, 1, 5, 5), "conv1.bias": (c,), "conv2.weight": (d, c, 5, 5), "conv2.bias": (d,),
        "fc1.weight": (e, 16 * d), "fc1.bias": (e,), "classifier.weight": (10, e), "classifier.bias": (10,),
    }  # fmt: skip
    return Form(a_layout(shapes), Axes((c, d, e), PLAIN.dims))


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


def residual() -> Form:
    """A stem and a block on a stream of 8 channels, 6 inside; then a stream of 10; BatchNorm."""

    def norm(name: str, count: int) -> Mapping[str, tuple[int, ...]]:
        parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        return {f"{name}.{part}": (count,) * (part != parts[-1]) for part in parts}

    shapes: dict[str, tuple[int, ...]] = {
        "stem.weight": (8, 1, 3, 3), **norm("norm", 8), "inner.weight": (6, 8, 3, 3),
        **norm("inner_norm", 6), "outer.weight": (8, 6, 3, 3), **norm("outer_norm", 8),
        "down.weight": (10, 8, 3, 3), "shortcut.weight": (10, 8, 1, 1), "classifier.weight": (10, 10),
        "classifier.bias": (10,),
    }  # fmt: skip
    return Form(a_layout(shapes), RESIDUAL)


def random_theta(layout: Layout, rng: np.random.Generator) -> Theta:
    """Normal parameters and positive statistics (n,)."""
    theta = rng.normal(0, 0.3, layout.size).astype(np.float32)
    for name in layout.statistics:
        place = layout.by_name[name].slice
        theta[place] = np.abs(theta[place]) + np.float32(0.5)
    return theta


def rearranged(theta: Theta, whole: Form, choice: Sequence[NDArray[np.intp]]) -> Theta:
    """The model whose channel k of axis a is channel choice[a][k] of theta (n,)."""
    views = whole.layout.views(theta)
    made: dict[str, NDArray[np.float32]] = {}
    for tensor, dims in zip(whole.layout.tensors, whole.axes.dims, strict=True):
        values = views[tensor.name]
        for place, axis in enumerate(dims):
            if axis != FIXED:
                before, after = tensor.shape[:place], tensor.shape[place + 1 :]
                split = values.reshape(*before, whole.axes.channels[axis], -1, *after)
                values = split.take(choice[axis], axis=place).reshape(tensor.shape)
        made[tensor.name] = values
    return whole.layout.flatten(made)


def context_of(
    layout: Layout, axes: Axes | None, theta: Theta, dropped: Sequence[float] = ()
) -> Context:
    """A run's context with forms that lack these shares of the channels, after the whole one."""
    if axes is None:
        return contexts.context_of(layout, theta)
    layouts = {share: axes.layout(layout, axes.narrowed(share)) for share in (0.0, *dropped)}
    widths = tuple(Width(*each) for each in layouts.items())
    return contexts.context_of(layout, theta, axes=axes, widths=widths)
