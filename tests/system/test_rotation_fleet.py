"""Devices that change their secrets, with real processes: kills on both sides, a device that was away."""

import time
from contextlib import closing

import pytest
from tests.system.test_joining_fleet import fleet as fleet
from tools.bench.joining import lets_in, settings_of
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.store.opening import open_folder
from sedge_edge.config import load_config
from sedge_protocol.wire.keys import DeviceKeys

pytestmark = pytest.mark.fleet
NONE_LEFT = "no device still has to change its secret"


def known_keys(fleet: RealFleet, name: str) -> DeviceKeys:
    with closing(open_folder(fleet.folder / "state")) as store:
        row = store.device(name)
        assert row is not None
        return DeviceKeys.of(row.secret)


def agreed(fleet: RealFleet, name: str) -> DeviceKeys:
    """The device's keys, which are the same on both sides, and the broker's."""
    keys = known_keys(fleet, name)
    assert load_config(fleet.folder / name / "edge.toml").keys() == keys
    return keys


def changed(fleet: RealFleet) -> bool:
    return NONE_LEFT in fleet.cloud("device", "rotate")


def test_new_secrets_without_a_visit(fleet: RealFleet) -> None:
    """One device is there, another comes back after three rotations: each ends with one new secret."""
    for seed, name in enumerate(("pi-1", "pi-2")):
        fleet.add_device(name, seed)
    fleet.start_cloud()
    fleet.start_agent("pi-1")
    wait_until(lambda: "pi-1 is online" in fleet.log("cloud"), 30, "pi-1 is online")
    first = {name: agreed(fleet, name) for name in ("pi-1", "pi-2")}
    for _ in range(3):
        fleet.cloud("device", "rotate", "pi-1", "pi-2")
        wait_until(lambda: "pi-1" not in fleet.cloud("device", "rotate"), 30, "a new secret")
    assert "pi-2: is offline; it gets a new secret when it comes back" in fleet.cloud(
        "device", "rotate"
    )
    assert agreed(fleet, "pi-2") == first["pi-2"] and lets_in(settings_of(fleet, "pi-2"))
    fleet.start_agent("pi-2")
    wait_until(lambda: changed(fleet), 30, "new secrets")
    for name, before in first.items():
        fleet.stop(name)
        assert agreed(fleet, name) != before and lets_in(settings_of(fleet, name))
        # The secret that it was enrolled with opens nothing any more.
        keys = fleet.folder / name / "state" / "keys"
        keys.rename(keys.with_name("aside"))
        assert not lets_in(settings_of(fleet, name))
        keys.with_name("aside").rename(keys)


def test_killed_at_any_time(fleet: RealFleet) -> None:
    """Killed while the secret changes, device and coordinator go on from where they were."""
    fleet.add_device("pi-1", 0)
    fleet.start_cloud()
    fleet.start_agent("pi-1")
    wait_until(lambda: "pi-1 is online" in fleet.log("cloud"), 30, "pi-1 is online")
    for number in range(5):
        before = known_keys(fleet, "pi-1")
        fleet.cloud("device", "rotate", "pi-1")
        time.sleep(0.4 * number)
        killed = ("pi-1", "cloud")[number % 2]
        fleet.kill(killed)
        fleet.start_agent("pi-1") if killed == "pi-1" else fleet.start_cloud()
        wait_until(lambda: changed(fleet), 30, "new secrets")
        assert known_keys(fleet, "pi-1") != before
    fleet.stop("pi-1")
    agreed(fleet, "pi-1")
    assert lets_in(settings_of(fleet, "pi-1"))
