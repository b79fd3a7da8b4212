"""Cutting channels out of a model and counting them back in."""

import numpy as np
import pytest
from tests.cloud.forms import RESIDUAL, Residual, context_of, layout_of, random_theta

from sedge_cloud.algorithms.submodels import form_of
from sedge_protocol.errors import StrategyError

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
CONTEXT = context_of(LAYOUT, RESIDUAL, THETA, (0.25, 0.5))


def test_a_width_that_the_run_does_not_have() -> None:
    for width in (-1, 3):
        with pytest.raises(StrategyError, match=f"width {width}: the run has 3"):
            form_of(CONTEXT, width)
