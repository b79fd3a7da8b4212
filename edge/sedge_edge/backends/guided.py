"""Guided losses in torch. They see the features of the model and of reference models, and constants.

The features of a row are the inputs of the model's last layer that has parameters, flattened: (B, d). A
reference model runs in evaluation mode and has no gradient. The exporter, the backend ``torch`` and the
emulator use this module.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from sedge_protocol.wire.objective import Guide


class Pass(NamedTuple):
    """The results of running a model on a batch: outputs (B, ...) and features (B, d)."""

    outputs: Tensor
    features: Tensor


class GuideInputs(NamedTuple):
    """Additional inputs of a guided loss, keyed by name: passes of reference models, and arrays (m,)."""

    models: Mapping[str, Pass]
    arrays: Mapping[str, Tensor]


# Takes the rows (B,) of the bundle's own loss, the model's pass, y (B, ...), and the inputs that the guide
# lists. Returns the rows (B,) of the guided loss.
GuidedRows: TypeAlias = Callable[[Tensor, Pass, Tensor, GuideInputs], Tensor]


class GuidedLoss(NamedTuple):
    """A guided loss: the inputs that it takes, and the function that computes it."""

    guide: Guide
    rows: GuidedRows


@contextmanager
def features_of(model: nn.Module) -> Generator[Callable[[], Tensor]]:
    """Record the features (B, d) of each call to the model within this context.

    Yields a function that returns the features of the last call. It raises ``ValueError`` if the last
    layer was not called with a tensor.
    """
    layer, held = _last_layer(model), list[object]()
    handle = layer.register_forward_pre_hook(lambda _, inputs: held.append(*inputs[:1]))

    def features() -> Tensor:
        if not held or not isinstance(held[-1], Tensor) or held[-1].ndim < 2:
            kind = type(layer).__name__
            raise ValueError(
                f"{kind}, the last layer with parameters, was not called with a tensor (B, ...)"
            )
        return held[-1].flatten(1)

    try:
        yield features
    finally:
        handle.remove()


def _last_layer(model: nn.Module) -> nn.Module:
    """Return the last module that has parameters of its own."""
    layers = [module for module in model.modules() if any(True for _ in module.parameters(False))]
    return layers[-1]
