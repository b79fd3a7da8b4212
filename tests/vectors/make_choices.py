"""What spec.json has of a choices: what is fetched for an order, verdicts, join texts, versions."""

import base64
import hashlib
import json
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.vectors.make_rounds import LAYOUT, Events, MemoryBlobs, bundle, hexed

from sedge_cloud.ingest.judge import judge, order_context
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_edge.jobs.global_model import needed_blobs, with_held_steps
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.errors import CodecError, FrameError, UpdateRejected, VersionError
from sedge_protocol.host.enrolment import Enrolment
from sedge_protocol.host.signing import verifiers
from sedge_protocol.layout import Layout
from sedge_protocol.wire import messages
from sedge_protocol.wire.frame import VERSIONS, Frame, Kind, seal
from sedge_protocol.wire.joining import (
    Agreement,
    certificate_key,
    fleet_key,
    key_name,
    private_key,
    public_key,
)
from sedge_protocol.wire.messages import Decline, Order
from sedge_protocol.wire.objective import ABSOLUTE_ERROR, ACCURACY
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.policy import key_id
from sedge_protocol.wire.signing_keys import replacement
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.update import Metrics, Report, encode_update
from sedge_protocol.wire.work import Step, Work

AWAITED = bytes(range(16))
# Of RFC 8032, section 7.1, test 3.
PUBLIC = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
# A certificate authority whose key is lost.
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUB64iB4U5hPaFAbvPUPGDVgW2gkQwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFc2VkZ2UwIBcNMjYxMTI0MTU0OTQ5WhgPMjEyNjEwMzExNTQ5
NDlaMBAxDjAMBgNVBAMMBXNlZGdlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
HKgIgxwrAVrc61je0lBGHr3jR48SCVNxM3UqhC1IcFgzkb+A8YxxlUDJUnhIvShF
Td9J/TynQ4XQWDnWN4BPUqNTMFEwHQYDVR0OBBYEFOgJhY+SGWw2jwUOrm+GQnqf
R879MB8GA1UdIwQYMBaAFOgJhY+SGWw2jwUOrm+GQnqfR879MA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgLy5m0U9+7TTYQmi9TQZO/26Um/9VP+kg
UqolH/nkxvMCIQDDEjFLs7iRasudWx6768ilCHzLJJrHcWCuAHWk8zLV8g==
-----END CERTIFICATE-----
"""


def needs() -> Events:
    """8.1 and 8.2: blobs and versions by name."""
    base: dict[str, Any] = {"steps": [["v1", "s1"], ["v2", "s2"]], "extra": []}
    every = ["patch_blob", "patch_context", "correction"]
    cases: list[tuple[str, dict[str, Any]]] = [
        ("nothing", {"holds": []}),
        ("the bundle", {"holds": ["bundle"]}),
        ("the version itself", {"holds": ["bundle", "v3"]}),
        ("the version and older ones", {"holds": ["v3", "v1"]}),
        ("an older version", {"holds": ["bundle", "v1"]}),
        ("several versions: the last", {"holds": ["bundle", "v1", "v2"]}),
        ("a version and one of the deltas", {"holds": ["bundle", "v1", "s1"]}),
        ("a version that no step begins at", {"holds": ["bundle", "v0"]}),
        ("the deltas without a version", {"holds": ["bundle", "s1", "s2"]}),
        ("the model's blob", {"holds": ["bundle", "model"]}),
        ("an order without steps", {"holds": ["bundle", "v1", "v2"], "steps": []}),
        ("patch, mask and correction", {"holds": ["bundle", "v3"], "extra": every}),
        ("some of them", {"holds": ["bundle", "patch_context"], "extra": every}),
        *((f"all but the {lacks}", {"holds": ["bundle", "v3", *(e for e in every if e != lacks)],
                                    "extra": every}) for lacks in every),
        ("a patch, and no other", {"holds": ["bundle", "v3"], "extra": ["patch_blob"]}),
        ("a correction, and no other", {"holds": ["bundle", "v3"], "extra": ["correction"]}),
        ("a patch that is held", {
            "holds": ["bundle", "v3", "patch_blob"], "extra": ["patch_blob", "correction"]}),
        ("a correction that is held", {
            "holds": ["bundle", "v3", "correction"], "extra": ["patch_blob", "correction"]}),
        ("a version and the later delta", {"holds": ["bundle", "v1", "s2"]}),
        ("everything but the model", {"holds": ["bundle", *every, "s1", "s2"], "extra": every}),
        ("a version as a chain", {
            "holds": ["bundle", "v0", "d0"], "version": "v1", "chain": [["v0", "d0"]]}),
        ("a longer chain that ends in the order's last step", {
            "holds": ["bundle", "v0", "d0", "d1"], "version": "v2", "chain": [["v0", "d0"], ["v1", "d1"]]}),
        ("a chain that ends in the order's model", {
            "holds": ["bundle", "v1", "s1", "s2"], "version": "v3", "chain": [["v1", "s1"], ["v2", "s2"]]}),
        ("a chain of which a delta is lost", {
            "holds": ["bundle", "v0"], "version": "v1", "chain": [["v0", "d0"]]}),
    ]  # fmt: skip
    found: Events = []
    for name, given in cases:
        case = {"version": None, "chain": [], **base, **given}
        found.append({"name": name, **case, "fetches": fetches(case)})
    return found


def fetches(case: dict[str, Any]) -> list[str]:
    """What the product fetches for an order, by name."""
    names = {hashlib.sha256(name.encode()).digest(): name for name in ("v0", "v1", "v2", "v3")}

    def blob(name: str) -> Manifest:
        names[describe(name.encode(), 4096).sha256] = name
        return describe(name.encode(), 4096)

    def steps(pairs: list[list[str]]) -> tuple[Step, ...]:
        return tuple(Step(blob(base).sha256, blob(delta)) for base, delta in pairs)

    patch, context, correction = (
        blob(key) if key in case["extra"] else None
        for key in ("patch_blob", "patch_context", "correction")
    )
    order = Order(
        run="line", round=3, task="train", bundle=blob("bundle"), model=blob("model"),
        model_hash=blob("v3").sha256, steps=steps(case["steps"]), patch_blob=patch,
        patch_context=context, correction=correction,
    )  # fmt: skip
    held = {hashlib.sha256(name.encode()).digest() for name in case["holds"]}
    if case["version"] is not None:
        base = blob(case["version"]).sha256
        order = with_held_steps(order, base, steps(case["chain"]), held.__contains__)
    needed = needed_blobs(order, held.__contains__)
    # Masks and patches that are held are none of the blobs on the disk.
    on_disk = held - {
        hashlib.sha256(name.encode()).digest() for name in ("patch_blob", "patch_context")
    }
    return [names[one.sha256] for one in needed if one.sha256 not in on_disk]


def verdicts() -> Events:
    """9.3: an order, an update, and the reason of its REJECT; empty where it is taken."""
    theta = np.array([1, 2, 3, 4, 3e38], np.float32)
    blobs = MemoryBlobs()
    model = blobs.write(encode(SparseVector(5, None, theta), ValueCoding.FP32, Compression.NONE))
    run_store = RunStore(cast(Store, SimpleNamespace(blobs=blobs)))
    report = Report(
        run="line", round=2, task="train", layout_hash=LAYOUT.hash,
        model_hash=hashlib.sha256(theta.tobytes()).digest(), num_examples=8,
        before=Metrics(2.0, 0.5, 4), after=Metrics(1.0, 1.0, 4), train_loss=1.5, steps=2, seconds=1.0,
    )  # fmt: skip

    def delta(values: dict[int, float], size: int = 5) -> bytes:
        where = np.array(list(values), np.uint32)
        vector = SparseVector(size, where, np.array(list(values.values()), np.float32))
        return encode(vector, ValueCoding.FP32, Compression.NONE)

    good = delta({0: 1.0})
    patch = delta({4: 1.0})

    def said(**fields: object) -> bytes:
        return encode_update(msgspec.structs.replace(report, **fields), good)

    whole = said()
    cases: list[tuple[str, bytes, dict[str, Any]]] = [
        ("sound", whole, {}),
        ("another run", said(run="lines"), {}),
        ("another round", said(round=1), {}),
        ("another task", said(task="evaluate"), {}),
        ("another layout", said(layout_hash=bytes(32)), {}),
        ("another model", said(model_hash=bytes(32)), {}),
        ("a patch that was not ordered", said(patch_hash=bytes(32)), {}),
        ("the patch that was ordered", said(patch_hash=hashlib.sha256(patch).digest()), {"patch": patch}),
        ("a patch that is not named", whole, {"patch": patch}),
        ("a choice without an offer of one", said(patched=False), {}),
        ("no examples", said(num_examples=0), {}),
        ("more examples than any device has", said(num_examples=2**40), {}),
        ("a share above 1", said(after=Metrics(1.0, 1.5, 4)), {}),
        ("a share below 0", said(before=Metrics(1.0, -0.5, 4)), {}),
        ("a metric above 1 that is no share", said(after=Metrics(1.0, 1.5, 4)), {"share": False}),
        ("another run and no examples", said(run="lines", num_examples=0), {}),
        ("no payload", encode_update(report, b""), {}),
        ("no payload, as ordered", encode_update(report, b""), {"upload": False}),
        ("a payload where none belongs", whole, {"upload": False}),
        ("an evaluation", encode_update(msgspec.structs.replace(report, task="evaluate"), b""),
         {"task": "evaluate"}),
        ("an evaluation with a payload", said(task="evaluate"), {"task": "evaluate"}),
        ("a byte behind the payload", whole + b"\0", {}),
        ("a payload of another n", encode_update(report, delta({0: 1.0}, 6)), {}),
        ("a model that is not finite", encode_update(report, delta({4: 3e38})), {}),
        ("finite, as the patch stands in the model's place",
         encode_update(msgspec.structs.replace(report, patch_hash=hashlib.sha256(patch).digest()),
                       delta({4: 3e38})), {"patch": patch}),
        ("a loss above the largest binary32", said(train_loss=1e39), {}),
        ("a loss that is the largest binary32", said(train_loss=float(np.finfo(np.float32).max)), {}),
        ("a report longer than the blob", (5000).to_bytes(4, "little") + whole[4:], {}),
        ("cut off in the report", whole[:40], {}),
        ("no report", b"\0\0\0\0", {}),
    ]  # fmt: skip
    found: Events = []
    for name, blob, changed in cases:
        asked: dict[str, Any] = {"patch": b"", "upload": True, "task": "train", "share": True}
        asked |= changed
        found.append({
            "name": name, "run": report.run, "round": report.round, "layout_hash": LAYOUT.hash.hex(),
            "model": hexed(theta), **asked, "patch": asked["patch"].hex(), "blob": blob.hex(),
            "verdict": verdict(report, asked, blob, run_store, model),
        })  # fmt: skip
    return found


def verdict(
    sound: Report, asked: dict[str, Any], blob: bytes, run_store: RunStore, model: bytes
) -> str:
    """What the coordinator says to an update for the order that a sound report names."""
    metric = ACCURACY if asked["share"] else ABSOLUTE_ERROR
    manifest = msgspec.structs.replace(bundle("a", 4, False).manifest, metric=metric)

    def layout(width: int) -> Layout:
        return LAYOUT

    run = SimpleNamespace(name=sound.run, manifest=manifest, layout=layout)
    round_ = SimpleNamespace(
        round=sound.round, task=asked["task"], model=model, model_hash=sound.model_hash
    )
    work = msgspec.msgpack.encode(Work(upload=asked["upload"]))
    order = OrderRow(sound.run, sound.round, "pi-1", asked["patch"], work, b"")
    try:
        judge(order_context(run_store, cast(Run, run), cast(RoundRow, round_), order), blob)
    except UpdateRejected as exc:
        return exc.reason
    except CodecError:
        return "malformed"
    return ""


def join_texts() -> Events:
    """E7: what a text says, or that it is refused."""
    said: dict[str, Any] = {
        "device": "phone-1", "fleet": "home", "url": "mqtt://192.168.1.10:1883",
        "secret": bytes(range(32)).hex(),
    }  # fmt: skip
    made = Enrolment(**said).join_text()

    def text(fields: dict[str, Any]) -> str:
        coded = base64.urlsafe_b64encode(json.dumps(fields, ensure_ascii=False).encode())
        return "sedge:" + coded.rstrip(b"=").decode()

    def without(key: str) -> dict[str, Any]:
        return {name: value for name, value in said.items() if name != key}

    more = {**said, "ca": AUTHORITY, "url": "mqtts://broker.example"}
    cases: list[tuple[str, str, dict[str, Any] | None]] = [
        ("as it is printed", made, said),
        ("white space around it", f" \n{made}\r\n", said),
        ("keys in another order, and one that is unknown",
         text({"later": "Ä?>~", **dict(reversed(said.items()))}), said),
        ("a certificate and TLS", text(more), more),
        ("keys to pin", text({**said, "trust": [PUBLIC, "ab" * 32]}),
         {**said, "trust": [PUBLIC, "ab" * 32]}),
        ("a key that is none", text({**said, "trust": [PUBLIC[:-2]]}), None),
        ("a key outside of a list", text({**said, "trust": PUBLIC}), None),
        ("no sedge: before it", made.removeprefix("sedge:"), None),
        ("cut off", made[:-9], None),
        ("no base64url", "sedge:" + "/" * 40, None),
        ("no object", "sedge:" + base64.urlsafe_b64encode(b"[]").decode().rstrip("="), None),
        *((f"no {key}", text(without(key)), None) for key in said),
        ("an id that is none", text({**said, "device": "Phone"}), None),
        ("an id that begins with -", text({**said, "device": "-a"}), None),
        ("a fleet of 49 characters", text({**said, "fleet": "x" * 49}), None),
        ("a url of another scheme", text({**said, "url": "http://broker"}), None),
        ("a secret of 31 bytes", text({**said, "secret": bytes(31).hex()}), None),
        ("a secret that is no hex", text({**said, "secret": "g" * 64}), None),
        ("a secret that is no text", text({**said, "secret": 5}), None),
    ]  # fmt: skip
    return [{"name": name, "text": one, "says": says} for name, one, says in cases]


def chains() -> Events:
    """P8: the keys that count after a chain of statements."""
    keys = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(4)]
    public = [key.public_key().public_bytes_raw() for key in keys]

    def says(old: int, new: int, signer: int | None = None) -> bytes:
        signature = keys[old if signer is None else signer].sign(replacement(public[new]))
        return key_id(public[old]) + signature + public[new]

    changed = says(0, 1)[:-1] + bytes([says(0, 1)[-1] ^ 1])
    cases: list[tuple[str, list[int], list[bytes]]] = [
        ("none", [0, 1], []),
        ("two replacements", [0], [says(0, 1), says(1, 2)]),
        ("in the wrong order", [0], [says(1, 2), says(0, 1)]),
        ("the first before the pinned key", [1], [says(0, 1), says(1, 2)]),
        ("one of two pinned keys by the other", [0, 1], [says(0, 1)]),
        ("two for one key: the first counts", [0], [says(0, 1), says(0, 2), says(1, 3)]),
        ("back to a key that was replaced", [0], [says(0, 1), says(1, 0)]),
        ("a key by itself", [0], [says(0, 0)]),
        ("by a foreign key", [0], [says(0, 1, signer=2)]),
        ("of another key than was signed", [0], [changed]),
    ]
    made: Events = []
    for name, pins, chain in cases:
        trust = verifiers(public[pin].hex() for pin in pins)
        counting = sorted(key.hex() for key in trust.after(trust.learned({}, chain)))
        made.append({
            "name": name, "pins": [public[pin].hex() for pin in pins],
            "chain": [one.hex() for one in chain], "count": counting,
        })  # fmt: skip
    return made


def joins() -> Events:
    """E9 and E10: what a device with this seed of its key sends, and gets.

    The last one renews its secret (E14): its id is in the place of a token. ``certificate`` is E18's key.
    """
    found: Events = []
    for number, (fleet, token, name) in enumerate(
        (
            ("home", "join-00a1", "pi-1"),
            ("f", "join-x", "phone"),
            ("home", "join-00a1", "a" * 48),
            ("home", "pi-1", "pi-1"),
        )
    ):
        seed, private = bytes([number]) * 32, fleet_key(bytes([255 - number]) * 32)
        own = private_key(seed)
        point, other = public_key(own), public_key(private)
        agreed = Agreement.of(own, other, point, fleet, token)
        found.append({
            "fleet": fleet, "token": token, "device": name, "private": f"{own:064x}",
            "coordinator": other.hex(), "point": point.hex(), "of": key_name(point).hex(),
            "secret": agreed.secret.hex(), "asks": agreed.asks(name).hex(),
            "answers": agreed.answers(name).hex(),
            "certificate": f"{certificate_key(agreed.secret):064x}",
        })  # fmt: skip
    return found


def agreements() -> Events:
    """3.4: what a device speaks at first, and after a WELCOME; null where no version is in common."""
    found: Events = []
    for mine, theirs in (
        ([1], [1]), ([1, 2], [1]), ([1, 2], [2, 1]), ([1, 3], [1, 2, 3]), ([2, 3], [1, 3, 4]),
        ([1], [2]), ([2], [1]), ([5, 2, 9], [9, 5]),
    ):  # fmt: skip
        peer = Peer("up", bytes(32), bytes(32), 1, 0, mine)
        first = spoken(peer)
        try:
            peer.agree(theirs)
            then: int | None = spoken(peer)
        except VersionError:
            then = None
        found.append({"device": mine, "coordinator": theirs, "first": first, "then": then})
    return found


def spoken(peer: Peer) -> int:
    """The version of a control frame that is not frozen."""
    return peer.seal(Decline("line", 1, "x"))[2]


def openings() -> Events:
    """3.6 and 3.8: what a device takes of its coordinator's frames, each with a good MAC."""
    cases: list[tuple[str, list[list[Any]]]] = [
        ("a bad body takes its place",
         [["CANCEL", 1, 5, "bad"], ["CANCEL", 1, 5, ""], ["CANCEL", 1, 6, ""]]),
        ("a bad body of a newer start empties the window",
         [["CANCEL", 1, 5, ""], ["CANCEL", 2, 1, "bad"], ["CANCEL", 1, 6, ""], ["CANCEL", 2, 2, ""]]),
        ("the awaited welcome of an older start",
         [["CANCEL", 9, 5, ""], ["WELCOME", 3, 2, "awaited"], ["CANCEL", 3, 3, ""], ["CANCEL", 9, 6, ""],
          ["CANCEL", 3, 4, ""]]),
        ("it takes its place", [["CANCEL", 9, 5, ""], ["WELCOME", 3, 2, "awaited"], ["CANCEL", 3, 2, ""]]),
        ("another welcome of an older start", [["CANCEL", 9, 5, ""], ["WELCOME", 3, 2, ""]]),
        ("no other frame of an older start is proof", [["CANCEL", 9, 5, ""], ["CANCEL", 3, 2, "awaited"]]),
        ("the second of a connection is none",
         [["CANCEL", 9, 5, ""], ["WELCOME", 9, 6, "awaited"], ["WELCOME", 3, 2, "awaited"]]),
        ("nor is a second older one",
         [["CANCEL", 9, 5, ""], ["WELCOME", 3, 2, "awaited"], ["WELCOME", 2, 1, "awaited"]]),
        ("of this start the replay rule holds",
         [["WELCOME", 9, 5, ""], ["WELCOME", 9, 5, "awaited"], ["WELCOME", 9, 6, "awaited"]]),
        ("a chunk and a goodbye take no place",
         [["CANCEL", 9, 5, ""], ["CHUNK", 10, 0, ""], ["CHUNK", 3, 0, ""], ["GOODBYE", 10, 6, ""],
          ["GOODBYE", 9, 5, ""], ["CANCEL", 9, 6, ""]]),
        ("a newer start needs no proof",
         [["CANCEL", 9, 5, ""], ["WELCOME", 10, 1, ""], ["CANCEL", 9, 6, ""]]),
    ]  # fmt: skip
    found: Events = []
    for name, frames in cases:
        device = Peer("up", bytes(32), bytes(32), 1, 0)
        device.awaited = AWAITED
        taken = [takes(device, *frame) for frame in frames]
        found.append({"name": name, "frames": frames, "taken": taken})
    return found


def takes(device: Peer, kind: str, incarnation: int, seq: int, about: str) -> bool:
    """Whether a device takes a frame; the awaited welcome ends the waiting."""
    nonce = AWAITED if about == "awaited" else bytes(16)
    message: messages.Message = messages.Cancel("line", 1, "")
    if kind != "CANCEL":
        welcome = kind == "WELCOME"
        message = messages.Welcome(nonce, "x", VERSIONS) if welcome else messages.Goodbye(nonce)
    body = b"" if about == "bad" else messages.encode_body(message)
    sealed = seal(Frame(Kind[kind], body, incarnation, seq), "down", bytes(32))
    try:
        taken = device.open(sealed, "down") is not None
    except FrameError:
        return False
    if taken and kind == "WELCOME" and about == "awaited":
        device.awaited = None
    return taken
