"""Somebody's own strategy that goes wrong ends its run, not the coordinator."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.contexts import context_of
from tests.cloud.helper import began

from sedge_cloud.strategies.custom import Custom
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_protocol import errors
from sedge_protocol.errors import ConfigError, SedgeError, StorageError, StrategyError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import OwnModel

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


def steps(strategy: Custom) -> list[object]:
    return [
        strategy.init(CONTEXT),
        strategy.plan(CONTEXT, ClientModel()),
        strategy.apply(CONTEXT, [Update("a", 1, THETA)]),
        strategy.coordinate_rules,
        strategy.remarks([CONTEXT.layout]),
    ]


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
        (errors.LocalError("a bug"), StrategyError),
        # A run does not end with that one.
        (errors.CodecError("layout: no tensor named 'x'"), StrategyError),
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
CODED = {"size": 3, "indices": None, "values": FLOATS}
PLANNED: list[tuple[str, object, str]] = [
    ("patch", CODED, "Assignment.patch: found a dict, expected a SparseVector"),
    ("work", Training(), "Assignment.work: found a Training, expected a Work"),
    ("arrays", MappingProxyType({}), "got `ext` - at `$.arrays` (builtins.mappingproxy)"),
    ("arrays", {"x": [1.0]}, "Expected an array of float32, got list - at `$.arrays[...]`"),
    ("arrays", {"x": np.zeros((2, 1))}, "array of float32, got float64 - at `$.arrays[...]`"),
    ("arrays", {"\ud800": FLOATS}, "surrogates not allowed"),
    ("start", [0.0, 1.0], "Expected an array of float32, got list - at `$.start`"),
    (
        "own_model",
        OwnModel(Training(prox=-1.0)),
        "Assignment: Expected `float` >= 0.0 - at `$.work.own_model.training.prox`",
    ),
    ("holdout", "0.1", "Expected `float`, got `str` - at `$.holdout`"),
]
RUINED = np.array([1, np.nan], np.float32)
KEPT: list[tuple[str, object, str]] = [
    ("theta", np.ones(2), "State: Expected an array of float32, got float64 - at `$.theta`"),
    ("theta", FLOATS, "State.theta: found shape (3,), expected (2,)"),
    ("theta", THETA.reshape(1, 2), "State.theta: found shape (1, 2), expected (2,)"),
    ("theta", RUINED, "State.theta[1]: found nan, expected a finite number"),
]


@pytest.mark.parametrize(("name", "found", "text"), PLANNED)
def test_an_assignment_is_read_field_by_field(name: str, found: object, text: str) -> None:
    with pytest.raises(StrategyError) as caught:
        Custom(Giving({name: found})).plan(CONTEXT, ClientModel())
    assert ":Giving.plan: " in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize("step", ["init", "apply"])
@pytest.mark.parametrize(("name", "found", "text"), KEPT)
def test_a_state_is_read_field_by_field(step: str, name: str, found: object, text: str) -> None:
    custom = Custom(Giving({name: found}))
    with pytest.raises(StrategyError) as caught:
        custom.init(CONTEXT) if step == "init" else custom.apply(CONTEXT, [])
    assert f":Giving.{step}: " in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize("step", ["plan", "apply"])
def test_what_it_gives_back_ends_its_run_and_not_the_service(tmp_path: Path, step: str) -> None:
    """Nor does it come back with the next start."""
    wrong: Any = {"a": "b"}
    if step == "plan":
        given.PLANS["b"] = lambda context, client: Assignment(arrays=wrong)
    given.GROUPS.update(wrong)
    cloud = began(tmp_path, strategy=given.NAME, num_rounds=3)
    if step == "apply":
        cloud.answer("a", "b")
    where = "got str - at `$.arrays[...]`" if step == "plan" else "got `str` - at `$.groups[...]`"
    (note,) = cloud.notes(logging.ERROR)
    assert cloud.run_row().status == "failed" and where in note
    cloud.come_back()
    assert cloud.run_row().status == "failed" and cloud.core.open == {}
