"""What the vectors of frames.json are made of: one device, its blobs, every message, frames by hand."""

import hashlib
import hmac
import struct
from collections.abc import Iterator

import msgspec

from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import messages, topics
from sedge_protocol.wire.frame import FROZEN, VERSIONS, Kind
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Message
from sedge_protocol.wire.places import Place
from sedge_protocol.wire.settings import name_of
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe, to_bitmap
from sedge_protocol.wire.work import (
    Blend,
    Codec,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    Step,
    UpdateSelection,
    Work,
)

SECRET = bytes(range(32))
FLEET, DEVICE = "home", "pi-1"
KEYS = DeviceKeys.of(SECRET)
UP, DOWN = topics.up(FLEET, DEVICE), topics.down(FLEET, DEVICE)
NONCE = bytes(range(0xA0, 0xB0))
UPWARD = (Kind.HELLO, Kind.GOODBYE, Kind.OFFER, Kind.GET, Kind.DECLINE, Kind.JOIN)
BOOT = 1_700_000_000
GOODBYE = b"\x81\xa5nonce\xc4\x10" + NONCE


def blob(size: int) -> bytes:
    """Bytes that any language can make again."""
    return bytes((31 * i + (i >> 8)) & 255 for i in range(size))


UPDATE = describe(blob(10_000), 4096)
MODEL = describe(blob(200_000))
BUNDLE = describe(blob(70_000))
LAYOUT = Layout.of([
    ("conv.weight", (8, 3, 3, 3), Role.PARAMETER), ("norm.running_mean", (8,), Role.STATISTIC),
    ("head.weight", (10, 8), Role.PARAMETER), ("scale", (), Role.PARAMETER),
])  # fmt: skip


def digest(text: str) -> bytes:
    """A hash that stands for something."""
    return hashlib.sha256(text.encode()).digest()


def every_message() -> Iterator[tuple[Message, bytes]]:
    """Every message, with the transfer id of its frame."""
    hello = messages.Hello(
        NONCE,
        "0.1.0",
        ("onnxruntime",),
        ("zstd", "zlib", "none"),
        ("select", "int4"),
        600,
        100,
        970,
        (2,),
    )
    full = messages.Order(
        run="digits", round=3, task="train", bundle=BUNDLE, model=MODEL, model_hash=digest("model"),
        patch=b"a coded vector", patch_hash=digest("a coded vector"),
        seed=2**63 - 1,
        work=Work(
            keep=("head.weight", "head.bias"), training=Training(5, 0.05, 0.9, 0.1, "drop")
        ),
        codec=Codec(ValueCoding.INT8, 0.25, 1e-4, Compression.ZLIB, False),
        steps=(
            Step(digest("version 1"), describe(blob(3000))),
            Step(digest("version 2"), describe(blob(5000))),
        ),
        context=digest("mask"), policy=b"a sealed policy",
    )  # fmt: skip
    small = messages.Order(
        run="r", round=1, task="evaluate", bundle=BUNDLE, model=MODEL, model_hash=digest("model"),
        patch_blob=UPDATE, patch_hash=digest("patch"), work=Work(upload=False),
    )  # fmt: skip
    for message in (
        hello,
        messages.Hello(NONCE, "9.9"),
        messages.Welcome(NONCE, "0.1.0", VERSIONS),
        full,
        small,
        messages.Cancel("digits", 3, "the round is over"),
        messages.Cancel("digits", 0, "the run was stopped"),
        messages.Decline("digits", 3, "DataError", "no examples of class 7"),
        messages.Goodbye(NONCE),
        messages.Refusal("version", "frame of protocol version 1, this side speaks 2"),
        messages.Join(b"\4" + bytes(64), "pi-1", bytes(range(16)), "0.1.0"),
        messages.Joined(bytes(16), "accepted", "pi-1", bytes(range(16)), ("site=lab",)),
        messages.Joined(bytes(16), "accepted", "pi-1", certificate=b"\x30\x82"),
        messages.Joined(bytes(16), "refused", "pi-1", detail="the token was revoked"),
        messages.Renew(b"\4" + bytes(64)),
        messages.Committed("digits", 3, UPDATE.sha256),
        messages.Committed("digits", 3, UPDATE.sha256, True),
        messages.Reject("digits", 3, UPDATE.sha256, "stale", "round 3 closed too long ago"),
    ):
        yield message, bytes(16)
    inline = describe(b"small")
    yield messages.Offer("digits", 3, inline, 1, b"small"), inline.transfer
    for about_update in (
        messages.Offer("digits", 3, UPDATE, 2),
        messages.Have(2, to_bitmap({0, 2}, 3), 4),
        messages.Have(0, to_bitmap(set(), 3), 4),
        messages.Busy(30_000, "too many transfers"),
    ):
        yield about_update, UPDATE.transfer
    yield messages.Get("digits", 3, to_bitmap({0, 3}, 4)), MODEL.transfer


