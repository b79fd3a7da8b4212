"""What must survive: every change is on disk before it is believed, or did not happen."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.edge.disk_faults import FullDisk
from tests.edge.harness import report_of

from sedge_edge.jobs.job import Kept, Outcome
from sedge_edge.rounds.state import (
    SCHEMA,
    AgentState,
    Pending,
    StateStore,
    Stopped,
    TooManyRuns,
    TooManyStarts,
)
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire.frame import LATEST_CLOCK_S, MAX_INCARNATION
from sedge_protocol.wire.messages import EVALUATE, MAX_RUNS, Order
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import PatchChoice, Step, Work

KEY = b"fingerprint"


def blob(name: str) -> bytes:
    """The hash of a blob that says its name."""
    return describe(name.encode()).sha256


def order(run: str, number: int, patch: str | None = None, steps: int = 0) -> Order:
    """An order of a run, whose global can be reached from ``steps`` older ones."""
    older = range(number - steps, number)
    return Order(
        run=run,
        round=number,
        task="train",
        bundle=describe(b"bundle"),
        model=describe(f"model {run} {number}".encode()),
        model_hash=blob(f"version {run} {number}"),
        steps=tuple(
            Step(blob(f"version {run} {i}"), describe(f"step {run} {i}".encode())) for i in older
        ),
        patch_blob=None if patch is None else describe(patch.encode()),
        patch_context=None if patch is None else describe(f"mask of {patch}".encode()),
    )


def outcome(run: str, number: int) -> Outcome:
    update, *kept = (
        blob(f"{kind} {run} {number}")
        for kind in ("update", "own", "residual", "mask", "part", "gradient", "patch")
    )
    return Outcome(run, number, update, report_of(number), Kept(*kept))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device" / "journal"


def memory(path: Path) -> StateStore:
    return StateStore(Journal(path, AgentState, SCHEMA), lambda: None)


class Earlier(msgspec.Struct):
    """A state as another version has it; what it lacks has its default."""

    orders: dict[str, Any]


def test_an_order_kept_from_before_that_divides_its_patch_offers_all_or_nothing_of_it(
    path: Path,
) -> None:
    """Its ``levels`` are ignored; a training that was begun with them is not gone on with."""
    kept = msgspec.structs.replace(order("r", 1), work=Work(choice=PatchChoice(0.25, 7)))
    raw = msgspec.to_builtins(kept, builtin_types=[bytes])
    raw["work"]["choice"]["levels"] = b"coded"
    Journal(path, Earlier, SCHEMA).commit(Earlier({"r": raw}))
    assert memory(path).state.orders == {"r": kept}


def test_boots_only_grow(path: Path) -> None:
    now = memory(path)
    assert now.state.coordinator_incarnation == 0
    for at_least, expected in ((0, 1), (10, 10), (0, 11), (11, 12), (500, 500), (3, 501)):
        now.start(at_least, KEY)
        assert now.state.incarnation == expected
    now.heard_coordinator(9)
    now.heard_coordinator(3)  # one that has proved that it is alive
    assert memory(path).state.coordinator_incarnation == 3


def test_counts_belong_to_a_key(path: Path) -> None:
    """A device with a new secret; what it keeps of its runs is its own all the same."""
    now = memory(path)
    now.start(LATEST_CLOCK_S, KEY)
    now.heard_coordinator(MAX_INCARNATION)
    now.accept(order("a", 1))
    now.start(1_800_000_000, b"another")
    assert (now.state.incarnation, now.state.coordinator_incarnation) == (1_800_000_000, 0)
    assert now.state.orders == {"a": order("a", 1)} and memory(path).state == now.state
    now.start(0, b"a third")
    assert now.state.incarnation == 1


def test_a_clock_that_cannot_be_right_is_no_clock(path: Path) -> None:
    """2200 does not fit a frame; a count near the end of 32 bits would leave no numbers to grow by."""
    now = memory(path)
    for clock_s, expected in (
        (1_800_000_000, 1_800_000_000),
        (7_300_000_000, 1_800_000_001),
        (2**32, 1_800_000_002),
        (LATEST_CLOCK_S + 1, 1_800_000_003),
        (1_800_000_000, 1_800_000_004),
        (LATEST_CLOCK_S, LATEST_CLOCK_S),
        (LATEST_CLOCK_S, LATEST_CLOCK_S + 1),
    ):
        now.start(clock_s, KEY)
        assert now.state.incarnation == expected
    assert LATEST_CLOCK_S < MAX_INCARNATION == 2**32 - 1


def test_a_boot_that_no_frame_can_carry_is_mended(path: Path) -> None:
    """An earlier version stored one, and could not start again."""
    Journal(path, AgentState, SCHEMA).commit(AgentState(incarnation=7_300_000_002))
    now = memory(path)
    now.start(1_800_000_000, KEY)
    assert now.state.incarnation == 1_800_000_000
    Journal(path, AgentState, SCHEMA).commit(AgentState(incarnation=MAX_INCARNATION))
    now = memory(path)
    now.start(1_800_000_000, KEY)
    assert now.state.incarnation == MAX_INCARNATION


def test_counted_starts_do_not_pile_up(path: Path) -> None:
    now = memory(path)
    for number in range(MAX_RUNS + 2):
        now.accept(order(f"run-{number}", 1))
        now.begin(order(f"run-{number}", 1))
        now.refuse(f"run-{number}")
    assert len(now.state.attempts) == MAX_RUNS


def test_jobs_that_were_stopped_go_on_each_from_its_own_checkpoint(path: Path) -> None:
    """A stop on purpose is no failed start; without a checkpoint a job begins anew."""
    now = memory(path)
    for run in ("a", "b", "c", "d"):
        now.accept(order(run, 1))
        now.begin(order(run, 1))
        now.interrupt(order(run, 1), blob(f"checkpoint {run}"))
    assert now.state.attempts == {} and blob("checkpoint a") in now.state.blobs()
    now.refuse("a")
    assert blob("checkpoint a") not in now.state.blobs()
    now.finish(order("b", 1), outcome("b", 1))
    now.interrupt(order("c", 1), None)
    assert now.state.stopped == {"d": Stopped(1, blob("checkpoint d"))}
    now.accept(order("d", 2))
    assert blob("checkpoint d") not in now.state.blobs()
    now.drop("d")
    assert now.state.stopped == {} == memory(path).state.stopped


def test_an_order_that_three_starts_did_not_finish_is_given_up(path: Path) -> None:
    now, one = memory(path), order("a", 1)
    now.accept(one)
    for _ in range(3):
        now.start(0, KEY)
        assert not now.state.attempts_exhausted(one)
        for _ in range(4):  # one start counts once
            now.begin(one)
        assert not now.state.attempts_exhausted(one)
    now.start(0, KEY)
    now.delete_runs(["b"])
    assert now.state.attempts_exhausted(one)
    said = str(TooManyStarts.of(one))
    assert said.startswith("run a, round 1: ") and "each of 3 attempts" in said
    another = msgspec.structs.replace(one, model_hash=blob("other"))
    for other in (order("a", 2), order("b", 1), another):
        assert not now.state.attempts_exhausted(other)
    now.interrupt(one, None)
    assert not now.state.attempts_exhausted(one)


def of(bundle: str, run: str, number: int) -> Order:
    return msgspec.structs.replace(order(run, number), bundle=describe(bundle.encode()))


def test_an_outcome_is_of_use_while_its_run_goes_on_with_its_bundle(path: Path) -> None:
    now = memory(path)
    now.accept(of("x", "a", 2))
    for given, wanted in (
        (of("x", "a", 2), True),
        (of("x", "a", 1), True),  # a late update
        (of("x", "a", 3), False),
        (of("y", "a", 1), False),
        (of("x", "b", 2), False),
        (msgspec.structs.replace(of("x", "a", 2), model_hash=blob("other")), False),
    ):
        assert now.state.still_wants(given) == wanted
    assert now.state.kept_for(of("x", "a", 2)) == Kept()
    now.finish(of("x", "a", 2), outcome("a", 2))
    assert not now.state.still_wants(of("x", "a", 2))
    assert now.state.kept_for(of("x", "a", 3)) == outcome("a", 2).kept
    assert now.state.kept_for(of("y", "a", 3)) == now.state.kept_for(of("x", "b", 1)) == Kept()


def test_the_newest_bundle_is_the_last_orders_that_is_not_forgotten(path: Path) -> None:
    now = memory(path)
    assert now.state.newest_bundle() is None
    now.accept(of("x", "a", 1))
    assert now.state.newest_bundle() == blob("x")
    now.finish(of("x", "a", 1), outcome("a", 1))
    now.accept(of("y", "b", 1))
    assert now.state.newest_bundle() == blob("y")
    now.accept(of("z", "a", 2))
    assert now.state.newest_bundle() == blob("z")
    now.drop("a")
    assert now.state.newest_bundle() == blob("x")
    now.delete_runs(["a"])
    assert now.state.newest_bundle() == blob("y")


def test_a_round_has_one_update(path: Path) -> None:
    """Work that was done twice, because a crash hid the first time, is sent once."""
    now = memory(path)
    now.finish(order("a", 1), outcome("a", 1))
    now.finish(order("a", 2), outcome("a", 2))
    now.finish(order("a", 1), Outcome("a", 1, blob("other"), report_of(1)))
    assert now.state.outbox == (Pending("a", 2, blob("update a 2")), Pending("a", 1, blob("other")))
    assert now.state.pending("a", 1) == now.state.outbox[1]
    assert now.state.pending("a", 3) is None
    assert now.state.pending("b", 1) is None
    now.remove_update(now.state.outbox[0])
    assert [*now.state.outbox] == [Pending("a", 1, blob("other"))]


def work(now: StateStore, run: str, number: int) -> str | None:
    """Take an order on and finish it; the run that made room for it."""
    gone = now.accept(order(run, number))
    now.finish(order(run, number), outcome(run, number))
    return gone


MANY = [f"r{number}" for number in range(1, MAX_RUNS + 1)]


def test_a_run_that_seems_to_be_over_makes_room(path: Path) -> None:
    now = memory(path)
    for run in MANY:
        for number in (1, 2):
            assert work(now, run, number) is None
    work(now, "r1", 3)  # which has only paused
    assert work(memory(path), "new", 1) == "r2"
    now = memory(path)
    assert list(now.state.runs) == [*MANY[2:], "r1", "new"]
    assert work(now, "newer", 1) == "r3"
    # An update of a run that is forgotten still goes out.
    assert now.state.pending("r2", 2) is not None
    assert blob("update r2 2") in now.state.blobs() and blob("own r2 2") not in now.state.blobs()


def test_a_run_with_an_order_at_hand_is_in_use_and_holds_a_place(path: Path) -> None:
    now = memory(path)
    work(now, "r1", 1)
    now.accept(order("r1", 2))  # and its blobs are long in coming
    for run in MANY[1:-1]:
        work(now, run, 1)
        work(now, run, 2)
    now.accept(order("r16", 1))
    assert work(now, "new", 1) == "r2"
    assert "r1" in now.state.runs and set(now.state.orders) == {"r1", "r16"}
    now.drop("r16")  # a place that is free again
    assert work(now, "newer", 1) is None
    assert len(now.state.runs) == MAX_RUNS


def test_a_new_run_is_declined_while_all_places_are_in_use(path: Path) -> None:
    now = memory(path)
    for run in MANY:
        work(now, run, 1)
    with pytest.raises(TooManyRuns, match=f"^run new, round 1: .*{MAX_RUNS}"):
        now.accept(order("new", 1))
    assert now.state.orders == {} and work(memory(path), "new", 1) == "r1"


def test_the_bundle_of_the_last_declined_order_is_kept(path: Path) -> None:
    now, blobs = memory(path), BlobFolder(path.parent, min_free_bytes=0)
    for bundle in ("x", "y"):
        now.accept(of(bundle, "a", 1))
        now.decline(of(bundle, "a", 1))
        assert now.state.orders == {} and now.needed(blobs) == {blob(bundle)}


def test_everything_that_is_needed_is_named(path: Path) -> None:
    now = memory(path)
    now.accept(order("a", 3, patch="patch", steps=2))
    now.finish(order("b", 1), outcome("b", 1))
    names = {"bundle", "model a 3", "version a 3", "patch", "mask of patch"}
    names |= {"step a 1", "step a 2", "version a 1", "version a 2"}
    kinds = ("version", "update", "own", "residual", "mask", "part", "gradient", "patch")
    names |= {f"{kind} b 1" for kind in kinds}
    assert now.state.blobs() == {blob(name) for name in names}
    reached = order("c", 3, steps=2)
    now.finish(reached, Outcome("c", 3, blob("u"), report_of(1)), reached.steps)
    names |= {"version c 3", "u", "step c 1", "step c 2", "version c 1"}
    assert now.state.blobs() == {blob(name) for name in names}


def test_steps_that_are_wrong_leave_the_model_alone_to_be_fetched(path: Path) -> None:
    """Nor are the steps kept from the run tried again: they may be what is wrong."""
    now = memory(path)
    first, other = order("a", 2, steps=1), order("b", 1, steps=1)
    now.finish(first, outcome("a", 2), first.steps)
    for given in (msgspec.structs.replace(first, round=3), other):
        now.accept(given)
        now.strike_steps(given)
        whole = msgspec.structs.replace(given, steps=())
        assert now.state.continued_orders(lambda sha256: True)[-1] == whole
    assert now.state.runs["a"].kept == outcome("a", 2).kept
    assert memory(path).state == now.state


def test_an_evaluation_of_another_bundle_leaves_what_is_kept(path: Path) -> None:
    now = memory(path)
    now.finish(order("a", 1), outcome("a", 1))
    kept = now.state.runs["a"]
    asked = msgspec.structs.replace(order("a", 2), task=EVALUATE)
    now.finish(msgspec.structs.replace(asked, bundle=describe(b"other")), outcome("a", 2))
    assert now.state.runs["a"] == msgspec.structs.replace(kept, round=2)
    now.finish(asked, outcome("a", 2))
    assert now.state.runs["a"].kept == outcome("a", 2).kept


def test_blobs_are_durable_before_the_state_that_names_them(path: Path) -> None:
    then: list[AgentState] = []
    now = StateStore(Journal(path, AgentState, SCHEMA), lambda: then.append(memory(path).state))
    now.accept(order("a", 1))
    now.finish(order("a", 1), outcome("a", 1))
    assert [state.blobs() for state in then] == [set(), memory_of(order("a", 1))]


def test_what_a_failed_commit_names_is_kept_until_another_succeeds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on disk all the same, and take effect after a power cut."""
    now, blobs = memory(path), BlobFolder(path.parent, min_free_bytes=0)
    with monkeypatch.context() as full:
        full.setattr("os.pwrite", FullDisk(0, 100).wrap(os.pwrite))
        with pytest.raises(StorageError):
            now.accept(order("a", 1))
    assert now.state == AgentState() and now.needed(blobs) == memory_of(order("a", 1))
    now.probe()
    assert now.needed(blobs) == set()


def memory_of(one: Order) -> set[bytes]:
    """What a state with this order names."""
    return AgentState(orders={one.run: one}).blobs()


def test_what_changes_nothing_writes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SD card is not worn out by frames that say nothing new."""
    now, one = memory(path), order("a", 1)
    cut = msgspec.structs.replace(one, model=describe(b"model a 1", 4096))
    now.accept(one)
    now.take_settings(b"coded")

    def again() -> None:
        now.heard_coordinator(9)
        now.set_chunk_bytes(4096)
        now.waits("why")
        now.replace_keys({"id": b"key"})
        now.recut(cut)
        now.recut(order("a", 2))
        now.recut(order("b", 1))

    again()
    then = memory(path).state
    assert then == AgentState(
        coordinator_incarnation=9,
        orders={"a": cut},
        chunk_bytes=4096,
        recent=("a",),
        waits="why",
        settings=b"coded",
        replaced={"id": b"key"},
    )
    monkeypatch.setattr("os.pwrite", FullDisk(0, 100).wrap(os.pwrite))
    again()
