"""Writes spec.json: what a client must do, beyond bytes, as cases that any language can play.

``make spec`` writes the tables of the pages, not these cases.

python -m tests.vectors.make_spec
"""

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from tests.protocol.wire.test_program import REFUSED, model
from tests.vectors import make_choices as choices
from tests.vectors import make_rounds as rounds
from tests.vectors.make_extensions import extended_rounds

from sedge_edge.training.batches import batches, permutations
from sedge_edge.training.selection import select_elements
from sedge_protocol.codec import Compression, ValueCoding, decode, encode
from sedge_protocol.wire.frame import Frame, Kind, ReplayWindow
from sedge_protocol.wire.protobuf import field
from sedge_protocol.wire.reconnect import Ended, Reconnect
from sedge_protocol.wire.training import LastBatch, Training
from sedge_protocol.wire.transfer import SILENCE_S, Fetch, Upload, describe, from_bitmap, to_bitmap
from sedge_protocol.wire.work import Codec

ABOUT = (
    "Cases of protocol/WIRE.md and its pages. Bytes are hex, floats are binary32 as 8 hex digits of "
    "their little-endian bytes, one after the other. shuffles: T6, the epochs' permutations. batches: "
    "T4, each as epoch, rows and w. rates: X18. error_feedback: T9 to T11, round after round: change is "
    "trained - start, coded the coded vector, owed what is kept after it. replay: 3.6, the verdicts on "
    "control frames (incarnation, seq) in turn. uploads and downloads: sections 7 and 8, an event and "
    "what is sent at once after it; timer means that time is up, whatever it was; woken comes 2 s, woken "
    "soon 0.5 s after the event before it. bundles: B1 to B6, "
    "X14, blobs to accept or refuse. programs: B13, B15, B16, ONNX models to take or to refuse. versions: "
    "5.14, a base, a step and the model that they make. backoffs: 7.2, the longest wait after each "
    "offer, with `new` where something new is held between two. waits: 1.9, connections that end at a "
    "time, how, and the longest wait after each, for WELCOMEs with these devices. patience: 8.3, chunks "
    "arrive so many seconds after the first GET; the patience after each but the first. rounds: T1 to "
    "T11 over T13's line, order after order of one run; declined is the reason, owed null where none is "
    "kept (zeros are the same), before and after are loss, metric and number of examples. "
    "extended_rounds: the same with work as an ORDER has it, the last mask that the device has sent as "
    "context, and its correction, decoded; then the report's mix and sparse, what X10 keeps, what it "
    "predicts with and a mixture's own part. needs: 8.1 and 8.2, what is fetched for an order whose "
    "steps are pairs of base and delta and whose model is v3; holds are blobs and versions on the disk; "
    "version is one that is held as a chain, the pairs of base and delta that lead to it, and null where "
    "each that is held lies in values. verdicts: 9.3, the reason of the REJECT, empty "
    "where the update is taken; model is the order's. join_texts: E7, null is refused. "
    "chains: P8, count are the ids of the keys that count after a chain. joins: E9, E10, E14, E18, "
    "numbers and bytes in hex. agreements: 3.4, "
    "the version of a control frame before the WELCOME and after it, null where none is in common. "
    "openings: 3.6 and 3.8, frames as kind, incarnation, seq and what of them: a bad body, or the nonce "
    "that the device awaits. noises: T12. further_seeds: T6. halvings: 7.5, on each connection nothing is "
    "sent (offered), a chunk is sent, one arrives, or an OFFER after it is answered without it (lost); "
    "chunk_bytes, 16384 at first, of an update of so many bytes on the next one. Seeds may be above 2^53."
)
Events = list[dict[str, Any]]


def shuffles() -> Events:
    return [
        {
            "seed": seed,
            "examples": count,
            "epochs": [p.tolist() for p in permutations(seed, count, 3)],
        }
        for seed, count in ((0, 1), (0, 5), (1, 10), (2**32, 7), (2**63 - 1, 40), (20457030, 300))
    ]


