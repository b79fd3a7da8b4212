"""The vectors that other languages test against, both ways."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    decoded_values,
    encode,
)
from sedge_protocol.codec.masks import MaskForm
from sedge_protocol.errors import CodecError

Case = dict[str, Any]

PATH = Path(__file__).parents[2] / "vectors" / "sparse.json"
VECTORS: dict[str, list[Case]] = json.loads(PATH.read_text())


def _name(case: Case) -> str:
    return str(case.get("name") or case["rule"])


def _floats(text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(bytes.fromhex(text), "<f4").astype(np.float32)


def _context(case: Case) -> bytes | None:
    return None if case["context"] is None else bytes.fromhex(case["context"])


def _vector(case: Case) -> SparseVector:
    indices = None if case["indices"] is None else np.array(case["indices"], np.uint32)
    return SparseVector(case["size"], indices, _floats(case["values"]))


@pytest.mark.parametrize("case", VECTORS["accepted"] + VECTORS["readable"], ids=_name)
def test_accepted_vector_decodes(case: Case) -> None:
    found = decode(bytes.fromhex(case["coded"]), case["size"], _context(case))
    assert (None if found.indices is None else found.indices.tolist()) == case["indices"]
    assert found.values.tobytes() == _floats(case["decoded"]).tobytes()


@pytest.mark.parametrize("case", VECTORS["accepted"], ids=_name)
def test_accepted_vector_encodes(case: Case) -> None:
    vector, coding = _vector(case), ValueCoding(case["coding"])
    coded = encode(vector, coding, Compression(case["compression"]), _context(case))
    if case["compression"] == "none":
        assert coded.hex() == case["coded"]
    # Versions of zstd and zlib differ in the bytes they write, never in what these decode to.
    assert coded[:12] == bytes.fromhex(case["coded"])[:12]
    found = decode(coded, case["size"], _context(case))
    assert found.values.tobytes() == _floats(case["decoded"]).tobytes()
    assert decoded_values(vector.values, coding).tobytes() == found.values.tobytes()


@pytest.mark.parametrize("case", VECTORS["refused"], ids=_name)
def test_refused_vector_is_refused(case: Case) -> None:
    with pytest.raises(CodecError):
        decode(bytes.fromhex(case["coded"]), case["size"], _context(case))


def test_accepted_vectors_cover_every_form_coding_and_compression() -> None:
    coded = [bytes.fromhex(case["coded"]) for case in VECTORS["accepted"]]
    assert {data[1] & 15 for data in coded} == set(MaskForm)
    assert {data[1] for data in coded} >= {0x12, 0x22, 0x13, 0x23, 0x14, 0x24}
    assert {data[2] & 15 for data in coded} == {0, 1, 2, 3, 4, 5}
    assert {data[2] >> 4 for data in coded} == {0, 1, 2}


def test_the_examples_of_wire_md_decode() -> None:
    text = (Path(__file__).parents[3] / "protocol" / "spec" / "coded-vector.md").read_text()
    blocks = text[text.rindex("## Example") :].split("```")[1::2]
    examples = [
        b"".join(bytes.fromhex(re.split("   +", line)[0]) for line in block.strip().splitlines())
        for block in blocks
    ]
    vector = SparseVector(9, np.array([2, 7], np.uint32), np.array([1, -2.5], np.float32))
    context = b"\x24\x00"
    assert examples[0] == encode(vector, compression=Compression.NONE)
    for example in examples:
        assert decode(example, 9, context).dense().tolist() == vector.dense().tolist()
    assert [example[1] for example in examples] == [MaskForm.BITMAP, MaskForm.CHANGES]


def test_refused_vectors_are_sound_but_for_their_rule() -> None:
    """One break each: nearly all of them pass the header, so that the rule itself is what stops them."""
    beyond = 0
    for case in VECTORS["refused"]:
        with pytest.raises(CodecError) as refusal:
            decode(bytes.fromhex(case["coded"]), case["size"], _context(case))
        beyond += not str(refusal.value).startswith(("coded vector", "section"))
    assert beyond >= 95
