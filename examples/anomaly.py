"""An anomaly detector without labels: each device learns to reconstruct what it sees every day.

    sedge-emulate run examples/anomaly.toml

Everyday images are all handwritten digits except fours; the model's input is its target. A device calls an
image an anomaly if its reconstruction is worse than that of nearly all of its own. On a real device that
trains with ``train = "anomaly:load"``: `python anomaly.py edge.toml` says how many of the fours it finds.
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
    """Map 64 pixels through a bottleneck of 8 numbers; any shape works if the output has the input's."""
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8), nn.Linear(8, 64))


def load() -> tuple[Images, NDArray[np.int64]]:
    """Inputs (N, 64), and labels that only the emulator's split uses; x alone would be enough."""
    images, digits = images_of()
    return images[digits != FOUR], digits[digits != FOUR]


def images_of() -> tuple[Images, NDArray[np.int64]]:
    """All 1,797 digits, pixels from 0 to 1."""
    pixels, digits = load_digits(return_X_y=True)
    return np.asarray(pixels / 16, np.float32), np.asarray(digits, np.int64)


def found(config_path: Path) -> tuple[float, float]:
    """The shares of everyday images and of fours that a device takes for anomalies."""
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
