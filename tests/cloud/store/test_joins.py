"""Tokens, joins and renewals as rows, on both kinds of store: who is admitted, refused and counted."""

from pathlib import Path

import pytest
from tests.cloud.stores import on_both, open_store

from sedge_cloud.store.joins import KEPT_S, tags_coded
from sedge_cloud.store.rows import JoinRow, TokenRow
from sedge_protocol.errors import ConfigError

pytestmark = on_both
NOW = 1000.0
OLD, NEW, LATER = bytes(32), b"n" * 32, b"l" * 32


def token(name: str, uses: int = 1, accepts: bool = True, device: str = "") -> TokenRow:
    tags = tags_coded({"site": "lab"})
    return TokenRow(f"join-{name}", bytes(32), device, tags, uses, accepts, 0.0, NOW + 1)


def asks(name: str, by: str, key: int = 0) -> JoinRow:
    point = bytes([key or ord(name[-1])]) * 65
    return JoinRow(point, f"join-{by}", name, name.encode() * 8, "pending", 0.0)


def test_who_is_admitted_and_who_is_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.coordinator_account = "boss"
    for row in (token("a", 2), token("b", 9, accepts=False), token("c", device="pi-1")):
        store.add_token(row)
    first = store.ask_to_join(asks("pi-1", "a"), NOW)
    assert (first.state, store.tags_of(["pi-1"])) == ("accepted", {"pi-1": {"site": "lab"}})
    # Asked again it is the same, and counts once; with another name the key is known all the same.
    assert store.ask_to_join(asks("pi-1", "a"), NOW) == first
    assert store.ask_to_join(asks("pi-9", "a", key=ord("1")), NOW) == first
    refused = {
        "pi-1": "there is a device pi-1 already",
        "boss": "no device may be called boss",
        "coordinator-x": "no device may be called",
        "join-7": "no device may be called",
    }
    for name, why in refused.items():
        answer = store.ask_to_join(asks(name, "a", key=7), NOW)
        assert answer.state == "refused" and why in answer.detail
    assert store.ask_to_join(asks("pi-2", "a"), NOW).state == "accepted"
    assert "used up: 2 devices have joined" in store.ask_to_join(asks("pi-3", "a"), NOW).detail
    assert "expired at" in store.ask_to_join(asks("pi-3", "b"), NOW + 1).detail
    assert store.ask_to_join(asks("pi-3", "none"), NOW).detail == "no such token"
    assert store.uses() == {"join-a": 2} and store.devices_named(["boss", "pi-3"]) == {}
    # A token for a device gives that one a new secret, whatever name it asks for.
    old = store.devices_named(["pi-1"])["pi-1"].secret
    assert store.ask_to_join(asks("other", "c", key=3), NOW).device == "pi-1"
    assert store.devices_named(["pi-1"])["pi-1"].secret != old
    (refusing,) = (row for row in store.refusing_tokens(NOW) if row.token == "join-b")
    expired = "the token expired at 1970-01-01 00:16 UTC: ask for a new one"
    assert refusing.refused == f"pi-3 asked to join: {expired}"
    store.close()


def test_pending_accepted_admitted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add_token(token("b", 9, accepts=False))
    assert store.ask_to_join(asks("pi-1", "b"), NOW).state == "pending"
    assert "waits to join as pi-1" in store.ask_to_join(asks("pi-1", "b", key=2), NOW).detail
    assert store.devices() == []
    assert store.spent_tokens(NOW + 1) == []  # expired, and somebody still joins by it
    store.accept_join("pi-1")
    with pytest.raises(ConfigError, match="a device that is waiting to join"):
        store.accept_join("pi-1")
    (row,) = store.joins(["accepted"])
    store.admit_joins([row.point])
    assert [row.state for row in store.joins(["admitted"])] == ["admitted"]
    assert store.spent_tokens(NOW + 1) == []  # it has not said hello yet
    store.save_hello(store.devices()[0], 1, b"\x80")
    assert [row.token for row in store.spent_tokens(NOW + 1)] == ["join-b"]
    store.end_accounts(["join-b"], NOW + 1)
    assert store.spent_tokens(NOW + 1) == []
    # Long after it has expired it is gone, and so is who joined by it; the device stays.
    assert [row.token for row in store.tokens()] == ["join-b"]
    store.end_accounts([], NOW + KEPT_S + 2)
    assert store.tokens() == [] and store.joins(["admitted"]) == []
    assert [row.device for row in store.devices()] == ["pi-1"]
    # While one waits, another device may be given its id: then it cannot be accepted.
    store.add_token(token("d", 9, accepts=False))
    for name in ("pi-2", "pi-3", "pi-4"):
        assert store.ask_to_join(asks(name, "d"), NOW).state == "pending"
    store.add_device("pi-2", bytes(32))
    with pytest.raises(ConfigError, match="not enrolled yet"):
        store.accept_join("pi-2")
    store.refuse_join("pi-3")
    store.revoke_token("join-d")
    why = {row.device: row.detail for row in store.joins(["refused"])}
    assert why == {
        "pi-2": "the token was revoked",
        "pi-3": "the operator has refused it",
        "pi-4": "the token was revoked",
    }
    assert [row.token for row in store.spent_tokens(NOW)] == ["join-d"]
    with pytest.raises(ConfigError, match="a token"):
        store.revoke_token("join-z")
    store.close()


def test_a_secret_is_asked_offered_given_and_used(tmp_path: Path) -> None:
    """A device has one secret or two, and never none."""
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


def test_whose_secret_changes_is_revoked_or_reissued_meanwhile(tmp_path: Path) -> None:
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