def batch_cases() -> Events:
    cases: list[tuple[int, int, LastBatch, bool]] = [
        (8, 4, "pad", True), (7, 4, "pad", True), (7, 4, "pad", False), (7, 4, "fill", True),
        (7, 4, "drop", True), (3, 4, "drop", True), (2, 5, "fill", True), (1, 3, "pad", True),
    ]  # fmt: skip
    found: Events = []
    for count, size, last, safe in cases:
        made = batches(count, size, 2, last, 5, safe)
        rows = [[b.epoch, b.indices.tolist(), b.weights.tolist()] for b in made]
        found.append({
            "seed": 5, "examples": count, "batch_size": size, "last_batch": last,
            "uses_batch_statistics": not safe, "batches": rows,
        })  # fmt: skip
    return found


def rates() -> Events:
    return [
        {
            "learning_rate": 0.1, "warmup_steps": warmup, "end_factor": end, "steps": steps,
            "rates": [Training(learning_rate=0.1, warmup_steps=warmup, end_factor=end).rate(t, steps)
                      for t in range(steps)],
        }
        for warmup, end, steps in ((0, 1.0, 2), (4, 1.0, 6), (0, 0.0, 5), (3, 0.25, 8), (9, 2.0, 4))
    ]  # fmt: skip


# With g = 4 five of the six largest are midway between two multiples.
TIES = np.array([6, -6, 2, -2, 2, 1, *[0.5] * 6], np.float32)


def feedback() -> Events:
    rng = np.random.default_rng(1)
    found: Events = []
    for values, fraction, threshold, ties in (
        (ValueCoding.FP32, 0.25, 0.0, False), (ValueCoding.BF16, 1.0, 0.0, False),
        (ValueCoding.INT8, 0.5, 0.0, False), (ValueCoding.FP16, 0.5, 0.02, False),
        (ValueCoding.FP32, 1.0, 0.0, False), (ValueCoding.FP32, 0.01, 0.0, False),
        (ValueCoding.BF16, 0.5, 0.0, False), (ValueCoding.BF16, 0.01, 0.0, False),
        (ValueCoding.BF16, 0.5, 0.0, True),
    ):  # fmt: skip
        codec = Codec(
            values=values, fraction=fraction, threshold=threshold, compression=Compression.NONE
        )
        owed, played = np.zeros(12, np.float32), Events()
        for _ in range(3):
            change = np.round(rng.normal(0, 0.05, 12), 3).astype(np.float32)
            change[3] = change[7]  # of equal magnitudes the lowest index first
            if threshold:  # rounded to binary32 it is in
                change[5] = threshold
            if ties:
                change = TIES
            delta = change + owed
            chosen = select_elements(delta, codec)
            coded = encode(chosen, values, Compression.NONE)
            owed = delta - decode(coded, 12).dense()
            played.append(
                {"change": rounds.hexed(change), "coded": coded.hex(), "owed": rounds.hexed(owed)}
            )
        found.append({
            "values": values, "fraction": fraction, "threshold": threshold, "size": 12, "rounds": played,
        })  # fmt: skip
    return found


def replays() -> Events:
    cases = {
        "in order": [(1, 1), (1, 2), (1, 3)],
        "twice": [(1, 1), (1, 1), (1, 2), (1, 1)],
        "reordered within 64": [(1, 70), (1, 7), (1, 8), (1, 7)],
        "64 below is dropped": [(1, 100), (1, 36), (1, 37)],
        "an older start": [(5, 3), (4, 9), (5, 4)],
        "a newer start begins anew": [(1, 50), (2, 1), (2, 50), (1, 51)],
        "a leap": [(1, 1), (1, 1000), (1, 1), (1, 937), (1, 936)],
        "zero is a number like others": [(1, 0), (1, 0)],
    }
    found: Events = []
    for name, frames in cases.items():
        window = ReplayWindow()
        verdicts = [window.accept(Frame(Kind.WELCOME, b"", start, seq)) for start, seq in frames]
        found.append({"name": name, "frames": frames, "accepted": verdicts})
    return found


# How long after the event before it a device is woken.
WOKEN_AFTER_S = {"woken": SILENCE_S, "woken soon": 0.5}


