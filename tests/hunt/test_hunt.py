"""The hunt finds nothing in the first seeds, and each of the bugs that are planted here."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hunt.__main__ import kind, main, shrink
from tests.hunt.cases import CASES, case_of, folder, laid, play
from tests.hunt.chance import Chance
from tests.hunt.world import World

from sedge_cloud.store import receipts
from sedge_cloud.store.connection import Database
from sedge_cloud.store.receipts import Receipts
from sedge_cloud.store.rows import UpdateRow
from sedge_edge.jobs.job import Kept
from sedge_edge.rounds.state import AgentState
from sedge_protocol.host import blobs, disk
from sedge_protocol.wire.frame import ReplayWindow

ROOT = Path(__file__).parents[2]
MOST_SEEDS = 60
Patch = pytest.MonkeyPatch


def nothing(*given: object, **options: object) -> None:
    """In place of what is to be skipped."""


def skip_a_sync(patch: Patch) -> None:
    """The names of blobs are not flushed before the rows that name them."""
    patch.setattr(blobs, "sync_folder", nothing)


def skip_the_journals_sync(patch: Patch) -> None:
    """The name of the device's journal is not flushed."""
    patch.setattr(disk, "sync_folder", nothing)


def drop_the_dedupe(patch: Patch) -> None:
    """An update that is offered again is another one."""
    patch.setattr(Receipts, "update", nothing)
    again = receipts._NEW_UPDATE.replace("INSERT", "INSERT OR REPLACE")
    patch.setattr(receipts, "_NEW_UPDATE", again.replace(" ON CONFLICT DO NOTHING", ""))


def accept_a_stale_round(patch: Patch) -> None:
    """A device takes an order that was sent before."""

    def accept(window: ReplayWindow, frame: object) -> bool:
        return True

    patch.setattr(ReplayWindow, "accept", accept)
    patch.setattr(ReplayWindow, "top", property(lambda _: 0, nothing), raising=False)


def forget_the_residual(patch: Patch) -> None:
    """A device begins every round with nothing kept."""

    def kept_for(state: AgentState, order: object) -> Kept:
        return Kept()

    patch.setattr(AgentState, "kept_for", kept_for)


def ignore_the_fence(patch: Patch) -> None:
    """A process that another has replaced goes on to write."""
    patch.setattr(Database, "_require_token", nothing)


def count_in_a_closed_round(patch: Patch) -> None:
    """An update that came too late counts as if it had not."""

    def as_it_is(store: Receipts, db: object, row: UpdateRow) -> UpdateRow:
        return row

    patch.setattr(Receipts, "_late", as_it_is)


def never_collect(patch: Patch) -> None:
    """Nobody deletes what nothing needs any more."""
    patch.setattr(blobs.BlobFolder, "collect", nothing)


PLANTED = [
    (skip_a_sync, {"I2", "I3", "residual"}),
    (skip_the_journals_sync, {"I2", "I3", "I4", "I6"}),
    (drop_the_dedupe, {"I1", "I2"}),
    (accept_a_stale_round, {"I4"}),
    (forget_the_residual, {"residual"}),
    (ignore_the_fence, {"fence"}),
    (count_in_a_closed_round, {"I1"}),
    (never_collect, {"I7"}),
]


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("plant", "invariants"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED]
)
def test_a_planted_bug_is_found(
    monkeypatch: Patch, plant: Callable[[Patch], None], invariants: set[str]
) -> None:
    for case in CASES:
        assert laid(case).is_dir()  # before there is a bug
    plant(monkeypatch)
    found = next((one for one in map(play, range(MOST_SEEDS)) if one.error), None)
    assert found is not None
    assert found.error.removeprefix("Violation: ").split(":")[0] in invariants, found.error


@pytest.mark.fleet
def test_what_is_found_is_reduced_to_the_faults_that_it_takes(monkeypatch: Patch) -> None:
    skip_a_sync(monkeypatch)
    found = next(one for one in map(play, range(MOST_SEEDS)) if one.error)
    reduced = shrink(found)
    assert kind(reduced) == kind(found) and 1 <= len(reduced.struck) < len(found.struck)
    assert any(name.endswith(":power") for name in reduced.struck)
    assert main(["--seeds", f"{found.seed}:{found.seed + 1}", "--faults", *reduced.struck]) == 1


@pytest.mark.fleet
@pytest.mark.parametrize("seeds", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_so_many_seeds_violate_nothing(seeds: int) -> None:
    command = [sys.executable, "-m", "tests.hunt", "--seeds", f"0:{seeds}"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_is_the_same_whenever_it_is_played(seed: int) -> None:
    first = play(seed)
    assert not first.error and first.struck
    assert play(seed) == first


def test_who_hears_neither_hint_nor_the_first_questions_is_seen_in_the_end() -> None:
    """It waits for an order, welcomed, when a coordinator starts of which it hears nothing for a minute."""
    case = case_of(5)
    with folder() as place:
        world = World(place, laid(case), Chance(0, ()))
        world.judge.adds_up = False
        with world.used():
            world.link.deaf["d1"] = 4.0  # until then there is no round
            while world.now < 3.0:
                world.turn()
            world.link.deaf["d0"] = world.now + 60.0
            world.restart(world.processes[0])
            world.run()
            assert world.now < 300
