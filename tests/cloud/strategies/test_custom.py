"""Somebody's own strategy that goes wrong ends its run, not the coordinator."""

import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.contexts import context_of
from tests.cloud.helper import CONFIG, Cloud

from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategies.custom import Custom
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_protocol.errors import (
    CodecError,
    ConfigError,
    LocalError,
    SedgeError,
    StorageError,
    StrategyError,
)
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import OwnModel, Training

LAYOUT = Layout.of([("w", (2,), Role.PARAMETER)])
THETA = np.ones(2, np.float32)
CONTEXT = context_of(LAYOUT, THETA)


class Wrong(FedAvg, frozen=True):
    """Goes wrong at one step."""

    step: str = ""

    def init(self, context: Context) -> State:
        self.go("init")
        return super().init(context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        self.go("plan")
        return super().plan(context, client)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        self.go("apply")
        return super().apply(context, updates)

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        self.go("remarks")
        return ()

    @property
    def coordinate_rules(self) -> bool:
        self.go("coordinate_rules")
        return True

    def go(self, step: str) -> None:
        if step == self.step:
            raise ZeroDivisionError("by hand")


class Leaving(FedAvg, frozen=True):
    """Ends the process, if it may."""

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        raise SystemExit(0)


class Forgetful(FedAvg, frozen=True):
    """Gives back nothing."""

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        return None  # type: ignore[return-value]  # what a forgotten return does


class Giving(FedAvg, frozen=True):
    """Gives back these fields; those of ``Work`` inside the assignment."""

    fields: dict[str, Any]

    def init(self, context: Context) -> State:
        return replace(super().init(context), **self.fields)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        return given.assigned(**self.fields)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        return replace(super().apply(context, updates), **self.fields)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("own_wrong")
    module.__dict__["Wrong"] = Wrong
    monkeypatch.setitem(sys.modules, "own_wrong", module)
    return "own_wrong:Wrong"


def steps(strategy: Custom) -> list[object]:
    return [
        strategy.init(CONTEXT),
        strategy.plan(CONTEXT, ClientModel()),
        strategy.apply(CONTEXT, [Update("a", 1, THETA)]),
        strategy.coordinate_rules,
        strategy.remarks([CONTEXT.layout]),
    ]


def test_what_goes_well_is_what_it_would_be(own: str) -> None:
    made = make_strategy(own, {"step": "none"})
    assert isinstance(made, Custom)
    state, plan, after, follows, said = steps(made)
    assert (state, plan, follows, said) == (State(THETA), Assignment(), True, ())
    assert isinstance(after, State) and after.theta.tolist() == [1, 1]
    assert not isinstance(make_strategy("fedavg", {}), Custom)


def test_it_does_not_end_the_process() -> None:
    with pytest.raises(StrategyError, match=r":Leaving\.apply: SystemExit: 0"):
        steps(Custom(Leaving()))


@pytest.mark.parametrize("step", ["init", "plan", "apply", "coordinate_rules", "remarks"])
def test_an_error_names_class_step_and_reason(step: str) -> None:
    with pytest.raises(StrategyError) as caught:
        steps(Custom(Wrong(step=step)))
    text, _, line = str(caught.value).rpartition(" (test_custom.py, line ")
    assert text.endswith(f":Wrong.{step}: ZeroDivisionError: by hand")
    raising = Path(__file__).read_text().splitlines()[int(line.rstrip(")")) - 1]
    assert "ZeroDivisionError" in raising


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("key", 1, "2"), ConfigError),
        (StorageError("full"), StorageError),
        (LocalError("a bug"), StrategyError),
        (
            CodecError("layout: no tensor named 'x'"),
            StrategyError,
        ),  # a run does not end with that one
    ],
)
def test_an_error_that_a_run_ends_or_waits_with_stays_what_it_is(
    error: SedgeError, kind: type[SedgeError]
) -> None:
    class Refusing(FedAvg, frozen=True):
        def init(self, context: Context) -> State:
            raise error

    with pytest.raises(kind, match=str(error)):
        steps(Custom(Refusing()))


def test_a_forgotten_return_is_named() -> None:
    with pytest.raises(StrategyError, match=r"Forgetful\.apply.*gave a NoneType, expected a State"):
        steps(Custom(Forgetful()))


# Every field of what it gives back.

