"""``kill -9`` of agents in Java: the run ends with the models of one that nobody has disturbed."""

import random
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.android.java_fleet import JavaFleet, model_hashes
from tools.bench.parts.real_fleet import RealFleet, wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

DEVICES = ("dev-1", "dev-2")
KILLS = 50
RUN = """
strategy = "fedobp"
num_rounds = 600
min_train_devices = 2
min_available_devices = 2
deadline_s = 600
options = { quantile = 0.95 }
[training]
local_epochs = 2
learning_rate = 0.1
[codec]
values = "bf16"
fraction = 0.2
"""


def updates(fleet: RealFleet, device: str) -> int:
    """How many updates of a device have their receipt."""
    return fleet.log(device).count(": stored;")


def wait_for_update(fleet: RealFleet, device: str, before: int) -> None:
    """Wait for one more than before, or for the run's end."""
    wait_until(lambda: fleet.finished() or updates(fleet, device) > before, 60, "an update")


def global_models(fleet: RealFleet, java: JavaFleet, bundle: Path, killed: bool) -> list[bytes]:
    """The hash of each round's global model, with either device killed again and again, or neither."""
    fleet.start_cloud()
    for number, device in enumerate(DEVICES):
        java.add(device, seed=number)
        java.start(device)
    fleet.start_run(bundle, RUN)
    rng, kills = random.Random(1), 0
    stored = dict.fromkeys(DEVICES, 0)
    while killed and kills < KILLS and not fleet.finished():
        time.sleep(rng.uniform(0.3, 1.3))  # anywhere in a round, or in a start
        device = DEVICES[kills % 2]
        if kills % 4 > 1:  # a device that is killed in three starts in a row declines, as it should
            wait_for_update(fleet, device, stored[device])
        stored[device] = updates(fleet, device)
        fleet.kill(device)
        java.start(device)
        kills += 1
    print(f"{kills} kills")
    assert kills == KILLS or not killed
    wait_until(fleet.finished, 300, "the run ends")
    for summary in fleet.rounds():
        assert sorted(device.device for device in summary.devices) == list(DEVICES)
        assert (summary.late, summary.declined) == ((), 0)
    return model_hashes(fleet)


def test_fifty_kills_change_no_model(
    fleet: RealFleet, class_path: str, means: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No update is lost and none counts twice."""
    disturbed = global_models(fleet, JavaFleet(fleet, class_path), means, killed=True)
    fleet.close()
    with closing(RealFleet(tmp_path_factory.mktemp("calm"))) as calm:
        assert disturbed == global_models(calm, JavaFleet(calm, class_path), means, killed=False)
