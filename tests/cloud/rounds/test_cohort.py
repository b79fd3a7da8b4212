"""Cohorts: one draw while everyone can do the work, and others for those who cannot."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from tests.cloud import given
from tests.cloud.helper import CONFIG, RUN, Cloud, a_hello, small_update

from sedge_cloud.config import RunConfig
from sedge_cloud.events import RoundOpened
from sedge_cloud.rounds.cohort import draw_cohort, plan_cohort
from sedge_cloud.rounds.plans import Planned
from sedge_cloud.run_file import check_run
from sedge_cloud.runs.run import Run
from sedge_protocol.wire.work import OwnModel

NAMES = [f"d{i}" for i in range(10)]
GIVEN = msgspec.structs.replace(CONFIG, strategy=given.NAME, fraction_train=0.2)


@pytest.fixture(autouse=True)
def ditto() -> None:
    """Every device is to train a model of its own."""
    for name in NAMES:
        given.PLANS[name] = lambda context, client: given.assigned(own_model=OwnModel())


@dataclass
class Drawn:
    """A draw that takes note of whom it was given; ``always`` names the same devices every time."""

    always: Sequence[str] = ()
    online: list[list[str]] = field(default_factory=list[list[str]])

    def __call__(self, run: Run, number: int, task: str, online: Sequence[str]) -> list[str]:
        self.online.append(list(online))
        return list(self.always) or draw_cohort(run, number, task, online)


def a_cloud(folder: Path, config: RunConfig, *lacking: str) -> Cloud:
    """A fleet of ten with a run of which no round is open; these devices lack what it needs of them."""
    cloud = Cloud(folder, config, NAMES)
    arrive(cloud, NAMES, lacking)
    return cloud


def arrive(cloud: Cloud, names: Sequence[str], lacking: Sequence[str]) -> None:
    """These devices say hello, and the core does not get to work yet."""
    for name in names:
        cloud.say(name, a_hello(name, codecs=() if name in lacking else ("own_model",)))


def planned(cloud: Cloud, draw: Drawn) -> Planned:
    core = cloud.core
    return plan_cohort(core.runs[RUN], core.run_store, 1, "train", core.devices, draw, ())


def devices(found: Planned) -> list[str]:
    return [order.device for order in found.orders]


def test_others_are_drawn_for_those_who_lack_a_feature(tmp_path: Path) -> None:
    config = msgspec.structs.replace(GIVEN, min_updates=2)
    cloud = a_cloud(tmp_path, config, *NAMES[:7])
    draw = Drawn()
    found = planned(cloud, draw)
    assert len(found.orders) == 2 and set(devices(found)) < set(NAMES[7:])
    assert 1 < len(draw.online) <= 8
    for before, after in zip(draw.online, draw.online[1:], strict=False):
        assert set(after) < set(before)  # each draw is from those not yet left out
    assert set(NAMES[:7]) >= set(found.left_out) == set(NAMES) - set(draw.online[-1])
    assert all(lacks == {"own_model"} for lacks in found.left_out.values())
    assert planned(cloud, Drawn()) == found  # the same inputs give the same cohort
    again = a_cloud(tmp_path / "again", config, *NAMES[:7])
    assert planned(again, Drawn()) == found


def test_no_device_that_is_paused_is_drawn(tmp_path: Path) -> None:
    cloud = a_cloud(tmp_path, GIVEN)
    assert cloud.store.pause(NAMES[1:9], 1.0) == 8
    draw = Drawn()
    planned(cloud, draw)
    assert draw.online == [["d0", "d9"]]
    before = cloud.core.devices.changes
    cloud.store.resume(NAMES)
    cloud.core.ingest.devices.load(cloud.now)
    assert cloud.core.devices.changes > before  # who waits for devices looks again
    planned(cloud, draw)
    assert draw.online[1] == NAMES


def test_a_draw_that_names_the_same_devices_again_is_not_asked_for_ever(tmp_path: Path) -> None:
    draw = Drawn(always=NAMES[:2])
    found = planned(a_cloud(tmp_path, GIVEN, *NAMES[:2]), draw)
    assert found.orders == [] and set(found.left_out) == set(NAMES[:2])
    assert len(draw.online) == 2


def test_a_run_ends_although_one_device_lacks_a_feature(tmp_path: Path) -> None:
    changes = {"strategy": "ditto", "num_rounds": 6, "evaluate": False, "min_updates": 2, "seed": 4}
    config = msgspec.structs.replace(GIVEN, min_available_devices=10, **changes)
    cloud = Cloud(tmp_path, check_run(config), NAMES)
    arrive(cloud, NAMES, ("d9",))
    cloud.poll()
    while RUN in cloud.core.open:
        for name in list(cloud.core.open[RUN].orders):
            cloud.offer(name, small_update(cloud.order(name)))
        cloud.poll()
    assert cloud.run_row().status == "finished"
    cohorts = [event.cohort for event in cloud.events(RoundOpened)]
    assert len(cohorts) == 6 and all(len(c) == 2 and "d9" not in c for c in cohorts)
    notes = cloud.notes(logging.WARNING)
    assert notes and all(note.endswith("no work for d9: it lacks own_model") for note in notes)
