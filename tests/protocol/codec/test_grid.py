"""Rounding to multiples of a power of two."""

import math

import numpy as np
import pytest

from sedge_protocol.codec.grid import nearest_multiples, on_own_grid
from sedge_protocol.errors import Unencodable
from sedge_protocol.layout import Theta


def random_vector(size: int = 1000) -> Theta:
    """A vector (n,) with a few large elements."""
    return np.random.default_rng(3).standard_cauchy(size).astype(np.float32)


@pytest.mark.parametrize("k", [1, 30, 500, 1000])
def test_the_nearest_multiples(k: int) -> None:
    """Element by element; a spacing is at most a fifth smaller than it could be."""
    vector = random_vector()
    ranked = sorted(range(1000), key=lambda i: (-abs(float(vector[i])), i))[:k]
    least = abs(float(vector[ranked[max(1, 3 * k // 4) - 1]]))
    spacing = max(
        m * 2.0**e for m in (4, 5, 6, 7) for e in range(-40, 40) if m * 2.0**e <= 2 * least
    )
    expected = [0.0] * 1000
    for i in ranked:
        count = math.floor(abs(float(vector[i])) / spacing + 0.5)
        expected[i] = math.copysign(count * spacing, float(vector[i])) if count else 0.0
    found = nearest_multiples(vector, k)
    assert found.dense().tolist() == np.array(expected, np.float32).tolist()
    assert max(1, 3 * k // 4) <= found.count <= k and found.values.all()


@pytest.mark.parametrize(
    ("least", "spacing"), [(0.5, 1.0), (0.6, 1.0), (0.63, 1.25), (0.99, 1.75), (2.0**-20, 2.0**-19)]
)
def test_the_spacing_follows_from_three_quarters_of_the_elements(
    least: float, spacing: float
) -> None:
    vector = np.array([0.4 * spacing, -least, 2.4 * spacing, -1.6 * spacing, 0.1], np.float32)
    vector[4] = 0.3 * spacing
    found = nearest_multiples(vector, 4)
    assert found.indices is not None and found.indices.tolist() == [1, 2, 3]
    assert found.values.tolist() == [-spacing, 2 * spacing, -2 * spacing]


@pytest.mark.parametrize(
    ("least", "spacing"), [(0.63, 1.0), (0.74, 1.0), (0.8, 2.0), (2**-20, 2**-19)]
)
def test_a_binary_spacing_is_the_nearest_power_of_two(least: float, spacing: float) -> None:
    """Nearest by ratio: of 1.25 it is 1, of 1.5 it is 2."""
    vector = np.array([-least, 2.4 * spacing, -1.6 * spacing, 0], np.float32)
    found = nearest_multiples(vector, 4, binary=True).dense()
    first = spacing if 2 * least >= spacing else 0.0
    assert found.tolist() == [-first, 2 * spacing, -2 * spacing, 0]


def test_elements_that_are_alike_are_sent() -> None:
    found = nearest_multiples(np.full(100, -0.75, np.float32), 10)
    assert found.count == 10 and found.values.tolist() == [-1.5] * 10


def test_what_error_feedback_leaves_out_is_not_late() -> None:
    """Elements that move at steady paces: they are ahead as often as behind, and never far."""
    pace = np.linspace(0.1, 1, 1000, dtype=np.float32)
    owed, owes = np.zeros(1000, np.float32), []
    for _ in range(200):
        owed += pace
        owed -= nearest_multiples(owed, 50).dense()
        owes.append(owed.copy())
    mean = np.mean(owes[100:])
    assert abs(mean) < 0.1 * np.abs(owes[100:]).mean()


@pytest.mark.parametrize("size", [0.0, 1e-35, 3e38])
def test_values_whose_multiples_would_not_be_float32_stay_as_they_are(size: float) -> None:
    vector = np.array([0, size, -size, size], np.float32)
    assert nearest_multiples(vector, 2).dense().tolist() == [0, *vector[1:3].tolist(), 0]
    assert on_own_grid(vector, 6) is vector


def test_fewer_elements_than_asked_for_are_sent_as_they_are() -> None:
    vector = np.array([0, 0.3, 0, -7], np.float32)
    assert nearest_multiples(vector, 4).dense().tobytes() == vector.tobytes()
    assert nearest_multiples(vector, 1).dense().tolist() == [0, 0, 0, -14]


def test_a_vector_that_is_not_finite() -> None:
    with pytest.raises(Unencodable, match=r"vector\[1\] is nan"):
        nearest_multiples(np.array([1, np.nan], np.float32), 1)


def test_a_grid_of_its_own() -> None:
    """The power of two nearest to a sixth of 6.1 is 1, to a sixth of 9 it is 2."""
    values = np.array([6.1, -6.1, 6.1], np.float32)
    assert on_own_grid(values, 6).tolist() == [6, -6, 6]
    found = on_own_grid(np.array([9, -9.1, 0.1, -0.1], np.float32) * np.float32(1.4), 6)
    assert found.tolist() == [12, -12, 0, 0] and not np.signbit(found[3])
    assert on_own_grid(values[:0], 6).size == 0
