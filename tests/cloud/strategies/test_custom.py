"""Somebody's own strategy that goes wrong ends its run, not the coordinator."""

import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.helper import CONFIG, Cloud

from sedge_cloud.config import RobustConfig, TrainingConfig
from sedge_cloud.strategies.custom import Guarded
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.registry import make_strategy
from sedge_cloud.strategy import Assignment, Memory, State, Update, Width
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import CodecError, ConfigError, LocalError, SedgeError, StorageError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import Own, Personal, Selection, Training

LAYOUT = Layout.of([("w", (2,), Role.PARAMETER)])
THETA = np.ones(2, np.float32)
STATE = State(LAYOUT, THETA, initial=THETA)


@dataclass(frozen=True)
class Wrong(FedAvg):
    """Goes wrong at one step."""

    step: str = ""

    @property
    def name(self) -> str:
        return "wrong"

    def init(self, layout: Layout, theta: Theta) -> State:
        self.go("init")
        return super().init(layout, theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        self.go("plan")
        return super().plan(state, memory, training)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        self.go("apply")
        return super().apply(state, updates)

    def go(self, step: str) -> None:
        if step == self.step:
            raise ZeroDivisionError("by hand")


@dataclass(frozen=True)
class Leaving(FedAvg):
    """Ends the process, if it may."""

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        raise SystemExit(0)


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Gives back nothing."""

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        return None  # type: ignore[return-value]  # what a forgotten return does


@dataclass(frozen=True)
class Giving(FedAvg):
    """Gives back these fields."""

    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def init(self, layout: Layout, theta: Theta) -> State:
        return replace(super().init(layout, theta), **self.fields)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        return Assignment(**self.fields)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        return replace(super().apply(state, updates), **self.fields)


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    """No test hears of another's plans."""
    given.clear()
    yield
    given.clear()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("own_wrong")
    module.__dict__["Wrong"] = Wrong
    monkeypatch.setitem(sys.modules, "own_wrong", module)
    return "own_wrong:Wrong"


def steps(strategy: Guarded) -> list[object]:
    return [
        strategy.init(LAYOUT, THETA),
        strategy.plan(STATE, Memory(), Training()),
        strategy.apply(STATE, [Update("a", 1, THETA)]),
    ]


def test_what_goes_well_is_what_it_would_be() -> None:
    inner = Wrong()
    guarded = Guarded(inner)
    assert guarded.name == "wrong"
    assert guarded.coordinate_rules and not guarded.absolute
    state, plan, after = steps(guarded)
    assert state == inner.init(LAYOUT, THETA)
    assert plan == inner.plan(STATE, Memory(), Training())
    assert isinstance(after, State)
    np.testing.assert_array_equal(after.theta, THETA)


def test_it_does_not_end_the_process() -> None:
    with pytest.raises(LocalError, match=r":Leaving\.apply: SystemExit: 0"):
        steps(Guarded(Leaving()))


@pytest.mark.parametrize("step", ["init", "plan", "apply"])
def test_an_error_names_class_step_and_reason(step: str) -> None:
    with pytest.raises(LocalError) as caught:
        steps(Guarded(Wrong(step=step)))
    text, _, line = str(caught.value).rpartition(" (test_guarded.py, line ")
    assert text.endswith(f":Wrong.{step}: ZeroDivisionError: by hand")
    raising = Path(__file__).read_text().splitlines()[int(line.rstrip(")")) - 1]
    assert "ZeroDivisionError" in raising


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("key", 1, "2"), ConfigError),
        (StorageError("full"), StorageError),
        (LocalError("a bug"), LocalError),
        (CodecError("layout: no tensor named 'x'"), LocalError),  # a run does not end with that one
    ],
)
def test_an_error_that_a_run_ends_or_waits_with_stays_what_it_is(
    error: SedgeError, kind: type[SedgeError]
) -> None:
    @dataclass(frozen=True)
    class Refusing(FedAvg):
        def init(self, layout: Layout, theta: Theta) -> State:
            raise error

    with pytest.raises(kind, match=str(error)):
        steps(Guarded(Refusing()))


def test_a_name_that_is_none() -> None:
    @dataclass(frozen=True)
    class Nameless(FedAvg):
        @property
        def name(self) -> str:
            raise KeyError("name")

    with pytest.raises(LocalError, match=r"Nameless\.name: KeyError: 'name'"):
        _ = Guarded(Nameless()).name


