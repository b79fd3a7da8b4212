"""What of a received update is believed: nothing that is not its order's, and no damage."""

import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.helper import LAYOUT, RUN, Cloud, report_for, small_update

from sedge_cloud.ingest.judge import judge, order_context
from sedge_cloud.store.rows import OrderRow
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.errors import CodecError, UpdateRejected
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Committed, Message, Reject
from sedge_protocol.wire.update import Metrics, Report, encode_update
from sedge_protocol.wire.work import Work

OTHER = Layout.of([("body.weight", (119, 100), Role.PARAMETER), ("b", (100,), Role.PARAMETER)])


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    cloud.hello()
    return cloud


@pytest.fixture
def order(cloud: Cloud) -> OrderRow:
    found = cloud.store.order(RUN, 1, "a")
    assert found is not None
    return found


def check(cloud: Cloud, blob: bytes, order: OrderRow | None = None) -> Report:
    """What the run_store says to an update of device a in round 1."""
    round_, known = cloud.store.round(RUN, 1), cloud.store.order(RUN, 1, "a")
    assert round_ is not None and known is not None
    run = cloud.core.runs[RUN]
    return judge(order_context(cloud.core.run_store, run, round_, order or known), blob).report


OTHERS, OURS = OTHER.hash.hex()[:16], LAYOUT.hash.hex()[:16]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("run", "other", "mismatch: update.run: 'other', expected 'run'"),
        ("round", 2, "mismatch: update.round: 2, expected 1"),
        ("task", "evaluate", "mismatch: update.task: 'evaluate', expected 'train'"),
        ("layout_hash", OTHER.hash, f"mismatch: update.layout_hash: {OTHERS}, expected {OURS}"),
        ("model_hash", bytes(32), "mismatch: update.model_hash: 0000000000000000, expected "),
        ("patch_hash", b"x" * 32, "mismatch: update.patch_hash: 7878787878787878, expected "),
        (
            "after",
            Metrics(1.0, 1.1, 9),
            "invalid: update.after.metric: 1.1, expected accuracy from 0",
        ),
        ("num_examples", 0, "invalid: update.num_examples: 0, expected at least 1"),
    ],
)
def test_a_wrong_field_is_refused(cloud: Cloud, field: str, value: Any, text: str) -> None:
    """It leaves a bad receipt, and nothing else."""
    blob = encode_update(report_for(cloud.order("a"), **{field: value}), payload_of(10))
    with pytest.raises(UpdateRejected) as caught:
        check(cloud, blob)
    assert str(caught.value).startswith(text)
    before = cloud.run_row()
    (answer,) = cloud.offer("a", blob)
    assert isinstance(answer, Reject)
    row = cloud.store.update(RUN, 1, "a")
    assert row is not None and (row.rejected, row.detail) == (answer.reason, answer.detail)
    assert row.report == b"" and row.rejected
    assert cloud.store.received(RUN, 1).counted == [] and cloud.store.client_model(RUN, "a") is None
    assert cloud.run_row() == before
    (again,) = cloud.offer("a", blob, number=2)
    assert again == answer
    (good,) = cloud.offer("b", small_update(cloud.order("b")))
    assert isinstance(good, Committed)


def payload_of(count: int, size: int = LAYOUT.size, values: float = 0.5) -> bytes:
    indices = np.arange(count, dtype=np.uint32)
    vector = SparseVector(size, indices, np.full(count, values, np.float32))
    return encode(vector, ValueCoding.FP32, Compression.NONE)


@pytest.mark.parametrize("dense", [True, False])
def test_just_what_is_not_finite_is_malformed(cloud: Cloud, order: OrderRow, dense: bool) -> None:
    """The quick look at magnitudes lets nothing through, and refuses nothing that would be finite."""
    largest = np.finfo(np.float32).max
    sizes = [0.0, 1.0, largest / 2, np.nextafter(largest / 2, largest), largest]
    starts = [s * f for s in sizes for f in (np.float32(1), np.float32(-1))]
    refused = 0
    for start in starts:
        for delta in starts:
            indices = None if dense else np.array([7, 9], np.uint32)
            values = np.zeros(LAYOUT.size if dense else 2, np.float32)
            values[-1] = delta
            place = LAYOUT.size - 1 if dense else 9
            vector = SparseVector(LAYOUT.size, np.array([place], np.uint32), np.array([start]))
            patch = encode(vector, ValueCoding.FP32)
            payload = encode(SparseVector(LAYOUT.size, indices, values), ValueCoding.FP32)
            patched = msgspec.structs.replace(order, patch=patch)
            report = report_for(cloud.order("a"), patch_hash=patched.patch_hash)
            with np.errstate(over="ignore"):
                finite = bool(np.isfinite(start + delta))
            try:
                assert check(cloud, encode_update(report, payload), patched) == report
                assert finite, (start, delta)
            except CodecError:
                assert not finite, (start, delta)
                refused += 1
    assert refused > 5


