"""A device that floods without pause is not listened to for a while; all others are, and so it is again."""

import logging

import pytest
from tests.cloud.helper import FLEET, Cloud, a_hello
from tests.cloud.stores import open_store

from sedge_cloud.ingest.muting import MUTE_S, REFUSED_S
from sedge_cloud.ingest.rate_limit import BURST, RATE
from sedge_protocol.wire.effects import Subscribe, Unsubscribe
from sedge_protocol.wire.messages import Welcome
from sedge_protocol.wire.topics import SHARDS, all_up, shard_of, up


def flood(cloud: Cloud, seconds: float, rate: float) -> None:
    for _ in range(int(10 * seconds)):
        for _ in range(int(rate / 10)):
            cloud.give("a", b"not a frame")
        cloud.poll(0.1)


def listening(cloud: Cloud) -> set[str]:
    """What the link listens to, after all that the core has asked of it."""
    found = {all_up(FLEET)}
    for effect in cloud.effects:
        if isinstance(effect, Subscribe):
            found.add(effect.topic)
        elif isinstance(effect, Unsubscribe):
            found.remove(effect.topic)
    return found


@pytest.fixture
def flooded(cloud: Cloud) -> Cloud:
    cloud.hello("a", "b")
    flood(cloud, 5.0, 4 * RATE)
    return cloud


def test_only_the_others_are_listened_to(flooded: Cloud) -> None:
    others = {f"{shard:02x}" for shard in range(SHARDS)} - {shard_of("a")}
    assert listening(flooded) == {all_up(FLEET, shard) for shard in others}
    notes = flooded.notes(logging.WARNING)
    assert "device a is flooding; its messages are ignored for 60 s" in notes
    assert shard_of("d0") == shard_of("a")
    open_store(flooded.folder / "state").add_device("d0", bytes(32))
    flooded.load()
    flooded.poll(1.0)
    assert up(FLEET, "d0") in listening(flooded)


def test_no_frame_is_missed_in_between(flooded: Cloud) -> None:
    changes = [type(e) for e in flooded.effects if isinstance(e, Subscribe | Unsubscribe)]
    assert changes == [*[Subscribe] * (SHARDS - 1), Unsubscribe]


def test_after_a_while_it_is_asked_for_a_hello(flooded: Cloud) -> None:
    asked = len(flooded.messages("a", Welcome))
    flooded.poll(MUTE_S)
    assert listening(flooded) == {all_up(FLEET)}
    assert not flooded.core.devices["a"].online, "its goodbye may have been ignored"
    assert len(flooded.messages("a", Welcome)) > asked
    assert isinstance(flooded.say("a", a_hello("again"))[0], Welcome)


def test_a_process_listens_to_its_own_shards_alone(cloud: Cloud) -> None:
    topics = {all_up(FLEET, shard_of("a"))}
    assert cloud.core.listen(frozenset({shard_of("a")}), cloud.now) == topics
    cloud.poll()
    assert listening(cloud) == topics


def test_a_burst_and_what_is_little_above_the_rate_mute_nobody(cloud: Cloud) -> None:
    cloud.hello("a", "b")
    for _ in range(int(BURST) + 1500):
        cloud.give("a", b"not a frame")
    flood(cloud, 20.0, 1.5 * RATE)
    assert listening(cloud) == {all_up(FLEET)}


@pytest.mark.parametrize(("lasted_s", "again"), [(REFUSED_S / 2, False), (2 * REFUSED_S, True)])
def test_a_broker_that_ends_the_connection_for_it_is_asked_no_more(
    flooded: Cloud, lasted_s: float, again: bool
) -> None:
    flooded.poll(lasted_s)
    flooded.core.disconnected(flooded.now)
    flooded.effects.clear()
    flood(flooded, 5.0, 4 * RATE)
    assert (listening(flooded) != {all_up(FLEET)}) == again
