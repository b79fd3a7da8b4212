"""How a device trains: the part of an order, and of a run file, that sets its optimizer."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sedge_protocol.layout import MAX_NAME_CHARS, MAX_TENSORS

Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=MAX_TENSORS)]
LastBatch: TypeAlias = Literal["pad", "fill", "drop"]
OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw"]


class Training(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device trains; ``prox`` > 0 pulls towards the start vector (FedProx's mu).

    ``last_batch`` says what happens to the last partial batch: ``pad`` it with rows of weight zero,
    ``fill`` it from the start of the shuffled epoch, or ``drop`` it. The tensors named in ``freeze`` do not
    change. ``momentum`` and ``nesterov`` are ``sgd``'s; ``beta1``, ``beta2`` and ``epsilon`` are those of
    ``adam`` and ``adamw``. ``weight_decay`` is part of the gradient, and under ``adamw`` shrinks theta
    instead. ``clip_norm`` > 0 limits the L2 norm of each step's gradient. The optimizer's state begins at 0
    or, with ``keep``, where the device's last such training of the run ended: that of an order's first
    training, without a mixture. A device that has lost it starts anew.

    The learning rate grows linearly over the first ``warmup_steps`` of every training, and moves along a
    straight line over all its steps, from ``learning_rate`` towards ``end_factor`` times that.

    ``average`` > 0 is the share of the training's steps, its last ones, over whose models the device takes
    the mean, to evaluate it, keep it and predict with it. What it sends is the model of the last step.
    """

    local_epochs: Annotated[int, Meta(ge=1, le=1000)] = 1
    learning_rate: Annotated[float, Meta(gt=0, le=1000)] = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    prox: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    last_batch: LastBatch = "pad"
    freeze: Names = ()
    optimizer: OptimizerName = "sgd"
    nesterov: bool = False
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.999
    epsilon: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    weight_decay: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    clip_norm: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    optimizer_state: Literal["reset", "keep"] = "reset"
    warmup_steps: Annotated[int, Meta(ge=0, le=100_000)] = 0
    end_factor: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    average: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def keeps_state(self) -> bool:
        """Whether the optimizer's state outlasts the round."""
        return self.optimizer_state == "keep"

    @property
    def schedules_steps(self) -> bool:
        """Whether the learning rate differs from step to step."""
        return self.warmup_steps > 0 or self.end_factor != 1

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, from 0, of so many."""
        warmth = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return self.learning_rate * warmth * (1 + (self.end_factor - 1) * step / steps)

    def averaged(self, steps: int) -> int:
        """How many of so many steps, the last ones, the mean is of: at least one if any."""
        return max(1, int(self.average * steps)) if self.average else 0

    @property
    def plain(self) -> bool:
        """Whether every device has its optimizer: SGD with momentum and nothing more."""
        extras = self.nesterov, self.weight_decay, self.clip_norm, self.keeps_state
        return self.optimizer == "sgd" and not any(extras)
