"""Every strategy with three real agents, a real coordinator and a real Mosquitto.

One fleet does a short run of each strategy, one after another, and the coordinator's store and the devices'
journals must show what is particular to it (particulars.py). A strategy without a case here fails.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.system import particulars
from tests.system.particulars import DROPPED, TRAINING, Others
from tests.system.trio import DEVICES, RUN, Course, Trio, make_forms

from sedge_cloud.strategies import STRATEGIES

pytestmark = pytest.mark.fleet

MORE = f"""
[codec]
values = "fp32"
fraction = 1
[patch]
values = "fp32"
[broadcast]
values = "fp32"
fraction = 1
[training]
local_epochs = {TRAINING.local_epochs}
learning_rate = {TRAINING.learning_rate}
"""
EXAMPLES = (150, 200, 250)
# Of the devices' 4,000, 1,200 and 400 MB.
BY_MEMORY = "memory_mb = [2000, 800]"
OWN_STRATEGY = Path(__file__).parents[2] / "examples" / "own_strategy.py"


@dataclass(frozen=True)
class Case:
    """How a strategy, by default the one of the case's name, is run, and what its run must have left."""

    check: Callable[[Course, Others], None]
    options: str = ""
    more: str = ""
    strategy: str = ""
    widths: bool = False
    momentum: float = TRAINING.momentum


CASES = {
    "apfl": Case(particulars.apfl, "alpha = 0.3"),
    "ditto": Case(particulars.ditto, "lam = 0.5, personal_epochs = 2"),
    "fedavg": Case(particulars.fedavg),
    "fedbabu": Case(particulars.fedbabu, "head_epochs = 1"),
    "fedbn": Case(particulars.fedbn),
    "fedcac": Case(particulars.fedcac, "fraction = 0.25"),
    "fedobp": Case(particulars.fedobp, "quantile = 0.95"),
    "fedper": Case(particulars.fedper),
    "fedprox": Case(particulars.fedprox, "mu = 2.0"),
    "fedpurin": Case(particulars.fedpurin, "fraction = 0.25"),
    "fedrep": Case(particulars.fedrep, "body_epochs = 2", more='freeze = ["0.weight"]'),
    "fedrolex": Case(particulars.fedrolex, BY_MEMORY, widths=True),
    "fedselect": Case(particulars.fedselect, "rate = 0.1"),
    "heterofl": Case(particulars.heterofl, BY_MEMORY, widths=True),
    "lg_fedavg": Case(particulars.lg_fedavg),
    "local_only": Case(particulars.local_only),
    "scaffold": Case(particulars.scaffold, momentum=0.0),
    "subflot": Case(particulars.subflot, f'{BY_MEMORY}, solver = "assign", lam = 0.3', widths=True),
    "fedobp by gradient": Case(
        particulars.fedobp_by_gradient,
        'quantile = 0.95, scoring = "device", score = "fisher"',
        strategy="fedobp",
    ),
    "fedobp on the device": Case(
        particulars.fedobp_on_the_device, 'quantile = 0.0, scoring = "device"', strategy="fedobp"
    ),
    "fedobp picking": Case(
        particulars.fedobp_picking, "quantile = 0.95, holdout = 0.2", strategy="fedobp"
    ),
    "fedpurin after beta": Case(particulars.fedpurin_alone, "beta = 1", strategy="fedpurin"),
    "own strategy": Case(
        particulars.own_strategy, "momentum = 0.5", strategy="own_strategy:FedAvgM"
    ),
}


@dataclass
class Courses:
    """The fleet, and the runs that it has done."""

    trio: Trio
    forms: list[Path]
    done: dict[str, Course] = field(default_factory=dict[str, Course])

    def of(self, name: str) -> Course:
        """The run of a case."""
        if name not in self.done:
            case, run = CASES[name], name.replace(" ", "-").replace("_", "-")
            strategy = case.strategy or name
            more = f"{MORE}momentum = {case.momentum}\n{case.more}"
            text = RUN.format(strategy=strategy, rounds=2, options=case.options, more=more)
            self.trio.begin(run, self.forms if case.widths else self.forms[:1], text)
            self.done[name] = self.trio.end(run)
        return self.done[name]


@pytest.fixture(scope="module")
def courses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Courses]:
    forms = make_forms(tmp_path_factory.mktemp("forms"), hidden=16, shares=DROPPED)
    folder = tmp_path_factory.mktemp("trio")
    shutil.copy(OWN_STRATEGY, folder)  # where the coordinator runs
    trio = Trio(folder, EXAMPLES)
    try:
        yield Courses(trio, forms)
    finally:
        trio.close()


@pytest.mark.parametrize("name", sorted({*STRATEGIES, *CASES}))
def test_a_run_of(name: str, courses: Courses, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in CASES, f"no case says what is particular to the strategy {name}"
    monkeypatch.syspath_prepend(OWN_STRATEGY.parent)
    course = courses.of(name)
    assert [s.task for s in course.summaries] == ["train", "train", "evaluate"]
    for summary in course.summaries:
        assert [device.device for device in summary.devices] == list(DEVICES)
        assert summary.declined == 0 and not summary.failure
        assert len(course.reports(summary.round)) == len(DEVICES)
    assert course.summaries[-1].before > course.summaries[0].before + 0.1
    particulars.require_begun(course)
    CASES[name].check(course, courses.of)
