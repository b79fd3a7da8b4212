"""Writes frames.json: keys, layouts, manifests, bitmaps, updates and one frame of every kind.

    python -m tests.vectors.make_frames

What must be refused is put together by hand from WIRE.md, one case for each rule.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from tests.vectors.frame_samples import (
    BOOT,
    BUNDLE,
    DOWN,
    FLEET,
    GOODBYE,
    KEYS,
    LAYOUT,
    MODEL,
    NONCE,
    SECRET,
    UP,
    UPDATE,
    UPWARD,
    blob,
    by_hand,
    digest,
    every_message,
    later_messages,
)

from sedge_protocol.wire import messages, topics
from sedge_protocol.wire.frame import Frame, Kind, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import KINDS, Message, encode_body
from sedge_protocol.wire.transfer import Manifest, describe, to_bitmap
from sedge_protocol.wire.update import Metrics, Report, encode_update

PATH = Path(__file__).with_name("frames.json")
Json: TypeAlias = dict[str, object]

ABOUT = (
    "Vectors of WIRE.md for an implementation in any language. Bytes are hex; inside a message or "
    'report, where they stand beside text, they are {"hex": ...}. A field that is missing has its '
    "default. keys: what follows from a device's secret. topics: 1.1, 1.10. "
    "layouts: `packed` is the MessagePack that "
    "`hash` is the SHA-256 of. manifests: byte i of the blob is (31 * i + (i >> 8)) & 255; `packed` "
    "is the MessagePack that the transfer id is cut from. bitmaps: `indices` are the set bits of "
    "`count`. updates: `blob` holds report and payload, to be read, not made. frames: `sealed` is "
    "the whole frame under `key` on `topic` and must come out of `body` again, byte for byte; "
    "a body may spell out what is a default. readable: "
    "frames to be read, not made. refused_*: each breaks `rule`; refused_frames with `version` true "
    "are answered with REFUSED. Written by make_frames.py."
)


def plain(value: object) -> object:
    """A value as JSON can hold it, bytes as {"hex": ...}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def fields_of(struct_: msgspec.Struct) -> object:
    """A message's fields as JSON can hold them."""
    return plain(msgspec.to_builtins(struct_, builtin_types=(bytes,)))


def frame_entry(name: str, topic: str, key: bytes | None, frame: Frame, sealed: bytes) -> Json:
    """A frame and its bytes, as an implementation in any language reads them."""
    return {
        "name": name, "kind": int(frame.kind), "topic": topic, "key": key.hex() if key else None,
        "incarnation": frame.incarnation, "seq": frame.seq, "transfer": frame.transfer.hex(),
        "index": frame.index, "body": frame.body.hex(), "sealed": sealed.hex(),
    }  # fmt: skip


def _frames() -> Iterator[Json]:
    every = (*every_message(), *((message, bytes(16)) for message in later_messages()))
    for seq, (message, transfer) in enumerate(every, start=1):
        kind = KINDS[type(message)]
        topic, key = (UP, KEYS.up) if kind in UPWARD else (DOWN, KEYS.down)
        frame = Frame(kind, encode_body(message), BOOT, seq, transfer)
        entry = frame_entry(kind.name, topic, key, frame, seal(frame, topic, key))
        yield {**entry, "message": fields_of(message)}
    offset, length = UPDATE.span(2)
    last = Frame(Kind.CHUNK, blob(10_000)[offset : offset + length], BOOT, 0, UPDATE.transfer, 2)
    yield frame_entry("CHUNK of an update", UP, KEYS.up, last, seal(last, UP, KEYS.up))
    shared = topics.blob(FLEET, describe(b"shared", 4096).transfer)
    chunk = Frame(Kind.CHUNK, b"shared", BOOT, 0, describe(b"shared", 4096).transfer, 0)
    yield frame_entry("CHUNK on a blob topic", shared, None, chunk, seal(chunk, shared, None))


