"""Which device gets which width, by dropped that are dealt out, by memory and by measured steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cloud.forms import PLAIN, context_of, plain
from tests.cloud.helper import RUN, Cloud, random_theta, report_for

from sedge_cloud.algorithms.submodels import form_of
from sedge_cloud.algorithms.width_policy import WIDTH, WidthPolicy
from sedge_cloud.config import RunConfig
from sedge_cloud.strategy import ClientModel
from sedge_protocol.codec import SparseVector, encode
from sedge_protocol.errors import ConfigError, StrategyError
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.update import encode_update

LAYOUT = plain().layout
CONTEXT = context_of(LAYOUT, PLAIN, np.zeros(LAYOUT.size, np.float32), (0.25, 0.5, 0.75))
ONE = context_of(LAYOUT, None, np.zeros(LAYOUT.size, np.float32))
TRAINED = np.zeros(LAYOUT.size, np.float32)


def width(sized: WidthPolicy, client: ClientModel) -> int:
    return sized.width_of(CONTEXT, client)[0]


def test_rates_are_dealt_out_by_the_devices_number() -> None:
    sized = WidthPolicy(dropped=(0.75, 0.0, 0.5))
    found = [width(sized, ClientModel(device=f"device-{d:02d}")) for d in range(7)]
    assert found == [3, 0, 2, 3, 0, 2, 3]
    cameras = [ClientModel(device=f"camera-{letter}") for letter in "abcdefghijklmnopqrstuvwxyz"]
    dealt = [width(sized, camera) for camera in cameras]
    assert set(dealt) == {3, 0, 2}
    assert [width(sized, replace(c, memory_mb=5, step_s=9)) for c in cameras] == dealt


@pytest.mark.parametrize(("memory_mb", "expected"), [(0, 0), (255, 3), (256, 2), (1024, 0)])
def test_memory_decides(memory_mb: int, expected: int) -> None:
    sized = WidthPolicy(memory_mb=(1024, 512, 256))
    found, arrays = sized.width_of(CONTEXT, ClientModel(memory_mb=memory_mb))
    assert found == expected
    assert arrays[WIDTH].tolist() == [expected]


@pytest.mark.parametrize(
    ("step_s", "memory_mb", "first", "then"),
    [(0.5, 0, 0, 0), (1.0, 0, 0, 0), (1.5, 0, 0, 1), (9.0, 0, 0, 2), (9.0, 100, 2, 3)],
)
def test_slow_devices_are_narrowed_after_their_first_round(
    step_s: float, memory_mb: int, first: int, then: int
) -> None:
    sized = WidthPolicy(memory_mb=(800, 400), step_s=(1.0, 2.0))
    new = ClientModel(memory_mb=memory_mb)
    assert sized.width_of(CONTEXT, new) == (first, {})
    unmeasured = ClientModel(TRAINED, 1, memory_mb=memory_mb, width=first)
    assert sized.width_of(CONTEXT, unmeasured) == (first, {})
    found, arrays = sized.width_of(CONTEXT, replace(unmeasured, step_s=step_s))
    assert found == then
    fast = ClientModel(TRAINED, 2, arrays, step_s=0.01, width=then)
    assert width(sized, fast) == then


@pytest.mark.parametrize(
    "sized", [WidthPolicy(step_s=(1.0,)), WidthPolicy(memory_mb=(800,), step_s=(1.0,))]
)
def test_a_round_that_measures_moves_nobody(sized: WidthPolicy) -> None:
    measuring = replace(CONTEXT, is_evaluation=True)
    slow = ClientModel(TRAINED, 1, memory_mb=100, step_s=9.0, width=1)
    assert sized.width_of(measuring, slow) == (1, {})
    assert width(sized, slow) == 2
    # Who has no past to be measured gets what a first round of training would give.
    new = replace(slow, trained=None, width=0)
    assert sized.width_of(measuring, new) == sized.width_of(CONTEXT, new)


def test_a_slow_device_is_measured_in_what_it_has_trained(tmp_path: Path) -> None:
    config = RunConfig(
        strategy="heterofl", options={"step_s": [0.1]}, num_rounds=2, evaluate_every=1
    )
    cloud = Cloud(tmp_path, config, widths=(0.5,))
    cloud.hello()
    found: list[tuple[str, int]] = []
    while cloud.run_row().status == "running":
        current, run = cloud.core.open[RUN], cloud.core.runs[RUN]
        given = current.orders["a"].width
        found.append((current.row.task, given))
        layout = run.layout(given)
        whole = encode(SparseVector(layout.size, None, random_theta(3, layout.size)))
        for name in "ab":
            order = cloud.order(name)
            payload = whole if order.task == TRAIN else b""
            cloud.upload(name, encode_update(report_for(order, layout), payload))
        cloud.poll()
    assert found == [("train", 0), ("evaluate", 0), ("train", 1), ("evaluate", 1)]


def test_refuses_what_the_bundles_do_not_have() -> None:
    for wrong in (-1, 4):
        with pytest.raises(StrategyError, match=f"width {wrong}: the run has 4"):
            form_of(CONTEXT, wrong)
    with pytest.raises(ConfigError, match=r"dropped: found \[0.3\], expected .*\[0.0, 0.25"):
        WidthPolicy(dropped=(0.0, 0.3)).width_of(CONTEXT, ClientModel())
    with pytest.raises(ConfigError, match=r"dropped: found \[0.5\], expected .*\[0.0\]"):
        WidthPolicy(dropped=(0.0, 0.5)).width_of(ONE, ClientModel())
    with pytest.raises(ConfigError, match=r"memory_mb.*fewer than the run's bundles \(4"):
        WidthPolicy(memory_mb=(4, 3, 2, 1)).width_of(CONTEXT, ClientModel())
    with pytest.raises(ConfigError, match=r"step_s.*fewer than the run's bundles \(1"):
        WidthPolicy(step_s=(1.0,)).width_of(ONE, ClientModel())