class Sender:
    """Plays an upload and writes down what it sends."""

    def __init__(self, chunks: int) -> None:
        self.blob = bytes(4096 * (chunks - 1) + 10)
        self.upload = Upload(describe(self.blob, 4096), np.random.default_rng(0))
        self.now, self.events = 0.0, Events()

    def play(self, event: str, **given: Any) -> None:
        upload, number = self.upload, self.upload.number
        if event == "connected":
            upload.connected(self.now)
        elif event == "disconnected":
            upload.disconnected()
        elif event == "have":
            held = to_bitmap(given["held"], upload.manifest.count)
            upload.receive(given["number"], held, given["credit"], self.now)
        elif event == "busy":
            upload.busy(5.0, self.now)
        elif event in WOKEN_AFTER_S:
            self.now += WOKEN_AFTER_S[event]
            upload.woken(self.now)
        else:  # the timer
            self.now = upload.timer() or self.now
        sent: list[object] = []
        for what in upload.poll(self.now):
            sent.append({"offer": upload.number, "data": upload.inline} if what is None else what)
        assert number <= upload.number
        self.events.append({"event": event, **given, "sends": sent})


def uploads() -> Events:
    found: Events = []
    for name, chunks, script in (
        ("a small blob travels in its first offer", 1, [("connected", {}), ("timer", {}), ("timer", {})]),
        ("four at once, lowest first", 7, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1, 2, 3], "credit": 4}),
        ]),
        ("what was sent before something that arrived is lost", 6, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [1, 3], "credit": 4}),
        ]),
        ("a chunk that was sent again is behind those that were sent before", 8, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [1], "credit": 4}),
            ("have", {"number": 0, "held": [1, 2], "credit": 4}),
        ]),
        ("silence: another offer, then what it does not have", 5, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 2}), ("timer", {}),
            ("have", {"number": 2, "held": [0], "credit": 2}),
        ]),
        ("an answer to an older offer adds", 5, [
            ("connected", {}), ("timer", {}), ("have", {"number": 1, "held": [2], "credit": 1}),
            ("have", {"number": 2, "held": [0], "credit": 1}),
        ]),
        ("an answer to an earlier start is ignored", 3, [
            ("connected", {}), ("have", {"number": 9, "held": [0, 1, 2], "credit": 4}),
            ("have", {"number": 1, "held": [], "credit": 4}),
        ]),
        ("busy, then a cut, then all over", 3, [
            ("connected", {}), ("busy", {}), ("timer", {}),
            ("have", {"number": 2, "held": [], "credit": 1}), ("disconnected", {}),
            ("have", {"number": 2, "held": [0], "credit": 4}), ("connected", {}),
            ("have", {"number": 3, "held": [0], "credit": 4}),
        ]),
        ("what was in flight before a cut is not", 4, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 2}), ("disconnected", {}),
            ("connected", {}), ("have", {"number": 0, "held": [], "credit": 2}),
        ]),
        ("an answer to an earlier start opens nothing", 3, [
            ("connected", {}), ("have", {"number": 9, "held": [0], "credit": 4}),
        ]),
        ("the receiver has lost what it had", 5, [
            ("connected", {}), ("have", {"number": 1, "held": [0, 1], "credit": 2}), ("timer", {}),
            ("have", {"number": 2, "held": [], "credit": 4}),
        ]),
        ("woken after silence: an offer at once", 5, [
            ("connected", {}), ("woken soon", {}), ("timer", {}), ("woken", {}), ("woken", {}),
            ("have", {"number": 4, "held": [], "credit": 2}), ("woken soon", {}),
        ]),
        ("woken while it is put off: nothing before its time", 3, [
            ("connected", {}), ("busy", {}), ("woken", {}), ("timer", {}), ("woken", {}),
        ]),
        ("a report that lacks what an earlier one had", 7, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1, 2, 3], "credit": 2}),
            ("have", {"number": 0, "held": [4], "credit": 4}),
        ]),
    ):  # fmt: skip
        sender = Sender(chunks)
        for event, given in script:
            sender.play(event, **given)
        found.append({"name": name, "chunks": chunks, "events": sender.events})
    return found


class Highest:
    """Random numbers that are always the highest."""

    def uniform(self, low: float, high: float) -> float:
        return high


def backoffs() -> Events:
    """7.2: the longest seconds from each offer to the next; ``new``: something new is held."""
    found: Events = []
    for script in (
        ["connected", *["timer"] * 9],
        ["connected", "timer", "timer", "new", "timer", "timer"],
        ["connected", "timer", "timer", "connected", "timer"],
        ["connected", "timer", "timer", "woken", "timer"],
    ):
        upload = Upload(describe(bytes(40_000), 4096), cast(np.random.Generator, Highest()))
        now, longest = 0.0, list[float]()
        for event in script:
            if event == "new":
                upload.receive(0, to_bitmap([0], upload.manifest.count), 1, now)
                continue
            if event == "connected":
                upload.disconnected()
                upload.connected(now)
            if event == "woken":
                now += WOKEN_AFTER_S[event]
                upload.woken(now)
            now = upload.timer() or now
            upload.poll(now)
            longest.append((upload.timer() or now) - now)
        found.append({"events": script, "longest": longest})
    return found


