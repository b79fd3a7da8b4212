"""The vectors that other languages test against, both ways."""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from sedge_protocol.errors import FrameError, VersionError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import Frame, Kind, open_frame, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import KINDS, Message, decode_body, encode_body
from sedge_protocol.wire.transfer import Manifest, describe, from_bitmap, to_bitmap
from sedge_protocol.wire.update import Report, decode_arrays, decode_update, encode_update

Case = dict[str, Any]

PATH = Path(__file__).parents[1] / "vectors" / "frames.json"
VECTORS: dict[str, list[Case]] = json.loads(PATH.read_text())
STRUCTS = {kind: struct for struct, kind in KINDS.items()}


def _name(case: Case) -> str:
    return str(case.get("name") or case["rule"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _native(value: object) -> object:
    """JSON back to bytes, where it says so."""
    if isinstance(value, dict):
        fields = cast(dict[str, object], value)
        if set(fields) == {"hex"}:
            return bytes.fromhex(str(fields["hex"]))
        return {key: _native(item) for key, item in fields.items()}
    if isinstance(value, list):
        return [_native(item) for item in cast(list[object], value)]
    return value


def frame_of(case: Case) -> Frame:
    return Frame(
        Kind(case["kind"]),
        bytes.fromhex(case["body"]),
        case["incarnation"],
        case["seq"],
        bytes.fromhex(case["transfer"]),
        case["index"],
    )


def opened(case: Case, sealed: bytes | None = None) -> Frame:
    """A case's frame, opened from its own bytes or from other ones."""
    data = bytes.fromhex(case["sealed"]) if sealed is None else sealed
    return open_frame(data, case["topic"], _bytes(case["key"]))


def message_of(case: Case) -> Message | None:
    if "message" not in case:
        return None
    return msgspec.convert(_native(case["message"]), STRUCTS[Kind(case["kind"])])


@pytest.mark.parametrize("case", VECTORS["keys"])
def test_keys_follow_from_the_secret(case: Case) -> None:
    keys = DeviceKeys.of(bytes.fromhex(case["secret"]))
    assert (keys.up.hex(), keys.down.hex(), keys.password) == (
        case["up"],
        case["down"],
        case["password"],
    )


@pytest.mark.parametrize("case", VECTORS["topics"])
def test_topics_follow_from_the_id(case: Case) -> None:
    fleet, device = case["fleet"], case["device"]
    hint = topics.hint(fleet, topics.shard_of(device))
    found = topics.up(fleet, device), topics.down(fleet, device), hint
    assert found == (case["up"], case["down"], case["hint"])


@pytest.mark.parametrize("case", VECTORS["layouts"])
def test_layout_hash(case: Case) -> None:
    layout = Layout.of([(name, tuple(shape), Role(role)) for name, shape, role in case["tensors"]])
    assert layout.hash.hex() == case["hash"]
    assert hashlib.sha256(bytes.fromhex(case["packed"])).hexdigest() == case["hash"]
    assert msgspec.msgpack.decode(bytes.fromhex(case["packed"])) == [
        list(tensor) for tensor in case["tensors"]
    ]


@pytest.mark.parametrize("case", VECTORS["manifests"])
def test_manifest_of_a_blob_that_anyone_can_make(case: Case) -> None:
    blob = bytes((31 * i + (i >> 8)) & 255 for i in range(case["size"]))
    manifest = describe(blob, case["chunk_bytes"])
    assert manifest.sha256.hex() == case["sha256"]
    assert manifest.digests.hex() == case["digests"]
    assert msgspec.msgpack.encode(manifest).hex() == case["packed"]
    assert manifest.transfer.hex() == case["transfer"]
    assert msgspec.msgpack.decode(bytes.fromhex(case["packed"]), type=Manifest) == manifest


@pytest.mark.parametrize("case", VECTORS["refused_manifests"], ids=_name)
def test_refused_manifest(case: Case) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(bytes.fromhex(case["packed"]), type=Manifest)


@pytest.mark.parametrize("case", VECTORS["bitmaps"])
def test_bitmap(case: Case) -> None:
    assert to_bitmap(case["indices"], case["count"]).hex() == case["bitmap"]
    assert from_bitmap(bytes.fromhex(case["bitmap"]), case["count"]) == set(case["indices"])


@pytest.mark.parametrize("case", VECTORS["refused_bitmaps"], ids=_name)
def test_refused_bitmap(case: Case) -> None:
    with pytest.raises(FrameError, match="bitmap"):
        from_bitmap(bytes.fromhex(case["bitmap"]), case["count"])


@pytest.mark.parametrize("case", VECTORS["updates"] + VECTORS["updates_with_arrays"])
def test_update(case: Case) -> None:
    report = msgspec.convert(_native(case["report"]), Report)
    blob = bytes.fromhex(case["blob"])
    found, payload = decode_update(blob)
    assert (found, payload.hex()) == (report, case["payload"])
    arrays = {name: array.tobytes().hex() for name, array in decode_arrays(blob).items()}
    assert arrays == case.get("arrays", {})
    if not arrays:
        assert encode_update(report, bytes.fromhex(case["payload"])) == blob


@pytest.mark.parametrize("case", VECTORS["frames"], ids=_name)
def test_frame_is_sealed(case: Case) -> None:
    message = message_of(case)
    if message is not None:
        assert encode_body(message).hex() == case["body"]
    assert seal(frame_of(case), case["topic"], _bytes(case["key"])).hex() == case["sealed"]


@pytest.mark.parametrize("case", VECTORS["frames"] + VECTORS["readable"], ids=_name)
def test_frame_is_opened(case: Case) -> None:
    found = opened(case)
    assert found == frame_of(case)
    if found.kind is not Kind.CHUNK:
        assert decode_body(found.kind, found.body) == message_of(case)


@pytest.mark.parametrize("case", VECTORS["refused_frames"], ids=_name)
def test_refused_frame(case: Case) -> None:
    with pytest.raises(FrameError) as refusal:
        opened(case)
    assert isinstance(refusal.value, VersionError) == case["version"]


@pytest.mark.parametrize("case", VECTORS["refused_bodies"], ids=_name)
def test_refused_body(case: Case) -> None:
    with pytest.raises(FrameError, match=Kind(case["kind"]).name):
        decode_body(Kind(case["kind"]), bytes.fromhex(case["body"]))


def test_there_is_a_frame_of_every_kind() -> None:
    assert {case["kind"] for case in VECTORS["frames"]} == set(Kind)
    messages = [case for case in VECTORS["frames"] if "message" in case]
    assert {type(message_of(case)) for case in messages} == set(KINDS)


def test_refused_frames_fail_where_their_rule_is() -> None:
    """Only those that no length or limit gives away get as far as the MAC."""
    said: list[str] = []
    for case in VECTORS["refused_frames"]:
        with pytest.raises(FrameError) as refusal:
            opened(case)
        said.append(str(refusal.value).rstrip("0123456789"))
    assert sum("MAC" in text for text in said) == 5
    assert sum("unkeyed" in text for text in said) == 3
