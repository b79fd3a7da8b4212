"""The prior of a device's labels: what their shares add to the bias of each class."""

import numpy as np
import pytest

from sedge_edge.training.label_prior import with_prior


@pytest.mark.parametrize(
    "labels",
    [[0, 0, 0, 2, 2, 0], [[0, 0, -100, 2], [0, -100, 2, 0]]],
    ids=["one a row", "several a row, some of which do not count"],
)
def test_the_shares_are_added_to_the_bias_alone(labels: object) -> None:
    theta = np.arange(5, dtype=np.float32)
    found = with_prior(theta, slice(1, 4), np.array(labels))
    # Of 6 labels 4, 0 and 2, and one more of each of the 3 classes.
    added = np.log(np.array([5, 1, 3]) / 9 * 3)
    np.testing.assert_allclose(found, [0, *(np.array([1, 2, 3]) + added), 4], rtol=1e-6)
    assert theta.tolist() == [0, 1, 2, 3, 4]


def test_equal_shares_add_nothing() -> None:
    theta = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(with_prior(theta, slice(1, 4), np.arange(300) % 3), theta)
