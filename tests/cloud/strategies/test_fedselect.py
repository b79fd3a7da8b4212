"""FedSelect's masks: how they grow, travel through the store, and decide who is averaged."""

import numpy as np
import pytest
from tests.cloud.contexts import a_layout

from sedge_cloud.strategies.fedselect import FedSelect, read_mask, write_mask
from sedge_protocol.errors import StrategyError

LAYOUT = a_layout(
    {"fc.weight": (2, 5), "fc.bias": (2,), "norm.running_mean": (2, 1), "head.weight": (2, 2)}
)


def test_no_mask_is_empty_and_another_models_is_refused() -> None:
    assert not read_mask(None, 18).any()
    with pytest.raises(StrategyError, match=r"mask: shape \(2,\) in memory, expected \(3,\)"):
        read_mask(write_mask(np.zeros(32, np.bool_)), 33)


def test_tensors_too_small_for_a_personal_element_are_said() -> None:
    assert not FedSelect(rate=0.2).remarks([LAYOUT])
    (said,) = FedSelect().remarks([LAYOUT])
    assert said.startswith("fedselect: with rate 0.05 and limit 0.3, no tensor gets a personal")
