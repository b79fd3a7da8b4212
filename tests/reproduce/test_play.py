"""A cell through the whole engine, and after it was killed."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.reproduce.tiny import TINY
from tools.reproduce.cells import Cell
from tools.reproduce.outcome import Outcome
from tools.reproduce.play import Log, Trial, play

from sedge_cloud.events import Event, RoundClosed
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Context, State, Update
from sedge_emulate.progress import Progress
from sedge_protocol.errors import DataError

pytestmark = pytest.mark.fleet

TRIAL = Trial(TINY, TINY.cells[0], 42, 3)
QUIET = Progress(Console(quiet=True))


class Killed(Exception):
    """The process is gone."""


def played(home: Path) -> Outcome:
    return play(TRIAL, home, 1, QUIET)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of a trial that nothing disturbed, and of which nothing else is left."""
    home = tmp_path_factory.mktemp("trial") / "whole"
    found = played(home)
    assert not home.exists()
    return found


class Broken(FedAvg, frozen=True):
    """A strategy that cannot do the second round's mean."""

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        if context.round:
            raise ValueError("no mean")
        return super().apply(context, updates)


def test_a_run_that_fails_gives_no_outcome(tmp_path: Path) -> None:
    trial = replace(TRIAL, cell=Cell("broken", f"{__name__}:Broken"))
    with pytest.raises(DataError, match=r"tiny broken seed 42: .*no mean"):
        play(trial, tmp_path, 1, QUIET)


def without_times(outcome: Outcome) -> Outcome:
    return msgspec.structs.replace(outcome, seconds=0.0)


def killed_after(number: int) -> Callable[[Log, Event], None]:
    whole = Log.observe

    def observe(self: Log, event: Event) -> None:
        whole(self, event)
        if isinstance(event, RoundClosed) and event.summary.round == number:
            raise Killed

    return observe


def test_what_was_killed_goes_on_to_the_same_outcome(
    whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (whole.backend, whole.sizes, whole.points[0].accounted_up) == ("", (), None)
    assert [point.round for point in whole.checkpoints] == [2, 3]
    assert whole.points[0].before < whole.checkpoints[0].before < 1
    home = tmp_path / "killed"
    with monkeypatch.context() as patched:
        patched.setattr(Log, "observe", killed_after(2))
        with pytest.raises(Killed):
            played(home)
    assert len(list(home.glob("state/strategy_run/cache/*/*/*"))) == 8
    assert without_times(played(home)) == without_times(whole)