def _readable() -> Iterator[Json]:
    more = b"\x82" + GOODBYE[1:] + b"\xa5later\x93\x01\x02\xc0"
    # A map with a key that is no text, text that is not UTF-8, an ext type.
    anything = b"\x82" + GOODBYE[1:] + b"\xa5later\x93\x81\x01\x02\xa1\xff\xd4\x05\x00"
    for name, body, sealed in (
        ("a header of 72 bytes", GOODBYE, by_hand(extra=b"appended")),
        ("reserved bytes that mean something later", GOODBYE, by_hand(reserved=2**63)),
        ("flags that mean something later", GOODBYE, by_hand(flags=0x8000)),
        ("UNKEYED beside a MAC", GOODBYE, by_hand(flags=1)),
        ("a key that is unknown", more, by_hand(more)),
        ("an unknown key with a value of any kind", anything, by_hand(anything)),
    ):
        entry = frame_entry(name, UP, KEYS.up, Frame(Kind.GOODBYE, body, BOOT, 1), sealed)
        yield {**entry, "message": fields_of(messages.Goodbye(NONCE))}
    order = next(one for one, _ in every_message() if isinstance(one, messages.Order))
    numbers = {"local_epochs": 2, "learning_rate": 1, "momentum": 0, "prox": 3}
    fields = msgspec.to_builtins(order, builtin_types=(bytes,))
    fields |= {"work": {"training": numbers}, "codec": {"fraction": 1, "threshold": 2}}
    body = msgspec.msgpack.encode(fields)
    sealed = by_hand(body, topic=DOWN, key=KEYS.down, kind=Kind.ORDER)
    frame = Frame(Kind.ORDER, body, BOOT, 1)
    entry = frame_entry("integers where numbers are wanted", DOWN, KEYS.down, frame, sealed)
    yield {**entry, "message": fields_of(msgspec.convert(fields, messages.Order))}


def _refused_frames() -> Iterator[Json]:
    good = by_hand()
    cases: list[tuple[str, bytes]] = [
        ("no bytes", b""),
        ("a header cut off", good[:63]),
        ("another magic", by_hand(magic=b"SH")),
        ("version 2", by_hand(version=2)),
        ("version 0", by_hand(version=0)),
        ("version 1 of a kind that is not frozen", by_hand(kind=Kind.OFFER, version=1)),
        ("head_len below 64", by_hand(head_len=63)),
        ("head_len past the end", by_hand(head_len=2000)),
        ("a body shorter than body_len", good[:-1]),
        ("a body longer than body_len", good + b"\x00"),
        ("body_len over the limit", by_hand(body_len=2**18 + 1)),
        ("head_len below 64, the sum right", by_hand(head_len=60, body_len=len(GOODBYE) + 4)),
        ("a MAC over less than body_len", by_hand(GOODBYE[:-1], body_len=len(GOODBYE))),
        ("a MAC over more than body_len", by_hand(GOODBYE + b"\x00", body_len=len(GOODBYE))),
        ("a flipped bit", good[:-1] + bytes([good[-1] ^ 1])),
        ("the MAC of another topic", by_hand(topic=topics.up(FLEET, "pi-2"))),
        ("the MAC of the other direction", by_hand(key=KEYS.down)),
        ("kind 0", by_hand(kind=0)),
        ("kind 18", by_hand(kind=18)),
        ("UNKEYED on a device's topic", by_hand(flags=1)[:48] + bytes(16) + good[64:]),
        (
            "an UNKEYED chunk on a device's topic",
            by_hand(flags=1, kind=Kind.CHUNK)[:48] + bytes(16) + good[64:],
        ),
    ]
    on_blob = topics.blob(FLEET, bytes(16))
    on_blob_topic: list[tuple[str, bytes]] = [
        ("a control frame on a blob topic", by_hand(topic=on_blob)),
        ("an UNKEYED control frame on a blob topic", by_hand(topic=on_blob, flags=1)),
        ("a keyed chunk on a blob topic", by_hand(topic=on_blob, kind=Kind.CHUNK)),
    ]
    for topic, key, found in ((UP, KEYS.up.hex(), cases), (on_blob, None, on_blob_topic)):
        for rule, sealed in found:
            entry = {"rule": rule, "topic": topic, "key": key, "sealed": sealed.hex()}
            yield {**entry, "version": rule.startswith("version")}


