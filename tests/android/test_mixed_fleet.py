"""Devices in Java and in Python in one run, over Mosquitto."""

from pathlib import Path

import pytest
from tests.android.java_fleet import JavaFleet
from tests.system.harness import RealFleet, wait_until

from sedge_cloud.store.database import Store

pytestmark = pytest.mark.fleet

DEVICES = ("dev-1", "dev-2", "dev-3", "dev-4")
RUN = """
strategy = "{strategy}"
num_rounds = 3
min_train_devices = 4
min_available_devices = 4
deadline_s = 120
options = {{ {options} }}
[training]
local_epochs = 3
learning_rate = 0.1
{training}
[codec]
values = "{values}"
fraction = 0.2
"""
# Between them: patches, steps and error feedback; kept and frozen tensors, phases; corrections.
RUNS = {
    "fedobp": ("quantile = 0.95", "momentum = 0.5\nprox = 0.01", "bf16"),
    "fedrep": ("", 'optimizer = "adamw"\nweight_decay = 0.01\nclip_norm = 50.0', "int4"),
    "scaffold": ("", "", "fp32"),
}


def global_models(
    fleet: RealFleet, java: JavaFleet, bundle: Path, text: str, in_java: int
) -> list[bytes]:
    """The hash of each round's global model, with so many devices in Java."""
    fleet.start_cloud()
    for number, device in enumerate(DEVICES):
        java.add(device, seed=number)
        if number < in_java:
            java.start(device)
        else:
            fleet.start_agent(device)
    fleet.start_run(bundle, text)
    wait_until(fleet.finished, 120, "the run ends")
    assert [len(summary.devices) for summary in fleet.rounds()] == [4] * 4
    store = Store(fleet.folder / "state")
    try:
        return [row.model_hash for row in store.rounds("run")]
    finally:
        store.close()


@pytest.mark.parametrize("strategy", RUNS)
def test_a_mixed_fleet_ends_where_one_in_python_does(
    fleet: RealFleet,
    class_path: str,
    means: Path,
    tmp_path_factory: pytest.TempPathFactory,
    strategy: str,
) -> None:
    """Round for round the same global model, to the last byte."""
    options, training, values = RUNS[strategy]
    text = RUN.format(strategy=strategy, options=options, training=training, values=values)
    mixed = global_models(fleet, JavaFleet(fleet, class_path), means, text, in_java=2)
    fleet.close()
    alike = RealFleet(tmp_path_factory.mktemp("alike"))
    try:
        single = global_models(alike, JavaFleet(alike, class_path), means, text, in_java=0)
    finally:
        alike.close()
    assert mixed == single
    assert len(set(mixed)) == 4  # the last one is evaluated
