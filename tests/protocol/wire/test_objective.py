"""What suits a target where nothing is said, and what does not go together."""

from typing import Any

import msgspec
import pytest

from sedge_protocol.wire.objective import (
    ABSOLUTE_ERROR,
    ACCURACY,
    LABEL_ACCURACY,
    LOSS,
    MAX_CONSTANTS,
    MAX_METRIC_CHARS,
    Guide,
    Loss,
    Metric,
    TargetKind,
    contradiction,
    default_loss,
    default_metric,
)

DEFAULTS: list[tuple[TargetKind, Loss | None, Metric]] = [
    ("class", None, ACCURACY),
    ("float", None, ABSOLUTE_ERROR),
    ("float", Loss("bce_with_logits"), LABEL_ACCURACY),
    ("float", Loss("own:loss"), LOSS),
    ("none", None, LOSS),
    ("class", Loss("own:loss"), ACCURACY),
]


@pytest.mark.parametrize(("target", "loss", "metric"), DEFAULTS)
def test_a_default_never_contradicts(target: TargetKind, loss: Loss | None, metric: Metric) -> None:
    named = loss or default_loss(target)
    found = default_metric(target, named)
    assert found == metric
    assert contradiction(target, 3 if target == "class" else 0, named, found) == ""


CONTRADICTIONS: list[tuple[TargetKind, int, Loss, Metric, str]] = [
    ("class", 0, Loss(), ACCURACY, "target 'class' with 0 classes, expected at least 1"),
    ("none", 3, Loss("mse"), LOSS, "target 'none' with 3 classes, expected 0"),
    ("class", 3, Loss("mse"), ACCURACY, "the loss mse does not fit the target 'class'"),
    ("float", 0, Loss(), LOSS, "the loss cross_entropy does not fit the target 'float'"),
    ("float", 0, Loss("mse"), ACCURACY, "the metric accuracy does not fit the target 'float'"),
    (
        "class",
        3,
        Loss(),
        ABSOLUTE_ERROR,
        "the metric mean_absolute_error does not fit the target 'class'",
    ),
    ("float", 0, Loss("l1", 0.1), LOSS, "label_smoothing or class_weights with l1"),
    ("class", 3, Loss(class_weights=(1.0, 2.0)), ACCURACY, "2 class_weights, expected 3"),
]


@pytest.mark.parametrize(("target", "classes", "loss", "metric", "why"), CONTRADICTIONS)
def test_a_contradiction_is_named(
    target: TargetKind, classes: int, loss: Loss, metric: Metric, why: str
) -> None:
    assert contradiction(target, classes, loss, metric).startswith(why)


def test_badness_rises_with_what_is_worse() -> None:
    assert ACCURACY.badness(0.9) < ACCURACY.badness(0.1)
    assert ABSOLUTE_ERROR.badness(0.1) < ABSOLUTE_ERROR.badness(0.9)


BOUNDS: list[tuple[type[Any], str, list[object], list[object]]] = [
    (Guide, "name", ["x" * 256], ["", "x" * 257]),
    (Guide, "models", [["previous", "start"]], [["start", "previous", "start"], ["next"]]),
    (Guide, "constants", [0, MAX_CONSTANTS], [-1, MAX_CONSTANTS + 1]),
    (Loss, "label_smoothing", [0.0, 0.99], [-0.01, 1.0]),
    (Loss, "class_weights", [[0.0, 1e6]], [[-0.01], [1e6 + 1]]),
    (Metric, "name", ["x" * MAX_METRIC_CHARS], ["", "x" * (MAX_METRIC_CHARS + 1)]),
]


@pytest.mark.parametrize(("of", "key", "fine", "wrong"), BOUNDS)
def test_a_field_has_bounds(
    of: type[Any], key: str, fine: list[object], wrong: list[object]
) -> None:
    for value in fine:
        msgspec.convert({"name": "x", key: value}, of)
    for value in wrong:
        with pytest.raises(msgspec.ValidationError, match=rf"\$\.{key}"):
            msgspec.convert({"name": "x", key: value}, of)
