"""Gates: what opens and closes each, what a device without a sensor does, and how orders wait."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.edge.harness import Harness, only
from tests.edge.home import make_home

from sedge_edge.agent import AgentEffect
from sedge_edge.config import load_config
from sedge_edge.doctor import gate_values
from sedge_edge.gates import Gates
from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_edge.rounds.waiting import CHECK_S, COUNTS_S
from sedge_edge.sensors import Sensors
from sedge_edge.status import status
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.effects import Subscribe
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Get, Hello, Offer, Welcome
from sedge_protocol.wire.settings import GatesConfig
from sedge_protocol.wire.transfer import from_bitmap

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
        return self.gates.closed().why


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "device", gated=True)


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


def later(device: Harness, seconds: float) -> list[AgentEffect]:
    """Let time pass and the agent look at its gates; what it does of itself. Its hellos are welcomed."""
    found: list[AgentEffect] = []
    for _ in range(int(seconds / CHECK_S)):
        device.now += CHECK_S
        assert (at := device.agent.timer()) is not None and at <= device.now
        effects = device.agent.poll(device.now)
        for message in device.messages(effects):
            if isinstance(message, Hello):
                effects += device.tell(Welcome(message.nonce, "0", VERSIONS))
        device.listen(effects)
        found += effects
    return found


def test_with_a_closed_gate_nothing_is_fetched_and_the_first_hello_says_so(
    device: Harness, tmp_path: Path
) -> None:
    device.closed = "on battery"
    device.agent = device.start()  # closed since before its start
    (hello,) = (m for m in device.messages(device.connect()) if isinstance(m, Hello))
    assert hello.waits == "on battery"
    order = device.order(1)
    effects = device.tell(order)
    assert not device.messages(effects) and not only(effects, Subscribe)
    device.pump(device.tell(order))  # the coordinator asks again, and learns nothing new
    assert not device.topics and not device.chunks_sent
    lines = [*status(load_config(make_home(tmp_path)), device.on_disk(), device.folder).lines()]
    assert {"waits: on battery", "run run: waiting with round 1 (train)"} <= {*lines}
    # It is not forgotten by a power cut, nor does waiting count as an attempt.
    device.pump(device.reboot())
    assert device.on_disk().orders == {"run": order} and not device.on_disk().attempts
    device.closed = ""
    assert device.waits(later(device, CHECK_S)) == [""]
    device.settle()
    assert ("run", 1) in device.updates and not device.on_disk().waits
    assert device.notes.count("continuing") == 1


def test_a_gate_that_closes_while_the_disk_is_full_is_on_record_when_it_is_not(
    device: Harness,
) -> None:
    device.connect()
    device.closed = "on battery"
    with device.refusing("commit"):
        assert device.waits(later(device, COUNTS_S + CHECK_S))[0] == "on battery"
    assert device.counters["storage_errors"] == 1 and not device.on_disk().waits
    assert device.waits(later(device, DISK_RETRY_S + CHECK_S))[-1] == "on battery"
    assert device.on_disk().waits == "on battery"


def test_downloads_under_way_stop_at_once_and_go_on_where_they_were(device: Harness) -> None:
    device.connect()
    order = device.order(1)
    device.listen(device.tell(order))
    assert len(device.topics) == 2
    device.listen(device.chunk(order.bundle, 0))
    device.closed = "the link is metered"
    assert not device.messages(later(device, 2 * CHECK_S)) and not device.topics
    device.closed = ""
    (first, *_) = (m for m in device.messages(later(device, CHECK_S)) if isinstance(m, Get))
    assert 0 not in from_bitmap(first.missing, order.bundle.count)


def test_a_gate_that_closes_for_a_moment_is_not_worth_a_hello(device: Harness) -> None:
    device.connect()
    for _ in range(10):
        device.closed = "load 1.25, limit 1"
        assert device.waits(later(device, COUNTS_S - CHECK_S)) == []
        device.closed = ""
        assert device.waits(later(device, CHECK_S)) == []
    device.closed = "load 1.25, limit 1"
    assert device.waits(later(device, 2 * COUNTS_S)) == ["load 1.25, limit 1"]
    device.closed = ""
    assert device.waits(later(device, CHECK_S)) == [""]


def test_gates_that_take_turns_are_said_and_not_at_every_turn(device: Harness) -> None:
    device.connect()
    words: list[str] = []
    for turn in range(20):
        device.closed = "battery 9 %, limit 20" if turn % 2 else "load 1.3, limit 1"
        words += device.waits(later(device, COUNTS_S / 2))
    assert 1 <= len(words) <= 10
    assert all(words)


def test_a_number_that_moves_is_not_worth_a_hello_but_another_reason_is(device: Harness) -> None:
    device.connect()
    reasons: list[str] = []
    for tenths in range(100):
        device.closed = f"temperature {75 + tenths / 10:.1f} °C, limit 70"
        reasons += device.waits(later(device, CHECK_S))
    assert reasons == ["temperature 75.6 °C, limit 70"]
    device.closed += "; on battery"
    assert device.waits(later(device, 2 * COUNTS_S)) == [device.closed]


@pytest.mark.parametrize("spares_link", [False, True])
def test_finished_work_is_sent_unless_the_gate_spares_the_link(
    device: Harness, spares_link: bool
) -> None:
    device.connect()
    job = device.begin(device.order(1))
    device.closed, device.spares_link = "closed", spares_link
    later(device, CHECK_S)
    effects = device.work(job)
    sent = device.messages([*effects, *later(device, CHECK_S)])
    assert bool(only(sent, Offer)) is not spares_link
    device.closed = ""
    device.settle()
    assert ("run", 1) in device.updates
