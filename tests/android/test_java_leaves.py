"""Devices that leave their fleet, in Python and on a phone: the coordinator revokes them and says so."""

import os
from pathlib import Path

import pytest
from tests.android.classes import java
from tools.bench.parts.real_fleet import RealFleet

from sedge_edge.__main__ import main

pytestmark = pytest.mark.fleet


def test_a_device_leaves_its_fleet(fleet: RealFleet, class_path: str, tmp_path: Path) -> None:
    fleet.start_cloud()
    issued = fleet.cloud("device", "add", "phone-1", "--out", str(tmp_path / "phone-1"), "--join")
    fleet.add_device("pi-1", 2)  # and the broker reads its passwords
    private = tmp_path / "private"
    private.mkdir()
    join = issued.splitlines()[-1]
    said = java(
        class_path, "org.sedge.android.LeaveFleet", join, options=[f"-Dsedge.folder={private}"]
    )
    left = {one.name: sorted(os.listdir(one)) for one in private.glob("sedge/*")}
    other = left.pop("state-other.phone-1")
    assert len(left) == 2 and [*left.values()] == [["lock"]] * 2 and other == ["journal"]
    assert os.listdir(private / "photos") == ["a photo"]
    assert said[-2:] == ["true [lock] null ''", "true"]
    home = fleet.folder / "pi-1"
    assert main(["-c", str(home / "edge.toml"), "leave", "--yes"]) == 0
    assert not (home / "secret").exists() and [one.name for one in (home / "state").iterdir()] == [
        "lock"
    ]
    listed = fleet.cloud("device", "list")
    assert listed.count("revoked") == 2, listed
