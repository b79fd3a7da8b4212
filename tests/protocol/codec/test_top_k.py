"""The largest magnitudes, against a full sort in plain Python."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.codec import top_k
from sedge_protocol.codec.top_k import largest
from sedge_protocol.errors import LocalError, Unencodable

Floats = NDArray[np.float32]


def _by_sorting(vector: Floats, k: int) -> list[int]:
    order = sorted(range(vector.size), key=lambda i: (-abs(float(vector[i])), i))
    return sorted(i for i in order[:k] if vector[i] != 0)


def _vectors() -> list[tuple[str, Floats]]:
    rng = np.random.default_rng(5)
    normal = rng.normal(size=257).astype(np.float32)
    return [
        ("normal", normal),
        ("many ties", rng.integers(-3, 4, 200).astype(np.float32)),
        ("all equal", np.full(100, -0.25, np.float32)),
        ("one bucket", np.nextafter(np.full(90, 1, np.float32), normal[:90]).astype(np.float32)),
        ("zeros", np.zeros(50, np.float32)),
        ("minus zeros", np.array([-0.0, 0.0, 1.0, -0.0], np.float32)),
        ("denormals", (rng.integers(-9, 9, 80) * 1e-45).astype(np.float32)),
        ("whole range", (normal * 10.0 ** rng.integers(-40, 38, 257)).astype(np.float32)),
        ("largest finite", np.array([3.4028235e38, -3.4028235e38, 1], np.float32)),
        ("one", np.ones(1, np.float32)),
    ]


@pytest.mark.parametrize(("name", "vector"), _vectors(), ids=lambda value: str(value)[:14])
def test_agrees_with_sorting_for_every_k(name: str, vector: Floats) -> None:
    for k in (*range(min(vector.size, 40)), *range(vector.size - 3, vector.size + 2)):
        if k >= 0:
            assert largest(vector, k).tolist() == _by_sorting(vector, k), (name, k)


@pytest.mark.parametrize(("name", "vector"), _vectors(), ids=lambda value: str(value)[:14])
def test_a_threshold_leaves_out_what_is_below(name: str, vector: Floats) -> None:
    for threshold in (1e-30, 0.5, 2.0, 99.5, 1e6):
        reached = np.flatnonzero(np.abs(vector) >= np.float32(threshold))
        assert np.array_equal(largest(vector, vector.size, threshold), reached), (name, threshold)
        for k in (0, 1, reached.size - 1, reached.size, reached.size + 1):
            if k >= 0:
                expected = np.intersect1d(largest(vector, k), reached)
                assert np.array_equal(largest(vector, k, threshold), expected), (name, k)


@pytest.mark.parametrize("threshold", [-1e-9, np.nan, np.inf, 3.5e38])
def test_a_threshold_without_sense_is_refused(threshold: float) -> None:
    with pytest.raises(LocalError, match="threshold"):
        largest(np.ones(3, np.float32), 1, threshold)


def test_a_threshold_is_a_float32() -> None:
    """0.1 is kept by the threshold 0.1, though as float64 it is a little more than the float32."""
    vector = np.array([0.1, 0.3, -0.7], np.float32)
    for value in (0.1, 0.3, 0.7):
        assert abs(vector[largest(vector, 3, value)]).min() == np.float32(value)


def test_the_result_is_a_sparse_vector_of_the_same_values() -> None:
    vector = np.array([0.5, 0, -2, 0.5, 3, -0.5], np.float32)
    kept = top_k(vector, 3)
    assert kept.indices is not None
    assert kept.indices.dtype == np.uint32
    assert kept.indices.tolist() == [0, 2, 4]
    assert kept.values.tolist() == [0.5, -2, 3]
    assert top_k(vector, 0).count == 0
    assert top_k(vector, 100).dense().tolist() == vector.tolist()
    assert top_k(vector, 100).count == 5


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(bad: float) -> None:
    with pytest.raises(Unencodable, match=r"vector\[2\]"):
        top_k(np.array([1, 2, bad, np.nan], np.float32), 1)