def later_messages() -> Iterator[
    messages.Hello | messages.Welcome | messages.Order | messages.Decline
]:
    """What only a device that has announced it is asked for."""
    features = ("freeze", "phases", "own_model", "select", "scoring", "remember")
    yield messages.Hello(NONCE, "0.1.0", codecs=features)
    plain = messages.Order(
        run="digits", round=4, task="train", bundle=BUNDLE, model=MODEL, model_hash=digest("model"),
    )  # fmt: skip
    head = Training(5, 0.05, freeze=("conv.weight", "scale"))
    body = Training(1, 0.05, prox=0.5, freeze=("head.weight",))
    for work in (
        Work(training=head, then=(body, Training())),
        Work(own_model=OwnModel(Training(2, 0.01, prox=0.75))),
        Work(own_model=OwnModel(mix=0.25, adaptive=True)),
        Work(select=UpdateSelection(), remember=True),
        Work(
            select=UpdateSelection(0.25, "delta", True, 1e-20, True),
            keep=("norm.running_mean",),
        ),
        Work(scoring=DeviceScoring(0.99993)),
        Work(scoring=DeviceScoring(0.5, "fisher", "layer", ("head.weight",))),
    ):
        yield msgspec.structs.replace(plain, work=work)
    patch = {
        "patch_blob": UPDATE,
        "patch_hash": digest("patch"),
        "patch_context": describe(b"mask"),
    }
    yield msgspec.structs.replace(plain, **patch)
    yield msgspec.structs.replace(plain, correction=describe(blob(9000)))
    yield messages.Decline("digits", 4, "ä" * 64)  # 64 code points, 128 bytes
    yield messages.Hello(NONCE, "0.2.0", codecs=(*features, "choice", "correction"))
    yield messages.Hello(NONCE, "0.2.0", waits="battery at 20 %, below 50")
    picks = {"patch": b"a coded vector", "patch_hash": digest("a coded vector")}
    for choice in (
        PatchChoice(0.125),
        PatchChoice(0.25, 2**63 - 1),
    ):
        yield msgspec.structs.replace(plain, **picks, work=Work(choice=choice))
    yield messages.Hello(NONCE, "0.3.0", codecs=("optimizer", "schedule"))
    yield messages.Hello(NONCE, "0.3.0", leaves=True)
    yield messages.Hello(NONCE, "0.3.0", certificate=bytes(range(16)))
    yield msgspec.structs.replace(plain, origin=digest("the first bundle"))
    settings = b'{"limits.megabytes_per_day": 500, "gates.mains": true}'
    for name in (b"", name_of(settings)):
        yield messages.Hello(NONCE, "0.3.0", settings=name)
    yield messages.Welcome(NONCE, "0.3.0", VERSIONS, settings=settings)
    moving = Training(5, 0.05, warmup_steps=10, end_factor=0.25)
    yield msgspec.structs.replace(plain, work=Work(training=moving))
    averaging = Training(5, 0.05, average=0.5)
    yield msgspec.structs.replace(plain, work=Work(training=averaging))
    asked = Work(
        settings={"layers": 2, "rate": 0.5, "mode": "top", "warm": True},
        arrays={"means": bytes(range(24)), "none": b""},
        returns={"means": 6, "counts": 10},
    )
    yield msgspec.structs.replace(plain, work=asked)
    yield messages.Hello(NONCE, "0.3.0", codecs=("settings", "arrays"))
    for blend in (Blend(0.0), Blend(0.75, "head.bias")):
        yield msgspec.structs.replace(plain, work=Work(blend=blend))
    places = (
        Place(MODEL.sha256, f"https://cdn.example/home/{MODEL.sha256.hex()}?token=1"),
        Place(digest("frozen data"), "http://192.0.2.1:8080/frozen"),
    )
    yield msgspec.structs.replace(plain, places=places)


def by_hand(
    body: bytes = GOODBYE,
    extra: bytes = b"",
    topic: str = UP,
    key: bytes = KEYS.up,
    **changes: object,
) -> bytes:
    """A frame from its parts, with a good MAC, true or not."""
    kind = changes.get("kind", Kind.GOODBYE)
    fields = {"magic": b"SG", "version": 1 if kind in FROZEN else 2, "kind": kind, "flags": 0}
    fields |= {"head_len": 64 + len(extra), "incarnation": BOOT, "seq": 1, "transfer": bytes(16)}
    fields |= {"index": 0, "body_len": len(body), "reserved": 0, **changes}
    head = struct.pack("<2sBBHHII16sIIQ", *fields.values())
    mac = hmac.digest(key, topic.encode() + head + extra + body, "sha256")[:16]
    return head + mac + extra + body
