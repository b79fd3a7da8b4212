"""A published table that takes seconds: digits on four devices, three rounds."""

import numpy as np
from tools.reproduce.cells import Cell, Table
from tools.reproduce.setting import Setting, Streams

from sedge_cloud.config import TrainingConfig
from sedge_cloud.rounds.cohort import draw_cohort
from sedge_edge.training.batches import permutations
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import Dataset, digits
from sedge_emulate.data.split import Indices


class TinySetting(Setting):
    """Four devices, each with 60 digits to train on and 20 to be tested on."""

    devices = 4
    checkpoint = 2
    model = ModelConfig(batch_size=16)
    training = TrainingConfig(local_epochs=1, learning_rate=0.1)

    def dataset(self) -> Dataset:
        return digits()

    def parts(self, targets: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        order = np.random.default_rng(seed).permutation(len(targets))[:320].reshape(4, 80)
        return [(mine[:60], mine[60:]) for mine in order]

    def streams(self, seed: int, rounds: int) -> Streams:
        return Streams(permutations, draw_cohort)


TINY = Table(
    "tiny", "Digits", "nowhere", TinySetting(1.0), rounds=3, tolerance=1.0,
    cells=(Cell("fedavg", "fedavg", {}, {2: 50.0}),),
)  # fmt: skip
