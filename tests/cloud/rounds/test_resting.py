"""Devices that cannot work for now: who waits is not asked, and who declines again is asked less often."""

from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, a_hello, began

from sedge_cloud.config import RunConfig
from sedge_cloud.rounds.cohort import draw_cohort, plan_cohort
from sedge_cloud.rounds.lifecycle import EXCUSED, OpenRound, Phase, Trigger
from sedge_cloud.rounds.resting import MAX_ROUNDS, Resting
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_protocol.wire.messages import Decline, Order

LONG = msgspec.structs.replace(CONFIG, num_rounds=50, min_updates=1)


def config(**values: object) -> RunConfig:
    return msgspec.structs.replace(LONG, **values)


def wait(cloud: Cloud, name: str, why: str = "on battery") -> None:
    """A device says that it waits, or with an empty reason that it goes on."""
    cloud.say(name, a_hello(name, waits=why))
    cloud.poll()


def asked(cloud: Cloud, name: str) -> list[int]:
    """The rounds of which a device has been sent an order, and every time."""
    return [order.round for order in cloud.messages(name, Order)]


@pytest.mark.parametrize(
    ("values", "excused", "received", "event"),
    [
        ({}, 0, 3, None),
        ({}, 1, 3, Trigger.EVERYONE),
        ({"quorum": 0.5}, 0, 1, None),
        ({"quorum": 0.5}, 2, 1, Trigger.QUORUM),
        ({"quorum": 0.5}, 3, 0, None),
        ({"min_updates": 2}, 3, 1, None),  # without them there are too few
        ({}, 4, 0, None),
    ],
)
def test_a_round_counts_without_devices_that_wait(
    values: dict[str, object], excused: int, received: int, event: Trigger | None
) -> None:
    names = [f"d{i}" for i in range(4)]
    orders = {name: OrderRow(RUN, 1, name, b"", b"", b"") for name in names}
    answered = set(names[:received])
    row = RoundRow(RUN, 1, "train", True, b"", b"", None)
    current = OpenRound(row, orders, answered, set(answered), deadline=100.0)
    for name in names:
        current.arrive(name, waits=name in names[4 - excused :])
    assert current.due(config(**values), 0.0) is event
    late = Trigger.TIME if received >= config(**values).min_updates else Trigger.SHORTAGE
    assert current.due(config(**values), 100.0) is (event or late)
    for name in names:
        current.arrive(name, waits=False)
    assert not current.excused and current.phase is Phase.OPEN


def test_a_device_that_waits_is_neither_asked_nor_counted(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config(min_available_devices=2, min_updates=1), devices=("a", "b", "c"))
    cloud.hello("a")
    wait(cloud, "b")
    assert not cloud.core.open  # two are online, one of them waits
    cloud.hello("c")
    assert set(cloud.core.open[RUN].orders) == {"a", "c"}
    cloud.answer("a", "c")
    assert cloud.core.open[RUN].row.round == 2 and asked(cloud, "b") == []
    wait(cloud, "b", "")
    cloud.answer("a", "c")
    assert set(cloud.core.open[RUN].orders) == {"a", "b", "c"} and asked(cloud, "b") == [3]


def test_a_device_that_begins_to_wait_holds_no_round_up(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config(min_available_devices=1))
    cloud.hello()
    cloud.answer("a")
    assert cloud.core.open[RUN].row.round == 1
    wait(cloud, "b")
    assert cloud.core.open[RUN].row.round == 2 and asked(cloud, "b") == [1]
    closed = cloud.store.round(RUN, 1)
    assert closed is not None and closed.why == EXCUSED
    wait(cloud, "a")  # everybody waits: nobody is asked again, and nothing closes
    cloud.poll(61.0)
    assert cloud.core.open[RUN].row.round == 2 and asked(cloud, "a") == [1, 2]
    wait(cloud, "a", "")
    assert asked(cloud, "a") == [1, 2, 2]
    cloud.answer("a")
    assert cloud.core.open[RUN].row.round == 3


def declining(cloud: Cloud, rounds: int, why: str = "DataError") -> list[int]:
    """In how many rounds b, which declines, is asked while a takes part."""
    for _ in range(rounds):
        current = cloud.core.open[RUN]
        if "b" in current.orders:
            cloud.say("b", Decline(RUN, current.row.round, why, f"in round {current.row.round}"))
        cloud.answer("a")
    return sorted(set(asked(cloud, "b")))


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return began(tmp_path, config=LONG)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_device_that_declines_again_rests_longer(cloud: Cloud, restarts: bool) -> None:
    found = declining(cloud, 5)
    if restarts:
        cloud.come_back()
    assert found == [1, 2, 4]
    assert declining(cloud, 14) == [1, 2, 4, 8, 16]


def test_a_device_that_rests_is_evaluated_all_the_same(tmp_path: Path) -> None:
    """Otherwise a run's accuracy would leave out the devices that cannot train."""
    cloud = Cloud(tmp_path, config(num_rounds=2, evaluate_every=2, min_updates=1))
    cloud.hello()
    assert declining(cloud, 2) == [1, 2, 3]
    current = cloud.core.open[RUN]
    assert (current.row.task, set(current.orders)) == ("evaluate", {"a", "b"})


def test_a_device_that_took_part_is_asked_at_once(cloud: Cloud) -> None:
    declining(cloud, 7)
    assert asked(cloud, "b")[-1] == 8
    cloud.answer("b", "a")
    assert asked(cloud, "b")[-1] == 9
    assert declining(cloud, 2)[-3:] == [8, 9, 10]


@pytest.mark.parametrize("how", ["counts", "start"])
def test_a_device_that_is_another_now_is_asked_at_once(cloud: Cloud, how: str) -> None:
    declining(cloud, 5)
    assert "b" not in cloud.core.open[RUN].orders
    cloud.say("b", a_hello("b"))  # the same again
    declining(cloud, 1)
    assert asked(cloud, "b")[-1] == 4
    if how == "start":
        cloud.devices["b"] = type(cloud.devices["b"])("b", incarnation=2)
    cloud.say("b", a_hello("b", num_train=7 if how == "counts" else 10))
    declining(cloud, 1)
    assert asked(cloud, "b")[-1] == 8


def test_with_too_few_others_those_that_rest_are_asked(cloud: Cloud) -> None:
    core = cloud.core

    def cohort(*resting: str) -> list[str]:
        run, store = core.runs[RUN], core.run_store
        found = plan_cohort(run, store, 2, "train", core.devices, draw_cohort, resting)
        return [order.device for order in found.orders]

    assert (cohort(), cohort("b"), cohort("a", "b")) == (["a", "b"], ["a"], ["a", "b"])


def test_nobody_rests_for_ever() -> None:
    resting, number, gaps = Resting(), 1, list[int]()
    for _ in range(9):
        resting.closed([OrderRow(RUN, number, "b", b"", b"", b"", declined="no")], ())
        gap = next(n for n in range(1, 99) if "b" not in resting.devices(number + n))
        gaps.append(gap)
        number += gap
    assert gaps == [1, 2, 4, 8, 16, 32, 32, 32, 32] and MAX_ROUNDS == 32
