"""Rows: what is packed into a column comes out again, or is named as damage."""

import hashlib

import msgspec
import pytest

from sedge_cloud.store.rows import Details, MemoryRow, OrderRow, RunRow
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Own, Personal, Selection, Training

ORDER = OrderRow("run", 3, "a", b"", b"", True, b"")
RUN = RunRow("run", "running", b"", b"W" * 32, b"", 0.0)


def test_details_come_back() -> None:
    details = Details(
        Training(prox=1.0), (Training(),), Personal(), Selection(), Own(quantile=0.5), True
    )
    row = msgspec.structs.replace(ORDER, details=msgspec.msgpack.encode(details))
    assert row.read_details() == details
    assert ORDER.read_details() == Details()


@pytest.mark.parametrize("damage", [b"\xc1", b"\x80\x00", msgspec.msgpack.encode({"remember": 3})])
def test_damaged_details(damage: bytes) -> None:
    row = msgspec.structs.replace(ORDER, details=damage)
    with pytest.raises(StorageError, match="run run, round 3, order of a: "):
        row.read_details()


def test_bundles() -> None:
    assert RUN.bundles == (b"W" * 32,)
    row = msgspec.structs.replace(RUN, narrower=msgspec.msgpack.encode([b"N" * 32, b"M" * 32]))
    assert row.bundles == (b"W" * 32, b"N" * 32, b"M" * 32)
    for damage in (b"\xc1", msgspec.msgpack.encode({"a": 1})):
        with pytest.raises(StorageError, match="run run: its bundles cannot be read"):
            _ = msgspec.structs.replace(RUN, narrower=damage).bundles


def test_a_patch_has_one_name_wherever_it_lies() -> None:
    name = hashlib.sha256(b"patch").digest()
    memory = MemoryRow("run", "a", 3, b"M", b"", b"", b"")
    for row in (ORDER, memory):
        assert row.patch_hash == b""
        assert msgspec.structs.replace(row, patch=b"patch").patch_hash == name
        assert msgspec.structs.replace(row, patch_blob=name).patch_hash == name


def test_what_a_late_update_needs() -> None:
    assert ORDER.blobs(b"round") == (b"round",)
    row = msgspec.structs.replace(
        ORDER, model=b"m", arrays=b"a", context=b"c", patch_blob=b"p", patch_context=b"x"
    )
    assert set(row.blobs(b"round")) == {b"m", b"a", b"c", b"p", b"x"}
