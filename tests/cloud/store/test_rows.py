"""Rows: what is packed into a column comes out again, or is named as damage."""

import hashlib
from inspect import isclass

import msgspec
import pytest

from sedge_cloud.facts import records as facts
from sedge_cloud.runs import run, terms
from sedge_cloud.store import certificate_rows, leases, records, rollouts, rows
from sedge_cloud.store.rows import ClientModelRow, OrderRow, RunRow
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.objective import ACCURACY

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


def test_what_a_record_leaves_out_is_nothing() -> None:
    """A default of 0, "" or None is what nobody knows or has said; only these say something else."""
    said = {
        f"{kind.__name__}.{field.name}": field.default
        for module in (certificate_rows, facts, leases, records, rollouts, rows, run, terms)
        for kind in vars(module).values()
        if isclass(kind) and kind.__module__ == module.__name__ and issubclass(kind, msgspec.Struct)
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT and field.default
    }
    assert said == {
        "CertificateRow.state": "issued", "ClosedRound.accounts": records.NOTHING,
        "CoordinatorRow.id": 1, "DevicePast.metric": ACCURACY, "DeviceSummary.counted": 1.0,
        "OrderRow.trusted": True, "RolloutPlan.abort_at": 0.05, "RolloutPlan.min_devices": 10,
        "RolloutPlan.worse_by": 0.1, "RoundFacts.metric": ACCURACY, "RoundParts.metric": ACCURACY,
        "RoundRow.phase": "open", "Summary.metric": ACCURACY, "Terms.min_available_devices": 1,
        "Terms.min_updates": 1, "TokenRow.account": True,
    }  # fmt: skip
