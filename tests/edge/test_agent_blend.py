"""What a device predicts with: a mean over its rounds, or the shares of its classes before the first."""

import numpy as np
import pytest
from tests.edge.harness import Harness, drift, examples, theta_of

from sedge_edge.training.examples import Examples
from sedge_edge.training.local_training import mixture
from sedge_protocol.layout import Theta
from sedge_protocol.wire.work import Blend

pytestmark = pytest.mark.both_cores

MIXED = Blend(0.75)


def worth(device: Harness, number: int) -> tuple[float, float]:
    """The loss before and after the training of a round."""
    report = device.report(number)
    return report.before.loss, report.after.loss


def likes(last: float) -> Theta:
    """A model (n,) that does better in evaluations, by half the loss, once its last element is above 2."""
    theta = theta_of(1)
    theta[-1] = last
    return theta


def test_a_device_predicts_with_a_mean_over_its_rounds_and_trains_without_it(
    device: Harness,
) -> None:
    device.complete(1, theta=likes(4), blend=MIXED)  # it has no model of its own yet
    own = likes(4) + drift(1)
    assert worth(device, 1) == (0.5, 0.5)
    for number, last, expected in ((2, -2, (0.5, 0.5)), (3, -2, (1.0, 1.0)), (4, 6, (0.5, 0.5))):
        device.pump(device.reboot())
        device.complete(number, theta=likes(last), blend=MIXED)
        assert worth(device, number) == expected
        own = mixture(0.75, own, likes(last) + drift(number))
        np.testing.assert_array_equal(device.own(), own)
        np.testing.assert_array_equal(
            device.delta(number), likes(last) + drift(number) - likes(last)
        )
    device.complete(5, theta=likes(0), blend=Blend(0.0))
    assert worth(device, 5) == (1.0, 1.0)
    np.testing.assert_array_equal(device.own(), likes(0) + drift(5))


@pytest.mark.parametrize(
    ("counts", "prior", "taken"),
    [
        ((3, 0, 2, 5), "head.bias", True),
        ((0, 0, 0, 10), "head.bias", True),
        ((0, 0, 0, 1), "head.bias", True),
        ((5, 3, 2, 0), "head.bias", False),
        ((3, 0, 2, 5), "body.weight", False),
        ((3, 0, 2, 5), "", False),
    ],
    ids=["it helps", "one class", "one row", "it does not", "no bias of the head", "unasked"],
)
def test_a_device_adds_its_class_shares_where_they_help(
    device: Harness, counts: tuple[int, ...], prior: str, taken: bool
) -> None:
    labels = np.repeat(np.arange(4), counts)
    device.train = Examples(examples(len(labels)).inputs, labels)
    for number in (1, 2):  # without and with a model of its own
        device.complete(number, theta=likes(1.7), blend=Blend(0.25, prior))
        assert worth(device, number) == (0.5 if taken else 1.0, 1.0)
        # By the training alone.
        np.testing.assert_allclose(device.own(), likes(1.7), rtol=0, atol=0.1)


def test_before_its_first_training_a_device_predicts_with_its_class_shares(device: Harness) -> None:
    def kept() -> Theta | None:
        start = device.on_disk().runs["run"].kept.start
        return None if start is None else device.stored(start)

    def evaluated(number: int, last: float, prior: str = "head.bias") -> Theta | None:
        device.complete(number, task="evaluate", theta=likes(last), blend=Blend(0.5, prior))
        return kept()

    skewed = Examples(examples(10).inputs, np.repeat(np.arange(4), (3, 0, 2, 5)))
    device.train = skewed
    informed = evaluated(1, 1.7)
    assert informed is not None and informed[-1] > 2 > likes(1.7)[-1]
    np.testing.assert_array_equal(informed[:-4], likes(1.7)[:-4])
    assert evaluated(2, 4) is None  # the shares make no difference there
    assert evaluated(3, 1.7) is not None
    assert evaluated(4, 1.7, "") is None
    device.train = Examples(examples(12).inputs, np.arange(12) % 4)
    assert evaluated(5, 1.9999) is None
    device.train = skewed
    assert evaluated(6, 1.7) is not None
    device.pump(device.reboot())
    np.testing.assert_array_equal(kept(), informed)
    device.complete(7, theta=likes(1.7), blend=Blend(0.5, "head.bias"))
    assert kept() is None
    assert evaluated(8, 1.7) is None  # it has a model of its own


def test_a_bias_that_the_model_lacks(device: Harness) -> None:
    device.give(device.order(1, blend=Blend(0.5, "head.shift")))
    (decline,) = device.declines
    assert decline.reason == "CodecError"
    assert decline.detail == "blend.prior: no tensor named 'head.shift'"
