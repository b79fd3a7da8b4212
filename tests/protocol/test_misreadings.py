"""Misreadings of the pages: the shared vectors catch a reader that makes one of them.

The files slow_*.py read as the pages say, and the files of the folder misreadings have the changes to their
text, each with the words that are misread.
"""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

HERE = Path(__file__).parent
VECTORS = {
    name: json.loads((HERE.parent / "vectors" / f"{name}.json").read_text())
    for name in ("sparse", "frames", "spec")
}
Reader = dict[str, Any]
Case = dict[str, Any]


def reader(name: str, change: list[str]) -> Reader:
    """What this file defines, with this change."""
    source = (HERE / f"{name}.py").read_text()
    old, new = ("".join(f"{line[2:]}\n" for line in change if line[0] == sign) for sign in "-+")
    assert not old or source.count(old) == 1
    module: Reader = {}
    exec(compile(source.replace(old, new) if old else source, name, "exec"), module)
    return module


def read(module: Reader, name: str, *given: object) -> object:
    """What a function of the reader gives; None if it refuses. A wrong one may stumble over anything."""
    try:
        found = module[name](*given)
        return list(cast(Iterator[object], found)) if isinstance(found, Iterator) else found
    except Exception:
        return None


def hexed(case: Case, key: str) -> bytes:
    return bytes.fromhex(case[key])


def of_coded_vectors(module: Reader) -> Iterator[bool]:
    """Whether each coded vector is read right."""
    vectors = VECTORS["sparse"]
    for case in (*vectors["accepted"], *vectors["readable"], *vectors["refused"]):
        context = None if case["context"] is None else hexed(case, "context")
        found = read(module, "decode_slowly", hexed(case, "coded"), case["size"], context)
        yield found == (None if "rule" in case else content(case))


def content(case: Case) -> object:
    """Positions and values of a coded vector."""
    data = hexed(case, "decoded")
    values = [data[i : i + 4] for i in range(0, len(data), 4)]
    return list(range(len(values))) if case["indices"] is None else case["indices"], values


def of_frames(module: Reader) -> Iterator[bool]:
    """Whether each frame, key, manifest, bitmap, layout, update and window is read right."""
    vectors = VECTORS["frames"]
    for case in (*vectors["frames"], *vectors["readable"], *vectors["refused_frames"]):
        key = None if case["key"] is None else hexed(case, "key")
        found = read(module, "opened", hexed(case, "sealed"), case["topic"], key)
        sound = "rule" not in case and (
            case["kind"], case["incarnation"], case["seq"], hexed(case, "transfer"), case["index"],
            hexed(case, "body"),
        )  # fmt: skip
        yield found == (sound or None)
    for case in vectors["topics"]:
        yield read(module, "hint", case["fleet"], case["device"]) == case["hint"]
    for case in vectors["keys"]:
        for purpose in ("up", "down"):
            yield read(module, "derived", hexed(case, "secret"), purpose) == hexed(case, purpose)
    for case in vectors["manifests"]:
        blob = bytes((31 * i + (i >> 8)) & 255 for i in range(case["size"]))
        yield read(module, "digests", blob, case["chunk_bytes"]) == hexed(case, "digests")
        yield read(module, "transfer_id", hexed(case, "packed")) == hexed(case, "transfer")
    for case in vectors["refused_manifests"]:
        yield read(module, "transfer_id", hexed(case, "packed")) is None
    for case in (*vectors["bitmaps"], *vectors["refused_bitmaps"]):
        ones = None if "rule" in case else set(case["indices"])
        yield read(module, "held", hexed(case, "bitmap"), case["count"]) == ones
    for case in vectors["layouts"]:
        yield read(module, "layout_hash", case["tensors"]) == hexed(case, "hash")
    for case in vectors["updates"]:
        found = read(module, "update", hexed(case, "blob"))
        yield isinstance(found, tuple) and found[1] == hexed(case, "payload")
    for case in VECTORS["spec"]["replay"]:
        yield read(module, "accepted", case["frames"]) == case["accepted"]


def of_bodies(module: Reader) -> Iterator[bool]:
    """Whether each body is taken or refused as it should be."""
    vectors = VECTORS["frames"]
    for case in (*vectors["frames"], *vectors["readable"], *vectors["refused_bodies"]):
        if case["kind"] != 8:  # a chunk is any bytes
            found = read(module, "body", case["kind"], hexed(case, "body"))
            yield (found is not None) == ("sealed" in case)


