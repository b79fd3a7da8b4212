"""The plots of the report, for usual and for odd results."""

import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from tests.emulate.sample import SAMPLE

from sedge_cloud.figures.drawing import GREY, RED, Plot
from sedge_emulate.report.plots import (
    MAX_STROKES,
    by_round,
    of_bytes,
    of_cost,
    of_devices,
    of_personal,
    over_time,
)
from sedge_emulate.result import DeviceResult, Result, RoundResult

FIRST = SAMPLE.strategies[0]


def one(**changes: Any) -> Result:
    """The first strategy alone, with other values in these fields."""
    return replace(SAMPLE, strategies=[replace(FIRST, **changes)])


def a_round(number: int, late: int = 0, **changes: Any) -> RoundResult:
    return replace(
        FIRST.rounds[0],
        round=number, opened_s=600.0 * number, closed_s=600.0 * number + 500,
        late_devices=[f"d{i}" for i in range(late)], **changes,
    )  # fmt: skip


def devices(accuracies: list[tuple[float, float]]) -> list[DeviceResult]:
    return [
        replace(FIRST.devices[0], device=f"d{i}", before=before, after=after)
        for i, (before, after) in enumerate(accuracies)
    ]


def texts(plot: Plot) -> set[str]:
    marks = [*plot.x.ticks, *plot.y.ticks]
    return {plot.x.label, *(text for _, text in marks), *(label.text for label in plot.labels)}


def colours(plot: Plot) -> set[str]:
    return {path.colour for path in plot.paths}


def points(plot: Plot, colour: str) -> NDArray[np.float64]:
    """The last line of this colour in pixels (m, 2), up positive."""
    [*_, path] = [path for path in plot.paths if path.colour == colour and path.width]
    return np.array(re.findall(r"[\d.]+", path.d.replace("h0", "")), float).reshape(-1, 2) * [1, -1]


def test_accuracy_by_round() -> None:
    plots = by_round(SAMPLE)
    assert [plot.title for plot in plots] == ["Before local training", "After local training"]
    for plot in plots:
        assert {"100 %", "1", "2", "round"} <= texts(plot)
        assert colours(plot) == {"s1", "s2", "s3"}


def test_points_are_marked_where_they_are_few() -> None:
    few, many = (by_round(one(rounds=[a_round(i + 1) for i in range(n)]))[0] for n in (40, 41))
    assert len(few.paths) == 3  # the worst tenth's line, the mean's, its marks
    assert len(many.paths) == 2


def test_accuracy_over_time_and_rounds_as_strips() -> None:
    before, after, *strips = over_time(SAMPLE)
    for plot in (before, after):
        assert {"minutes", "0", "1", "5", "100 %"} <= texts(plot)
    for plot, name in zip(strips, ("local", "fedavg", "fedobp"), strict=True):
        assert plot.title == f"{name}, round by round"
        assert [label.text for label in plot.labels] == ["1 late"]
        assert {"minutes", "1", "2"} <= texts(plot)
        assert RED in colours(plot)
        assert plot.py(1) < plot.py(2)  # the first is on top
    untimed = [replace(r, closed_s=0.0) for r in FIRST.rounds]
    assert over_time(one(rounds=untimed)) == []


def test_the_red_ends_of_strips() -> None:
    assert RED not in colours(over_time(one(rounds=[a_round(1), a_round(2)]))[2])
    many = over_time(one(rounds=[a_round(number, late=2) for number in range(1, 501)]))[2]
    assert RED in colours(many)
    assert not many.labels  # they would overlap
    few = over_time(one(rounds=[a_round(number, late=2) for number in range(1, 11)]))[2]
    assert [label.text for label in few.labels] == ["2 late"] * 10
    assert {label.anchor for label in few.labels} == {"start", "end"}


def test_every_strategy_has_a_plot_that_names_its_worst_device() -> None:
    plots = of_devices(SAMPLE)
    assert [plot.title for plot in plots] == ["local", "fedavg", "fedobp"]
    named = ["dev-03: 31.0 % → 90.0 %", "dev-07: 25.0 % → 60.0 %", "dev-11: 35.0 % → 95.5 %"]
    assert [plot.labels[0].text for plot in plots] == named
    # Training that made it worse: under fedobp dev-00 falls from 95 % to 80 %.
    assert [RED in colours(plot) for plot in plots] == [False, False, True]


def test_the_worst_devices_name_has_room() -> None:
    """Below its dot, or above it where that would be on the axis: never among the ticks."""
    for before in (0.0, 0.04, 0.3):
        [plot] = of_devices(one(devices=devices([(before, 0.5), (0.9, 0.9)])))
        assert plot.labels[0].y <= plot.py(plot.y.low)


@pytest.mark.parametrize("number", [MAX_STROKES, MAX_STROKES + 1, 10_000])
def test_devices_are_a_few_paths_however_many_they_are(number: int) -> None:
    accuracies = [(i / number, 1 - i / number) for i in range(number)]
    [plot] = of_devices(one(devices=devices(accuracies)))
    assert len(plot.paths) <= 4
    assert sum(len(path.d) for path in plot.paths) < 40_000
    assert plot.labels[0].text == "d0: 0.0 % → 100.0 %"