@pytest.mark.parametrize(
    ("upload", "task", "payload", "fits"),
    [
        (True, "train", True, True), (True, "train", False, False), (False, "train", False, True),
        (False, "train", True, False), (True, "evaluate", False, True),
        (True, "evaluate", True, False),
    ],
)  # fmt: skip
def test_a_payload_exactly_when_one_was_ordered(
    cloud: Cloud, order: OrderRow, upload: bool, task: str, payload: bool, fits: bool
) -> None:
    run = cloud.core.runs[RUN]
    row = cloud.store.round(RUN, 1)
    assert row is not None
    round_ = msgspec.structs.replace(row, task=task)
    report = report_for(cloud.order("a"), task=task)
    blob = encode_update(report, payload_of(10) if payload else b"")
    given = msgspec.structs.replace(order, work=msgspec.msgpack.encode(Work(upload=upload)))
    if fits:
        checked = judge(order_context(cloud.core.run_store, run, round_, given), blob)
        assert checked.report == report and (checked.delta is not None) == payload
    else:
        with pytest.raises(UpdateRejected, match=r"mismatch: update has \d+ payload bytes, not as"):
            judge(order_context(cloud.core.run_store, run, round_, given), blob)


def test_the_arrays_that_were_ordered_and_no_others(cloud: Cloud, order: OrderRow) -> None:
    work = msgspec.msgpack.encode(Work(returns={"means": 2, "n": 1}))
    given = msgspec.structs.replace(order, work=work)
    good = {"means": np.array([1, -2], np.float32), "n": np.ones(1, np.float32)}
    wrong = {"means": np.array([1, np.nan], np.float32), "n": good["n"]}

    def update(arrays: dict[str, NDArray[np.float32]]) -> bytes:
        sizes = {name: array.size for name, array in arrays.items()}
        report = report_for(cloud.order("a"), arrays=sizes)
        return encode_update(report, payload_of(10), arrays)

    assert check(cloud, update(good), given).arrays == {"means": 2, "n": 1}
    for arrays in ({}, {"n": good["n"]}, {**good, "more": good["n"]}, {**good, "n": good["means"]}):
        with pytest.raises(UpdateRejected, match=r"mismatch: update\.arrays: \{.*expected \{'mean"):
            check(cloud, update(arrays), given)
    with pytest.raises(UpdateRejected, match=r"update\.arrays: \{'means': 2, 'n': 1\}, expected"):
        check(cloud, update(good), order)
    with pytest.raises(CodecError, match=r"^update\.arrays\.means\[1\]: nan, expected a finite"):
        check(cloud, update(wrong), given)


@pytest.mark.parametrize(("level", "answer"), [(0.1, Committed), (2e38, Reject)])
def test_a_small_update_takes_twice_a_dense_vector_at_most(
    tmp_path: Path, level: float, answer: type[Message]
) -> None:
    """Decoded, checked against the model, and its mask stored; also where the sum is not finite."""
    layout = Layout.of([("body.weight", (2**11, 2**11), Role.PARAMETER)])
    size = layout.size
    cloud = Cloud(tmp_path / "large", layout=layout, init=np.full(size, level, np.float32))
    cloud.hello()
    values = np.resize(np.logspace(-4, 4, 200, dtype=np.float32), size - 1)
    values[-1] = max(level, 1.0)
    vector = SparseVector(size, np.arange(1, size, dtype=np.uint32), values)
    report = report_for(cloud.order("a"), layout)
    blob = encode_update(report, encode(vector, ValueCoding.FP32))
    assert len(blob) < 4096
    tracemalloc.start()
    try:
        (found,) = cloud.offer("a", blob)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, answer)
    # Besides the vector, which is that large: its bitmap, and blocks.
    assert peak < 2 * (4 * size) + size // 4 + 2**20