def test_a_forgotten_return_is_named() -> None:
    with pytest.raises(LocalError, match=r"Forgetful\.apply.*gave a NoneType, expected a State"):
        steps(Guarded(Forgetful()))


def test_strategies_by_module_and_class_are_guarded(own: str) -> None:
    made = make_strategy(own, {"step": "plan"})
    assert isinstance(made, Guarded)
    with pytest.raises(LocalError):
        made.plan(STATE, Memory(), Training())
    assert not isinstance(make_strategy("fedavg", {}), Guarded)


# Every field of what it gives back.

FLOATS = np.zeros(3, np.float32)
PLANNED: list[tuple[str, object, str]] = [
    ("patch", {1: 2.0}, "Assignment.patch: found {1: 2.0}, expected SparseVector"),
    ("keep", None, "Assignment.keep: found None, expected tuple"),
    ("keep", "w", "Assignment.keep: found 'w', expected tuple"),
    ("keep", (1,), "Assignment.keep[0]: found 1, expected str"),
    ("keep", ("w", np.str_("w")), "Assignment.keep[1]: found np.str_('w'), expected str"),
    ("upload", "no", "Assignment.upload: found 'no', expected bool"),
    ("upload", None, "Assignment.upload: found None, expected bool"),
    ("upload", 1, "Assignment.upload: found 1, expected bool"),
    ("arrays", None, "Assignment.arrays: found None, expected dict"),
    ("arrays", MappingProxyType({}), "Assignment.arrays: found mappingproxy({}), expected dict"),
    ("arrays", {"x": [1.0]}, "Assignment.arrays['x']: found [1.0], expected an array of float32"),
    (
        "arrays",
        {"x": np.zeros((2, 1))},
        "Assignment.arrays['x']: found float64 (2, 1), expected an array of float32",
    ),
    (
        "arrays",
        {"x": np.array(["a"])},
        "Assignment.arrays['x']: found <U1 (1,), expected an array of float32",
    ),
    ("arrays", {1: FLOATS}, "Assignment.arrays, a key: found 1, expected str"),
    ("arrays", {"\ud800": FLOATS}, "surrogates not allowed"),
    ("start", [0.0, 1.0], "Assignment.start: found [0.0, 1.0], expected an array of float32"),
    ("width", None, "Assignment.width: found None, expected int"),
    ("width", True, "Assignment.width: found True, expected int"),
    ("width", np.int64(1), "Assignment.width: found np.int64(1), expected int"),
    ("training", {}, "Assignment.training: found {}, expected Training"),
    ("training", Personal(), "expected Training"),
    (
        "training",
        Training(freeze=None),  # type: ignore[arg-type]
        "Assignment.training: Expected `array`, got ",
    ),
    ("then", Training(), "expected tuple"),
    ("then", (Training(), None), "Assignment.then[1]: found None, expected Training"),
    (
        "then",
        (Training(prox=np.float64(1)),),
        "Assignment.then[0]: Encoding objects of type numpy.float64 is unsupported",
    ),
    (
        "personal",
        Personal(Training(prox=-1.0)),
        "Assignment.personal: Expected `float` >= 0.0 - at `$.training.prox`",
    ),
    ("select", "gradient", "Assignment.select: found 'gradient', expected Selection"),
    ("own", Selection(), "expected Own"),
    ("remember", 0, "Assignment.remember: found 0, expected bool"),
    ("levels", [0], "Assignment.levels: found [0], expected an array of uint8"),
    ("levels", FLOATS, "Assignment.levels: found float32 (3,), expected an array of uint8"),
    ("holdout", "0.1", "Assignment.holdout: found '0.1', expected float"),
    ("holdout", np.float64(0.5), "Assignment.holdout: found np.float64(0.5), expected float"),
]
RUINED = np.array([1, np.nan], np.float32)
KEPT: list[tuple[str, object, str]] = [
    ("layout", None, "State.layout: found None, expected Layout"),
    ("layout", Layout.of([("v", (2,), Role.PARAMETER)]), "State.layout: found another one"),
    ("theta", None, "State.theta: found None, expected an array of float32"),
    ("theta", np.ones(2), "State.theta: found float64 (2,), expected an array of float32"),
    ("theta", FLOATS, "State.theta: found float32 (3,), expected float32 (2,)"),
    ("theta", THETA.reshape(1, 2), "State.theta: found float32 (1, 2), expected float32 (2,)"),
    ("theta", RUINED, "State.theta[1]: found nan, expected a finite number"),
    ("initial", FLOATS, "State.initial: found float32 (3,), expected float32 (2,)"),
    ("initial", RUINED, "State.initial[1]: found nan, expected a finite number"),
    ("round", "1", "State.round: found '1', expected int"),
    ("arrays", {"x": [1.0]}, "State.arrays['x']: found [1.0], expected an array of float32"),
    ("arrays", {1: FLOATS}, "State.arrays, a key: found 1, expected str"),
    ("groups", {"a": "b"}, "State.groups['a']: found 'b', expected tuple"),
    ("groups", {"a": np.array(["b"])}, "State.groups['a']: found <U1 (1,), expected tuple"),
    ("groups", {"a": (1,)}, "State.groups['a'][0]: found 1, expected str"),
    ("groups", {1: ("b",)}, "State.groups, a key: found 1, expected str"),
    ("widths", (0.0,), "State.widths[0]: found 0.0, expected Width"),
    ("axes", (), "State.axes: found (), expected Axes"),
    ("robust", None, "State.robust: found None, expected Robust"),
]