NAN, INFINITY = float("nan"), float("inf")
BROKEN_FIELDS: dict[type[Message], list[tuple[str, object]]] = {
    messages.Hello: [
        ("nonce", bytes(15)), ("version", "x" * 65), ("backends", ["x"] * 17),
        ("codecs", ["x"] * 33),
        ("num_train", -1), ("num_test", 2**40 + 1), ("memory_mb", "many"),
        ("settings", bytes(9)),
    ],
    messages.Order: [
        ("run", "Digits"), ("run", "digits\n"), ("run", ""), ("round", 0), ("task", "predict"),
        ("model_hash", bytes(31)), ("seed", 2**63), ("codec", {"fraction": 0.0}),
        ("codec", {"fraction": NAN}), ("codec", {"values": "fp64"}),
        ("codec", {"threshold": -1.0}), ("codec", {"threshold": NAN}),
        ("steps", [{"base_hash": bytes(32)}]), ("context", bytes(33)), ("correction", {}),
        ("work", None), *(("work", {key: value}) for key, value in [
            ("keep", ["x" * 257]), ("training", {"learning_rate": NAN}),
            ("training", {"learning_rate": INFINITY}), ("training", {"learning_rate": 0.0}),
            ("training", {"momentum": 1.0}), ("training", {"momentum": NAN}),
            ("training", {"prox": -0.1}), ("training", {"prox": NAN}),
            ("training", {"local_epochs": 0}), ("training", {"last_batch": "keep"}),
            ("training", {"freeze": ["x" * 257]}), ("then", [{}] * 9), ("then", [{"prox": -0.1}]),
            ("own_model", {"mix": 1.5}), ("own_model", {"mix": NAN}), ("own_model", {"training": None}),
            ("select", {"fraction": 0.0}), ("select", {"gradient": "first"}),
            ("select", {"cutoff": INFINITY}), ("scoring", {}), ("scoring", {"quantile": NAN}),
            ("scoring", {"quantile": 0.5, "score": "best"}),
            ("scoring", {"quantile": 0.5, "norm": "rank"}),
            ("remember", 1), ("choice", {}), ("choice", {"holdout": 0.0}), ("choice", {"holdout": 1.0}),
            ("choice", {"holdout": NAN}), ("choice", {"holdout": 0.5, "seed": -1}),
            ("choice", {"holdout": 0.5, "seed": 0.5}),
        ]),
    ],
    messages.Cancel: [("round", -1), ("reason", "x" * 1001)],
    messages.Welcome: [("nonce", bytes(17)), ("version", "x" * 65), ("versions", []),
        ("settings", bytes(2049)),
    ],
    messages.Decline: [("run", "-digits"), ("reason", None)],
    messages.Reject: [("sha256", bytes(33)), ("detail", "x" * 1001)],
    messages.Refusal: [("reason", "x" * 65), ("detail", 1)],
    messages.Join: [("point", bytes(64)), ("proof", bytes(15)), ("device", "Pi")],
    messages.Renew: [("point", bytes(66))],
    messages.Joined: [("of", bytes(15)), ("state", "joined"), ("tags", ["x"] * 33)],
    messages.Goodbye: [("nonce", None)],
    messages.Offer: [("manifest", {})],
    messages.Have: [("bitmap", bytes(513)), ("credit", 0), ("credit", 65), ("credit", True)],
    messages.Committed: [("late", 1)],
    messages.Busy: [("retry_ms", -1)],
    messages.Get: [("round", 0)],
}  # fmt: skip


def _refused_bodies() -> Iterator[Json]:
    """Bodies that are sound but for one value."""
    sound = {type(message): message for message, _ in every_message()}
    broken = [(s, *change) for s, changes in BROKEN_FIELDS.items() for change in changes]
    for struct_, field, value in broken:
        fields = msgspec.to_builtins(sound[struct_], builtin_types=(bytes,))
        shown = "..." if isinstance(value, str | bytes | list) and len(value) > 40 else repr(value)
        rule = f"{KINDS[struct_].name} with {field} = {shown}"
        body = msgspec.msgpack.encode({**fields, field: value})
        yield {"rule": rule, "kind": int(KINDS[struct_]), "body": body.hex()}
    for rule, body in (
        ("no bytes", b""),
        ("no map", b"\xc0"),
        ("a required key that is missing", b"\x80"),
        ("a byte after the map", GOODBYE + b"\x00"),
        ("a length that is not there", b"\x82" + GOODBYE[1:] + b"\xa1z\xc6\xff\xff\xff\xff"),
    ):
        yield {"rule": rule, "kind": int(Kind.GOODBYE), "body": body.hex()}
    hello = b"\x82" + GOODBYE[1:] + b"\xa7version\xa2\xff\xfe"
    yield {"rule": "text that is not UTF-8", "kind": int(Kind.HELLO), "body": hello.hex()}


def _manifest(manifest: Manifest) -> Json:
    packed = msgspec.msgpack.encode(manifest)
    return {
        "size": manifest.size, "chunk_bytes": manifest.chunk_bytes,
        "sha256": manifest.sha256.hex(), "digests": manifest.digests.hex(),
        "packed": packed.hex(), "transfer": manifest.transfer.hex(),
    }  # fmt: skip


def _refused_manifests() -> Iterator[Json]:
    good = msgspec.to_builtins(UPDATE, builtin_types=(bytes,))
    changes: dict[str, Json] = {
        "size 0": {"size": 0, "digests": b""},
        "chunk_bytes not a power of two": {"chunk_bytes": 5000, "digests": bytes(32)},
        "chunk_bytes below 4096": {"chunk_bytes": 2048, "digests": bytes(80)},
        "chunk_bytes above 262144": {"chunk_bytes": 2**19, "digests": bytes(16)},
        "a digest too few": {"digests": bytes(32)},
        "a digest too many": {"digests": bytes(64)},
        "half a digest": {"digests": bytes(40)},
        "a short sha256": {"sha256": bytes(31)},
    }
    for rule, change in changes.items():
        yield {"rule": rule, "packed": msgspec.msgpack.encode({**good, **change}).hex()}


