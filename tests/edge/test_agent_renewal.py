"""A device that changes its secret, cut off at any step: there is always one by which it is heard."""

import pytest
from tests.edge.harness import DEVICE, FLEET, KEYS, Harness

from sedge_protocol.wire.joining import Agreement, private_key, public_key
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Cancel, Hello, Join, Renew, Welcome

pytestmark = pytest.mark.both_cores
PRIVATE = private_key(b"c" * 32)
RENEW = Renew(public_key(PRIVATE))


def offered(device: Harness) -> DeviceKeys:
    """The keys that follow from the device's answer to RENEW."""
    (join,) = (m for m in device.messages(device.tell(RENEW)) if isinstance(m, Join))
    agreement = Agreement.of(PRIVATE, join.point, join.point, FLEET, DEVICE)
    assert join.device == DEVICE and join.proof == agreement.asks(DEVICE)
    return DeviceKeys.of(agreement.secret)


def spoken(device: Harness, keys: DeviceKeys) -> None:
    """The coordinator speaks under these keys, and hears only them."""
    device.keys = keys
    device.peer.change_keys(keys.down, keys.up)


def test_two_secrets_until_the_new_one_is_welcomed(device: Harness) -> None:
    """Whatever the broker refuses the device tries the other; after the welcome there is one."""
    device.pump(device.reboot())
    assert device.agent.other_password() is None
    new = offered(device)
    assert offered(device) == new != KEYS  # the first answer was lost
    device.give(device.order())
    assert ("run", 1) in device.updates  # the old one is good
    for life in range(2):  # killed with both
        device.pump(device.reboot())
        assert offered(device) == new
        device.agent.disconnected()
        assert device.agent.other_password() == new.password
        device.agent.disconnected()
        if life == 0:  # the broker has the old password still
            assert device.agent.other_password() == KEYS.password
            device.agent.will()
            device.pump(device.connect())
    spoken(device, new)
    device.agent.will()
    device.pump(device.connect())
    assert device.agent.other_password() is None
    device.complete(2)
    device.pump(device.reboot())  # from its disk
    assert offered(device) not in (KEYS, new)
    assert device.on_disk().incarnation == 5  # the start counts have gone on


def test_frames_of_the_other_secret_change_nothing(device: Harness) -> None:
    device.pump(device.reboot())
    new = offered(device)
    assert device.agent.other_password() == new.password
    device.agent.will()
    effects = device.agent.connected(device.now, 400_000)
    device.keys = new
    (hello,) = (m for m in device.messages(effects) if isinstance(m, Hello))
    assert not device.messages(device.tell(Welcome(hello.nonce, "0")))  # under the old one
    assert not device.agent.welcomed
    spoken(device, new)
    device.tell(Welcome(hello.nonce, "0", (2,)))
    assert device.agent.welcomed
    spoken(device, KEYS)
    device.tell(Cancel("run", 0, "under the old one"))
    spoken(device, new)
    assert offered(device)


def test_a_point_that_is_none(device: Harness) -> None:
    device.pump(device.reboot())
    assert not device.messages(device.tell(Renew(b"\4" + bytes(64))))
    assert device.agent.other_password() is None
