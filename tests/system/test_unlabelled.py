"""Devices without labels: ``examples/anomaly.py`` exported by command, on real agents."""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = """
strategy = "fedavg"
num_rounds = 6
[broadcast]
fraction = 1
[training]
local_epochs = 5
learning_rate = 0.003
optimizer = "adam"
"""


@pytest.mark.fleet
def test_a_device_finds_anomalies_by_a_threshold_of_its_own(
    fleet: RealFleet, tmp_path: Path
) -> None:
    anomaly = runpy.run_path(str(EXAMPLES / "anomaly.py"))
    shutil.copy(EXAMPLES / "anomaly.py", tmp_path)
    words = ["--sample-shape", "64", "--batch-size", "16", "--target", "none", "--name", "anomaly"]
    told = command("sedge_export", "anomaly:build", *words, "--out", "bundle", folder=tmp_path)
    assert "target" in told and "the input" in told
    fleet.start_cloud()
    images, digits = anomaly["load"]()
    assert anomaly["FOUR"] not in digits
    for number, rows in enumerate(
        np.array_split(np.random.default_rng(0).permutation(len(images)), 3)
    ):
        device = f"pi-{number}"
        fleet.add_device(device, number)
        np.savez(fleet.folder / device / "train.npz", x=images[rows])
        fleet.start_agent(device)
    fleet.start_run(tmp_path / "bundle", RUN)
    wait_until(fleet.finished, 120, "the run ends")
    first, *_, last = fleet.rounds()
    assert last.metric.name == "loss" and last.before < first.before / 2
    for number in range(3):
        false, right = anomaly["found"](fleet.folder / f"pi-{number}" / "edge.toml")
        assert false < 0.15 < 0.4 < right, (false, right)
