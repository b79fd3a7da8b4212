"""Head, body and norms of layouts as PyTorch names them."""

import pytest
from tests.cloud.contexts import a_layout

from sedge_cloud.algorithms.layers import body, head
from sedge_protocol.errors import ConfigError

LAYOUT = a_layout(
    {
        "block.0.weight": (4, 1, 3, 3),
        "block.1.weight": (4,),
        "block.1.bias": (4,),
        "block.1.running_mean": (4,),
        "fc1.weight": (5, 4),
        "fc1.bias": (5,),
        "norm.weight": (5,),
        "norm.bias": (5,),
        "fc10.weight": (3, 5),
        "fc10.bias": (3,),
    }
)


@pytest.mark.parametrize("name", ["fc2", "fc1.weights", "block.1.running_mean", "", "fc"])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(ConfigError, match=r"head: found .* 'fc1', 'fc1.bias'") as caught:
        head(LAYOUT, ("fc10", name))
    assert caught.value.found == name


def test_something_must_be_left_for_the_body() -> None:
    with pytest.raises(ConfigError, match="fewer tensors, so that some are left for the body"):
        head(LAYOUT, ("block", "fc1", "norm", "fc10"))
    alone = a_layout({"fc.weight": (2, 2)})
    with pytest.raises(ConfigError, match="fewer tensors"):
        body(alone)
