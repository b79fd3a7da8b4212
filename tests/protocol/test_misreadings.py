"""Misreadings of the pages: the shared vectors catch a reader that makes one of them.

slow_decoder.py and slow_frames.py read as the pages say, and the files of the folder misreadings have the
changes to their text, each with the words that are misread.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        return module[name](*given)
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


JUDGES = {"slow_decoder": of_coded_vectors, "slow_frames": of_frames}
MISREADINGS = [
    (name, *text.split("\n", 1))
    for name, page in (("slow_decoder", "codec"), ("slow_frames", "frames"))
    for text in (HERE / "misreadings" / f"{page}.txt").read_text().strip().split("\n\n")[1:]
]


@pytest.mark.parametrize("name", JUDGES)
def test_a_reader_of_the_page_is_right(name: str) -> None:
    assert all(JUDGES[name](reader(name, [])))


@pytest.mark.parametrize(
    ("name", "change"),
    [pytest.param(name, change, id=words) for name, words, change in MISREADINGS],
)
def test_some_vector_catches(name: str, change: str) -> None:
    assert not all(JUDGES[name](reader(name, change.splitlines())))
