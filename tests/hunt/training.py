"""What the devices of a simulated fleet train: softmax regression in numpy, the same wherever done."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Predictor, Trained, TrainingState, TrainRequest
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.update import Metrics

INPUTS, CLASSES = 8, 500  # n = 4,500: three chunks of 8 KiB of float32, so transfers have a middle
LAYOUT = Layout.of(
    [("body.weight", (CLASSES, INPUTS), Role.PARAMETER), ("head.bias", (CLASSES,), Role.PARAMETER)]
)


class SoftmaxTrainer:
    """A trainer without a runtime: one full-batch step an epoch, last from ``began`` to ``ended``."""

    def __init__(self) -> None:
        self.began = self.ended = np.zeros(0, np.float32)

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        """Deterministic in all arguments but ``stopped``."""
        current, training = request.theta.copy(), request.training
        for _ in range(training.local_epochs):
            error = softmax(current, examples.inputs)
            error[np.arange(len(error)), examples.targets.astype(int)] -= 1.0
            weight = error.T @ examples.inputs.astype(np.float32) / len(error)
            slope = np.concatenate([weight.reshape(-1), error.mean(axis=0)])
            current -= np.float32(training.learning_rate) * slope.astype(np.float32)
        self.began, self.ended = request.theta.copy(), current
        return Trained(current.copy(), 1.0, training.local_epochs)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        right = softmax(theta, examples.inputs).argmax(axis=1) == examples.targets
        return Metrics(1.0, float(right.mean()), len(right))

    def predictor(self, theta: Theta) -> Predictor:
        return partial(softmax, theta)


def softmax(theta: Theta, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    weight = theta[: INPUTS * CLASSES].reshape(CLASSES, INPUTS)
    logits = inputs.astype(np.float32) @ weight.T + theta[INPUTS * CLASSES :]
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: NDArray[np.float32] = exponents / exponents.sum(axis=1, keepdims=True)
    return result


def data_of(device: int) -> Examples:
    rng = np.random.default_rng(device)
    inputs = rng.normal(size=(30, INPUTS)).astype(np.float32)
    return Examples(inputs, rng.integers(0, CLASSES, 30).astype(np.int64))
