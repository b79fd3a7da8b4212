"""Pooled and paired figures, by hand: a small device must not decide what a table says."""

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats  # type: ignore[import-untyped]
from tests.emulate.sample import SAMPLE

from sedge_emulate import paired
from sedge_emulate.paired import against_first, difference, pooled
from sedge_emulate.result import DeviceResult, StrategyResult, spread
from sedge_protocol.wire.objective import ABSOLUTE_ERROR, ACCURACY

FIRST = SAMPLE.strategies[0]


def strategy(name: str, *tested: tuple[int, float]) -> StrategyResult:
    """Devices with so many test examples, and this metric before and after."""
    devices = [
        replace(FIRST.devices[0], device=f"dev-{i}", num_test=n, before=m, after=m)
        for i, (n, m) in enumerate(tested)
    ]
    before = spread([device.before for device in devices])
    return replace(FIRST, name=name, devices=devices, before=before, after=before)


ONE = strategy("one", (95, 0.8), (5, 1.0))
OTHER = strategy("other", (95, 0.9), (5, 0.4))


def test_a_device_with_five_examples_turns_the_mean_and_not_the_pooled_figure() -> None:
    assert ONE.before.mean > OTHER.before.mean
    assert pooled(ONE.devices, "before") == pytest.approx(0.81)
    assert pooled(OTHER.devices, "before") == pytest.approx(0.875)
    [(name, before, after)] = against_first([ONE, OTHER], ACCURACY)
    assert (name, before) == ("other", after)
    assert before.pooled == pytest.approx(-0.065)
    assert before.tested.mean == pytest.approx(0.25)  # of -0.1 and 0.6
    assert before.error == pytest.approx(0.7 / math.sqrt(2) / math.sqrt(2))
    assert (before.tested.devices, before.tested.better, before.tested.worse) == (2, 1, 1)


def test_of_an_error_less_is_better() -> None:
    found = difference(ONE, OTHER, "after", ABSOLUTE_ERROR)
    assert found is not None
    assert (found.tested.better, found.tested.worse) == (1, 1)
    smaller = strategy("smaller", (95, 0.1), (5, 0.1))
    found = difference(smaller, OTHER, "after", ABSOLUTE_ERROR)
    assert found is not None
    assert (found.tested.better, found.tested.worse) == (2, 0)


def test_only_devices_that_both_evaluated_are_compared() -> None:
    fewer = replace(OTHER, devices=OTHER.devices[:1])
    found = difference(ONE, fewer, "before", ACCURACY)
    assert found is not None
    assert (found.tested.devices, found.error) == (1, None)
    assert found.tested.mean == found.pooled == pytest.approx(-0.1)
    strangers = [replace(device, device="x") for device in OTHER.devices]
    assert difference(ONE, replace(OTHER, devices=strangers), "before", ACCURACY) is None


def test_unknown_numbers_of_test_examples_give_no_pooled_figure() -> None:
    untold: list[DeviceResult] = [replace(device, num_test=0) for device in ONE.devices]
    assert pooled(untold, "before") is None
    found = difference(replace(ONE, devices=untold), OTHER, "before", ACCURACY)
    assert found is not None
    assert found.pooled is None
    assert found.tested.mean == pytest.approx(0.25)


def test_sign_and_wilcoxon_by_hand() -> None:
    """Of five that differ all are better: 2 / 2^5 by both tests, which leave out the sixth."""
    pairs = [(0.5 + gain, 0.5) for gain in (0.01, 0.02, 0.03, 0.04, 0.05, 0.0)]
    found = paired.tested(pairs, ACCURACY)
    assert (found.devices, found.better, found.worse) == (6, 5, 0)
    assert found.sign_p == pytest.approx(2 / 2**5)
    assert found.wilcoxon_p == pytest.approx(2 / 2**5)
    assert paired.tested(pairs, ABSOLUTE_ERROR).worse == 5


@pytest.mark.parametrize("gain", [0.0, 5e-17, -1e-6])
def test_what_rounding_makes_of_equal_values_is_a_tie(gain: float) -> None:
    """A mean over seeds differs in its last bit, one of rounded values in the sixth decimal."""
    even = paired.tested([(0.1 + gain, 0.1)] * 3, ACCURACY)
    assert (even.better, even.worse, even.sign_p, even.wilcoxon_p) == (0, 0, 1, 1)
    moved = paired.tested([(0.7 + gain, 0.5), (0.5, 0.7)], ACCURACY)
    assert (moved.better, moved.worse) == (1, 1)
    assert moved.wilcoxon_p == 1  # of two equal ranks


@pytest.mark.parametrize("count", [1, 8, paired.MAX_EXACT, paired.MAX_EXACT + 1, 40])
def test_wilcoxon_is_scipys(count: int) -> None:
    """Whole numbers that are often equal, and numbers that never are."""
    rng = np.random.default_rng(count)
    whole = rng.integers(1, 5, count) * rng.choice([-1, 1], count)
    for gains in (whole, rng.normal(0.3, 1, count)):
        found = paired.tested([(float(gain), 0.0) for gain in gains], ACCURACY)
        expected: Any = stats.wilcoxon(np.round(gains, paired.DECIMALS))
        assert found.wilcoxon_p == pytest.approx(expected.pvalue)
