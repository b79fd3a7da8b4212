"""Real agents, a real coordinator, a real Mosquitto, and ``kill -9``."""

import collections
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.system.conftest import begin
from tests.system.faultproxy import FaultProxy
from tools.bench.parts.real_fleet import ZLIB_ALONE, RealFleet, command, free_port, wait_until

from sedge_cloud.store.opening import open_folder
from sedge_protocol.wire.update import Report

pytestmark = pytest.mark.fleet

RUN = """
strategy = "fedobp"
num_rounds = {rounds}
min_train_devices = 2
min_available_devices = 2
deadline_s = 300
options = {{ quantile = 0.99 }}
[training]
local_epochs = {epochs}
learning_rate = 0.05
momentum = 0.7
[codec]
values = "{values}"
fraction = {fraction}
"""


@pytest.fixture(scope="module", autouse=True)
def examined(tmp_path_factory: pytest.TempPathFactory, small_bundle: Path) -> Iterator[RealFleet]:
    """An agent that is held against every rule from now on: most of that is waiting."""
    with closing(RealFleet(tmp_path_factory.mktemp("examined"))) as fleet:
        gate = free_port()
        fleet.add_device("candidate", 1, f"mqtt://127.0.0.1:{gate}")
        fleet.start_agent("candidate")
        config = str(fleet.folder / "cloud.toml")
        words = ["-c", config, "--bundle", str(small_bundle), "--gate", str(gate), "candidate"]
        fleet.start("conformance", [sys.executable, "-m", "sedge_conformance", *words])
        yield fleet
        if fleet.processes["conformance"].poll() is not None:
            del fleet.processes["conformance"]


def test_a_run_from_first_command_to_prediction(fleet: RealFleet, small_bundle: Path) -> None:
    """Two devices train; one with bad data declines, and one is not let in at all."""
    fleet.start_cloud()
    for seed, device in enumerate(("pi-1", "pi-2", "pi-3", "pi-4")):
        fleet.add_device(device, seed)
    bad, secret = fleet.folder / "pi-3" / "train.npz", fleet.folder / "pi-4" / "secret"
    np.savez(bad, x=np.zeros((50, 1, 9, 9), np.float32), y=np.zeros(50, np.int64))
    secret.write_text("00" * 32)
    for device in ("pi-1", "pi-2", "pi-3", "pi-4"):
        fleet.start_agent(device)
    text = RUN.format(rounds=3, epochs=5, values="bf16", fraction=0.2)
    fleet.start_run(small_bundle, text.replace("devices = 2", "devices = 3"))
    wait_until(fleet.finished, 60, "the run ends")
    rounds = fleet.rounds()
    assert [r.round for r in rounds] == [1, 2, 3, 4]
    assert [r.task for r in rounds] == ["train"] * 3 + ["evaluate"]
    # Who has declined twice for the same reason is not asked to the next round.
    assert [(len(r.devices), r.declined) for r in rounds[:3]] == [(2, 1), (2, 1), (2, 0)]
    assert len(rounds[-1].devices) == 2
    assert rounds[0].before < 0.4 < 0.6 < rounds[-1].before
    assert "x has rows of shape (1, 9, 9), but the model expects (1, 8, 8)" in fleet.log("cloud")
    assert "finished" in fleet.cloud("run", "list")
    assert "evaluate" in fleet.cloud("run", "show", "run")
    wait_until(lambda: "Not authorized" in fleet.log("pi-4"), 20, "the broker's refusal is logged")
    assert "Traceback" not in fleet.log("pi-4")
    output = command("sedge_edge", "-c", f"{fleet.folder}/pi-4/edge.toml", "doctor", status=1)
    assert "PROBLEM  broker" in output
    assert fleet.stop("pi-1") == 0
    assert fleet.stop("cloud") == 0
    fleet.kill("broker")
    home = fleet.folder / "pi-1"
    assert "has a personal model" in command("sedge_edge", "-c", f"{home}/edge.toml", "status")
    predicted = command("sedge_edge", "-c", f"{home}/edge.toml", "predict", f"{home}/train.npz")
    labels = np.load(home / "train.npz")["y"]
    assert (np.array(predicted.split(), np.int64) == labels).mean() > 0.8


def test_a_device_with_zlib_alone_trains_under_default_settings(
    fleet: RealFleet, small_bundle: Path
) -> None:
    """The bundle, the models, a patch, and what it sends itself, beside a device that has zstd."""
    fleet.start_cloud()
    for seed, device in enumerate(("pi-1", "pi-2")):
        fleet.add_device(device, seed)
    fleet.start_agent("pi-1", script=ZLIB_ALONE)
    fleet.start_agent("pi-2")
    fleet.start_run(small_bundle, RUN.format(rounds=2, epochs=2, values="fp32", fraction=1.0))
    wait_until(fleet.finished, 60, "the run ends")
    names = [[device.device for device in summary.devices] for summary in fleet.rounds()]
    assert names == [["pi-1", "pi-2"]] * 3
    assert fleet.rounds()[-1].personal
    first, second = (hello.compressions for hello in fleet.hellos())
    assert first == ("zlib",) and "zstd" in second