@pytest.mark.parametrize(("name", "found", "text"), PLANNED)
def test_an_assignment_is_looked_at_field_by_field(name: str, found: object, text: str) -> None:
    with pytest.raises(LocalError) as caught:
        Guarded(Giving({name: found})).plan(STATE, Memory(), Training())
    assert ":Giving.plan: " in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize("step", ["init", "apply"])
@pytest.mark.parametrize(("name", "found", "text"), KEPT)
def test_a_state_is_looked_at_field_by_field(
    step: str, name: str, found: object, text: str
) -> None:
    guarded = Guarded(Giving({name: found}))
    with pytest.raises(LocalError) as caught:
        guarded.init(LAYOUT, THETA) if step == "init" else guarded.apply(STATE, [])
    assert f":Giving.{step}: " in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"patch": SparseVector(2, None, THETA), "levels": np.zeros(2, np.uint8), "holdout": 0.5},
        {"keep": ["w"], "then": [Training()], "holdout": 0},
        {"keep": frozenset(("w",)), "arrays": {"x": FLOATS}, "start": THETA, "width": 1},
        {"training": TrainingConfig(prox=0.5), "personal": Personal(), "remember": True},
        {"select": Selection(), "own": Own(quantile=0.5), "upload": False},
    ],
)
def test_a_good_assignment_is_what_the_strategy_made(fields: dict[str, Any]) -> None:
    plan = Guarded(Giving(fields)).plan(STATE, Memory(), Training())
    for name, value in fields.items():
        assert getattr(plan, name) is value


def test_a_good_state_is_what_the_strategy_made() -> None:
    fields = {
        "theta": THETA,
        "arrays": {"x": np.float32(FLOATS)},
        "groups": {"a": ("b",), "b": ["a", "c"]},
        "widths": (Width(0, LAYOUT), Width(0.5, LAYOUT)),
        "robust": RobustConfig(),
    }
    after = Guarded(Giving(fields)).apply(STATE, [])
    for name, value in fields.items():
        assert getattr(after, name) is value


@pytest.mark.parametrize("step", ["plan", "apply"])
def test_what_it_gives_back_ends_its_run_and_not_the_service(tmp_path: Path, step: str) -> None:
    """Nor does it come back with the next start."""
    wrong: Any = {"a": "b"}
    if step == "plan":
        given.PLANS["b"] = lambda state, memory, training: Assignment(arrays=wrong)
    given.GROUPS.update(wrong)
    cloud = Cloud(tmp_path, msgspec.structs.replace(CONFIG, strategy=given.NAME, num_rounds=3))
    cloud.hello()
    if step == "apply":
        cloud.answer("a", "b")
    where = "Assignment.arrays['a']" if step == "plan" else "State.groups['a']"
    (note,) = cloud.notes(logging.ERROR)
    assert cloud.run_row().status == "failed" and f"{where}: found 'b', expected " in note
    cloud.restart()
    cloud.hello()
    assert cloud.run_row().status == "failed" and cloud.core.open == {}
