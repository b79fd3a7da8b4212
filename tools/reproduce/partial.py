"""Sedge's own setting, for measurements that no paper reports: part of Fashion-MNIST on few devices.

It is small enough that a method's three seeds take minutes. Otherwise the setting is like FedOBP's
experiments: Dirichlet by class, a quarter of each device's examples for testing, a quarter of the
devices in each round, SGD with momentum 0.7. The seed determines which images are used, which device
gets them and which devices train in each round.
"""

from collections.abc import Sequence

import numpy as np
from tools.reproduce.setting import Setting, Streams, numpy_shuffles

from sedge_cloud.config import TrainingConfig
from sedge_cloud.runs.run import Run
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.split import Indices, dirichlet, train_test
from sedge_protocol.wire.messages import TRAIN

EXAMPLES = 20_000
DEVICES = 40
PARTICIPANTS = 10
TEST_SHARE = 0.25


class PartialSetting(Setting):
    """20,000 images of Fashion-MNIST, Dir(``alpha``) over 40 devices, ten of which train in a round."""

    devices = DEVICES
    checkpoint = 20
    model = ModelConfig(batch_size=32)
    training = TrainingConfig(local_epochs=5, learning_rate=0.01, momentum=0.7)

    def parts(self, targets: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        """Return each device's training and test images."""
        return share_out(targets, self.devices, self.alpha, seed)

    def streams(self, seed: int, rounds: int) -> Streams:
        """Return the run's random streams, all derived from its seed."""
        return Streams(numpy_shuffles, draw)


def share_out(
    targets: Indices, devices: int, alpha: float, seed: int
) -> list[tuple[Indices, Indices]]:
    """Split part of the images among devices, Dirichlet by class. Returns training and test images."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(targets), EXAMPLES, replace=False)
    shares = dirichlet(targets[chosen], devices, alpha, rng)
    return [train_test(chosen[share], TEST_SHARE, rng) for share in shares]


def draw(run: Run, number: int, task: str, online: Sequence[str]) -> list[str]:
    """Choose a round's devices (``rounds.Draw``): all for an evaluation, otherwise ten.

    The ten are the same for every method.
    """
    if len(online) < DEVICES:
        return []
    if task != TRAIN:
        return sorted(online)
    training = run.config.training_rounds(number)
    rng = np.random.default_rng([run.config.seed, training])
    return sorted(sorted(online)[i] for i in rng.choice(DEVICES, PARTICIPANTS, replace=False))
