"""Rows: what is packed into a column comes out again, or is named as damage."""

import hashlib

import msgspec
import pytest

from sedge_cloud.store.rows import ClientModelRow, OrderRow, RunRow
from sedge_protocol.errors import StorageError

ORDER = OrderRow("run", 3, "a", b"", b"", b"")
RUN = RunRow("run", "running", b"", b"W" * 32, b"", 0.0)


@pytest.mark.parametrize("damage", [b"\xc1", b"\x80\x00", msgspec.msgpack.encode({"remember": 3})])
def test_damaged_work(damage: bytes) -> None:
    with pytest.raises(StorageError, match="run run, round 3, order of a: "):
        msgspec.structs.replace(ORDER, work=damage).read_work()


def test_bundles() -> None:
    assert RUN.bundles == (b"W" * 32,)
    row = msgspec.structs.replace(RUN, narrower=msgspec.msgpack.encode([b"N" * 32, b"M" * 32]))
    assert row.bundles == (b"W" * 32, b"N" * 32, b"M" * 32)
    for damage in (b"\xc1", msgspec.msgpack.encode({"a": 1})):
        with pytest.raises(StorageError, match="run run: its bundles cannot be read"):
            _ = msgspec.structs.replace(RUN, narrower=damage).bundles


def test_a_patch_has_one_name_wherever_it_lies() -> None:
    name = hashlib.sha256(b"patch").digest()
    known = ClientModelRow("run", "a", 3, b"M", b"", b"", b"")
    for row in (ORDER, known):
        assert row.patch_hash == b""
        assert msgspec.structs.replace(row, patch=b"patch").patch_hash == name
        assert msgspec.structs.replace(row, patch_blob=name).patch_hash == name
