"""Runs a Flower NumPyClient on Sedge devices without exporting a model: softmax regression in numpy.

    sedge-export bundle flower_client:initial --sample-shape 1,8,8 --batch-size 16 --num-classes 10 \\
        --name digits --out digits

writes what Flower's ``get_parameters`` returned, for ``sedge-cloud run start``. Each device has this file
next to its edge.toml, which sets ``[backend] name = "flower_client:fit"``. ``fit`` and ``evaluate`` are the
Flower client's methods without ``self``: they get the device's data as ``examples`` and Flower's config as
``settings``.
"""

from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, np.dtype[np.float32]]]


def initial() -> Arrays:
    return [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]


def forward(parameters: Arrays, inputs: Any) -> tuple[Any, Any]:
    x = inputs.reshape(len(inputs), -1)
    scores = np.exp(x @ parameters[0] + parameters[1])
    return x, scores / scores.sum(axis=1, keepdims=True)


def fit(parameters: Arrays, examples: Any, settings: dict[str, Any]) -> tuple[Arrays, int, Any]:
    rng, size = np.random.default_rng(settings["seed"]), settings["batch_size"]
    for _ in range(settings["local_epochs"]):
        order = rng.permutation(len(examples.targets))
        for rows in (order[start : start + size] for start in range(0, len(order), size)):
            x, chances = forward(parameters, examples.inputs[rows])
            error = (chances - np.eye(10)[examples.targets[rows]]) / len(rows)
            parameters[0] -= settings["learning_rate"] * (x.T @ error)
            parameters[1] -= settings["learning_rate"] * error.sum(axis=0)
    return parameters, len(examples.targets), {}


def evaluate(parameters: Arrays, examples: Any) -> tuple[float, int, dict[str, Any]]:
    _, chances = forward(parameters, examples.inputs)
    loss = -np.log(chances[np.arange(len(chances)), examples.targets]).mean()
    return loss, len(chances), {"accuracy": (chances.argmax(axis=1) == examples.targets).mean()}
