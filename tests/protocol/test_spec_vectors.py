"""spec.json against the code; tests/android holds the core in Java against the same file."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.vectors.make_spec import vectors

from sedge_protocol.errors import CodecError, ConfigError, FrameError
from sedge_protocol.host.enrolment import parse_join_text
from sedge_protocol.wire.bundle import unpack
from sedge_protocol.wire.joining import Agreement, certificate_key, fleet_key
from sedge_protocol.wire.program import check_program

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "spec.json").read_text()
)


def test_the_code_makes_the_vectors() -> None:
    assert json.loads(json.dumps(vectors())) == VECTORS


@pytest.mark.parametrize("case", VECTORS["join_texts"], ids=lambda case: case["name"])
def test_join_texts(case: dict[str, Any]) -> None:
    """E7 of enrolment.md; a text that says nothing is refused, in words without the secret."""
    if case["says"] is not None:
        found = parse_join_text(case["text"])
        assert msgspec.json.decode(msgspec.json.encode(found)) == case["says"]
        return
    with pytest.raises(ConfigError, match=r"^join text: ") as refused:
        parse_join_text(case["text"])
    assert "000102030405" not in str(refused.value)


@pytest.mark.parametrize("case", VECTORS["joins"], ids=lambda case: case["device"])
def test_joins(case: dict[str, Any]) -> None:
    """E10, E14: the coordinator comes to the same secret from its own key and the device's point."""
    point, number = bytes.fromhex(case["point"]), VECTORS["joins"].index(case)
    private = fleet_key(bytes([255 - number]) * 32)
    agreed = Agreement.of(private, point, point, case["fleet"], case["token"])
    assert agreed.secret.hex() == case["secret"]
    assert agreed.asks(case["device"]).hex() == case["asks"] != case["answers"]
    assert f"{certificate_key(agreed.secret):064x}" == case["certificate"]
    for wrong in (bytes(65), b"\4" + bytes(64), point[:-1] + bytes([point[-1] ^ 1]), point[:33]):
        with pytest.raises(FrameError, match="not a point on the curve"):
            Agreement.of(private, wrong, wrong, case["fleet"], case["token"])


@pytest.mark.parametrize("case", VECTORS["bundles"], ids=lambda case: case["rule"])
def test_bundles(case: dict[str, Any]) -> None:
    blob = bytes.fromhex(case["blob"])
    if case["accepted"]:
        assert unpack(blob).manifest.layout.size == 7
    else:
        with pytest.raises(CodecError):
            unpack(blob)


@pytest.mark.parametrize("case", VECTORS["programs"], ids=lambda case: case["rule"])
def test_programs(case: dict[str, Any]) -> None:
    program = bytes.fromhex(case["program"])
    if case["accepted"]:
        check_program(program)
    else:
        with pytest.raises(CodecError):
            check_program(program)
