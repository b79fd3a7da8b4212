"""Rollouts of settings: given in welcomes, phase by phase, and taken back from devices that they harm."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, Cloud, a_hello, small_update
from tests.cloud.outlets.test_status_page import text_of
from tests.cloud.stores import on_both
from tests.fleet import failing

from sedge_cloud.admin.rollout_status import rollout_lines, rollout_reports
from sedge_cloud.admin.rollouts import start_settings
from sedge_cloud.clocks import as_it_is as wall
from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.rollouts import settings_of
from sedge_cloud.ingest.settings import LOOK_S
from sedge_cloud.outlets.page.html import status_page
from sedge_cloud.recorder import Recorder
from sedge_cloud.rounds.settings_rollouts import EVERY_S, GONE, NOT_TAKEN, PATIENCE_S
from sedge_cloud.store.rollouts import FLEET, RolloutPlan, RolloutRow
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.wire.messages import Decline, Goodbye, Order, Welcome
from sedge_protocol.wire.settings import name_of

NAMES = [f"d{number:02}" for number in range(10)]
NIGHT = '[gates]\nquiet_hours = "07:00-22:00"\n[limits]\nmegabytes_per_day = 50\n'
CODED = b'{"gates.quiet_hours":"07:00-22:00","limits.megabytes_per_day":50}'
PLAN = RolloutPlan((0.1, 1.0))


class Fleet:
    """Devices that take settings at once, but for those that are named."""

    def __init__(self, folder: Path, with_run: bool = False) -> None:
        config = msgspec.structs.replace(CONFIG, num_rounds=20, evaluate=False, fraction_train=1.0)
        self.cloud = Cloud(folder, config if with_run else None, NAMES, wall=wall)
        self.has, self.orders = dict.fromkeys(NAMES, b""), dict[str, Order]()
        self.refusing = set[str]()
        self.recorder = Recorder(self.cloud.core, wall)
        for name in NAMES:
            self.hello(name)
        self.pass_on()

    def start(self, text: str = NIGHT, plan: RolloutPlan = PLAN) -> None:
        file = self.cloud.folder / "night.toml"
        file.write_text(text)
        with_command = self.cloud.second_store()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(time, "time", lambda: wall(self.cloud.now))
            start_settings(with_command, file, plan)
        with_command.close()
        self.cloud.load()

    def roll_back(self) -> None:
        with_command = self.cloud.second_store()
        with_command.roll_back(FLEET, "why")
        with_command.close()
        self.cloud.load()

    def hello(self, name: str) -> None:
        named = name_of(self.has[name])
        hello = a_hello(name, settings=named)
        self.take(name, self.cloud.say(name, hello))

    def take(self, name: str, answers: Iterable[object]) -> None:
        for answer in answers if name not in self.refusing else ():
            if isinstance(answer, Order):
                self.orders[name] = answer
            elif isinstance(answer, Welcome) and answer.settings != self.has[name]:
                self.has[name] = answer.settings
                self.hello(name)

    def pass_on(self, seconds: float = EVERY_S + LOOK_S) -> None:
        """Time goes by, and devices take what they are given."""
        end = self.cloud.now + seconds
        while self.cloud.now < end:
            self.cloud.poll(LOOK_S)
            for name in NAMES:
                self.take(name, self.cloud.messages(name, Order))
                self.take(name, self.cloud.messages(name, Welcome))
            self.cloud.effects.clear()
            self.recorder.poll(self.cloud.now)

    @property
    def given(self) -> set[str]:
        return {name for name, coded in self.has.items() if coded}

    def row(self) -> RolloutRow:
        return self.cloud.store.rollouts(FLEET)[-1]

    def lines(self) -> list[str]:
        reports = rollout_reports(self.cloud.store, FLEET, wall(self.cloud.now))
        return [line for report in reports for line in rollout_lines(report)]


@on_both
def test_settings_reach_ever_more_devices_until_they_are_rolled_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    away, never = NAMES[3], a_hello("none", settings=None)
    fleet.cloud.enrol("none")
    fleet.cloud.say("none", never)
    fleet.cloud.say(away, Goodbye(a_hello(away).nonce))
    fleet.recorder.poll(fleet.cloud.now)
    fleet.start()
    fleet.pass_on(LOOK_S)
    first = fleet.given
    assert len(first - {away}) in (1, 2), "one may be away"
    assert fleet.lines()[0].startswith("rollout 1 of night.toml: in_progress, phase 1 of 2")
    assert "  limits.megabytes_per_day = 50" in fleet.lines()
    fleet.pass_on(4 * EVERY_S)
    assert (fleet.row().state, fleet.given) == ("succeeded", {*NAMES} - {away})
    facts = Reader("bench", tmp_path / "state", fleet.cloud.store).read(wall(fleet.cloud.now))
    assert "Rollout 1 of night.toml" in text_of(status_page(facts), "devices")
    assert facts.settings and facts.settings.succeeded == 9
    assert settings_of(fleet.cloud.store, away) == ""
    told = "gates.quiet_hours = 07:00-22:00, limits.megabytes_per_day = 50, from rollout 1"
    assert settings_of(fleet.cloud.store, NAMES[0]) == told
    fleet.cloud.restart()
    fleet.hello(away)
    assert fleet.has[away] == CODED, "once it is back"
    (welcome,) = fleet.cloud.say("none", never)
    assert isinstance(welcome, Welcome) and not welcome.settings
    fleet.recorder = Recorder(fleet.cloud.core, wall)
    for name in NAMES:
        fleet.hello(name)
    fleet.roll_back()
    fleet.pass_on()
    assert fleet.given == set()


def test_a_second_sees_few_devices_looked_at_and_fewer_welcomed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sedge_cloud.ingest.settings.MOST_LOOKED", 3)
    monkeypatch.setattr("sedge_cloud.ingest.settings.AT_ONCE", 2)
    fleet = Fleet(tmp_path)
    for name in NAMES[:6]:
        fleet.cloud.say(name, Goodbye(a_hello(name).nonce))
    fleet.start(plan=RolloutPlan((1.0,)))
    begun, cloud, ingest = fleet.cloud.now, fleet.cloud, fleet.cloud.core.ingest
    for second, welcomed in enumerate((0, 0, 2, 2), 1):
        cloud.effects.clear()
        for _ in range(2):
            cloud.poll(0.5)
        assert sum(len(cloud.messages(name, Welcome)) for name in NAMES) == welcomed
        assert ingest.timer() == begun + (second + 1 if second < 4 else LOOK_S)
    cloud.poll(LOOK_S - 4)
    assert ingest.timer() == begun + 2 * LOOK_S


def test_a_store_that_fails_is_told_and_not_asked_without_pause(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.start(plan=RolloutPlan((1.0,)))
    cloud = fleet.cloud
    with failing(cloud.store, "rollouts", StorageError("connection lost")):
        cloud.poll()
        told = len(cloud.notes(logging.ERROR))
        assert told and (cloud.core.timer() or 0.0) > cloud.now
        cloud.poll()
    assert set(cloud.notes(logging.ERROR)) == {"connection lost"}
    assert len(cloud.notes(logging.ERROR)) == told
    fleet.pass_on(2 * EVERY_S)
    assert fleet.row().state == "succeeded"


def test_settings_that_devices_do_not_take_are_taken_back_from_the_others(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.start(plan=RolloutPlan((0.5, 1.0)))
    fleet.pass_on(LOOK_S)
    bad = min(fleet.given)
    fleet.has[bad] = b""
    fleet.refusing = {bad}
    fleet.hello(bad)
    fleet.pass_on(PATIENCE_S + 2 * EVERY_S)
    row = fleet.row()
    assert row.state == "aborted"
    assert row.why == f"1 of 5 devices failed ({NOT_TAKEN!r}), compared with 0 of 5 others"
    assert fleet.given == set()


def test_a_device_that_comes_to_match_the_condition_gets_the_settings(tmp_path: Path) -> None:
    """Its hello changes what it is matched by, and no row of a rollout or of an enrolment."""
    fleet = Fleet(tmp_path)
    small = a_hello("small", settings=name_of(b""), memory_mb=512)
    large = msgspec.structs.replace(small, memory_mb=1024)
    fleet.cloud.say(NAMES[0], large)
    fleet.start(plan=RolloutPlan((1.0,), where="memory_mb>=1024"))
    for hello, expected in ((small, b""), (large, CODED), (small, b"")):
        (welcome,) = fleet.cloud.say(NAMES[1], hello)
        assert isinstance(welcome, Welcome) and welcome.settings == expected


@pytest.mark.parametrize("phases", [(0.5, 1.0), (1.0,)])
def test_settings_that_lose_devices_go_back(tmp_path: Path, phases: tuple[float, ...]) -> None:
    fleet = Fleet(tmp_path)
    fleet.start(plan=RolloutPlan(phases, hold_s=3600.0))
    fleet.pass_on(LOOK_S)
    for name in fleet.given:
        fleet.cloud.say(name, Goodbye(a_hello(name).nonce))
    fleet.pass_on(PATIENCE_S + 2 * EVERY_S)
    row = fleet.row()
    if phases == (1.0,):  # nobody is left to compare with: perhaps a site has lost its power
        assert (row.state, row.why) == ("in_progress", "")
    else:
        assert (row.state, GONE in row.why) == ("aborted", True)


def test_settings_with_which_devices_decline_orders_are_taken_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, with_run=True)
    fleet.start("[limits]\norders_per_hour = 1\n", RolloutPlan((0.5, 1.0), hold_s=3600.0))
    fleet.pass_on(LOOK_S)
    tight = fleet.given
    for name, order in fleet.orders.items():
        fleet.cloud.offer(name, small_update(order), order=order)
    fleet.pass_on(LOOK_S)
    for name in tight:
        order = fleet.orders[name]
        assert order.round == 2
        fleet.cloud.say(name, Decline(order.run, order.round, "TooManyOrders", "why"))
    fleet.pass_on(2 * EVERY_S)
    row = fleet.row()
    assert (row.state, "TooManyOrders" in row.why) == ("aborted", True)
    assert fleet.given == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gates]\nmain = true\n", "gates.main"),
        ('[gates]\nquiet_hours = "night"\n', "07:30-22:00"),
        ('[gates]\nquiet_hours = "07:30-07:30"\n', "two different times"),
        ('[broker]\nurl = "mqtt://x"\n', "broker"),
        ("", "do not have yet"),
    ],
)
def test_a_file_that_is_no_settings_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    fleet = Fleet(tmp_path)
    with pytest.raises(ConfigError, match=expected):
        fleet.start(text)
    assert fleet.cloud.store.rollouts(FLEET) == []