def of_training(module: Reader) -> Iterator[bool]:
    """Whether shuffles, batches, feedback and rounds come out as they should."""
    vectors = VECTORS["spec"]
    for case in vectors["shuffles"]:
        yield read(module, "shuffled", case) == case["epochs"]
    for case in vectors["batches"]:
        yield read(module, "batches", case) == case["batches"]
    for case in vectors["rates"]:
        rates = cast(list[float] | None, read(module, "rates", case))
        yield rates is not None and all(map(math.isclose, rates, case["rates"]))
    for case in vectors["error_feedback"]:
        owed = [list(floats(played["owed"])) for played in case["rounds"]]
        yield read(module, "owed_after", case) == owed
    for case in vectors["noises"]:
        found = read(module, "noise", case["seed"], case["step"], len(case["numbers"]))
        yield found == case["numbers"]
    for case in vectors["further_seeds"]:
        yield read(module, "further_seed", case["seed"], case["training"]) == case["further"]
    for case in vectors["rounds"]:
        found = cast(list[Case] | None, read(module, "played", case))
        yield found is not None and all(map(is_done, case["orders"], found))


def floats(text: str) -> Iterator[float]:
    return (value for (value,) in struct.iter_unpack("<f", bytes.fromhex(text)))


def is_done(order: Case, found: Case) -> bool:
    """Whether an order ended as the vector says."""
    if "declined" in order or "declined" in found:
        return order.get("declined") == found.get("declined")
    owed = [0.0] * 5 if order["owed"] is None else list(floats(order["owed"]))
    numbers = [*order["before"], *order["after"], order["train_loss"], order["steps"]]
    said = [*found["before"], *found["after"], found["train_loss"], found["steps"]]
    close = all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(numbers, said, strict=True))
    return close and owed == found["owed"] and order["num_examples"] == found["num_examples"]


def of_transfers(module: Reader) -> Iterator[bool]:
    """Whether every transfer, choice and verdict comes out as it should."""
    vectors = VECTORS["spec"]
    for case in vectors["agreements"]:
        found = read(module, "agreed", case["device"], case["coordinator"])
        yield found == (case["first"], case["then"])
    for case in vectors["openings"]:
        yield read(module, "taken", case["frames"]) == case["taken"]
    for case in vectors["memory"]:
        yield read(module, "memory_mb", case) == case["memory_mb"]
    for case in vectors["versions"]:
        yield read(module, "stepped", case["base"], case["step"]) == hexed(case, "model")
    for case in vectors["uploads"]:
        yield read(module, "uploaded", case) == [event["sends"] for event in case["events"]]
    for case in vectors["backoffs"]:
        yield read(module, "longest", case["events"]) == case["longest"]
    for case in vectors["waits"]:
        found = cast(list[float], read(module, "waited", case))
        yield all(map(math.isclose, found, [end["longest"] for end in case["ends"]]))
    for case in vectors["downloads"]:
        yield read(module, "downloaded", case) == [event["gets"] for event in case["events"]]
    for case in vectors["patience"]:
        found = cast(list[float], read(module, "patience", case["arrivals"]))
        yield [round(seconds, 9) for seconds in found[1:]] == case["timers"]
    for case in vectors["halvings"]:
        yield read(module, "halved", case) == case["chunk_bytes"]
    for case in vectors["needs"]:
        yield read(module, "needed", case) == case["fetches"]
    for case in vectors["verdicts"]:
        yield read(module, "verdict", case) == case["verdict"]


def of_files(module: Reader) -> Iterator[bool]:
    """Whether each bundle and join text is read right."""
    for case in VECTORS["spec"]["bundles"]:
        yield read(module, "bundle", hexed(case, "blob")) == (7 if case["accepted"] else None)
    for case in VECTORS["spec"]["join_texts"]:
        yield read(module, "joined", case["text"]) == case["says"]


def of_programs(module: Reader) -> Iterator[bool]:
    """Whether each ONNX program is taken or refused as it should be."""
    for case in VECTORS["spec"]["programs"]:
        yield (read(module, "program", hexed(case, "program")) is True) == case["accepted"]


JUDGES = {
    "slow_decoder": of_coded_vectors,
    "slow_frames": of_frames,
    "slow_bodies": of_bodies,
    "slow_training": of_training,
    "slow_transfers": of_transfers,
    "slow_files": of_files,
    "slow_programs": of_programs,
}


def misreadings(name: str) -> list[str]:
    """The misreadings of a reader: the first line of each has the words."""
    text = (HERE / "misreadings" / f"{name.removeprefix('slow_')}.txt").read_text()
    return text.strip().split("\n\n")[1:]


MISREADINGS = [(name, *text.split("\n", 1)) for name in JUDGES for text in misreadings(name)]


@pytest.mark.parametrize("name", JUDGES)
def test_a_reader_of_the_page_is_right(name: str) -> None:
    assert all(JUDGES[name](reader(name, [])))


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(name, change, id=words) for name, words, change in MISREADINGS],
)
def test_some_vector_catches(name: str, change: str) -> None:
    assert not all(JUDGES[name](reader(name, change.splitlines())))
