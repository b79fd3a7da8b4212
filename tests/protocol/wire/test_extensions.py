"""What an order needs of a device, in the words that it announces."""

import pytest

from sedge_protocol.wire.extensions import needed_by_work
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import (
    Blend,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    UpdateSelection,
    Work,
)

FROZEN = Training(freeze=("w",))


@pytest.mark.parametrize(
    ("work", "needed"),
    [
        (Work(), ""),
        (Work(training=FROZEN), "freeze"),
        (Work(then=(Training(), FROZEN)), "freeze phases"),
        (Work(own_model=OwnModel()), "own_model"),
        (Work(own_model=OwnModel(training=FROZEN)), "freeze own_model"),
        (Work(select=UpdateSelection(), remember=True), "remember select"),
        (Work(scoring=DeviceScoring(quantile=0.5)), "scoring"),
        (Work(choice=PatchChoice(0.1)), "choice"),
        (Work(blend=Blend(0.5)), "blend"),
        (Work(own_model=OwnModel(training=Training(warmup_steps=2))), "own_model schedule"),
        (Work(then=(Training(end_factor=0.5),)), "phases schedule"),
        (Work(then=(Training(average=0.5),)), "average phases"),
        (Work(settings={"rate": 1}), "settings"),
        (Work(arrays={"means": b""}), "arrays"),
        (Work(returns={"means": 1}, settings={"on": True}), "arrays settings"),
    ],
)
def test_what_a_device_must_be_able_to_do(work: Work, needed: str) -> None:
    assert needed_by_work(work, Training()) == frozenset(needed.split())
    run_freezes = needed_by_work(work, FROZEN)
    assert run_freezes - {"freeze"} == frozenset(needed.split()) - {"freeze"}
    assert "freeze" in run_freezes


def test_a_training_takes_the_place_of_the_runs() -> None:
    assert needed_by_work(Work(training=Training()), FROZEN) == frozenset()
