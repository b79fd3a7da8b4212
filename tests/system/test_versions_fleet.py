"""A fleet of two versions: the older agent announces less, takes part all the same, and is named.

No older release is at hand in a checkout, so its agent is today's, with the version and the announcements
of one that knows no extension.
"""

from pathlib import Path

import pytest
from tests.system.conftest import run_text
from tests.system.test_joining_fleet import fleet as fleet
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_protocol import VERSION

pytestmark = pytest.mark.fleet
OLDER = """\
import sys
from sedge_edge import __main__ as agent
from sedge_edge.config import EdgeConfig
agent.VERSION, agent.CODECS = "0.0.9", ()
EdgeConfig.renews = property(lambda config: False)
sys.exit(agent.main(sys.argv[1:]))
"""
TRAINING = "[training]\nlocal_epochs = 1\nlearning_rate = 0.05\n"


def test_a_device_that_is_a_version_behind(fleet: RealFleet, small_bundle: Path) -> None:
    for seed, name in enumerate(("pi-1", "pi-2")):
        fleet.add_device(name, seed)
    fleet.start_cloud()
    fleet.start_agent("pi-1")
    fleet.start_agent("pi-2", script=OLDER)
    fleet.start_run(small_bundle, run_text("fedavg", rounds=2, devices=2, more=TRAINING))
    wait_until(fleet.finished, 120, "two rounds")
    assert {len(summary.devices) for summary in fleet.rounds()} == {2}
    said = fleet.cloud("device", "list")
    assert f"agents: 1 on 0.0.9 (behind), 1 on {VERSION}; this coordinator is {VERSION}" in said
    assert "pi-2" in fleet.cloud("device", "list", "--where", "version=0.0.9")
    assert "pi-2: its agent 0.0.9 cannot change its secret" in fleet.cloud(
        "device", "rotate", "pi-1", "pi-2"
    )
    wait_until(lambda: "pi-1" not in fleet.cloud("device", "rotate"), 60, "a new secret")
    # Upgraded, it does what is still asked of it.
    fleet.stop("pi-2")
    fleet.start_agent("pi-2")
    wait_until(
        lambda: "no device still has to change" in fleet.cloud("device", "rotate"), 60, "the other"
    )
