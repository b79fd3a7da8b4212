"""What trains one model, one step at a time; ``chain`` and ``module`` do."""

from typing import Protocol

from torch import Tensor

from sedge_emulate.training.storage import Storage
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training


class Engine(Protocol):
    """The model of the device in training. A step is ``differentiate`` and then ``descend``."""

    storage: Storage
    """Between theta and how values and gradients lie here."""

    @property
    def values(self) -> Tensor:
        """The present values (n,), as they are stored."""
        ...

    def start(self, theta: Theta, training: Training, anchor: Theta | None = None) -> None:
        """Begin a training at theta (n,), pulled towards anchor (n,) or theta.

        Raises ``CodecError`` for a frozen tensor that the model does not have.
        """
        ...

    def place(self, values: Tensor) -> None:
        """Go on from values (n,), stored as ``values`` are; the velocity stays."""
        ...

    def differentiate(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of x (B, ...), y (B,); leaves its gradient, and the statistics moved."""
        ...

    def gradient(self) -> Tensor:
        """The last batch's gradient (n,), 0 where frozen, as ``values`` are stored, until ``descend``."""
        ...

    def descend(self) -> None:
        """The step of SGD along the last batch's gradient."""
        ...

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs (B, C) in float32, running statistics as they are."""
        ...