def counted(fleet: RealFleet) -> dict[tuple[int, str], int]:
    """How often each (round, device) has a receipt in the coordinator's database."""
    with sqlite3.connect(fleet.folder / "state" / "sedge.sqlite") as db:
        rows = db.execute("SELECT round, device FROM updates WHERE rejected = ''").fetchall()
    return dict(collections.Counter((int(r), str(d)) for r, d in rows))


def test_a_broker_that_was_away_is_a_line_or_two_in_the_log(fleet: RealFleet) -> None:
    """The tries that it refuses meanwhile are not logged, and nobody asks whether it expects TLS."""
    begin(fleet, "pi-1")
    welcomed = "welcomed by coordinator"
    wait_until(lambda: welcomed in fleet.log("pi-1"), 60, "the device is welcomed")
    fleet.kill("broker")
    time.sleep(12)  # for several tries
    fleet.start_broker()
    wait_until(lambda: fleet.log("pi-1").count(welcomed) == 2, 60, "the device is welcomed again")
    for name in ("pi-1", "cloud"):
        lines = [line for line in fleet.log(name).splitlines() if "next try in" in line]
        assert 1 <= len(lines) <= 2 and not any("TLS" in line for line in lines), lines


def test_everybody_killed_and_the_link_cut_in_mid_round(
    fleet: RealFleet, proxy: FaultProxy, small_bundle: Path
) -> None:
    fleet.start_cloud()
    fleet.add_device("pi-1", 0, examples=1500)
    fleet.add_device("pi-2", 1, proxy.url, examples=1500)
    starts = {"broker": fleet.start_broker, "cloud": fleet.start_cloud}
    starts |= {name: partial(fleet.start_agent, name) for name in ("pi-1", "pi-2")}
    for device in ("pi-1", "pi-2"):
        fleet.start_agent(device)
    fleet.start_run(small_bundle, RUN.format(rounds=6, epochs=100, values="fp32", fraction=1.0))
    for victim in ("pi-1", "cloud", "link", "pi-2", "broker"):
        done = len(fleet.rounds())
        wait_until(lambda n=done: len(fleet.rounds()) > n, 60, "another round closes")  # type: ignore[misc]
        time.sleep(0.3)  # into the next round: orders out, training begun
        if victim == "link":
            proxy.cut()
        else:
            fleet.kill(victim)
            starts[victim]()
    wait_until(fleet.finished, 120, "the run ends")
    assert [r.round for r in fleet.rounds()] == list(range(1, 8))
    expected = {(number, device) for number in range(1, 8) for device in ("pi-1", "pi-2")}
    assert counted(fleet) == dict.fromkeys(expected, 1)
    assert proxy.connections >= 4  # at first, after the cut, as a new process, with the new broker
    assert fleet.rounds()[-1].before > 0.85


def test_a_half_sent_update_goes_on_where_it_was(
    fleet: RealFleet, proxy: FaultProxy, large_bundle: Path
) -> None:
    fleet.start_cloud()
    fleet.add_device("pi-1", 0)
    fleet.add_device("pi-2", 1, proxy.url)
    for device in ("pi-1", "pi-2"):
        fleet.start_agent(device)
    fleet.start_run(large_bundle, RUN.format(rounds=1, epochs=1, values="fp32", fraction=1.0))
    proxy.rate = 3_000_000
    parts = fleet.folder / "state" / "parts"

    def half_sent() -> bool:
        return proxy.sent > 4_000_000 and any(parts.glob("pi-2-*"))

    wait_until(half_sent, 60, "the slow device has sent 4 MB of its update")
    fleet.kill("pi-2")
    fleet.start_agent("pi-2")
    wait_until(lambda: proxy.sent > 6_500_000, 60, "and 2.5 MB more")
    fleet.kill("cloud")
    fleet.start_cloud()
    proxy.rate = 0
    wait_until(fleet.finished, 90, "the run ends")
    with closing(open_folder(fleet.folder / "state")) as store:
        update = store.update("run", 1, "pi-2")
    assert update is not None and update.size > 10_000_000
    assert msgspec.msgpack.decode(update.report, type=Report).num_examples == 160
    # Two interruptions may cost two windows of four 64 KiB chunks each, and what the socket had taken.
    resent = proxy.sent - update.size
    assert resent < 2 * 2 * 4 * 65536 + 600_000
    assert counted(fleet)[1, "pi-2"] == 1


def test_the_agent_keeps_every_rule_over_a_real_broker(examined: RealFleet) -> None:
    status = examined.processes["conformance"].wait(300)
    kept = examined.log("conformance")
    assert status == 0, kept
    assert "a replayed order is dropped" in kept
