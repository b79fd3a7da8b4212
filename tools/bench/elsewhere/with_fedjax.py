"""Runs federated averaging with FedJAX. frameworks.py runs this script in FedJAX's environment.

    python tools/bench/elsewhere/with_fedjax.py DATA.npz [--rounds 4] [--steps 8]

The file contains x (d, N, 1, 28, 28) and y (d, N), one row for each device. FedJAX's own FedAvg is used
with its default backend, jit: one client after the other, each step on all processors. All devices train in
every round; the same number of rounds is then run without any training step. The last line is JSON: the
seconds of each round with training and of each round without.
"""

import argparse
import json
import time
from importlib import import_module
from typing import Any

import numpy as np

# Imported by name, because these packages are missing where this repository is type-checked.
jax: Any = import_module("jax")
# FedJAX 0.0.17, the last release, uses an old name for this function of jax.
jax.tree_map = jax.tree_util.tree_map
fedjax: Any = import_module("fedjax")
haiku: Any = import_module("haiku")

BATCH_SIZE, LEARNING_RATE, CLASSES = 32, 0.01, 10


def avgcnn(batch: dict[str, Any]) -> Any:
    """Return the logits (B, 10) of sedge_export's reference model for images (B, 28, 28, 1).

    The model has n = 582,026 parameters.
    """
    pool = haiku.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = pool(jax.nn.relu(haiku.Conv2D(32, 5, padding="VALID")(batch["x"])))
    x = pool(jax.nn.relu(haiku.Conv2D(64, 5, padding="VALID")(x)))
    x = jax.nn.relu(haiku.Linear(512)(haiku.Flatten()(x)))
    return haiku.Linear(CLASSES)(x)


def loss(batch: dict[str, Any], logits: Any) -> Any:
    """Return the cross entropy of each example (B,)."""
    return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits)


def model() -> Any:
    """Return the model and its loss in FedJAX's form."""
    sample = {"x": np.zeros((1, 28, 28, 1), np.float32), "y": np.zeros(1, np.int32)}
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=haiku.transform(avgcnn),
        sample_batch=sample,
        train_loss=loss,
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )


def seconds(clients: list[tuple[bytes, Any]], rounds: int, steps: int) -> list[float]:
    """Return the duration of each round in seconds."""
    cnn = model()
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(cnn),
        fedjax.optimizers.sgd(LEARNING_RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH_SIZE, num_steps=steps, seed=0),
    )
    state = algorithm.init(cnn.init(jax.random.PRNGKey(0)))
    found: list[float] = []
    for number in range(rounds):
        keys = jax.random.split(jax.random.PRNGKey(number), len(clients))
        cohort = [(name, part, key) for (name, part), key in zip(clients, keys, strict=True)]
        start = time.perf_counter()
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Run the rounds and print the seconds."""
    parser = argparse.ArgumentParser(description="Federated averaging by FedJAX.")
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    with np.load(options.data, allow_pickle=False) as file:
        images, labels = file["x"].transpose(0, 1, 3, 4, 2), file["y"].astype(np.int32)
    clients = [
        (f"device-{i}".encode(), fedjax.ClientDataset({"x": x, "y": y}))
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
    found = {
        "rounds": seconds(clients, options.rounds, options.steps),
        "empty": seconds(clients, options.rounds, 0),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
