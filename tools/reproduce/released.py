"""Reproduces the random choices of the runs that FedOBP's authors released: split, participants, shuffles.

The authors' runs use FL-bench, which draws from three random streams with one seed: numpy's for the
partition, ``random``'s for the participants of each round, and torch's for the initial weights and
then, participant after participant, for the shuffles. "Their" below refers to these runs, "our" to
Sedge's. This module reproduces these streams; everything else in a reproduction is Sedge's own.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tools.reproduce.setting import Setting, Streams

from sedge_cloud.config import TrainingConfig
from sedge_cloud.runs.run import Run, order_seed
from sedge_edge.training.batches import permutations
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.split import Indices

DEVICES = 100
PARTICIPANTS = 10
EPOCHS = 5
BATCH = 32
# The number of training rounds between two evaluations of all clients.
CHECKPOINT = 100
TEST_SHARE = 0.25
MIN_EXAMPLES = 10


def name(number: int) -> str:
    """Return the name of the device that stands for one of their clients."""
    return f"device-{number:02d}"


def partition(targets: Indices, alpha: float, seed: int) -> list[tuple[Indices, Indices]]:
    """Return every client's training and test examples.

    Each class is split in Dirichlet proportions. A quarter of each client's examples is for testing.
    """
    draw = np.random.RandomState(seed)  # the stream that numpy.random.seed starts
    classes = int(targets.max()) + 1
    members: list[Indices] = [np.flatnonzero(targets == label) for label in range(classes)]
    while True:
        shares: list[list[Indices]] = [[] for _ in range(DEVICES)]
        for indices in members:
            draw.shuffle(indices)
            proportions = draw.dirichlet([alpha] * DEVICES)
            cuts = (np.cumsum(proportions) * len(indices)).astype(int)[:-1]
            for share, part in zip(shares, np.split(indices, cuts), strict=True):
                share.append(part)
        whole = [np.concatenate(share) for share in shares]
        if min(len(indices) for indices in whole) >= MIN_EXAMPLES:
            break
    found: list[tuple[Indices, Indices]] = []
    for drawn in whole:
        indices = drawn.astype(np.int32)  # their code shuffles an int32 array here
        draw.shuffle(indices)
        num_test = int(TEST_SHARE * len(indices))
        found.append((indices[num_test:].astype(np.int64), indices[:num_test].astype(np.int64)))
    return found


class ReleasedSetting(Setting):
    """All of Fashion-MNIST, Dir(``alpha``) over 100 clients, ten of which train in a round."""

    devices = DEVICES
    checkpoint = CHECKPOINT
    model = ModelConfig(batch_size=BATCH)
    training = TrainingConfig(local_epochs=EPOCHS, learning_rate=0.01, momentum=0.7)

    def parts(self, targets: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        """Return the partition of the authors' run."""
        return partition(targets, self.alpha, seed)

    def streams(self, seed: int, rounds: int) -> Streams:
        """Return the participants and shuffles of the authors' run."""
        released = Released(seed, rounds)
        return Streams(released, released.draw)


@dataclass(frozen=True)
class Released:
    """The random streams of a run with ``rounds`` training rounds.

    Workers call an instance as ``shuffles``. ``evaluate_every`` is a setting of our run, whose
    evaluation rounds are numbered like training rounds.
    """

    seed: int
    rounds: int
    evaluate_every: int = CHECKPOINT

    def __call__(self, seed: int, num_examples: int, epochs: int) -> Iterator[Indices]:
        """Yield their permutations for the order with this seed, or our own if the seed is unknown.

        A last batch of one example is dropped, as in their runs.
        """
        if seed not in self.shuffle_seeds:  # an evaluation, or a check of a trainer
            yield from permutations(seed, num_examples, epochs)
            return
        import torch

        for epoch_seed in self.shuffle_seeds[seed][:epochs]:
            generator = torch.Generator().manual_seed(epoch_seed)
            order: NDArray[np.int64] = torch.randperm(num_examples, generator=generator).numpy()
            yield order[: num_examples - (num_examples % BATCH == 1)]

    def draw(self, run: Run, number: int, task: str, online: Sequence[str]) -> list[str]:
        """Choose the devices of a round (``rounds.Draw``): their participants, or all for an evaluation."""
        if len(online) < DEVICES:
            return []
        if task != "train":
            return sorted(online)
        return sorted(name(one) for one in self.cohorts[run.config.training_rounds(number) - 1])

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """The participants of each round, in the order in which they train."""
        draw = random.Random(self.seed)  # the stream that random.seed starts
        return [draw.sample(range(DEVICES), PARTICIPANTS) for _ in range(self.rounds)]

    @cached_property
    def shuffle_seeds(self) -> dict[int, list[int]]:
        """The seeds of each participant's shuffles, one per epoch, by the seed of our order."""
        import torch

        from sedge_export.models import avgcnn

        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed)
            avgcnn()  # draws initial weights from the same stream
            return dict(self._drawn())

    def _drawn(self) -> Iterator[tuple[int, list[int]]]:
        for training, participants in enumerate(self.cohorts, start=1):
            number = training
            if self.evaluate_every:
                number += (training - 1) // self.evaluate_every
            for participant in participants:
                _draw()  # their evaluation before training
                epochs: list[int] = []
                for _ in range(EPOCHS):
                    _draw()  # the base seed of torch's data loader
                    epochs.append(_draw())
                _draw()  # their evaluation after training
                yield order_seed(self.seed, number, name(participant)), epochs
            if training % CHECKPOINT == 0:
                for _ in range(DEVICES):
                    _draw()


def _draw() -> int:
    import torch

    return int(torch.empty((), dtype=torch.int64).random_().item())
