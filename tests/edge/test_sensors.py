"""What the kernel's files and busctl say, and what is not there."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sedge_edge.sensors import Sensors, link_is_metered

SUPPLY = "sys/class/power_supply"


def make(root: Path, files: Mapping[str, object]) -> Sensors:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return Sensors(root, clock=lambda: 0.0, cpu_clock=lambda: 0.0)


def battery(status: str, capacity: object = 80, **more: object) -> dict[str, object]:
    fields = {"type": "Battery", "status": status, "capacity": capacity, **more}
    return {f"{SUPPLY}/BAT0/{name}": value for name, value in fields.items()}


def mains(online: int) -> dict[str, object]:
    return {f"{SUPPLY}/AC/type": "Mains", f"{SUPPLY}/AC/online": online}


MOUSE = {f"{SUPPLY}/mouse/{k}": v for k, v in {"type": "Battery", "scope": "Device"}.items()}


@pytest.mark.parametrize(
    ("files", "on_mains", "percent"),
    [
        ({}, None, None),
        (mains(1), True, None),
        (battery("Discharging"), False, 80),
        ({**battery("Discharging"), **mains(0)}, False, 80),
        ({**battery("Discharging"), **mains(1)}, True, 80),  # a weak supply, topped up
        ({**battery("Charging", 12), **mains(1)}, True, 12),
        (battery("Full", 100), True, 100),
        ({**MOUSE, f"{SUPPLY}/mouse/status": "Discharging"}, None, None),
        (battery("Discharging", "unknown"), False, None),
    ],
)
def test_power(
    tmp_path: Path, files: dict[str, object], on_mains: bool | None, percent: float | None
) -> None:
    sensors = make(tmp_path, files)
    assert (sensors.on_mains(), sensors.battery_percent()) == (on_mains, percent)


def test_the_hottest_zone_counts(tmp_path: Path) -> None:
    zones = {f"sys/class/thermal/thermal_zone{i}/temp": t for i, t in enumerate([41200, 63800, ""])}
    assert make(tmp_path, zones).temperature_c() == 63.8
    assert make(tmp_path / "none", {}).temperature_c() is None


def test_what_the_agent_uses_itself_is_no_load(tmp_path: Path) -> None:
    now = cpu = 0.0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("1.50 1.00 0.50 2/300 1234\n")
    sensors = Sensors(tmp_path, clock=lambda: now, cpu_clock=lambda: cpu)
    assert sensors.load() == 1.5
    for _ in range(60):  # ten minutes with one processor
        now, cpu = now + 10, cpu + 10
        sensors.load()
    assert sensors.load() == pytest.approx(0.5, abs=1e-3)
    now += 3600  # an hour without work
    assert sensors.load() == pytest.approx(1.5)
    cpu += 1e6
    now += 1.0
    assert sensors.load() == 0.0
    for damaged in ("", "many\n"):
        (tmp_path / "proc/loadavg").write_text(damaged)
        assert sensors.load() is None


def test_what_the_agent_has_itself_is_free(tmp_path: Path) -> None:
    meminfo = "MemTotal:  512000 kB\nMemAvailable:  100000 kB"
    assert make(tmp_path, {"proc/meminfo": meminfo}).memory_mb() == pytest.approx(102.4)
    status = "Name:\tpython\nVmRSS:\t  50000 kB"
    assert make(tmp_path, {"proc/self/status": status}).memory_mb() == pytest.approx(153.6)
    assert make(tmp_path / "none", {"proc/meminfo": "MemAvailable: ?"}).memory_mb() is None


@pytest.mark.parametrize(
    ("script", "metered"),
    [
        ("""echo '{"type":"u","data":1}'""", True),
        ("""echo '{"type":"u","data":3}'""", True),
        ("""echo '{"type":"u","data":2}'""", False),
        ("""echo '{"type":"u","data":4}'""", False),
        ("""echo '{"type":"u","data":0}'""", None),
        ("echo nonsense", None),
        ("echo '[1]'", None),
        ("echo 'Failed to get property' >&2; exit 1", None),
    ],
)
def test_networkmanager_is_asked_with_busctl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, metered: bool | None
) -> None:
    program = tmp_path / "busctl"
    property = "org.freedesktop.NetworkManager Metered"
    guard = f'case "$*" in *"get-property"*"{property}") ;; *) exit 9;; esac'
    program.write_text(f"#!/bin/sh\n{guard}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert link_is_metered() is metered


def test_a_device_without_busctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert link_is_metered() is None
