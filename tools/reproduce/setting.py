"""The setting of a published experiment: data, split, model, training, and random choices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sedge_cloud.config import TrainingConfig
from sedge_cloud.rounds.cohort import Draw, draw_cohort
from sedge_edge.training.batches import Permutations
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import Dataset, fashion_mnist
from sedge_emulate.data.split import Indices


@dataclass(frozen=True)
class Streams:
    """The random choices of a run: the order of the examples, and the devices of each round."""

    shuffles: Permutations
    draw: Draw


def numpy_shuffles(seed: int, num_examples: int, epochs: int) -> Iterator[Indices]:
    """Yield the shuffles that our published results were made with; devices now shuffle differently."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.permutation(num_examples).astype(np.int64) for _ in range(epochs))


class Setting:
    """Everything about an experiment except its method. The data are split by Dir(``alpha``).

    All random choices depend only on the seed. ``checkpoint`` is the number of training rounds between
    two evaluations of all devices.
    """

    devices: ClassVar[int]
    checkpoint: ClassVar[int]
    model: ClassVar[ModelConfig]
    training: ClassVar[TrainingConfig]

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def dataset(self) -> Dataset:
        """Return the examples, scaled as in the paper. Raises ``DataError`` if they are not installed."""
        return fashion_mnist()

    def parts(self, targets: Indices, seed: int) -> Sequence[tuple[Indices, Indices]]:
        """Return each device's training and test examples, as indices into the data set."""
        raise NotImplementedError

    def streams(self, seed: int, rounds: int) -> Streams:
        """Return the random choices of a run with this many training rounds; by default, Sedge's own."""
        return Streams(numpy_shuffles, draw_cohort)
