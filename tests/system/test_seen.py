"""What breaks in a real fleet is named with its reason: on the page, in metrics, run show and the log."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.bench.seen import STAGES, on_full_disks, play
from tools.bench.watched_fleet import Watched

pytestmark = pytest.mark.fleet

FAULTS = {
    "while_a_run_goes_on": {
        "device killed", "round below quorum", "slow device", "revoked device", "broker down",
        "coordinator killed",
    },
    "beside_good_devices": {
        "wrong clock", "wrong fleet name", "NaN data", "declining device", "hostile updates",
    },
    "on_full_disks": {"device without disk", "coordinator's disk full", "… in its own words"},
}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_what_breaks_is_named_everywhere_with_its_reason(
    stage: Callable[[Watched, Path], None], tmp_path: Path, small_bundle: Path
) -> None:
    if stage is on_full_disks and os.geteuid() != 0:
        pytest.skip("small file systems of its own need root")
    named = {sighting.fault for sighting in play(stage, tmp_path, small_bundle)}
    assert named == FAULTS[stage.__name__]