def waits() -> Events:
    """1.9: the longest wait after each connection that has ended at a time, and how."""
    found: Events = []
    lost, every_ten = ("heard", 0), [("refused", at) for at in range(10, 100, 10)]
    for devices, script in (
        (8, [lost, *every_ten, ("refused", 360), ("refused", 5000), ("unanswered", 9000)]),
        (0, [("unanswered", 5000), *[("refused", 5001 + at) for at in range(9)], ("heard", 5010)]),
        (300, [lost, *every_ten, ("heard", 100), ("refused", 101)]),
        (3000, [lost, ("unanswered", 1), ("unanswered", 200)]),
        (8, [lost, *[("turned_away", at) for at in range(1, 12)], ("refused", 12), ("heard", 400)]),
    ):  # fmt: skip
        link, ends = Reconnect(cast(np.random.Generator, Highest()), devices=devices), Events()
        for ended, at in script:
            longest = link.wait_s(Ended[ended.upper()], at)
            ends.append({"ended": ended, "at": at, "longest": longest})
        found.append({"devices": devices, "ends": ends})
    return found


def downloads() -> Events:
    found: Events = []
    cases: list[tuple[str, list[int], list[str | int]]] = [
        ("one chunk first, then the others", [], ["connected", 0, 1, 2, 3]),
        ("what is held is not asked for", [0, 2], ["connected", 1, 3]),
        ("silence: the first alone, again", [], ["connected", "timer", "timer", 0]),
        ("a chunk lost: only what is missing", [], ["connected", 0, 1, 3, "timer", 2]),
        ("chunks that others asked for are as good", [], ["connected", 3, 2, 0, "timer", 1]),
        ("woken after silence: the same again at once", [],
         ["connected", "woken soon", "woken", 0, 2, "timer", "woken soon", "woken", 1]),
        ("woken while chunks come: nothing", [], ["connected", 0, 1, "woken soon", 2, 3]),
        ("a cut: probing again", [], ["connected", 0, "disconnected", 1, "connected", 2, 3]),
    ]  # fmt: skip
    for name, held, script in cases:
        manifest = describe(bytes(range(256)) * 56, 4096)
        blob = bytes(range(256)) * 56
        fetch, now, events = Fetch(manifest, set(held), np.random.default_rng(0)), 0.0, Events()
        for event in script:
            if isinstance(event, int):
                offset, length = manifest.span(event)
                fetch.chunk(event, blob[offset : offset + length], now)
            elif event == "connected":
                fetch.connected(now)
            elif event == "disconnected":
                fetch.disconnected()
            elif event in WOKEN_AFTER_S:
                now += WOKEN_AFTER_S[event]
                fetch.woken(now)
            else:
                now = fetch.timer() or now
            asked = fetch.poll(now)
            wants = None if asked is None else sorted(from_bitmap(asked, manifest.count))
            events.append({"event": event, "gets": wants})
        found.append({"name": name, "chunks": manifest.count, "held": held, "events": events})
    return found


def patience() -> Events:
    found: Events = []
    for arrivals in (
        [0.5, 1.0, 1.5, 2.0], [1.0, 2.5, 12.5, 13.0, 13.5, 14.0], [30.0, 30.1, 30.2, 30.3, 30.4, 30.5],
        [3.0, 9.0, 10.0, 40.0, 41.0],
    ):  # fmt: skip
        blob = bytes(4096 * 20)
        fetch = Fetch(describe(blob, 4096), set(), np.random.default_rng(0))
        fetch.connected(0.0)
        fetch.poll(0.0)
        timers: list[float] = []
        for index, now in enumerate(arrivals):
            fetch.chunk(index, blob[:4096], now)
            due = fetch.timer()
            assert due is not None
            timers.append(round(due - now, 9) if index else 0.0)
            fetch.poll(now)
        found.append({"arrivals": arrivals, "timers": timers[1:]})
    return found