def _bitmaps() -> Iterator[Json]:
    for count, indices in ((1, [0]), (3, [0, 2]), (8, []), (9, [8]), (4096, [0, 4095])):
        yield {"count": count, "indices": indices, "bitmap": to_bitmap(indices, count).hex()}


def _refused_bitmaps() -> Iterator[Json]:
    rules = {"too short": (9, "ff"), "too long": (8, "ff00"), "empty": (1, "")}
    for rule, (count, bitmap) in {**rules, "a bit past the end": (9, "0002")}.items():
        yield {"rule": rule, "count": count, "bitmap": bitmap}


def _updates() -> Iterator[Json]:
    report = Report(
        run="digits", round=3, task="train", layout_hash=LAYOUT.hash, model_hash=digest("model"),
        patch_hash=digest("patch"), num_examples=600, before=Metrics(2.3, 0.1, 100),
        after=Metrics(0.25, 0.9375, 100), train_loss=0.5, steps=95, seconds=12.5,
    )  # fmt: skip
    bare = msgspec.structs.replace(report, task="evaluate", patch_hash=b"")
    more = msgspec.structs.replace(report, mix=0.25, sparse=Metrics(0.5, 0.875, 100))
    picked = msgspec.structs.replace(report, patched=True, http_bytes=2**40)
    for one, payload in (
        (report, b"a coded vector"), (bare, b""), (more, b"a coded vector"),
        (picked, b"a coded vector"),
    ):  # fmt: skip
        coded = encode_update(one, payload).hex()
        yield {"report": fields_of(one), "payload": payload.hex(), "blob": coded}


def _array_updates() -> Iterator[Json]:
    report = Report(
        run="digits", round=3, task="train", layout_hash=LAYOUT.hash, model_hash=digest("model"),
        num_examples=6, before=Metrics(2, 0, 1), after=Metrics(1, 1, 1), train_loss=1, steps=1,
        seconds=1, arrays={"means": 3, "count": 1},
    )  # fmt: skip
    arrays = {"means": np.array([1, -0.5, 2**-149], "<f4"), "count": np.ones(1, "<f4")}
    for payload in (b"a coded vector", b""):
        yield {
            "report": fields_of(report), "payload": payload.hex(),
            "arrays": {name: array.tobytes().hex() for name, array in arrays.items()},
            "blob": encode_update(report, payload, arrays).hex(),
        }  # fmt: skip


def _topics() -> Iterator[Json]:
    for device in ("pi-1", "pi-2", "a", "d" * 48):
        shard = topics.shard_of(device)
        yield {
            "fleet": FLEET, "device": device, "up": topics.up(FLEET, device),
            "down": topics.down(FLEET, device), "hint": topics.hint(FLEET, shard),
        }  # fmt: skip


def _layout() -> Json:
    rows = [(t.name, t.shape, t.role.value) for t in LAYOUT.tensors]
    packed = msgspec.msgpack.encode(rows)
    return {"tensors": rows, "packed": packed.hex(), "hash": LAYOUT.hash.hex()}


def _keys() -> Iterator[Json]:
    for secret in (SECRET, bytes(32), hashlib.sha256(b"another device").digest()):
        keys = DeviceKeys.of(secret)
        yield {
            "secret": secret.hex(), "up": keys.up.hex(), "down": keys.down.hex(),
            "password": keys.password,
        }  # fmt: skip


def main() -> None:
    """Write the file, one case a line."""
    groups: dict[str, list[Json]] = {
        "keys": list(_keys()),
        "topics": list(_topics()),
        "layouts": [_layout()],
        "manifests": [_manifest(m) for m in (UPDATE, BUNDLE, MODEL, describe(blob(1)))],
        "refused_manifests": list(_refused_manifests()),
        "bitmaps": list(_bitmaps()),
        "refused_bitmaps": list(_refused_bitmaps()),
        "updates": list(_updates()),
        "updates_with_arrays": list(_array_updates()),
        "frames": list(_frames()),
        "readable": list(_readable()),
        "refused_frames": list(_refused_frames()),
        "refused_bodies": list(_refused_bodies()),
    }
    lines = [f'{{\n"about": {json.dumps(ABOUT)}']
    for key, cases in groups.items():
        rows = ",\n".join(json.dumps(case) for case in cases)
        lines.append(f'"{key}": [\n{rows}\n]')
    PATH.write_text(",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
