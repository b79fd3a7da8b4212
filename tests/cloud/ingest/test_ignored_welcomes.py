"""Devices that hear no welcome, as they have heard a newer start count than its."""

import logging

import msgspec
from tests.cloud.helper import FLEET, Cloud, a_hello

from sedge_protocol import VERSION
from sedge_protocol.wire.messages import Hello, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.topics import down

STARTED = Welcome(bytes(16), VERSION)


def test_a_device_that_has_heard_a_newer_start_is_heard_again(cloud: Cloud) -> None:
    """It hears no answer, and repeats its hello; one that says something new is no repeat."""
    cloud.say("a", a_hello())
    device, keys = cloud.devices["a"], cloud.devices["a"].keys
    assert all(map(device.opens, cloud.sends(down(FLEET, "a"))))
    newer = cloud.store.next_incarnation(1)
    another = Peer(down(FLEET, "a"), keys.down, keys.up, newer, 0)
    assert device.opens(another.message(STARTED))

    def hears(hello: Hello) -> bool:
        cloud.effects.clear()
        cloud.say("a", hello)
        return device.opens(cloud.sends(down(FLEET, "a"))[0])

    news = [msgspec.structs.replace(a_hello(), num_train=n) for n in range(5)]
    assert not any(map(hears, news))
    assert [hears(news[-1]) for _ in range(4)] == [False, False, True, True]
    assert another.incarnation == newer < cloud.store.next_incarnation(1) - 1


def test_one_new_start_count_a_minute_serves_all_that_hear_none(cloud: Cloud) -> None:
    for _ in range(9):
        for name in "ab":
            assert cloud.say(name, a_hello())
    notes = cloud.notes(logging.WARNING)
    assert [note.split()[1] for note in notes] == ["a", "b"]
    assert cloud.store.next_incarnation(1) == cloud.core.devices["a"].peer.incarnation + 1