def bundles() -> Events:
    program = b"\x08\x0a"
    layout = {
        "tensors": [
            {"name": "w", "shape": [2, 3], "offset": 0},
            {"name": "b", "shape": [], "offset": 6},
        ]
    }
    manifest: dict[str, Any] = {
        "format": 1, "name": "tiny", "layout": layout, "batch_size": 4,
        "input": {"dtype": "float32", "shape": [3]}, "target": {"dtype": "int64", "shape": []},
        "num_classes": 2, "uses_batch_statistics": False,
        "programs": [{
            "name": "gradient", "backend": "other", "file": "train.bin",
            "sha256": hashlib.sha256(program).hexdigest(),
        }],
        "verification": {"step_error": 0.0, "epoch_error": 0.0, "tolerance": 1.0, "versions": {}},
    }  # fmt: skip

    def packed(manifest: dict[str, Any], files: dict[str, bytes] | None = None) -> bytes:
        files = {"train.bin": program} if files is None else files
        body = {"manifest": json.dumps(manifest).encode(), "files": files}
        return zlib.compress(msgspec.msgpack.encode(body), 9)

    def tensor(**other: object) -> dict[str, Any]:
        first = {**layout["tensors"][0], **other}
        return {**manifest, "layout": {"tensors": [first, layout["tensors"][1]]}}

    def frozen(blob: bytes = bytes(44), name: str = "base", **other: object) -> dict[str, Any]:
        held = {"tensors": [{"name": name, "shape": [3], "offset": 0}]}
        described = {**msgspec.to_builtins(describe(blob, 4096)), **other}
        return {**manifest, "frozen": {"layout": held, "blob": described}}

    entry = manifest["programs"][0]
    good = packed(manifest)
    guide = {"name": "moon", "models": ["start", "previous"], "constants": 2}
    guided = [{**entry, "name": "guided"}]
    cases: list[tuple[str, bytes, bool]] = [
        ("as it should be", good, True),
        ("a key that is not known (B5)", packed({**manifest, "later": 1}), True),
        ("a byte behind the stream (B1)", good + b"\0", False),
        ("cut off (B1)", good[:-1], False),
        ("not compressed (B1)", zlib.decompress(good), False),
        ("another format (B5)", packed({**manifest, "format": 2}), False),
        ("a file that is missing (B2)", packed(manifest, {}), False),
        ("a file of another hash (B3)", packed(manifest, {"train.bin": b"\x08\x0b"}), False),
        ("a name that is a path (B2)", packed(
            {**manifest, "programs": [{**entry, "file": "../x"}]}, {"../x": program}), False),
        ("an offset that leaves a gap (B6)", packed(tensor(offset=1)), False),
        ("an empty extent (B6)", packed(tensor(shape=[2, 0])), False),
        ("an empty extent, the offsets right (B6)", packed({**manifest, "layout": {"tensors": [
            {**layout["tensors"][0], "shape": [2, 0]}, {**layout["tensors"][1], "offset": 0}]}}), False),
        ("another role (B7)", packed(tensor(role="buffer")), False),
        ("a program of another name (B5)", packed(
            {**manifest, "programs": [{**entry, "name": "train"}]}), False),
        ("a guided loss (X28)", packed({**manifest, "guide": guide, "programs": guided}), True),
        ("a guided program without a guide (B5)", packed({**manifest, "programs": guided}), False),
        ("a guide of a model that is not known (B5)", packed(
            {**manifest, "guide": {**guide, "models": ["last"]}}), False),
        ("a name that repeats (B6)", packed(tensor(name="b")), False),
        *((f"an input {where} (B5)", packed({**manifest, "input": {**manifest["input"], **row}}), fine)
          for where, row, fine in (
              ("of another type", {"dtype": "float64"}, False),
              ("with an empty extent", {"shape": [0]}, False),
              ("of 32 extents", {"shape": [1] * 32}, True),
              ("of 33 extents", {"shape": [1] * 33}, False),
          )),
        ("fewer classes than none (B5)", packed({**manifest, "num_classes": -1}), False),
        ("fewer tokens than none (B5)", packed({**manifest, "vocabulary": -1}), False),
        ("tokens, and a label for each of 2 x 2 pixels", packed({
            **manifest, "vocabulary": 9, "target": {"dtype": "int64", "shape": [2, 2]}}), True),
        ("a share of channels that lacks, 0.0 (B5)", packed({**manifest, "dropped": 0.0}), True),
        ("batches of no rows", packed({**manifest, "batch_size": 0}), False),
        ("a name of 256 code points, 512 bytes (B6)", packed(tensor(name="ä" * 256)), True),
        ("a name of 257 code points (B6)", packed(tensor(name="n" * 257)), False),
        ("the defaults, written out (B5)", packed(
            {**tensor(role="parameter"), "axes": None, "dropped": 0}), True),
        ("frozen data (X14)", packed(frozen()), True),
        ("frozen data of more than 4 bytes a value and 32 (X14)", packed(frozen(bytes(45))), False),
        ("a frozen tensor that is in theta (X14)", packed(frozen(name="b")), False),
        ("frozen data with a digest too many (X14)",
         packed(frozen(digests=base64.b64encode(bytes(32)).decode())), False),
        ("frozen data whose digests are no base64 (X14)", packed(frozen(digests="?" * 24)), False),
        ("a model whose input is its target", packed({**manifest, "target": None}), True),
        ("a loss and a metric (B5)", packed(
            {**manifest, "loss": {"name": "huber"}, "metric": {"name": "rmse", "better": "lower"}}
        ), True),
        ("a loss of the default's name (B5)", packed({**manifest, "loss": {"label_smoothing": 0.1}}), True),
        ("a metric that is neither", packed({**manifest, "metric": {"name": "m", "better": "no"}}), False),
        *((f"no {key} (B5)", packed({k: v for k, v in manifest.items() if k != key}), False)
          for key in manifest),
    ]  # fmt: skip
    return [{"rule": rule, "blob": blob.hex(), "accepted": fine} for rule, blob, fine in cases]


