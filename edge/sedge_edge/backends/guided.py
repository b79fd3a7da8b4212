"""Guided losses in torch: they see the model's features, those of reference models, and constants.

The features of a row are the inputs of the model's last layer with parameters, flattened: (B, d). A
reference runs in evaluation mode and has no gradient. The exporter, the backend ``torch`` and the emulator
use this module.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from sedge_protocol.wire.objective import Guide


class Pass(NamedTuple):
    """A model's outputs (B, ...) for a batch, and its features (B, d)."""

    outputs: Tensor
    features: Tensor


class Seen(NamedTuple):
    """A guided loss's further inputs: passes of reference models, and arrays (m,), by name."""

    models: Mapping[str, Pass]
    arrays: Mapping[str, Tensor]


# (rows (B,) of the bundle's own loss, the model's pass, y (B, ...), the inputs that the guide lists) ->
# (B,)
GuidedRows: TypeAlias = Callable[[Tensor, Pass, Tensor, Seen], Tensor]


class GuidedLoss(NamedTuple):
    """The inputs of a guided loss, and the loss as a function."""

    guide: Guide
    rows: GuidedRows


@contextmanager
def features_of(model: nn.Module) -> Generator[Callable[[], Tensor]]:
    """Within this context a call of the model records its features (B, d).

    The yielded function returns them. It raises ``ValueError`` if the last layer was not called with a
    tensor.
    """
    layer, held = _last_layer(model), list[object]()
    handle = layer.register_forward_pre_hook(lambda _, inputs: held.append(*inputs[:1]))

    def features() -> Tensor:
        if not held or not isinstance(held[-1], Tensor) or held[-1].ndim < 2:
            kind = type(layer).__name__
            raise ValueError(f"{kind}, the last layer with parameters, takes no tensor (B, ...)")
        return held[-1].flatten(1)

    try:
        yield features
    finally:
        handle.remove()


def _last_layer(model: nn.Module) -> nn.Module:
    """The last module that has parameters itself."""
    layers = [module for module in model.modules() if any(True for _ in module.parameters(False))]
    return layers[-1]
