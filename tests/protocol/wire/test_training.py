"""Which trainings every device can do."""

import pytest

from sedge_protocol.wire.training import Training


@pytest.mark.parametrize(
    ("training", "plain"),
    [
        (Training(), True),
        (Training(3, 0.1, 0.9, 0.5, "fill", ("head",)), True),
        (Training(beta1=0.5, beta2=0.5, epsilon=1e-3), True),  # of an optimizer that is not used
        (Training(optimizer="adam"), False),
        (Training(optimizer="adamw"), False),
        (Training(momentum=0.9, nesterov=True), False),
        (Training(weight_decay=1e-4), False),
        (Training(clip_norm=1.0), False),
    ],
)
def test_a_plain_training_needs_no_announcement(training: Training, plain: bool) -> None:
    assert training.plain is plain
