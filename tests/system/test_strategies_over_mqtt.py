"""Every strategy with three real agents, a real coordinator and a real Mosquitto.

One fleet does a short run of each strategy, one after another; what a method computes is held against its
paper in tests/paper. Here store, journals and reports must agree: each device has begun its last round with
the very model that the coordinator's store and its own disk say. A strategy without a case here fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.system.trio import DEVICES, RUN, Course, Trio, make_forms

from sedge_cloud.strategies import STRATEGIES
from sedge_edge.backends.guided_losses import GUIDED_LOSSES
from sedge_protocol.layout import Theta

pytestmark = pytest.mark.fleet

MORE = """
[codec]
values = "fp32"
fraction = 1
[patch]
values = "fp32"
[broadcast]
values = "fp32"
fraction = 1
[training]
local_epochs = 3
learning_rate = 0.1
"""
EXAMPLES = (150, 200, 250)
DROPPED = (0.0, 0.25, 0.5)
# Of the devices' 4,000, 1,200 and 400 MB.
BY_MEMORY = "memory_mb = [2000, 800]"


@dataclass(frozen=True)
class Case:
    """How a strategy, by default the one of the case's name, is run."""

    options: str = ""
    more: str = "momentum = 0.5"
    strategy: str = ""
    widths: bool = False
    guided: bool = False


CASES = {
    "apfl": Case("alpha = 0.3"),
    "blended": Case(
        "mix = 0.75, prior = false"
    ),  # whether it takes the prior only the device knows
    "ditto": Case("lam = 0.5, personal_epochs = 2"),
    "fedavg": Case(),
    "fedbabu": Case("head_epochs = 1"),
    "fedbn": Case(),
    "fedcac": Case("fraction = 0.25"),
    "feddyn": Case("alpha = 0.3"),
    "fedlc": Case("tau = 0.5", guided=True),
    "fedobp": Case("quantile = 0.95"),
    "fedper": Case(),
    "fedprox": Case("mu = 2.0"),
    "fedpurin": Case("fraction = 0.25"),
    "fedrep": Case("body_epochs = 2", more='momentum = 0.5\nfreeze = ["0.weight"]'),
    "fedrolex": Case(BY_MEMORY, widths=True),
    "fedselect": Case("rate = 0.1"),
    "heterofl": Case(BY_MEMORY, widths=True),
    "lg_fedavg": Case(),
    "local_only": Case(),
    "scaffold": Case(more="momentum = 0.0"),
    "subflot": Case(f'{BY_MEMORY}, solver = "assign", pull = 0.3', widths=True),
    "fedobp by gradient": Case(
        'quantile = 0.95, scoring = "device", score = "fisher"', strategy="fedobp"
    ),
    "fedobp picking": Case("quantile = 0.95, holdout = 0.2", strategy="fedobp"),
    "fedpurin after beta": Case("beta = 1", strategy="fedpurin"),
}


@dataclass
class Courses:
    """The fleet, and the forms of its model."""

    trio: Trio
    forms: list[Path]
    folder: Path

    def of(self, name: str) -> Course:
        case, run = CASES[name], name.replace(" ", "-").replace("_", "-")
        more = f"{MORE}{case.more}"
        strategy = case.strategy or name
        text = RUN.format(strategy=strategy, rounds=2, options=case.options, more=more)
        forms = self.forms if case.widths else self.forms[:1]
        if case.guided:
            forms = make_forms(self.folder / run, 16, guided=GUIDED_LOSSES[strategy])
        self.trio.begin(run, forms, text)
        return self.trio.end(run)


@pytest.fixture(scope="module")
def courses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Courses]:
    folder = tmp_path_factory.mktemp("forms")
    forms = make_forms(folder, hidden=16, shares=DROPPED)
    trio = Trio(tmp_path_factory.mktemp("trio"), EXAMPLES)
    try:
        yield Courses(trio, forms, folder)
    finally:
        trio.close()


# Those whose orders, blobs and journals hold nothing that no other case's do.
LIKE_ANOTHER = {
    "fedbabu", "fedbn", "fedcac", "fedper", "fedprox", "fedpurin", "fedrolex", "fedselect", "heterofl",
    "lg_fedavg",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_ANOTHER))
        for name in sorted({*STRATEGIES, *CASES})
    ],
)
def test_a_run_of(name: str, courses: Courses) -> None:
    assert name in CASES, f"no case runs the strategy {name}"
    course = courses.of(name)
    assert [s.task for s in course.summaries] == ["train", "train", "evaluate"]
    for summary in course.summaries:
        assert [device.device for device in summary.devices] == list(DEVICES)
        assert summary.declined == 0 and not summary.failure
        assert len(course.reports(summary.round)) == len(DEVICES)
    assert course.summaries[-1].before > course.summaries[0].before + 0.1
    for width, device in enumerate(DEVICES):
        layout, order = course.run.layout(width * CASES[name].widths), course.last_orders[device]
        assert course.run.layout(order.width) == layout
        assert course.reports(2)[device].layout_hash == layout.hash
        require_begun(course, device)


def require_begun(course: Course, device: str) -> None:
    """A device has evaluated what store and journal say that it starts from.

    Where it scores for itself only it can tell.
    """
    work, kept = course.last_orders[device].read_work(), course.kept[device]
    if work.scoring is not None:
        assert kept.entry.kept.gradient is not None
        return
    theta = start_of(course, device)
    if work.own_model is not None:
        mix = work.own_model.mix
        own = course.model(device) if kept.part is None else kept.part
        theta = (mix * own + (1 - mix) * theta).astype(np.float32)
    if work.blend is not None:
        mix = work.blend.mix
        theta = (mix * course.model(device) + (1 - mix) * theta).astype(np.float32)
    expected, found = course.evaluate(device, theta), course.reports(3)[device].before
    assert (found.metric, found.num_examples) == (expected.metric, expected.num_examples)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)


def start_of(course: Course, device: str) -> Theta:
    """The vector (m,) that a device's last order gives it to start from."""
    order, work = course.last_orders[device], course.last_orders[device].read_work()
    layout, theta = course.run.layout(order.width), course.globals[-1].copy()
    if order.model:
        theta = course.run_store.theta(order.model, layout.size).copy()
    if order.patch_hash:
        indices, values = course.start(device)
        if work.choice is None or course.reports(3)[device].patched:
            theta[indices] = values
    keep = layout.mask(work.keep)
    theta[keep] = course.model(device)[keep]
    return theta
