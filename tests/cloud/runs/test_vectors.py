"""Vectors among the blobs: exact, decoded once, and no more of them in memory than there is room for."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.helper import Cloud, began, random_theta, small_update

from sedge_cloud.ingest import judge
from sedge_cloud.runs import vectors
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.cache import Memory
from sedge_cloud.store.rows import ClientModelRow
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode


def test_arrays_come_back(tmp_path: Path) -> None:
    run_store = RunStore(Cloud(tmp_path, None, ()).store)
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays: dict[str, NDArray[np.float32]] = {
        "importance": random_theta(2),
        "grid": grid,
        "scalar": np.full((), 3.5, np.float32),
        "none": np.empty((0, 3), np.float32),
        "every other, turned": grid.T[::2],
        "edge": np.array([0.0, -0.0, np.inf, np.nan, 1e-45, 3.4e38], np.float32),
    }
    blob = run_store.write_arrays(arrays)
    found = run_store.read_arrays(blob)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape and found[name].dtype == np.float32
        assert found[name].tobytes() == array.tobytes()
    assert run_store.write_arrays(arrays) == blob
    assert run_store.write_arrays({}) == b"" and run_store.read_arrays(b"") == {}


def test_an_update_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its receipt; the closing and the next plan find it in memory, unless there is too little."""
    cloud = began(tmp_path, strategy="fedobp", num_rounds=9)
    decoded: list[int] = []

    def counted(data: bytes, size: int, context: bytes | None = None) -> SparseVector:
        decoded.append(len(data))
        return decode(data, size, context)

    monkeypatch.setattr(vectors, "decode", counted)
    monkeypatch.setattr(judge, "decode", counted)
    for name in "ab":
        cloud.offer(name, small_update(cloud.order(name)))
    assert len(decoded) == 2
    cloud.poll()
    assert cloud.order("a").round == 2 and len(decoded) == 2
    monkeypatch.setattr(Memory, "of_machine", lambda: Memory(0))
    cloud.come_back()
    decoded.clear()
    cloud.answer("a", "b")
    assert cloud.order("a").round == 3
    assert len(decoded) >= 6  # receipt, closing and plan, each for both


def test_what_only_a_plan_needed_leaves_the_memory(tmp_path: Path) -> None:
    """The models and patches that orders name stay."""
    cloud = Cloud(tmp_path, None, ())
    run_store = RunStore(cloud.store)
    size, sparse = 8, SparseVector(8, np.arange(2, dtype=np.uint32), np.ones(2, np.float32))
    patches = [encode(sparse, values) for values in (ValueCoding.FP32, ValueCoding.BF16)]
    models = [
        run_store.write_model(np.full(size, by, np.float32), Compression.NONE)[0] for by in (1, 2)
    ]
    rows = [
        ClientModelRow("run", name, 1, model, patch, name.encode(), b"")
        for name, model, patch in zip("ab", models, patches, strict=True)
    ]
    for row in rows:
        run_store.keep_delta(row.blob, b"", sparse)

    def decoded() -> list[object]:
        found = [run_store.patch(row, size, keep=True) for row in rows]
        return [*found, *(run_store.decoded_model(row.model, size) for row in rows)]

    before = decoded()
    run_store.drop_past(rows, {rows[0].patch_hash, rows[1].model})
    assert run_store.memory.held == vectors.vector_bytes(sparse) + 4 * size
    kept = [found is known for found, known in zip(decoded(), before, strict=True)]
    assert kept == [True, False, False, True]
