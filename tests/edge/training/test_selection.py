"""How many elements of a delta are sent, and which."""

import numpy as np
import pytest

from sedge_edge.training.selection import select_elements
from sedge_protocol.wire.work import Codec


@pytest.mark.parametrize(
    ("fraction", "count"), [(1.0, 1000), (0.5, 500), (0.001, 1), (1e-9, 1), (0.0015, 2)]
)
def test_how_much_is_chosen(fraction: float, count: int) -> None:
    delta = np.linspace(-1, 1, 1000).astype(np.float32)
    chosen = select_elements(delta, Codec(fraction=fraction))
    assert chosen.count == count
    assert np.abs(chosen.values).min() >= np.sort(np.abs(delta))[-count]


@pytest.mark.parametrize(
    ("threshold", "fraction", "count"),
    [(0.5, 1.0, 6), (0.5, 0.4, 4), (0.5, 0.9, 6), (1.0, 1.0, 2), (1.1, 1.0, 0), (0.1, 1.0, 10)],
)
def test_a_threshold_and_a_fraction_both_bound_what_is_sent(
    threshold: float, fraction: float, count: int
) -> None:
    delta = np.array([0.1, -1, 0.3, 0.5, -0.5, 1, 0.2, 0.7, 0.4, -0.7], np.float32)
    chosen = select_elements(delta, Codec(threshold=threshold, fraction=fraction))
    assert chosen.count == count
    assert (np.abs(chosen.values) >= np.float32(threshold)).all()
