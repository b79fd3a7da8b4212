"""The panels of the report, for usual and for odd results."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from sedge_emulate.charts import Panel
from sedge_emulate.plots import (
    MAX_STROKES,
    accuracy_panels,
    device_panels,
    personal_panels,
    personal_round_panels,
    traffic_panels,
)
from sedge_emulate.result import DeviceResult, Result, TensorShare, read_json

_SAMPLE = Path(__file__).parents[1] / "vectors" / "result_format_1.json"


def the_usual() -> Result:
    """Three strategies on twelve devices; the worst are dev-03, dev-07 and dev-11."""
    return read_json(_SAMPLE)


def one(**changes: Any) -> Result:
    """One strategy that differs from the usual in these fields."""
    result = the_usual()
    return replace(result, strategies=[replace(result.strategies[0], **changes)])


def devices(accuracies: list[tuple[float, float]]) -> list[DeviceResult]:
    usual = the_usual().strategies[0].devices[0]
    return [
        replace(usual, device=f"d{i}", before=before, after=after)
        for i, (before, after) in enumerate(accuracies)
    ]


def texts(panel: Panel) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(panel.svg).iter("text")]


def test_accuracy_by_round() -> None:
    before, after = accuracy_panels(the_usual())
    assert (before.title, after.title) == ("Before local training", "After local training")
    for panel in (before, after):
        assert "100 %" in texts(panel)
        assert {"1", "2", "round"} <= set(texts(panel))


def test_every_strategy_has_a_panel_that_names_its_worst_device() -> None:
    panels = device_panels(the_usual())
    assert [panel.title for panel in panels] == ["local", "fedavg", "fedobp"]
    named = ["dev-03: 31.0 % → 90.0 %", "dev-07: 25.0 % → 60.0 %", "dev-11: 35.0 % → 95.5 %"]
    for panel, text in zip(panels, named, strict=True):
        assert text in texts(panel)


def test_the_worst_devices_name_has_room() -> None:
    """Below its dot, or above it where that would be on the axis: never among the ticks."""
    for before in (0.0, 0.04, 0.3):
        [panel] = device_panels(one(devices=devices([(before, 0.5), (0.9, 0.9)])))
        names = [
            float(element.get("y", "nan"))
            for element in ElementTree.fromstring(panel.svg).iter("text")
            if (element.text or "").startswith("d0:")
        ]
        # The axis ends some 40 pixels above the lower edge of 290.
        assert len(names) == 1
        assert names[0] < 250


def test_training_that_made_it_worse_is_marked() -> None:
    local, _, fedobp = device_panels(the_usual())
    # Under fedobp dev-00 falls from 95 % to 80 %.
    assert "--loss" in fedobp.svg
    assert "--loss" not in local.svg


@pytest.mark.parametrize("number", [MAX_STROKES, MAX_STROKES + 1, 10_000])
def test_devices_are_a_few_paths_however_many_they_are(number: int) -> None:
    accuracies = [(i / number, 1 - i / number) for i in range(number)]
    [panel] = device_panels(one(devices=devices(accuracies)))
    assert panel.svg.count("<path") < 40
    assert len(panel.svg) < 80_000
    assert "d0: 0.0 % → 100.0 %" in texts(panel)


def heights(panel: Panel, colour: str) -> NDArray[np.float64]:
    """Where the last line of this colour goes, from below, in the drawing's own units."""
    [*_, path] = [
        element.get("d", "")
        for element in ElementTree.fromstring(panel.svg).iter("path")
        if f"stroke: var({colour})" in element.get("style", "")
    ]
    return -np.array(re.findall(r"[ML] \S+ (\S+)", path), float)


def test_of_many_devices_the_distribution_is_drawn() -> None:
    """Those that are worst before gain most; the median of each hundredth says so."""
    accuracies = [(i / 1000, 0.5 + i / 2000) for i in range(1000)]
    shuffled = [accuracies[i] for i in np.random.default_rng(1).permutation(1000)]
    [panel] = device_panels(one(devices=devices(shuffled)))
    before, after = heights(panel, "--muted"), heights(panel, "--series-1")
    assert (len(before), len(after)) == (100, 100)
    # Both rise evenly, the second half as fast, and they meet at the top.
    for line in (before, after):
        assert np.allclose(np.diff(line), np.diff(line).mean(), atol=0.1)
    assert np.ptp(after) == pytest.approx(np.ptp(before) / 2, rel=0.02)
    assert after[-1] == pytest.approx(before[-1], abs=0.02 * np.ptp(before))


