"""What spec.json has of choices: what is fetched for an order, verdicts, versions, frames."""

import hashlib
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
from tests.vectors.make_rounds import LAYOUT, Events, MemoryBlobs, bundle, hexed

from sedge_cloud.ingest.judge import judge, order_context
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_edge.jobs.global_model import needed_blobs, with_held_steps
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.errors import CodecError, FrameError, UpdateRejected, VersionError
from sedge_protocol.layout import Layout
from sedge_protocol.wire import messages
from sedge_protocol.wire.frame import VERSIONS, Frame, Kind, seal
from sedge_protocol.wire.messages import Decline, Order
from sedge_protocol.wire.objective import ABSOLUTE_ERROR, ACCURACY
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.update import Metrics, Report, encode_update
from sedge_protocol.wire.work import Step

AWAITED = bytes(range(16))


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

    def with_array(value: float) -> bytes:
        told = msgspec.structs.replace(report, arrays={"a": 1})
        return encode_update(told, good, {"a": np.array([value], np.float32)})

    choice, returns = {"choice": {"holdout": 0.5}}, {"returns": {"a": 1}}
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
        ("shares of 0 and 1", said(before=Metrics(1.0, 0.0, 4), after=Metrics(1.0, 1.0, 4)), {}),
        ("a sparse share above 1", said(sparse=Metrics(1.0, 1.5, 4)), {}),
        ("a share above 1 and a choice without an offer of one",
         said(after=Metrics(1.0, 1.5, 4), patched=False), {}),
        ("the choice of a patch that is not there", said(patched=True), {"work": choice}),
        ("the choice of no patch, and a model that is not finite",
         encode_update(msgspec.structs.replace(
             report, patch_hash=hashlib.sha256(patch).digest(), patched=False), delta({4: 3e38})),
         {"patch": patch, "work": choice}),
        ("arrays as ordered", with_array(1.0), {"work": returns}),
        ("an array that is not finite", with_array(np.nan), {"work": returns}),
        ("an array that was not ordered", with_array(1.0), {}),
        ("an array that lacks", whole, {"work": returns}),
        ("no array, of an evaluation",
         encode_update(msgspec.structs.replace(report, task="evaluate"), b""),
         {"task": "evaluate", "work": returns}),
        ("a loss above the largest binary32", said(train_loss=1e39), {}),
        ("a loss that is the largest binary32", said(train_loss=float(np.finfo(np.float32).max)), {}),
        ("a report longer than the blob", (5000).to_bytes(4, "little") + whole[4:], {}),
        ("cut off in the report", whole[:40], {}),
        ("no report", b"\0\0\0\0", {}),
    ]  # fmt: skip
    found: Events = []
    for name, blob, changed in cases:
        asked: dict[str, Any] = {
            "patch": b"",
            "upload": True,
            "task": "train",
            "share": True,
            "work": {},
        }
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
    work = msgspec.msgpack.encode({"upload": asked["upload"], **asked["work"]})
    order = OrderRow(sound.run, sound.round, "pi-1", asked["patch"], work, b"")
    try:
        judge(order_context(run_store, cast(Run, run), cast(RoundRow, round_), order), blob)
    except UpdateRejected as exc:
        return exc.reason
    except CodecError:
        return "malformed"
    return ""


def agreements() -> Events:
    """3.4: what a device speaks at first, and after a WELCOME; null where no version is in common."""
    found: Events = []
    for mine, theirs in (
        ([1], [1]), ([1, 2], [1]), ([1, 2], [2, 1]), ([1, 3], [1, 2, 3]), ([2, 3], [1, 3, 4]),
        ([1], [2]), ([2], [1]), ([9, 2, 5], [5, 9]),
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
