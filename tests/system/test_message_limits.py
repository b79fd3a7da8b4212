"""A broker with ``message_size_limit``: it drops every larger message and says so to nobody."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.conftest import begin, make_bundle, run_text
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

from sedge_protocol.wire.topics import ITSELF, up

pytestmark = pytest.mark.fleet

TRAINING = "[training]\nlocal_epochs = 1\nlearning_rate = 0.05\n"
RUN = run_text("fedobp", 2, 2, f"deadline_s = 600\n{TRAINING}")
EXACT = '[broadcast]\nvalues = "fp32"\n'  # which makes the model of 4.5 million parameters 14 MB


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """487,510 parameters, 1.95 MB: larger than every limit here, as model and as update."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "wide", 6500)


@pytest.fixture
def limited(fleet: RealFleet) -> Callable[[int], RealFleet]:
    """A fleet of two devices whose broker takes messages of so many bytes, in silence."""

    def start(limit: int) -> RealFleet:
        conf = fleet.folder / "mosquitto.conf"
        text = conf.read_text()
        assert "max_packet_size 400000" in text
        limited = text.replace("max_packet_size 400000", f"message_size_limit {limit}")
        conf.write_text(limited + "log_type all\n")
        fleet.kill("broker")
        fleet.start_broker()
        begin(fleet, "pi-1", "pi-2")
        return fleet

    return start


@pytest.mark.parametrize("limit", [16_000, 65_536, 131_072])
def test_a_run_goes_through_what_the_broker_lets_through(
    limited: Callable[[int], RealFleet], wide_bundle: Path, limit: int
) -> None:
    fleet = limited(limit)
    fleet.start_run(wide_bundle, RUN)
    wait_until(fleet.finished, 240, "the run ends")
    assert [len(r.devices) for r in fleet.rounds()] == [2, 2, 2]
    assert f"forwards messages of up to {limit} bytes" in fleet.log("cloud")
    dropped = [line for line in fleet.log("broker").splitlines() if "Dropped too large" in line]
    measures = up("test", ITSELF)
    assert dropped and all(measures in line for line in dropped), "only what measures"
    assert f"up to {limit} bytes come back" in fleet.cloud("doctor")
    edge = command("sedge_edge", "-c", f"{fleet.folder}/pi-1/edge.toml", "doctor")
    assert f"up to {limit} bytes reach the coordinator and come back" in edge


def test_a_run_that_needs_larger_messages_is_refused_by_name(
    limited: Callable[[int], RealFleet], large_bundle: Path
) -> None:
    """The digests of a 14 MB model alone take 28 kB. Once a device was heard, `run start` says no."""
    needs = "a broker that accepts messages of 32768 bytes; this broker accepts 16000"
    fleet = limited(16_000)
    wait_until(lambda: all("welcomed" in fleet.log(d) for d in ("pi-1", "pi-2")), 30, "both are in")
    run_file = fleet.folder / "run.toml"
    run_file.write_text(RUN + EXACT)
    start = ["run", "start", "run", "--bundle", str(large_bundle), "--run-file", str(run_file)]
    config = str(fleet.folder / "cloud.toml")
    assert needs in command("sedge_cloud", "-c", config, *start, status=2)


def test_a_run_that_began_before_the_limit_was_known_is_named_wherever_one_looks(
    fleet: RealFleet, limited: Callable[[int], RealFleet], large_bundle: Path
) -> None:
    fleet.start_run(large_bundle, RUN + EXACT)
    limited(16_000)
    needs = "a broker that accepts messages of 32768 bytes; this broker accepts 16000"
    refused = f"run run has no work for pi-1: it lacks {needs}"
    wait_until(lambda: refused in fleet.log("cloud"), 60, "the coordinator's log")
    wait_until(lambda: refused in fleet.log("pi-1"), 60, "the device's log")
    wait_until(lambda: needs in fleet.cloud("run", "show", "run"), 60, "run show")
    doctor = command("sedge_cloud", "-c", str(fleet.folder / "cloud.toml"), "doctor", status=1)
    assert f"PROBLEM  messages: run run needs {needs}" in doctor
