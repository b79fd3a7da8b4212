"""Tokens and joins as rows: who is admitted, refused and counted, on both kinds of store."""

from pathlib import Path

import pytest
from tests.cloud.stores import on_both, open_store

from sedge_cloud.store.joins import KEPT_S, tags_coded
from sedge_cloud.store.rows import JoinRow, TokenRow
from sedge_protocol.errors import ConfigError

pytestmark = on_both
NOW = 1000.0


def token(name: str, uses: int = 1, accepts: bool = True, device: str = "") -> TokenRow:
    tags = tags_coded({"site": "lab"})
    return TokenRow(f"join-{name}", bytes(32), device, tags, uses, accepts, 0.0, NOW + 1)


def asks(name: str, by: str, key: int = 0) -> JoinRow:
    return JoinRow(
        bytes([key or ord(name[-1])]) * 65, f"join-{by}", name, name.encode() * 8, "pending", 0.0
    )


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
    assert [row.refused for row in store.refusing_tokens(NOW) if row.token == "join-b"] == [
        "pi-3 asked to join: the token expired at 1970-01-01 00:16 UTC: ask for a new one"
    ]
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
