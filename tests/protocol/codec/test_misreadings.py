"""Misreadings of coded-vector.md: sparse.json catches a decoder that makes one of them.

Each is a change to the text of slow_decoder.py; misreadings.txt has them.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.codec import slow_decoder
from tests.protocol.codec.slow_decoder import Decoded

Decoder = Callable[[bytes, int, bytes | None], Decoded]
SOURCE = Path(slow_decoder.__file__).read_text()
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "sparse.json").read_text())
FOLDER = Path(slow_decoder.__file__).parent
MISREADINGS = (FOLDER / "misreadings.txt").read_text().split("\n\n")[1:]


def misreader(change: list[str]) -> Decoder:
    """slow_decoder.py with this change."""
    old, new = ("".join(f"{line[2:]}\n" for line in change if line[0] == sign) for sign in "-+")
    assert SOURCE.count(old) == 1
    module: dict[str, Any] = {}
    exec(compile(SOURCE.replace(old, new), "misread", "exec"), module)
    found: Decoder = module["decode_slowly"]
    return found


def disagreements(decode: Decoder) -> Iterator[str]:
    """The vectors on which this decoder is wrong."""
    for case in (*VECTORS["accepted"], *VECTORS["readable"], *VECTORS["refused"]):
        context = None if case["context"] is None else bytes.fromhex(case["context"])
        try:
            read = decode(bytes.fromhex(case["coded"]), case["size"], context)
        except Exception:  # a wrong decoder may stumble over anything
            read = None
        if read != expected(case):
            yield str(case.get("name") or case["rule"])


def expected(case: dict[str, Any]) -> Decoded | None:
    """Positions and values; None for a vector to refuse."""
    if "rule" in case:
        return None
    data = bytes.fromhex(case["decoded"])
    values = [data[i : i + 4] for i in range(0, len(data), 4)]
    return list(range(len(values))) if case["indices"] is None else case["indices"], values


def test_the_decoder_as_it_is_written_agrees() -> None:
    assert list(disagreements(slow_decoder.decode_slowly)) == []


@pytest.mark.parametrize("misreading", MISREADINGS, ids=lambda text: text.split("\n")[0])
def test_some_vector_catches(misreading: str) -> None:
    _, *change = misreading.splitlines()
    assert any(disagreements(misreader(change)))
