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
from sedge_protocol.codec import SparseVector, decode


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
