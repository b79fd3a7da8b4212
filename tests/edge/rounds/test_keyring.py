"""A device's two secrets on a disk that refuses; test_agent_renewal.py has the agent that changes them."""

from itertools import count
from os import urandom

import pytest

from sedge_edge.rounds.keyring import KeptKeys, Keyring
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.joining import Agreement, private_key, public_key
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Join

SECRET, PRIVATE = b"s" * 32, private_key(b"c" * 32)
POINT = public_key(PRIVATE)


class Disk:
    """One value; the commit numbered ``refused`` fails."""

    def __init__(self) -> None:
        self.value: KeptKeys | None = None
        self.refused = -1
        self._commits = count()

    def load(self) -> KeptKeys | None:
        return self.value

    def commit(self, value: KeptKeys) -> None:
        if next(self._commits) == self.refused:
            raise StorageError("full")
        self.value = value


def opened(disk: Disk, secret: bytes = SECRET) -> Keyring:
    return Keyring(secret, "test", "pi-1", disk, urandom)


def offered(join: Join) -> DeviceKeys:
    """The keys that the coordinator derives."""
    agreement = Agreement.of(PRIVATE, join.point, join.point, "test", "pi-1")
    assert agreement.asks("pi-1") == join.proof
    return DeviceKeys.of(agreement.secret)


def test_a_disk_that_refuses() -> None:
    """Before the answer there is none; after the welcome the device still has both."""
    disk = Disk()
    disk.refused = 0
    ring = opened(disk)
    with pytest.raises(StorageError):
        ring.answer(POINT, "1")
    assert not ring.turn() and disk.value is None
    disk.refused = 2
    new = offered(ring.answer(POINT, "1"))
    ring.turn()
    with pytest.raises(StorageError):
        ring.welcomed()
    again = opened(disk)
    assert again.keys == DeviceKeys.of(SECRET) and again.turn() and again.keys == new
    ring.welcomed()
    assert opened(disk).keys == new


def test_a_secret_that_comes_otherwise() -> None:
    """A reissued secret makes void what was kept of the one before."""
    disk = Disk()
    ring = opened(disk)
    ring.answer(POINT, "1")
    ring.turn()
    ring.welcomed()
    other = opened(disk, b"o" * 32)
    assert other.keys == DeviceKeys.of(b"o" * 32) and not other.turn()
