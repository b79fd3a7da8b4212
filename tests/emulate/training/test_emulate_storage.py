"""theta in other orders: every element where it should be, and back."""

import numpy as np
import torch

from sedge_emulate.training.storage import AxisOrder, Storage
from sedge_protocol.layout import Layout, Role

LAYOUT = Layout.of(
    [("conv", (2, 3, 4, 5), Role.PARAMETER), ("bias", (2,), Role.PARAMETER),
     ("linear", (3, 24), Role.PARAMETER)]
)  # fmt: skip
CONV, LINEAR = AxisOrder((2, 3, 4, 5), (2, 0, 3, 1)), AxisOrder((3, 4, 3, 2), (0, 2, 3, 1))
ORDERS = {"conv": CONV, "linear": LINEAR}


def test_there_and_back() -> None:
    storage = Storage(LAYOUT, ORDERS)
    theta = np.arange(LAYOUT.size, dtype=np.float32)
    theta.setflags(write=False)
    stored = torch.zeros(LAYOUT.size)
    storage.write(theta, stored)
    views = storage.views(stored)
    plain = LAYOUT.views(theta)
    np.testing.assert_array_equal(views["conv"].numpy(), plain["conv"].transpose(2, 0, 3, 1))
    np.testing.assert_array_equal(views["bias"].numpy(), plain["bias"])
    images = plain["linear"].reshape(3, 4, 3, 2).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(views["linear"].numpy(), images)
    back = storage.read(stored)
    np.testing.assert_array_equal(back, theta)
    assert storage.read(stored) is not back


def test_views_are_the_vector() -> None:
    storage = Storage(LAYOUT, ORDERS)
    vector = torch.zeros(LAYOUT.size)
    for view in storage.views(vector).values():
        assert view.is_contiguous()
        view += 1
    assert bool((vector == 1).all())