def programs() -> Events:
    """Programs but for those that break a limit of size, which are long."""
    fine, empty = model(), model()
    empty.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 0
    found = [("as it should be", fine, True), ("an output without elements", empty, True)]
    for rule, (change, _) in REFUSED.items():
        if rule not in ("nodes", "fields", "many nodes in a Scan"):
            change(changed := model())
            found.append((rule, changed, False))
    for rule, domain, version in (
        ("a later opset", "", 21),
        ("another domain's, 20", "ai.onnx.ml", 20),
    ):
        (changed := model()).opset_import.add(domain=domain, version=version)
        found.append((rule, changed, False))
    made = [(rule, one.SerializeToString(deterministic=True), fine) for rule, one, fine in found]
    perm = field(1, b"perm") + field(20, 7)
    for rule, numbers, accepted in (
        ("numbers one by one", field(8, 0), True),
        ("numbers that are packed", field(8, b"\0"), False),
    ):
        node = field(1, b"x") + field(2, b"z") + field(4, b"Transpose") + field(5, perm + numbers)
        (rest := model()).ClearField("graph")
        graph = model().graph.SerializeToString(deterministic=True) + field(1, node)
        made.append((rule, rest.SerializeToString(deterministic=True) + field(7, graph), accepted))
    made.append(("a graph twice", made[0][1] + field(7, b""), False))
    made.append(("cut off", made[0][1][:-1], False))
    made.append(("cut off in a text", made[0][1] + field(3, b"later")[:-1], False))
    return [{"rule": rule, "program": data.hex(), "accepted": fine} for rule, data, fine in made]


def vectors() -> dict[str, object]:
    """Everything in spec.json."""
    return {
        "about": ABOUT, "shuffles": shuffles(), "batches": batch_cases(), "rates": rates(),
        "error_feedback": feedback(),
        "replay": replays(), "uploads": uploads(), "backoffs": backoffs(), "downloads": downloads(),
        "waits": waits(),
        "patience": patience(),
        "bundles": bundles(), "programs": programs(), "versions": rounds.versions(),
        "rounds": rounds.rounds(), "extended_rounds": extended_rounds(),
        "noises": rounds.noises(), "further_seeds": rounds.further_seeds(),
        "openings": choices.openings(), "needs": choices.needs(), "verdicts": choices.verdicts(),
        "halvings": choices.halvings(), "join_texts": choices.join_texts(), "joins": choices.joins(),
        "agreements": choices.agreements(), "chains": choices.chains(),
    }  # fmt: skip


if __name__ == "__main__":
    made = vectors()
    text = json.dumps(made, separators=(", ", ": "))
    for key in made:
        text = text.replace(f'"{key}": [{{', f'\n"{key}": [\n{{')
    Path(__file__).with_name("spec.json").write_text(text.replace('}, {"', '},\n{"') + "\n")
