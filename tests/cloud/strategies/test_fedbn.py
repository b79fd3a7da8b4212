"""What FedBN keeps, with BatchNorm and without."""

import numpy as np
import pytest

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.fedbn import FedBN, Norms
from sedge_cloud.strategy import Memory
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Training

BATCH = Layout.of(
    [
        ("conv.weight", (2, 1, 3, 3), Role.PARAMETER),
        ("bn.weight", (2,), Role.PARAMETER),
        ("bn.bias", (2,), Role.PARAMETER),
        ("bn.running_mean", (2,), Role.STATISTIC),
        ("ln.weight", (2,), Role.PARAMETER),
        ("ln.bias", (2,), Role.PARAMETER),
        ("fc.weight", (2, 2), Role.PARAMETER),
        ("fc.bias", (2,), Role.PARAMETER),
    ]
)
GROUP = Layout.of([(t.name, t.shape, t.role) for t in BATCH.tensors if not t.name.startswith("bn")])
BN = {"bn.weight", "bn.bias", "bn.running_mean"}
LN = {"ln.weight", "ln.bias"}


def kept(norms: Norms, layout: Layout) -> set[str]:
    strategy = FedBN(norms)
    state = strategy.init(layout, np.zeros(layout.size, np.float32))
    keep = strategy.plan(state, Memory(), Training()).keep
    assert len(set(keep)) == len(keep)
    return set(keep)


def test_keeps_all_of_batch_norm() -> None:
    assert kept("batch", BATCH) == BN
    assert kept("all", BATCH) == BN | LN


def test_without_batch_norm_it_is_fedavg() -> None:
    assert kept("batch", GROUP) == set()
    assert kept("all", GROUP) == LN
    state = FedBN().init(GROUP, np.zeros(GROUP.size, np.float32))
    arguments = (state, Memory(), Training())
    assert FedBN().plan(*arguments) == FedAvg().plan(*arguments)


def test_refuses_another_kind() -> None:
    with pytest.raises(ConfigError, match="norms: found 'layer'"):
        FedBN("layer")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
