"""The agent in Java before a web server with a certificate, and in a fleet whose coordinator has one."""

import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.android.java_fleet import JavaFleet
from tests.edge.java_core import JavaHarness, Jvm
from tests.edge.rounds.test_places import placed
from tools.bench.parts.blob_server import LOOPBACK, serving
from tools.bench.parts.certificates import make_ca, make_certificate
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.store.opening import open_folder

# The coordinator of a fleet in which no blob is too small for a place.
EVERY_SIZE = """\
import sys
from sedge_cloud.runs import orders
orders.PUBLIC_BYTES = 1
from sedge_cloud.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
RUN = """\
strategy = "fedavg"
num_rounds = 1
min_train_devices = 1
min_available_devices = 1
"""


def test_java_trusts_the_authority_that_it_was_given(jvm: Jvm, tmp_path: Path) -> None:
    for authority in ("ca", "other"):
        make_ca(tmp_path, authority)
    for authority, good in (("ca", True), ("other", False)):
        java = JavaHarness(jvm, tmp_path / authority, ca=tmp_path / "ca.crt")
        java.connect()
        make_certificate(tmp_path, "server", authority, f"IP:{LOOPBACK}")
        pair = tmp_path / "server.crt", tmp_path / "server.key"
        with serving("ranges", certificate=pair) as server:
            java.give(placed(java, server))
        java.settle()
        assert (java.chunks_sent == 0) == (java.report().http_bytes > 0) == good
        assert ("PKIX path" in str(java.notes)) == (not good)


@pytest.mark.fleet
def test_a_whole_agent_in_java_takes_part_over_http(
    fleet: RealFleet, class_path: str, means: Path
) -> None:
    java = JavaFleet(fleet, class_path)
    config = fleet.folder / "cloud.toml"
    with serving(folder=fleet.folder / "state" / "blobs") as server:
        config.write_text(config.read_text() + f'[blobs]\npublic = "{server.url}"\n')
        fleet.start("cloud", [sys.executable, "-c", EVERY_SIZE, "-c", str(config), "serve"])
        java.add("pi-1", seed=0)
        java.start("pi-1")
        fleet.start_run(means, RUN)
        wait_until(fleet.finished, 120, "the run ends")
        assert len(server.asked) >= 2  # bundle and model
    assert [len(summary.devices) for summary in fleet.rounds()] == [1, 1]
    with closing(open_folder(fleet.folder / "state")) as store:
        assert read_sums(store.sums("run")).http > 0