FLOATS = np.zeros(3, np.float32)
PLANNED: list[tuple[str, object, str]] = [
    ("patch", {1: 2.0}, "Assignment.patch: found {1: 2.0}, expected SparseVector"),
    ("work", None, "Assignment.work: found None, expected Work"),
    ("work", Training(), "expected Work"),
    ("keep", None, "Assignment.work: Expected `array`, got `None` - at `$.keep`"),
    ("keep", "w", "Assignment.work: Expected `array`, got `str` - at `$.keep`"),
    ("keep", (1,), "Assignment.work: Expected `str`, got `int` - at `$.keep[0]`"),
    ("upload", 1, "Assignment.work: Expected `bool`, got `int` - at `$.upload`"),
    ("shares_statistics", 1, "Assignment.shares_statistics: found 1, expected bool"),
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
    ("training", "fast", "Assignment.work: Expected `object | null`, got `str` - at `$.training`"),
    (
        "then",
        (Training(prox=np.float64(1)),),
        "Assignment.work: Encoding objects of type numpy.float64 is unsupported",
    ),
    (
        "own_model",
        OwnModel(Training(prox=-1.0)),
        "Assignment.work: Expected `float` >= 0.0 - at `$.own_model.training.prox`",
    ),
    ("remember", 0, "Assignment.work: Expected `bool`, got `int` - at `$.remember`"),
    ("holdout", "0.1", "Assignment.holdout: found '0.1', expected float"),
    ("holdout", np.float64(0.5), "Assignment.holdout: found np.float64(0.5), expected float"),
]
RUINED = np.array([1, np.nan], np.float32)
KEPT: list[tuple[str, object, str]] = [
    ("theta", None, "State.theta: found None, expected an array of float32"),
    ("theta", np.ones(2), "State.theta: found float64 (2,), expected an array of float32"),
    ("theta", FLOATS, "State.theta: found float32 (3,), expected float32 (2,)"),
    ("theta", THETA.reshape(1, 2), "State.theta: found float32 (1, 2), expected float32 (2,)"),
    ("theta", RUINED, "State.theta[1]: found nan, expected a finite number"),
    ("arrays", {"x": [1.0]}, "State.arrays['x']: found [1.0], expected an array of float32"),
    ("arrays", {1: FLOATS}, "State.arrays, a key: found 1, expected str"),
    ("groups", {"a": "b"}, "State.groups['a']: found 'b', expected tuple"),
    ("groups", {"a": np.array(["b"])}, "State.groups['a']: found <U1 (1,), expected tuple"),
    ("groups", {"a": (1,)}, "State.groups['a'][0]: found 1, expected str"),
    ("groups", {1: ("b",)}, "State.groups, a key: found 1, expected str"),
    ("is_change", 1, "State.is_change: found 1, expected bool"),
]


@pytest.mark.parametrize(("name", "found", "text"), PLANNED)
def test_an_assignment_is_looked_at_field_by_field(name: str, found: object, text: str) -> None:
    with pytest.raises(StrategyError) as caught:
        Custom(Giving({name: found})).plan(CONTEXT, ClientModel())
    assert ":Giving.plan: " in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize("step", ["init", "apply"])
@pytest.mark.parametrize(("name", "found", "text"), KEPT)
def test_a_state_is_looked_at_field_by_field(
    step: str, name: str, found: object, text: str
) -> None:
    custom = Custom(Giving({name: found}))
    with pytest.raises(StrategyError) as caught:
        custom.init(CONTEXT) if step == "init" else custom.apply(CONTEXT, [])
    assert f":Giving.{step}: " in str(caught.value) and text in str(caught.value)


def test_a_good_state_is_what_the_strategy_made() -> None:
    fields = {
        "theta": THETA,
        "arrays": {"x": np.float32(FLOATS)},
        "groups": {"a": ("b",), "b": ["a", "c"]},
    }
    after = Custom(Giving(fields)).apply(CONTEXT, [])
    for name, value in fields.items():
        assert getattr(after, name) is value


@pytest.mark.parametrize("step", ["plan", "apply"])
def test_what_it_gives_back_ends_its_run_and_not_the_service(tmp_path: Path, step: str) -> None:
    """Nor does it come back with the next start."""
    wrong: Any = {"a": "b"}
    if step == "plan":
        given.PLANS["b"] = lambda context, client: Assignment(arrays=wrong)
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