def test_bytes_stand_against_the_whole_model() -> None:
    up, down = traffic_panels(the_usual())
    for panel in (up, down):
        assert "the whole model, 4.00 MB" in texts(panel)
    # 60,000 bytes for three devices in round 1 and for two in round 2: 20 and 30 kB.
    assert {"10 kB", "100 kB", "1 MB", "10 MB"} <= set(texts(up))
    assert "10 kB" not in texts(down)


def test_personal_parameters_by_tensor() -> None:
    [panel] = personal_panels(the_usual())
    assert panel.title == "fedobp: 172 parameters per device"
    found = texts(panel)
    assert found.index("conv1.weight") < found.index("classifier.weight")
    assert {"82.0 %  (141)", "18.0 %  (31)", "0.0 %  (0)"} <= set(found)


def test_of_many_tensors_the_largest_are_shown() -> None:
    personal = [TensorShare(f"layer{i}", float(i), i / 1225) for i in range(50)]
    [panel] = personal_panels(one(personal=personal))
    shown = [text for text in texts(panel) if text.startswith("layer")]
    assert shown == [f"layer{i}" for i in range(39, 50)]
    assert "39 others" in texts(panel)
    assert f"{100 * sum(range(39)) / 1225:.1f} %  (741)" in texts(panel)
    assert panel.title == "local: 1,225 parameters per device"


def by_round(personal: list[dict[str, float]]) -> Result:
    """A strategy with these personal parameters in its rounds."""
    first = the_usual().strategies[0].rounds[0]
    rounds = [replace(first, round=i, personal=p) for i, p in enumerate(personal, start=1)]
    return one(rounds=rounds)


def test_personal_parameters_by_round() -> None:
    [panel] = personal_round_panels(the_usual())
    assert panel.title == "fedobp: parameters per device, by round"
    found = texts(panel)
    assert {"conv1.weight", "conv1.bias", "classifier.weight", "round", "150"} <= set(found)
    for tensor in range(3):
        assert f"var(--series-{tensor + 1})" in panel.svg


def test_of_many_tensors_the_largest_have_a_colour() -> None:
    [panel] = personal_round_panels(
        by_round([{f"layer{i}": float(i) for i in range(4)}, {f"layer{i}": 2.0 for i in range(9)}])
    )
    named = [text for text in texts(panel) if "layer" in text or "others" in text]
    assert sorted(named) == ["4 others", "layer0", "layer1", "layer2", "layer3", "layer4"]


def test_tensors_with_an_underscore_first_are_named() -> None:
    [panel] = personal_round_panels(by_round([{"_scale": 1.0, "w": 2.0}, {"_scale": 1.0}]))
    assert {"_scale", "w"} <= set(texts(panel))


def test_rounds_without_personal_parameters_have_no_panel() -> None:
    assert personal_round_panels(by_round([{}, {}])) == []
    assert personal_round_panels(by_round([])) == []
    [panel] = personal_round_panels(by_round([{}, {"w": 2.0}, {}]))
    ElementTree.fromstring(panel.svg)


def odd_results() -> dict[str, Result]:
    result = the_usual()
    strategy = result.strategies[0]
    first = strategy.rounds[0]
    silent = replace(first, bytes_up=0, bytes_down=0)
    many = [replace(first, round=number) for number in range(1, 301)]
    return {
        "no strategy": replace(result, strategies=[]),
        "no rounds": one(rounds=[]),
        "one round without a byte": one(rounds=[silent]),
        "a round without updates": one(rounds=[replace(first, num_updates=0, late=0)]),
        "300 rounds": one(name="$odd_name$", rounds=many),
        "all wrong": one(devices=devices([(0.0, 0.0)])),
        "all right": one(devices=devices([(1.0, 1.0)] * 3)),
        "eight strategies": replace(result, strategies=[strategy] * 8),
    }


@pytest.mark.parametrize("kind", odd_results())
def test_odd_results_are_drawn_too(kind: str) -> None:
    result = odd_results()[kind]
    for panel in (*accuracy_panels(result), *device_panels(result), *traffic_panels(result)):
        ElementTree.fromstring(panel.svg)
