"""Devices that may be there unseen: asked for a hello ever more seldom, and some of many at a time."""

from pathlib import Path

from tests.cloud.helper import Cloud

from sedge_cloud.ingest.absent import MAX_ASKED, Absent
from sedge_protocol.wire.messages import Welcome


def test_who_does_not_come_back_is_asked_ever_more_seldom_and_then_no_more(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, ("a", "b"))
    cloud.hello()
    cloud.core.disconnected(cloud.now)
    cloud.core.connected(cloud.now)
    cloud.hello("a")
    before, waits = {name: len(cloud.messages(name, Welcome)) for name in "ab"}, list[float]()
    while (at := cloud.core.timer()) is not None:
        waits.append(at - cloud.now)
        cloud.poll(waits[-1])
    assert waits[1:] == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0]
    asked = {name: len(cloud.messages(name, Welcome)) - before[name] for name in "ab"}
    assert asked == {"a": 0, "b": 7}


def test_of_more_than_are_asked_at_a_time_others_are_asked_the_next_time() -> None:
    absent, names = Absent(), [f"d{number:04}" for number in range(MAX_ASKED + 2)]
    absent.begin(names, 0.0)
    assert absent.poll([], 0.0) == names[:MAX_ASKED]
    assert absent.poll(names[1:], 60.0) == names[:1]
