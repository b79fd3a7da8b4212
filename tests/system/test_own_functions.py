"""Fleets of real processes whose devices train with functions of their own, without any export."""

import json
import shutil
from pathlib import Path

import pytest
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

from sedge_protocol.wire.bundle import load

pytestmark = pytest.mark.fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_client.py"
RUN = """\
strategy = "fedobp"
num_rounds = 3
options = { quantile = 0.99 }
[training]
local_epochs = 5
learning_rate = 0.5
"""
BROKEN = """
from flower_client import evaluate

def fit(parameters, examples, settings):
    return [p * float("nan") for p in parameters], len(examples.targets), {}
"""

SKLEARN = """
import numpy as np
from flower_client import evaluate
from sklearn.linear_model import SGDClassifier

def fit(parameters, examples, settings):
    x, seed = examples.inputs.reshape(len(examples.inputs), -1), settings["seed"] % 2**32
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1, random_state=seed)
    model.classes_, model.intercept_ = np.arange(10), parameters[1]
    model.coef_ = np.ascontiguousarray(parameters[0].T)
    for _ in range(settings["local_epochs"]):
        model.partial_fit(x, examples.targets, classes=model.classes_)
    return [model.coef_.T, model.intercept_], len(x), {}
"""


def flower_device(
    fleet: RealFleet, device: str, seed: int, name: str = "flower_client:fit"
) -> None:
    """A device with the example's file beside its configuration, which names ``name``."""
    fleet.add_device(device, seed)
    home = fleet.folder / device
    shutil.copy(EXAMPLE, home)
    (home / "broken_client.py").write_text(BROKEN)
    (home / "sklearn_client.py").write_text(SKLEARN)
    with (home / "edge.toml").open("a") as config:
        config.write(f'\n[backend]\nname = "{name}"\n')
    fleet.start_agent(device)


def test_flower_clients_scikit_learn_and_one_that_fails(fleet: RealFleet) -> None:
    """A device whose function fails, or is not there, declines with the reason and stays."""
    shutil.copy(EXAMPLE, fleet.folder)
    bundle = fleet.folder / "digits"
    command(
        "sedge_export", "bundle", "flower_client:initial", "--sample-shape", "1,8,8", "--batch-size", "16",
        "--num-classes", "10", "--name", "digits", "--out", str(bundle), folder=fleet.folder,
    )  # fmt: skip
    assert load(bundle)[0].manifest.programs == ()
    fleet.start_cloud()
    flower_device(fleet, "pi-1", 0)
    flower_device(fleet, "pi-2", 1)
    flower_device(fleet, "pi-3", 2, "broken_client:fit")
    flower_device(fleet, "pi-4", 3, "no_client:fit")
    flower_device(fleet, "pi-5", 4, "sklearn_client:fit")
    wait_until(lambda: len(fleet.hellos()) == 5, 120, "the devices say hello")
    fleet.start_run(bundle, RUN)
    wait_until(fleet.finished, 120, "the run ends")
    rounds = [json.loads(line) for line in fleet.cloud("run", "show", "run", "--json").splitlines()]
    for found in rounds:
        assert {device["device"] for device in found["devices"]} == {"pi-1", "pi-2", "pi-5"}
        if found["round"] not in (1, 2, 4):  # having declined twice, they are asked less often
            assert not found["declines"]
            continue
        assert found["declines"]["pi-3"] == (
            "TrainingDiverged: broken_client:fit: 650 parameters are not finite"
        )
        assert "there is no module no_client: " in found["declines"]["pi-4"]
        assert "/" not in found["declines"]["pi-4"], "the device's folders are its own affair"
    assert all(device["after"] > 0.8 for device in rounds[-1]["devices"])
    assert all(fleet.processes[f"pi-{i}"].poll() is None for i in range(1, 6))
    assert "ERROR" not in fleet.log("pi-1")
