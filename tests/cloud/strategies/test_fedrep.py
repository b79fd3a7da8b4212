"""The two trainings of FedRep and FedBABU: what is frozen, for how long, in which order."""

import numpy as np
import pytest
from tests.paper.toy_fleet import LAYOUT

from sedge_cloud.strategies.fedrep import FedBABU, FedRep
from sedge_cloud.strategy import Assignment, Memory, Strategy, Update
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training

HEAD = ("head.weight", "head.bias")
BODY = ("conv.weight", "conv.bias", "norm.weight", "norm.bias")


def planned(strategy: Strategy, run: Training) -> tuple[Assignment, Training, Training]:
    state = strategy.init(LAYOUT, np.zeros(LAYOUT.size, np.float32))
    plan = strategy.plan(state, Memory(), run)
    assert plan.training is not None and len(plan.then) == 1
    return plan, plan.training, plan.then[0]


@pytest.mark.parametrize(
    ("local_epochs", "body_epochs", "epochs"), [(5, 1, (4, 1)), (5, 2, (3, 2)), (1, 1, (1, 1))]
)
def test_fedrep(local_epochs: int, body_epochs: int, epochs: tuple[int, int]) -> None:
    run = Training(local_epochs=local_epochs, learning_rate=0.3, freeze=("conv.bias",))
    plan, first, second = planned(FedRep(body_epochs=body_epochs), run)
    assert set(plan.keep) == {"norm.running_mean", *HEAD}
    assert (first.local_epochs, second.local_epochs) == epochs
    assert set(first.freeze) == set(BODY)
    assert set(second.freeze) == {"conv.bias", *HEAD}
    assert first.learning_rate == second.learning_rate == 0.3


@pytest.mark.parametrize(
    ("local_epochs", "head_epochs", "epochs"), [(5, 1, (4, 1)), (5, 2, (3, 2)), (1, 3, (1, 3))]
)
def test_fedbabu(local_epochs: int, head_epochs: int, epochs: tuple[int, int]) -> None:
    run = Training(local_epochs=local_epochs)
    plan, first, second = planned(FedBABU(head_epochs=head_epochs), run)
    assert plan.keep == ("norm.running_mean",)
    assert (first.local_epochs, second.local_epochs) == epochs
    assert (set(first.freeze), set(second.freeze)) == (set(HEAD), set(BODY))


def test_fedbabu_never_changes_the_head() -> None:
    theta = np.ones(LAYOUT.size, np.float32)
    strategy = FedBABU()
    after = strategy.apply(strategy.init(LAYOUT, theta), [Update("a", 3, theta * 5)])
    fixed = LAYOUT.mask((*HEAD, "norm.running_mean"))
    np.testing.assert_array_equal(after.theta, np.where(fixed, 1, 5))


@pytest.mark.parametrize(("kind", "key"), [(FedRep, "body_epochs"), (FedBABU, "head_epochs")])
@pytest.mark.parametrize("epochs", [0, 1001])
def test_refuses(kind: type[FedRep | FedBABU], key: str, epochs: int) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**{key: epochs})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.key == key
