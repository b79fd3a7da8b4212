"""An emulated fleet that trains with the user's own function, as real devices do, and a strategy."""

from pathlib import Path

import pytest

from sedge_emulate.__main__ import main
from sedge_emulate.result import read_json

pytestmark = pytest.mark.usefixtures("exported_here")

# Softmax regression in numpy. The function's first call in its process returns NaN: that device declines.
CODE = """
from collections.abc import Iterable

import numpy as np
from torch import nn

from sedge_cloud import Assignment, ClientModel, Context, FedAvg, State, Update, Work

calls = []


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def logits(parameters, inputs):
    return inputs.reshape(len(inputs), -1) @ parameters[0].T + parameters[1]


def fit(parameters, examples, settings):
    calls.append(settings["returns"])
    counts = np.bincount(examples.targets, minlength=10)
    prior = np.log(settings["arrays"]["shares"][:10]) * settings["settings"]["strength"]
    for _ in range(settings["local_epochs"]):
        scores = logits(parameters, examples.inputs) + prior
        wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong /= wrong.sum(axis=1, keepdims=True)
        wrong[np.arange(len(wrong)), examples.targets] -= 1
        x = examples.inputs.reshape(len(wrong), -1)
        parameters[0] -= settings["learning_rate"] * wrong.T @ x / len(x)
        parameters[1] -= settings["learning_rate"] * wrong.mean(axis=0)
    if len(calls) == 1 and settings["settings"]["fails"]:
        counts = counts * np.nan
    return parameters, len(examples.targets), {"arrays": {"counts": counts}}


def evaluate(parameters, examples):
    scores = logits(parameters, examples.inputs)
    right = (scores.argmax(axis=1) == examples.targets).mean()
    return 0.0, len(scores), {"accuracy": right}


class Shares(FedAvg, frozen=True):
    fails: bool = True

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        shares = np.full(4096, 0.1, np.float32)
        shares[:10] = context.arrays.get("shares", shares[:10])
        settings = {"strength": 0.5, "fails": self.fails}
        work = Work(settings=settings, returns={"counts": 10})
        return Assignment(work=work, send={"shares": shares})

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        total = np.ones(10)
        for update in updates:
            assert update.arrays["counts"].sum() >= update.num_examples
            total += update.arrays["counts"]
        moved = super().apply(context, updates)
        return State(moved.theta, {"shares": (total / total.sum()).astype("f4")})
"""
FLEET = """\
devices = 3
workers = 1
[data]
dataset = "digits"
examples = 180
alpha = 1.0
[model]
factory = "prior_{number}:build"
[trainer]
backend = "prior_{number}:fit"
[rounds]
num_rounds = 2
[training]
learning_rate = 0.5
[[strategies]]
name = "prior_{number}:Shares"
options = {{ {options} }}
"""


def test_settings_and_arrays_travel_and_a_failing_device_declines_alone(tmp_path: Path) -> None:
    (tmp_path / "prior_1.py").write_text(CODE)
    (tmp_path / "fleet.toml").write_text(FLEET.format(number=1, options=""))
    assert main(["run", str(tmp_path / "fleet.toml"), "--out", str(tmp_path / "out")]) == 0
    (result,) = read_json(tmp_path / "out" / "result.json").strategies
    assert result.engine is not None and result.engine.trainer == "prior_1:fit"
    assert [row.num_updates for row in result.rounds] == [2, 3]
    assert result.rounds[1].bytes_down > 3 * 4 * 4096, "the arrays are counted"