def test_of_many_devices_the_distribution_is_drawn() -> None:
    """Those that are worst before gain most; the median of each hundredth says so."""
    accuracies = [(i / 1000, 0.5 + i / 2000) for i in range(1000)]
    shuffled = [accuracies[i] for i in np.random.default_rng(1).permutation(1000)]
    [plot] = of_devices(one(devices=devices(shuffled)))
    before, after = points(plot, GREY)[:, 1], points(plot, "s1")[:, 1]
    assert (len(before), len(after)) == (100, 100)
    # Both rise evenly, the second half as fast, and they meet at the top.
    for line in (before, after):
        assert np.allclose(np.diff(line), np.diff(line).mean(), atol=0.15)
    assert np.ptp(after) == pytest.approx(np.ptp(before) / 2, rel=0.02)
    assert after[-1] == pytest.approx(before[-1], abs=0.02 * np.ptp(before))


def test_bytes_after_a_devices_first_round_stand_against_the_whole_model() -> None:
    up, down = of_bytes(SAMPLE)
    for plot in (up, down):
        assert plot.labels[0].text == "the whole model, 4.00 MB"
    # Round 1 has newcomers alone; 60,000 bytes up and 6 MB down for two devices in round 2.
    assert {"10 kB", "100 kB", "1 MB", "10 MB"} <= texts(up)
    assert up.py(30_000) == pytest.approx(-points(up, "s1")[0, 1], abs=0.1)
    assert len(points(up, "s1")) == 1
    assert "100 kB" not in texts(down)
    assert up.labels[0].y < up.py(4_000_000)
    # Of a model that is smaller than what is sent the name stands below the line.
    tiny = replace(SAMPLE.model, dense_bytes=20_000)
    above, _ = of_bytes(replace(SAMPLE, model=tiny))
    assert above.labels[0].y > above.py(20_000)


def test_accuracy_against_bytes_both_ways() -> None:
    """12.12 MB under each strategy; who is cheaper is further left."""
    second = SAMPLE.strategies[1]
    dear = replace(second, rounds=[replace(r, bytes_down=r.bytes_down * 50) for r in second.rounds])
    for plot in of_cost(replace(SAMPLE, strategies=[FIRST, dear])):
        assert {"1 MB", "10 MB", "100 MB"} <= texts(plot)
        cheap, costly = points(plot, "s1")[0], points(plot, "s2")[0]
        assert cheap[0] == pytest.approx(plot.px(12_120_000), abs=0.1)
        assert cheap[0] < costly[0]


def by_tensor(*personal: dict[str, float]) -> Result:
    """A strategy with these personal parameters in its rounds."""
    return one(rounds=[a_round(i, personal=p) for i, p in enumerate(personal, start=1)])


def test_personal_parameters_by_round() -> None:
    [plot] = of_personal(SAMPLE)
    assert plot.title == "fedobp: personal parameters of a device, by round"
    assert [name for _, name in plot.keys] == ["conv1.weight", "conv1.bias", "classifier.weight"]
    assert colours(plot) == {"s1", "s2", "s3"}
    assert {"round", "150"} <= texts(plot)


def test_of_many_tensors_the_largest_have_a_colour() -> None:
    first, last = {f"layer{i}": float(i) for i in range(4)}, {f"layer{i}": 2.0 for i in range(9)}
    [plot] = of_personal(by_tensor(first, last))
    names = sorted(name for _, name in plot.keys)
    assert names == ["4 others", "layer0", "layer1", "layer2", "layer3", "layer4"]


def test_rounds_without_personal_parameters_have_no_plot() -> None:
    assert of_personal(by_tensor({}, {})) == []
    assert of_personal(by_tensor()) == []
    [plot] = of_personal(by_tensor({}, {"w": 2.0}, {}))
    assert plot.y.high >= 2


_ROUND = FIRST.rounds[0]
_SILENT = replace(_ROUND, bytes_up=0, bytes_down=0, opened_s=0.0, closed_s=0.0)
ODD = {
    "no strategy": replace(SAMPLE, strategies=[]),
    "no rounds": one(rounds=[]),
    "one round without a byte and without time": one(rounds=[_SILENT]),
    "a round without updates": one(rounds=[replace(_ROUND, num_updates=0, late=0)]),
    "a long time": one(rounds=[replace(_ROUND, closed_s=1e9)]),
    "all wrong": one(devices=devices([(0.0, 0.0)])),
    "all right": one(devices=devices([(1.0, 1.0)] * 3)),
    "eight strategies": replace(SAMPLE, strategies=[FIRST] * 8),
}


@pytest.mark.parametrize("result", ODD.values(), ids=ODD)
def test_odd_results_are_drawn_too(result: Result) -> None:
    """Every coordinate is a number within the plot."""
    for make in (by_round, over_time, of_devices, of_bytes, of_cost, of_personal):
        for plot in make(result):
            for path in plot.paths:
                found = [float(word) for word in re.findall(r"[^MHhz ]+", path.d)]
                assert all(-1 <= value <= 720 for value in found), path.d
