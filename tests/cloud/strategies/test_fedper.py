"""FedPer and its mirror image: what a device keeps."""

import numpy as np
import pytest
from tests.paper.toy_fleet import LAYOUT

from sedge_cloud.strategies.fedper import FedPer, LGFedAvg
from sedge_cloud.strategy import Memory
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training

STATISTICS = {"norm.running_mean"}
HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (FedPer(), HEAD),
        (FedPer(head=("head.bias", "norm")), {"head.bias", "norm.weight", "norm.bias"}),
        (LGFedAvg(), {"conv.weight", "conv.bias", "norm.weight", "norm.bias"}),
        (LGFedAvg(head=("conv",)), {"norm.weight", "norm.bias", *HEAD}),
    ],
)
def test_keeps(strategy: FedPer, kept: set[str]) -> None:
    state = strategy.init(LAYOUT, np.zeros(LAYOUT.size, np.float32))
    plan = strategy.plan(state, Memory(), Training())
    assert set(plan.keep) == kept | STATISTICS and len(plan.keep) == len(kept) + 1
    assert plan.patch is None and plan.training is None and plan.upload


@pytest.mark.parametrize("kind", [FedPer, LGFedAvg])
def test_an_unknown_part_is_refused_when_the_run_starts(kind: type[FedPer]) -> None:
    with pytest.raises(ConfigError, match="head: found 'fc'"):
        kind(head=("fc",)).init(LAYOUT, np.zeros(LAYOUT.size, np.float32))
