"""How a device trains: the settings for its optimizer, in an order or in a run file."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sedge_protocol.layout import MAX_NAME_CHARS, MAX_TENSORS

Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=MAX_TENSORS)]
LastBatch: TypeAlias = Literal["pad", "fill", "drop"]
OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw"]

MAX_PROX = 1e6


class Training(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device trains.

    ``optimizer_state = "keep"`` keeps the state of the optimizer after an order's first training phase,
    unless that phase trains a mixture; a device that has lost the state starts over. ``average`` does not
    change which model a device sends: the one after its last step.
    """

    local_epochs: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Number of passes over its own examples that a device makes per round."""
    learning_rate: Annotated[float, Meta(gt=0, le=1000)] = 0.01
    """Learning rate, before warm-up and schedule are applied."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Momentum of ``sgd``; must be 0 for the other optimizers."""
    prox: Annotated[float, Meta(ge=0, le=MAX_PROX)] = 0.0
    """Strength of the pull towards the round's start model (FedProx's mu); 0 turns it off."""
    last_batch: LastBatch = "pad"
    """What happens to the last partial batch: ``pad`` it with rows of weight zero, ``fill`` it from the
    start of the epoch, or ``drop`` it."""
    freeze: Names = ()
    """Names of tensors that training leaves unchanged."""
    optimizer: OptimizerName = "sgd"
    """Optimizer that every device trains with."""
    nesterov: bool = False
    """Use Nesterov's form of momentum; needs ``momentum`` above 0."""
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Decay rate of the mean gradient in ``adam`` and ``adamw``."""
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    """Decay rate of the mean squared gradient in ``adam`` and ``adamw``."""
    epsilon: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """Small number that ``adam`` and ``adamw`` add to the denominator, to avoid division by zero."""
    weight_decay: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    """Strength of weight decay; it is added to the gradient or, with ``adamw``, shrinks the weights
    directly."""
    clip_norm: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Maximum L2 norm of each step's gradient; longer gradients are scaled down, and 0 sets no limit."""
    optimizer_state: Literal["reset", "keep"] = "reset"
    """Optimizer's state at the start of a round: ``reset`` for zeros, ``keep`` for the state after the
    device's last round."""
    warmup_steps: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Number of initial steps in each training phase over which the learning rate grows linearly to its
    full value."""
    end_factor: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    """Factor that the learning rate moves towards, linearly, over the steps of each training phase."""
    average: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of each training phase's steps, counted from its end, whose average model the device evaluates,
    keeps and predicts with; 0 turns it off."""

    @property
    def keeps_state(self) -> bool:
        """True if the optimizer's state is kept after the round."""
        return self.optimizer_state == "keep"

    @property
    def schedules_steps(self) -> bool:
        """True if the learning rate differs from step to step."""
        return self.warmup_steps > 0 or self.end_factor != 1

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step ``step`` (from 0) in a training phase of ``steps`` steps."""
        warmth = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return self.learning_rate * warmth * (1 + (self.end_factor - 1) * step / steps)

    def mean_rate(self, steps: int) -> float:
        """Return the mean of ``rate`` over a phase of ``steps`` steps (at least 1), in constant time."""
        slope, warm = (self.end_factor - 1) / steps, min(self.warmup_steps, steps)
        # A step's rate is its warm-up factor times 1 + slope * step; the factor is 1 from ``warm`` on.
        after = steps * (steps - 1) / 2 - warm * (warm - 1) / 2
        full = steps - warm + slope * after
        if warm:
            products = (warm - 1) * warm * (warm + 1) / 3  # the sum of step * (step + 1)
            full += (warm * (warm + 1) / 2 + slope * products) / self.warmup_steps
        return self.learning_rate * full / steps

    def averaged(self, steps: int) -> int:
        """Return how many of the last steps' models are averaged; at least 1 unless ``average`` is 0."""
        return max(1, int(self.average * steps)) if self.average else 0

    @property
    def plain(self) -> bool:
        """True if every device supports these optimizer settings: SGD with momentum and no other option."""
        extras = self.nesterov, self.weight_decay, self.clip_norm, self.keeps_state
        return self.optimizer == "sgd" and not any(extras)

    @property
    def state_vectors(self) -> int:
        """The number of vectors of the model's size in the optimizer's state."""
        return 1 if self.optimizer == "sgd" else 2

    @property
    def vectors(self) -> int:
        """The maximum number of model-sized vectors in memory during training, without the start vector.

        They are the model, the optimizer's state, the gradient, a vector derived from it, and the mean
        model.
        """
        adds = self.weight_decay or self.clip_norm or self.nesterov or self.prox
        made = bool(adds) or self.optimizer != "sgd"
        return 2 + self.state_vectors + made + bool(self.average)
