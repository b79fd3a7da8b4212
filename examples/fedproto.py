"""FedProto (Tan et al. 2022): devices keep their models and exchange class prototypes (mean features).

    sedge-emulate run examples/fedproto.toml

``FedProto`` runs on the coordinator and ``fit`` on the devices, in numpy; on a real device, edge.toml has
[backend] name = "fedproto:fit". Each round, a device sends 1.3 kB of sums and counts instead of a model.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from torch import nn

from sedge_cloud import Assignment, ClientModel, Context, State, Strategy, Update, Work

CLASSES, FEATURES, BATCH = 10, 32, 8
Array = NDArray[Any]


class FedProto(Strategy, frozen=True):
    """FedProto's strategy: devices train locally and pull their features towards the fleet's prototypes."""

    pull: Annotated[float, Meta(ge=0)] = 1.0

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Plan a round: the device keeps its whole model and returns feature sums and counts by class."""
        work = Work(
            keep=tuple(context.layout.by_name), upload=False, settings={"pull": self.pull},
            returns={"sums": CLASSES * FEATURES, "counts": CLASSES},
        )  # fmt: skip
        return Assignment(work=work, send=context.arrays)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Compute the new prototypes, the mean features of each class.

        A class without examples this round keeps its prototype.
        """
        sums, counts = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)
        for update in updates:
            sums += update.arrays["sums"].reshape(sums.shape)
            counts += update.arrays["counts"]
        known = context.arrays.get("known", np.zeros(CLASSES))
        before = context.arrays.get("prototypes", np.zeros(sums.size)).reshape(sums.shape)
        means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], before)
        arrays = {"prototypes": means.ravel(), "known": np.maximum(known, counts > 0)}
        return State(context.theta, {name: array.astype("f4") for name, array in arrays.items()})


def build() -> nn.Module:
    """Return a model that computes the features of an image (8, 8), and from them its class scores."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, FEATURES), nn.ReLU(), nn.Linear(FEATURES, CLASSES)
    )


def forward(parameters: list[Array], x: Array) -> tuple[Array, Array]:
    """Return the features (N, 32) and class scores (N, 10) of images."""
    weight, bias, head, shift = parameters
    features = np.maximum(x.reshape(len(x), -1) @ weight.T + bias, 0)
    return features, features @ head.T + shift


def fit(
    parameters: list[Array], examples: Any, settings: Mapping[str, Any]
) -> tuple[list[Array], int, dict[str, object]]:
    """Train for one round.

    The loss is cross entropy plus ``pull`` times the mean squared distance of the features to their class's
    prototype.
    """
    rng, rate = np.random.default_rng(settings["seed"]), settings["learning_rate"]
    x, y = examples.inputs.reshape(len(examples.inputs), -1), examples.targets
    prototypes = settings["arrays"].get("prototypes", np.zeros(CLASSES * FEATURES))
    known = settings["arrays"].get("known", np.zeros(CLASSES))
    pull = settings["settings"].get("pull", 0.0)  # absent when another strategy runs
    for _ in range(settings["local_epochs"]):
        for rows in np.array_split(rng.permutation(len(x)), max(1, len(x) // BATCH)):
            features, scores = forward(parameters, x[rows])
            wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
            wrong /= wrong.sum(axis=1, keepdims=True)
            wrong[np.arange(len(rows)), y[rows]] -= 1
            away = (features - prototypes.reshape(CLASSES, FEATURES)[y[rows]]) * known[
                y[rows], None
            ]
            back = wrong @ parameters[2] + pull * 2 * away / FEATURES
            back *= features > 0
            steps = (back.T @ x[rows], back.sum(0), wrong.T @ features, wrong.sum(0))
            for parameter, step in zip(parameters, steps, strict=True):
                parameter -= rate / len(rows) * step
    features, _ = forward(parameters, x)
    of_class = np.eye(CLASSES)[y]  # (N, 10)
    arrays = {"sums": of_class.T @ features, "counts": of_class.sum(0)}
    return parameters, len(x), {"arrays": arrays}


def evaluate(parameters: list[Array], examples: Any) -> tuple[float, int, dict[str, float]]:
    """Return the mean cross entropy, the number of examples and the accuracy."""
    _, scores = forward(parameters, examples.inputs)
    scores -= scores.max(axis=1, keepdims=True)
    right = scores[np.arange(len(scores)), examples.targets]
    loss = float((np.log(np.exp(scores).sum(axis=1)) - right).mean())
    return loss, len(scores), {"accuracy": float((scores.argmax(1) == examples.targets).mean())}
