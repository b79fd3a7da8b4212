"""A device that blends: what it is asked, and of which models it can know its class shares."""

import numpy as np
import pytest
from tests.cloud.contexts import context_of

from sedge_cloud.strategies.blended import Blended
from sedge_cloud.strategy import ClientModel
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.work import Blend


@pytest.mark.parametrize(
    ("head", "prior"),
    [
        ((("head.weight", (3, 2)), ("head.bias", (3,))), "head.bias"),
        ((("head.weight", (3, 2)),), ""),
        ((("scale", (3,)),), ""),
    ],
    ids=["a bias", "none", "a vector that is no bias"],
)
def test_a_device_is_told_which_bias_takes_its_class_shares(
    head: tuple[tuple[str, tuple[int, ...]], ...], prior: str
) -> None:
    shapes = [("body.weight", (2, 4), Role.PARAMETER)]
    layout = Layout.of([*shapes, *((name, shape, Role.PARAMETER) for name, shape in head)])
    context = context_of(layout, np.zeros(layout.size, np.float32))
    method = Blended(mix=0.25)
    assert method.plan(context, ClientModel()).work.blend == Blend(0.25, prior)
    assert Blended(prior=False).plan(context, ClientModel()).work.blend == Blend(0.5)
    remark = "blended: the head has no bias to which class shares could be added"
    assert method.remarks([layout]) == (() if prior else (remark,))
