"""Applies a gradient to a model: SGD and Adam with the arithmetic of torch.optim, on any array library.

A program computes the gradient. Everything after that is computed here, elementwise and in float32, so a
step is bit-identical on every backend. ``xp`` is numpy or torch, which share the few functions used here.
Vectors are (..., n); any leading axes hold several models.

    clip      g <- g min(1, clip_norm / (|g| + 1e-6))                    |g| in float64
    sgd       g <- g + weight_decay theta;  v <- momentum v + g
              theta <- theta - rate v, with nesterov theta - rate (g + momentum v)
    adam      g <- g + weight_decay theta;  m <- m + (1 - beta1) (g - m);  v <- beta2 v + (1 - beta2) g g
              theta <- theta - rate / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
    adamw     theta <- theta (1 - rate weight_decay), then as adam without decay

The caller sets the rate of each step: one number, or (..., 1) for several models in one array.

Sources: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2; torch.optim for the order
of the operations and for Nesterov's form. The state is 0 at the beginning of a training phase, unless it
was kept from an earlier one.
"""

import math
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import Training

# A step's learning rate, or an array (..., 1) with one rate for each of several models.
Rate: TypeAlias = float | NDArray[np.float64]

# torch.nn.utils.clip_grad_norm_ adds this number to the norm.
_CLIP_EPSILON = 1e-6


class Optimizer(Protocol):
    """An optimizer's state in one phase: the number of ``steps`` made, and its ``vectors`` (..., n)."""

    steps: int
    vectors: tuple[Theta, ...]

    def step(self, theta: Theta, gradient: Theta, rate: Rate) -> None:
        """Update theta (..., n) in place. The gradient (..., n) is overwritten."""
        ...


def optimizer(training: Training, theta: Theta, xp: Any = np) -> Optimizer:
    """Return a new optimizer for the training, for models with the shape of theta (..., n)."""
    return Sgd(training, theta, xp) if training.optimizer == "sgd" else Adam(training, theta, xp)


def clip(gradient: Theta, norm: float, xp: Any = np) -> None:
    """Scale each gradient (..., n) in place, so that its L2 norm is at most ``norm``."""
    squares = xp.sum(xp.multiply(gradient, gradient), axis=-1, keepdims=True, dtype=xp.float64)
    factor = xp.clip(norm / (xp.sqrt(squares) + _CLIP_EPSILON), None, 1.0)
    gradient *= _float32(factor, xp)


class Sgd:
    """SGD with momentum, optionally in Nesterov's form. It has no dampening."""

    def __init__(self, training: Training, theta: Theta, xp: Any = np) -> None:
        self._training, self._xp = training, xp
        self.steps = 0
        self.vectors: tuple[Theta, ...] = (xp.zeros_like(theta),)  # the velocity

    def step(self, theta: Theta, gradient: Theta, rate: Rate) -> None:
        """Update theta (..., n) in place. The gradient (..., n) is overwritten."""
        training, xp, (velocity,) = self._training, self._xp, self.vectors
        self.steps += 1
        if training.clip_norm:
            clip(gradient, training.clip_norm, xp)
        if training.weight_decay:
            gradient += training.weight_decay * theta
        velocity *= training.momentum
        velocity += gradient
        if training.nesterov:
            gradient += training.momentum * velocity
            xp.multiply(gradient, _float32(rate, xp), out=gradient)
        else:
            xp.multiply(velocity, _float32(rate, xp), out=gradient)
        theta -= gradient


class Adam:
    """Adam, or AdamW if the training asks for it."""

    def __init__(self, training: Training, theta: Theta, xp: Any = np) -> None:
        self._training, self._xp = training, xp
        self.steps = 0
        self.vectors: tuple[Theta, ...] = (xp.zeros_like(theta), xp.zeros_like(theta))

    def step(self, theta: Theta, gradient: Theta, rate: Rate) -> None:
        """Update theta (..., n) in place. The gradient (..., n) is overwritten."""
        training, xp, (mean, square) = self._training, self._xp, self.vectors
        beta1, beta2 = training.beta1, training.beta2
        self.steps += 1
        if training.clip_norm:
            clip(gradient, training.clip_norm, xp)
        if training.weight_decay and training.optimizer == "adamw":
            theta *= _float32(1 - rate * training.weight_decay, xp)
        elif training.weight_decay:
            gradient += training.weight_decay * theta
        change = gradient - mean
        change *= 1 - beta1  # in place, which saves a device one vector of memory
        mean += change
        square *= beta2
        xp.multiply(gradient, gradient, out=gradient)
        gradient *= 1 - beta2
        square += gradient
        xp.sqrt(square, out=gradient)
        gradient /= math.sqrt(1 - beta2**self.steps)
        gradient += training.epsilon
        xp.divide(mean, gradient, out=gradient)
        gradient *= _float32(rate / (1 - beta1**self.steps), xp)
        theta -= gradient


def _float32(factor: Rate, xp: Any) -> Any:
    return xp.asarray(factor, dtype=xp.float32)
