"""FedPURIN's data, split as the framework Fling does: into 20 overlapping sets of equal size.

Each device has class proportions q ~ Dir(alpha), and gets 500 images from the training set and 100 from
the test set in these proportions. Both sets are drawn with the same seed, so q is the same for both. If
a class has too few images, some are used twice. All devices take part in every round.
"""

import numpy as np
from tools.reproduce.setting import Setting

from sedge_cloud.config import TrainingConfig
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import FASHION_MEAN, FASHION_STD, Dataset, fashion_mnist
from sedge_emulate.data.split import Indices

DEVICES = 20
TRAIN, TEST = 500, 100
TRAIN_SET = 60_000


class FlingSetting(Setting):
    """Fashion-MNIST in [0, 1], Dir(``alpha``), ResNet-8, five epochs of SGD with momentum 0.9.

    The paper's random choices cannot be reproduced, because several processes shared the random streams.
    """

    devices = DEVICES
    checkpoint = 50
    model = ModelConfig(name="resnet8", batch_size=100)
    training = TrainingConfig(local_epochs=5, learning_rate=0.1, momentum=0.9)

    def dataset(self) -> Dataset:
        """Return the images, with pixels in [0, 1] and no further normalisation."""
        found = fashion_mnist()
        inputs = (found.inputs * FASHION_STD + FASHION_MEAN).astype(np.float32)
        return Dataset(found.name, inputs, found.targets, found.num_classes)

    def parts(self, targets: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        """Return each device's training images, from the training set, and its test images."""
        train = sample(targets[:TRAIN_SET], self.alpha, TRAIN, seed)
        test = sample(targets[TRAIN_SET:], self.alpha, TEST, seed)
        return [(mine, TRAIN_SET + others) for mine, others in zip(train, test, strict=True)]


def sample(targets: Indices, alpha: float, size: int, seed: int) -> list[Indices]:
    """Draw ``size`` examples for every device, with classes in Dirichlet proportions."""
    draw = np.random.RandomState(seed)
    classes = int(targets.max()) + 1
    members = [np.flatnonzero(targets == label) for label in range(classes)]
    proportions = draw.dirichlet(np.repeat(alpha, classes), DEVICES)
    found: list[Indices] = []
    for shares in proportions:
        chosen: list[Indices] = []
        left = size
        for label, (mine, share) in enumerate(zip(members, shares, strict=True)):
            rounded = int(size * share + 0.5) if label < classes - 1 else left
            count = min(rounded, left)
            left -= count
            chosen.append(draw.choice(mine, count, replace=count > len(mine)))
        found.append(np.concatenate(chosen).astype(np.int64))
    return found
