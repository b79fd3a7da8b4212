"""A device's part in a run, as protocol version 2 had it on the wire: what is spoken now still reads it."""

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.protocol.test_frame_vectors import frame_of, message_of

from sedge_protocol.wire import messages
from sedge_protocol.wire.frame import Kind, open_frame, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import decode_body, encode_body
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.update import decode_update

Case = dict[str, Any]

TRACE = json.loads((Path(__file__).parents[1] / "vectors" / "trace.json").read_text())
FRAMES: list[Case] = TRACE["frames"]
KEYS = DeviceKeys.of(bytes.fromhex(TRACE["secret"]))
ENDS = {"up": KEYS.up, "down": KEYS.down}


def _named(case: Case) -> str:
    return f"{FRAMES.index(case)}-{case['name']}"


def _key(case: Case) -> bytes | None:
    """None for chunks on a blob's topic."""
    return ENDS.get(case["topic"].rpartition("/")[2])


@pytest.mark.parametrize("case", FRAMES, ids=_named)
def test_a_recorded_frame_reads_and_writes_as_it_did(case: Case) -> None:
    frame = open_frame(bytes.fromhex(case["sealed"]), case["topic"], _key(case))
    assert frame == frame_of(case)
    if frame.kind is not Kind.CHUNK:
        message = message_of(case)
        assert message is not None and decode_body(frame.kind, frame.body) == message
        assert encode_body(message) == frame.body
    assert seal(frame, case["topic"], _key(case)).hex() == case["sealed"]


def test_every_blob_is_one_that_a_message_names_and_every_update_has_its_receipt() -> None:
    blobs: dict[bytes, bytes] = defaultdict(bytes)  # by transfer
    updates: dict[int, Manifest] = {}
    named: dict[bytes, bytes] = {}
    for case in FRAMES:
        match message_of(case):
            case None:
                blobs[bytes.fromhex(case["transfer"])] += bytes.fromhex(case["body"])
            case messages.Offer() as offer:
                updates[offer.round] = offer.manifest
                blobs[offer.manifest.transfer] += offer.data
            case messages.Order() as order:
                steps = [step.blob for step in order.steps]
                named |= {m.transfer: m.sha256 for m in (order.bundle, order.model, *steps)}
            case messages.Committed() as receipt:
                assert receipt.sha256 == updates[receipt.round].sha256
            case _:
                pass
    assert FRAMES[-1]["name"] == "COMMITTED" and set(updates) == {1, 2, 3}
    named |= {m.transfer: m.sha256 for m in updates.values()}
    assert all(hashlib.sha256(blob).digest() == named[name] for name, blob in blobs.items())
    reports = [decode_update(blobs[manifest.transfer])[0] for manifest in updates.values()]
    assert [(report.round, report.task) for report in reports] == [
        (1, "train"), (2, "train"), (3, "evaluate"),
    ]  # fmt: skip
