"""The random choices of the runs that FedOBP's authors released: split, participants, shuffles.

Their runs are FL-bench's, products of three streams of random numbers from one seed: numpy's for the
partition, ``random``'s for the participants of each round, torch's for the first weights and then,
participant after participant, for the shuffles. Here the streams are reproduced; everything else in a
reproduction is Sedge's.
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
# Rounds of training between two evaluations of all clients.
CHECKPOINT = 100
TEST_SHARE = 0.25
MIN_EXAMPLES = 10


def name(number: int) -> str:
    """The device for one of their clients."""
    return f"device-{number:02d}"


def partition(targets: Indices, alpha: float, seed: int) -> list[tuple[Indices, Indices]]:
    """Every client's train and test examples: Dirichlet by class, a quarter of each for testing."""
    draw = np.random.RandomState(seed)  # the stream of numpy.random.seed
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
        indices = drawn.astype(np.int32)  # one of their shuffles
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
        """Their partition."""
        return partition(targets, self.alpha, seed)

    def streams(self, seed: int, rounds: int) -> Streams:
        """Their participants and shuffles."""
        released = Released(seed, rounds)
        return Streams(released, released.draw)


@dataclass(frozen=True)
class Released:
    """The streams of one run of ``rounds`` rounds of training; also the ``shuffles`` of its workers.

    ``evaluate_every`` is that of our run, whose evaluation rounds have numbers, too.
    """

    seed: int
    rounds: int
    evaluate_every: int = CHECKPOINT

    def __call__(self, seed: int, num_examples: int, epochs: int) -> Iterator[Indices]:
        """Their permutations for one of our orders, recognised by its seed; for other orders, our own.

        A last batch of one example is left out, as in their runs.
        """
        if seed not in self.shuffle_seeds:  # an evaluation, or a trainer being checked
            yield from permutations(seed, num_examples, epochs)
            return
        import torch

        for epoch_seed in self.shuffle_seeds[seed][:epochs]:
            generator = torch.Generator().manual_seed(epoch_seed)
            order: NDArray[np.int64] = torch.randperm(num_examples, generator=generator).numpy()
            yield order[: num_examples - (num_examples % BATCH == 1)]

    def draw(self, run: Run, number: int, task: str, online: Sequence[str]) -> list[str]:
        """The devices of one of our rounds (``rounds.Draw``): theirs, or all for a measurement."""
        if len(online) < DEVICES:
            return []
        if task != "train":
            return sorted(online)
        return sorted(name(one) for one in self.cohorts[run.config.training_rounds(number) - 1])

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """The participants of each round, in the order in which they train."""
        draw = random.Random(self.seed)  # the stream of random.seed
        return [draw.sample(range(DEVICES), PARTICIPANTS) for _ in range(self.rounds)]

    @cached_property
    def shuffle_seeds(self) -> dict[int, list[int]]:
        """The seed of each epoch's shuffle, by the seed of our order for that participant."""
        import torch

        from sedge_export.models import avgcnn

        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self.seed)
            avgcnn()  # the first weights come from the same stream
            return dict(self._drawn())

    def _drawn(self) -> Iterator[tuple[int, list[int]]]:
        for training, participants in enumerate(self.cohorts, start=1):
            number = training
            if self.evaluate_every:
                number += (training - 1) // self.evaluate_every
            for participant in participants:
                _draw()  # evaluation before training
                epochs: list[int] = []
                for _ in range(EPOCHS):
                    _draw()  # the loader's base seed
                    epochs.append(_draw())
                _draw()  # evaluation after training
                yield order_seed(self.seed, number, name(participant)), epochs
            if training % CHECKPOINT == 0:
                for _ in range(DEVICES):
                    _draw()


def _draw() -> int:
    import torch

    return int(torch.empty((), dtype=torch.int64).random_().item())
