"""Renewals as rows, on both kinds of store: a device has one secret or two, and never none."""

from pathlib import Path

import pytest
from tests.cloud.stores import on_both, open_store

from sedge_protocol.errors import ConfigError

pytestmark = on_both
OLD, NEW, LATER = bytes(32), b"n" * 32, b"l" * 32


def test_asked_offered_given_and_used(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_devices(dict.fromkeys(("pi-1", "pi-2", "pi-3"), OLD))
    store.revoke_device("pi-3")
    with pytest.raises(ConfigError, match="an enrolled device"):
        store.ask_to_renew(["pi-1", "pi-9"], 5.0)
    before = store.enrolment()
    assert store.ask_to_renew(["pi-1", "pi-2", "pi-3"], 5.0) == ["pi-1", "pi-2"]
    assert store.enrolment() > before and store.renewals_due() == []
    store.offer_secret("pi-3", b"p", NEW)  # revoked: nobody asked
    store.offer_secret("pi-1", b"p", NEW)
    store.offer_secret("pi-1", b"p", LATER)  # the same once more
    (due,) = store.renewals_due()
    assert (due.device, due.secret) == ("pi-1", NEW)
    # The device has lost that since, and offers another: the broker is to get that one's password.
    store.offer_secret("pi-1", b"q", LATER)
    store.give_passwords([due])
    (due,) = store.renewals_due()
    assert due.secret == LATER
    store.give_passwords([due])
    assert store.renewals_due() == [] and store.devices_named(["pi-1"])["pi-1"].secret == OLD
    # Asked again meanwhile: it goes on from where it is.
    store.ask_to_renew(["pi-1"], 9.0)
    row = store.renewal("pi-1")
    assert row is not None and row.account and row.asked == 5.0
    assert store.end_renewal(row) and not store.end_renewal(row)
    assert store.devices_named(["pi-1"])["pi-1"].secret == LATER
    assert [row.device for row in store.renewals()] == ["pi-2"]
    store.close()


def test_revoked_or_reissued_meanwhile(tmp_path: Path) -> None:
    """What an operator decides later holds."""
    store = open_store(tmp_path)
    store.add_devices(dict.fromkeys(("pi-1", "pi-2"), OLD))
    store.ask_to_renew(["pi-1", "pi-2"], 5.0)
    for name in ("pi-1", "pi-2"):
        store.offer_secret(name, b"p", NEW)
    rows = store.renewals()
    store.revoke_device("pi-1")
    store.reissue_device("pi-2", LATER)
    assert [store.end_renewal(row) for row in rows] == [False, False]
    found = store.devices_named(["pi-1", "pi-2"])
    assert found["pi-1"].revoked and found["pi-2"].secret == LATER
    assert store.renewals_due() == []
    store.close()
