"""An anomaly detector without labels: each device learns to reconstruct what it sees every day.

    sedge-emulate run examples/anomaly.toml

Every handwritten digit except four counts as an everyday image. The model learns to output its own input,
and a device calls an image an anomaly if its reconstruction error is above the 95th percentile of the
device's own images. On a real device that trains with ``train = "anomaly:load"``, run `python anomaly.py
edge.toml` to see how many fours it detects.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from sedge_edge.backends import open_trainer
from sedge_edge.config import load_config
from sedge_edge.data import load_data
from sedge_edge.prediction import personal_model

FOUR, EVERYDAY = 4, 0.95
Images = NDArray[np.float32]


def build() -> nn.Module:
    """Return a model with a bottleneck of 8 numbers. Any works whose output has the shape of its input."""
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8), nn.Linear(8, 64))


def load() -> tuple[Images, NDArray[np.int64]]:
    """Return the everyday images (N, 64) and their labels.

    Only the emulator uses the labels, to split the data among devices; a real device needs no labels.
    """
    images, digits = images_of()
    return images[digits != FOUR], digits[digits != FOUR]


def images_of() -> tuple[Images, NDArray[np.int64]]:
    """Return all 1,797 digits, with pixels from 0 to 1, and their labels."""
    pixels, digits = load_digits(return_X_y=True)
    return np.asarray(pixels / 16, np.float32), np.asarray(digits, np.int64)


def found(config_path: Path) -> tuple[float, float]:
    """Return the share of everyday images, and of fours, that a device takes for anomalies."""
    config, folder = load_config(config_path), config_path.absolute().parent
    model = personal_model(config.state_dir)
    backend = config.backend
    trainer = open_trainer(model.bundle, backend.name, backend.threads, state_dir=config.state_dir)
    rebuilt = trainer.predictor(model.theta)

    def errors(x: Images) -> Images:
        return np.asarray(((rebuilt(x) - x) ** 2).mean(axis=1), np.float32)

    own, held_out = (np.asarray(e.inputs, np.float32) for e in load_data(config.data, folder))
    threshold = np.quantile(errors(own), EVERYDAY)
    images, digits = images_of()
    shares = [float((errors(x) > threshold).mean()) for x in (held_out, images[digits == FOUR])]
    return shares[0], shares[1]


if __name__ == "__main__":
    false, right = found(Path(sys.argv[1]))
    print(f"anomalies: {right:.0%} of the fours, {false:.0%} of everyday images")
