"""Gates: what opens and closes each, what a device without a sensor does, and how orders wait."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.edge.harness import Harness, only

from sedge_edge.agent import GATE_RETRY_S, StartJob
from sedge_edge.doctor import gate_values
from sedge_edge.gates import CHECK_S, Gates, GatesConfig
from sedge_edge.sensors import Sensors
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Cancel, Hello

BATTERY = "sys/class/power_supply/BAT0"
ZONE = "sys/class/thermal/thermal_zone0/temp"


class Machine:
    """A device whose sensors are files, with a clock; ``time`` is the local one."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root, self.now, self.time = root, 0.0, "12:00"
        self.metered: bool | None = None
        self.gates = Gates(
            GatesConfig(**config),
            Sensors(root, lambda: self.now, lambda: 0.0),
            lambda: self.metered,
            lambda: datetime.fromisoformat(f"2026-01-01 {self.time}"),
            lambda: self.now,
        )

    def write(self, **files: object) -> None:
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{text}\n")

    def battery(self, status: str, percent: int) -> None:
        fields = {"type": "Battery", "status": status, "capacity": percent}
        self.write(**{f"{BATTERY}/{name}": value for name, value in fields.items()})

    def look(self) -> str:
        """Why it may not train, once it is looked at again."""
        self.now += CHECK_S
        return self.gates.closed()


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "device")


def test_without_gates_training_starts_at_any_time(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.battery("Discharging", 1)
    assert machine.look() == ""
    assert gate_values(machine.gates) == "none is set; training starts at any time"


def test_only_on_mains(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mains=True)
    assert machine.look() == ""  # nothing but mains to run from
    machine.battery("Discharging", 100)
    assert machine.look() == "on battery"
    assert gate_values(machine.gates) == "mains closed (on battery)"
    machine.battery("Charging", 100)
    assert machine.look() == ""


def test_a_battery_above_a_limit_will_do(tmp_path: Path) -> None:
    machine = Machine(tmp_path, min_battery_percent=50)
    machine.battery("Discharging", 50)
    assert machine.look() == ""
    machine.battery("Discharging", 49)
    assert machine.look() == "battery at 49 %, below 50"
    machine.battery("Charging", 49)
    assert machine.look() == ""


def test_a_hot_device_must_cool_down(tmp_path: Path) -> None:
    machine = Machine(tmp_path, max_temperature_c=70)
    found: list[str] = []
    for degrees in (70, 71, 68, 66, 65, 70):
        machine.write(**{ZONE: degrees * 1000})
        found.append(machine.look())
    closed = [f"temperature {degrees} °C, limit 70" for degrees in (71, 68, 66)]
    assert found == ["", *closed, "", ""]


def test_load_memory_and_link(tmp_path: Path) -> None:
    machine = Machine(tmp_path, max_load=1.0, min_free_memory_mb=100, unmetered=True)
    machine.write(**{"proc/loadavg": "1.0 0 0", "proc/meminfo": "MemAvailable: 100000 kB"})
    machine.metered = False
    assert machine.look() == ""
    machine.write(**{"proc/loadavg": "1.25 0 0", "proc/meminfo": "MemAvailable: 90000 kB"})
    machine.metered = True
    assert machine.look() == ("load 1.25, limit 1; memory 92.2 MB, limit 100; the link is metered")


@pytest.mark.parametrize(
    ("hours", "closed"),
    [
        ("07:30-22:00", {"07:30", "12:00", "21:59"}),
        ("22:00-07:30", {"22:00", "23:59", "00:00", "07:29"}),
    ],
)
def test_quiet_hours(tmp_path: Path, hours: str, closed: set[str]) -> None:
    machine = Machine(tmp_path, quiet_hours=hours)
    found: set[str] = set()
    for time in ("07:29", "07:30", "12:00", "21:59", "22:00", "23:59", "00:00"):
        machine.time = time
        if machine.look():
            found.add(time)
    assert found == closed


def test_sensors_are_read_now_and_then_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mains=True)
    machine.battery("Discharging", 100)
    assert machine.gates.closed()
    machine.battery("Full", 100)
    machine.now += CHECK_S / 2
    assert machine.gates.closed()
    machine.now += CHECK_S / 2
    assert not machine.gates.closed()


@pytest.mark.parametrize(
    "config",
    [
        {"mains": True},
        {"min_battery_percent": 50.0},
        {"max_temperature_c": 70.0},
        {"max_load": 1.0},
        {"min_free_memory_mb": 100},
        {"unmetered": True},
    ],
    ids=lambda config: next(iter(config)),
)
def test_a_gate_without_its_sensor_is_open_and_the_doctor_says_so(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    machine = Machine(tmp_path, **config)
    assert machine.look() == ""
    with pytest.raises(ConfigError, match=next(iter(config))):
        gate_values(machine.gates)


# How an agent waits.


def test_an_order_waits_until_the_gate_opens(device: Harness) -> None:
    device.connect()
    device.closed = "on battery"
    order = device.order(1)
    device.tell(order)
    effects = device.feed(order.bundle, order.model)
    assert not only(effects, StartJob)
    hellos = [m for m in device.messages(device.agent.poll(device.now)) if isinstance(m, Hello)]
    assert [hello.waits for hello in hellos] == ["on battery"]
    device.pump(device.tell(order))  # the coordinator asks again, and learns nothing new
    assert not device.updates and not device.declines
    # It is not forgotten by a power cut, nor does waiting count as an attempt.
    device.pump(device.reboot())
    assert device.on_disk().orders == {"run": order} and not device.on_disk().attempts
    device.closed = ""
    assert not only(device.agent.poll(device.now + GATE_RETRY_S / 2), StartJob)
    device.now += GATE_RETRY_S
    device.pump([])
    assert ("run", 1) in device.updates
    assert device.notes.count("waiting with orders: on battery") == 2
    assert device.notes.count("going on") == 1


def test_an_order_that_is_cancelled_meanwhile_is_not_begun(device: Harness) -> None:
    device.connect()
    device.closed = "quiet hours"
    order = device.order(1)
    device.tell(order)
    device.pump(device.feed(order.bundle, order.model))
    device.tell(Cancel("run", 1, "closed"))
    device.closed = ""
    device.now += GATE_RETRY_S
    assert not only(device.agent.poll(device.now), StartJob)
    assert device.agent.idle


def test_a_newer_order_takes_the_place_of_one_that_waits(device: Harness) -> None:
    device.connect()
    device.closed = "quiet hours"
    for number in (1, 2):
        order = device.order(number)
        device.tell(order)
        device.pump(device.feed(order.bundle, order.model))
    device.closed = ""
    device.now += GATE_RETRY_S
    device.pump([])
    assert list(device.updates) == [("run", 2)]
