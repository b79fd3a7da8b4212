"""Rollouts of bundles: phase by phase to the same devices, stopped and taken back by what they answer."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tests.cloud.helper import BEGUN, CONFIG, FLEET, RUN, Cloud, a_hello, make_bundle, small_update
from tests.cloud.outlets.test_status_page import text_of
from tests.cloud.stores import on_both

from sedge_cloud.admin.rollout_status import rollout_lines, rollout_reports
from sedge_cloud.admin.rollouts import start_rollout
from sedge_cloud.admin.runs import stop_run
from sedge_cloud.coding import CodecConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.rollouts import version_of
from sedge_cloud.outlets.page.html import device_page, status_page
from sedge_cloud.privacy import PrivacyConfig
from sedge_cloud.recorder import Recorder
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import RolloutPlan, RolloutRow, Tried
from sedge_cloud.store.rows import LATE_ROUNDS, OrderRow
from sedge_cloud.store.schema import OBJECTS, TABLES
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.messages import Decline, Goodbye, Order
from sedge_protocol.wire.reasons import REASONS
from sedge_protocol.wire.update import Metrics

NAMES = [f"d{number:03}" for number in range(200)]
PLAN, SMALL = RolloutPlan((0.01, 0.1, 1.0)), RolloutPlan((0.1, 0.5, 1.0))
CONFIGURED = msgspec.structs.replace(CONFIG, num_rounds=20, evaluate=False, fraction_train=1.0)
LAYOUT = Layout.of([("body.weight", (10, 119), Role.PARAMETER)])
PRIVATE = msgspec.structs.replace(
    CONFIGURED,
    privacy=PrivacyConfig(epsilon=8, delta=1e-3, clip=2.0),
    codec=CodecConfig(error_feedback=False),
)
CRASHES = "TooManyStarts"
Work = Callable[[Order], bytes | str | None]


def good(order: Order) -> bytes:
    return small_update(order)


def worse(order: Order) -> bytes:
    """An update of a model that training has made worse than all before."""
    return small_update(order, after=Metrics(0.9, 0.4, 10))


def new_version(folder: Path) -> Path:
    """A bundle as that of ``Cloud``, but for its name."""
    bundle, init = bundles.load(make_bundle(folder / "of-the-run"))
    other = msgspec.structs.replace(bundle.manifest, name="version 2")
    bundles.save(folder / "new", msgspec.structs.replace(bundle, manifest=other), init)
    return folder / "new"


class Fleet:
    """Devices that do at once what they are asked; those with the new bundle as ``work`` does."""

    def __init__(
        self,
        folder: Path,
        plan: RolloutPlan = PLAN,
        names: list[str] = NAMES,
        config: RunConfig = CONFIGURED,
    ) -> None:
        self.since = time.time() - BEGUN
        self.names, self.cloud = names, Cloud(folder, config, names, wall=self.wall)
        self.orders = dict[str, Order]()
        self.cloud.hello()
        self.row = start_rollout(self.cloud.store, RUN, new_version(folder), plan)
        # The machine's clock has gone on since then, by seconds where it is busy.
        self.since = self.row.created - self.cloud.now
        self.answer(good)  # the round that was open before

    def wall(self, now: float) -> float:
        return self.since + now

    def answer(self, work: Work) -> set[str]:
        """A round: its devices answer, and the next one begins. Returns those with the new bundle."""
        self.orders = {name: self.cloud.order(name) for name in self.names}
        self.cloud.effects.clear()
        tried = {name for name, order in self.orders.items() if self.is_new(order)}
        first = self.cloud.store.runs()[0].bundle
        assert all(order.first_bundle == first for order in self.orders.values())
        for name, order in self.orders.items():
            done = work(order) if name in tried else good(order)
            if isinstance(done, bytes):
                self.cloud.offer(name, done, order=order)
            elif done is not None:
                self.cloud.say(name, Decline(order.run, order.round, done, "why"))
        self.cloud.poll(CONFIGURED.deadline_s)
        self.cloud.poll(31.0)
        return tried

    def is_new(self, order: Order) -> bool:
        return order.bundle.sha256 == self.row.bundle

    def leave(self, names: set[str]) -> None:
        """These go offline, and the rows say so."""
        for name in names:
            self.cloud.say(name, Goodbye(a_hello(name).nonce))
        self.names = [name for name in self.names if name not in names]
        Recorder(self.cloud.core, self.cloud.wall).poll(self.cloud.now)

    def lines(self) -> list[str]:
        reports = rollout_reports(self.cloud.store, RUN, self.wall(self.cloud.now))
        return [line for report in reports for line in rollout_lines(report)]

    def now(self) -> RolloutRow:
        return self.cloud.store.rollouts(RUN)[-1]


@on_both
def test_a_rollout_reaches_ever_more_devices_and_ends_with_all(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SMALL, NAMES[:20])
    rounds = [fleet.answer(good) for _ in range(4)]
    assert [len(tried) for tried in rounds] == [2, 10, 20, 20]
    assert rounds[0] < rounds[1] < rounds[2], "who has it keeps it"
    assert fleet.now().state == "succeeded"
    assert fleet.now().read_progress().tally == b"", "of what each device answered nothing is left"


@on_both
def test_a_bundle_that_crashes_runs_on_two_of_200_devices_and_all_go_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    tried = fleet.answer(lambda order: CRASHES)
    assert len(tried) == 2
    row = fleet.now()
    assert row.state == "aborted"
    assert row.why == "2 of 2 devices failed ('TooManyStarts: why'), compared with 0 of 200 others"
    assert f"run run, rollout 1: aborted: {row.why}" in fleet.cloud.notes(logging.WARNING)
    assert fleet.answer(good) == set(), "in the next round"
    told = fleet.lines()
    assert told[0].startswith("rollout 1: aborted, phase 1 of 3")
    assert {line.split()[0] for line in told[2:4]} == tried


@pytest.mark.parametrize("reason", REASONS["DECLINE"])
def test_only_declines_that_the_bundle_may_cause_are_failures(tmp_path: Path, reason: str) -> None:
    limits = {"MessageTooLarge", "TooManyOrders", "TooManyRuns"}
    fleet = Fleet(tmp_path, names=NAMES[:4], plan=RolloutPlan((0.5, 1.0)))
    tried = fleet.answer(lambda order: reason)
    assert fleet.now().state == ("in_progress" if reason in limits else "aborted")
    assert fleet.now().read_progress().failed == (() if reason in limits else (*sorted(tried),))
    if reason in limits:
        assert [len(fleet.answer(good)) for _ in range(2)] == [2, 4], "it goes on once they train"


@on_both
def test_the_page_says_how_a_rollout_goes_and_what_a_device_has(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SMALL, NAMES[:20])
    first = fleet.answer(good)
    second = fleet.answer(good)
    found = Reader(FLEET, tmp_path / "state", fleet.cloud.store).read(fleet.wall(fleet.cloud.now))
    run, mark = found.runs[0], fleet.row.bundle.hex()[:8]
    goes = f"Rollout 1 of version 2 ({mark}) is in progress. Phase 3 of 3, 100 %: "
    left = ", ".join(sorted(set(fleet.names) - second)[:4])
    waiting = f"of 20 devices 10 succeeded, 0 failed, 10 waiting ({left} and 6 more)."
    assert goes + waiting in text_of(status_page(found), "run")
    store, others = fleet.cloud.store, {*fleet.names} - second
    assert first < second
    for name in (min(second), min(others)):
        version = version_of(store, run, name)
        page = device_page(found, found.devices[fleet.names.index(name)], {}, version)
        told = f"version 2 ({mark}), from rollout 1" if name in second else "the run's own"
        assert f"Bundle {told}" in text_of(page, "now")


def test_an_aborted_rollout_is_a_problem_until_the_next_one(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, names=NAMES[:20])
    reader = Reader(FLEET, tmp_path / "state", fleet.cloud.store)
    fleet.answer(lambda order: CRASHES)
    found = reader.read(fleet.wall(fleet.cloud.now))
    (problem,) = [problem for problem in found.problems if problem.code == "rollout_aborted"]
    assert problem.text == f"rollout 1 was aborted: {fleet.now().why}"
    assert "rollout 1 was aborted: " in text_of(status_page(found), "problems")
    assert "is aborted: 1 of 1 devices failed" in text_of(status_page(found), "run")
    assert f" failed: {CRASHES}" in text_of(status_page(found), "run")
    start_rollout(fleet.cloud.store, RUN, new_version(tmp_path / "again"), PLAN)
    codes = {problem.code for problem in reader.read(fleet.wall(fleet.cloud.now)).problems}
    assert "rollout_aborted" not in codes


def test_a_bundle_with_which_devices_fall_silent_is_taken_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, names=NAMES[:40], plan=RolloutPlan((0.1, 1.0)))
    rounds = [fleet.answer(lambda order: None) for _ in range(4)]
    assert [len(tried) for tried in rounds] == [4, 4, 4, 0]
    assert (fleet.now().state, "'no answer'" in fleet.now().why) == ("aborted", True)


def test_a_bundle_that_makes_models_worse_is_taken_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SMALL, NAMES[:20])
    fleet.answer(good)
    fleet.answer(worse)
    assert fleet.now().state == "aborted"
    why = "accuracy after training changed by -0.350 on 10 devices, but on 10 others by +0.000"
    assert fleet.now().why == why


@pytest.mark.parametrize(("reports", "state"), [("withheld", "succeeded"), ("kept", "aborted")])
def test_what_a_private_run_withholds_decides_no_rollout(
    tmp_path: Path, reports: Literal["withheld", "kept"], state: str
) -> None:
    assert PRIVATE.privacy is not None
    privacy = msgspec.structs.replace(PRIVATE.privacy, reports=reports)
    config = msgspec.structs.replace(PRIVATE, privacy=privacy)
    fleet = Fleet(tmp_path, RolloutPlan((0.25, 1.0)), NAMES[:40], config)
    for _ in range(2):
        fleet.answer(worse)
    assert (fleet.now().state, "accuracy" in fleet.now().why) == (state, state == "aborted")


def test_a_private_runs_rollout_is_stopped_where_devices_fail(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.25, 1.0)), NAMES[:40], PRIVATE)
    fleet.answer(lambda order: CRASHES)
    assert fleet.now().state == "aborted"


def test_a_device_that_fails_goes_back_alone_while_the_others_go_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.5, 1.0)), NAMES[:80])
    bad = min(name for name in fleet.names if fleet.is_new(fleet.cloud.order(name)))
    weak = fleet.cloud.order(bad).seed
    first = fleet.answer(lambda order: "NotSupported" if order.seed == weak else good(order))
    second = fleet.answer(good)
    assert len(first) == 40
    assert second == {*fleet.names} - {bad}
    fleet.answer(good)
    assert fleet.now().state == "succeeded"
    assert not fleet.is_new(fleet.cloud.order(bad))


def test_a_phase_lasts_as_long_as_it_is_told_to(tmp_path: Path) -> None:
    day = 24 * CONFIGURED.deadline_s
    fleet = Fleet(tmp_path, RolloutPlan((0.1, 1.0), hold_s=day), NAMES[:20])
    assert [len(fleet.answer(good)) for _ in range(3)] == [2, 2, 2]
    fleet.cloud.now += day
    assert [len(fleet.answer(good)) for _ in range(2)] == [2, 20]


@on_both
def test_a_small_phase_goes_on_without_those_that_are_offline_or_paused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.1, 1.0)), NAMES[:50])
    tried = sorted(name for name in fleet.names if fleet.is_new(fleet.cloud.order(name)))
    fleet.cloud.store.pause({tried[4]}, 1.0)
    fleet.leave({tried[3], tried[4]})
    told = fleet.lines()
    assert told[1] == f"  succeeded 0, failed 0, waiting 5: {', '.join(tried[:4])} and 1 more"
    added = "  phase 1: 0 of the 5 devices that it adds have trained"
    assert told[2] == f"{added}, 2 offline, paused or not asked"
    order = fleet.cloud.order(tried[0])
    fleet.cloud.offer(tried[0], good(order), order=order)
    assert fleet.lines()[1].startswith("  succeeded 1, failed 0, waiting 4: ")  # of the open round
    fleet.answer(lambda order: None)
    assert fleet.answer(good) == {*tried[:3]}, "two are online and have not trained"
    assert fleet.answer(good) == {*fleet.names}


def test_a_small_phase_goes_on_without_those_that_are_not_asked(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.5, 1.0)), NAMES[:4])
    first = sorted(name for name in fleet.names if fleet.is_new(fleet.cloud.order(name)))
    hello = a_hello(first[0], waits="on battery")
    fleet.cloud.say(first[0], hello)
    fleet.names.remove(first[0])
    Recorder(fleet.cloud.core, fleet.cloud.wall).poll(fleet.cloud.now)
    rounds = [len(fleet.answer(good)) for _ in range(LATE_ROUNDS + 3)]
    assert rounds == [1] * (LATE_ROUNDS + 2) + [3]


@pytest.mark.parametrize(("reason", "state"), [("stale", "in_progress"), ("mismatch", "aborted")])
def test_only_rejects_by_the_bundle_are_failures(tmp_path: Path, reason: str, state: str) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.25, 1.0), hold_s=1e9), NAMES[:4])
    (name,) = fleet.answer(good)
    with fleet.cloud.store.transaction():
        sql = "UPDATE updates SET rejected = ?, report = ? WHERE device = ? AND round = ?"
        fleet.cloud.store._db.execute(sql, (reason, b"", name, fleet.orders[name].round))
    for _ in range(2):
        fleet.answer(lambda order: None)
    assert fleet.now().state == state


def test_a_phase_waits_for_devices_that_were_heard_from_within_its_time(tmp_path: Path) -> None:
    day = 24 * CONFIGURED.deadline_s
    fleet = Fleet(tmp_path, RolloutPlan((0.1, 1.0), hold_s=day), NAMES[:20])
    tried = {name for name in fleet.names if fleet.is_new(fleet.cloud.order(name))}
    fleet.cloud.now += day - 10
    fleet.leave({min(tried)})
    assert len(fleet.answer(good)) == 1
    assert len(fleet.answer(good)) == 1, "a day is over, but this device may come back"
    fleet.cloud.now += day
    assert [len(fleet.answer(good)) for _ in range(2)] == [1, 19]


def test_a_phase_never_moves_on_with_fewer_successes_than_it_was_told(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.1, 1.0), min_devices=2), NAMES[:20])
    tried = {name for name in fleet.names if fleet.is_new(fleet.cloud.order(name))}
    fleet.leave({min(tried)})
    assert [len(fleet.answer(good)) for _ in range(4)] == [1, 1, 1, 1]
    fleet.cloud.hello(min(tried))
    fleet.answer(good)  # was open
    fleet.names.append(min(tried))
    assert len(fleet.answer(good)) == 2
    assert len(fleet.answer(good)) == 20


@on_both
def test_a_long_phase_needs_no_rows_of_old_rounds(tmp_path: Path) -> None:
    """Deleted as ``[keep] rounds = 10`` does: what devices did before the rollout, and who succeeded."""
    fleet = Fleet(tmp_path, RolloutPlan((0.25, 1.0), hold_s=1e9), NAMES[:4])
    for _ in range(12):
        fleet.answer(good)
        fleet.cloud.store.delete_old_rows(RUN, 10)
    assert fleet.cloud.store.orders(RUN, 1) == [] != fleet.cloud.store.orders(RUN, 12)
    assert fleet.lines()[1] == "  succeeded 1, failed 0"
    fleet.answer(worse)
    why = "accuracy after training changed by -0.350 on 1 devices, but on 3 others by +0.000"
    assert fleet.now().why == why


def test_the_leader_reads_only_rounds_to_which_answers_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, tried = list[int](), Store.tried

    def noted(self: Store, run: str, first: int, last: int) -> list[Tried]:
        rows = tried(self, run, first, last)
        seen.extend(row.round for row in rows)
        return rows

    fleet = Fleet(tmp_path, RolloutPlan((0.25, 1.0), hold_s=1e9), NAMES[:4])
    monkeypatch.setattr(Store, "tried", noted)
    rounds = 8
    for _ in range(rounds):
        fleet.answer(good)
    assert max(Counter(seen).values()) == 4 * (LATE_ROUNDS + 1), "devices times readings"


def test_a_device_that_answers_late_has_not_failed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, RolloutPlan((0.25, 1.0), hold_s=1e9), NAMES[:4])
    name, *_ = fleet.answer(lambda order: None)
    late = fleet.orders[name]
    fleet.answer(lambda order: None)
    fleet.cloud.offer(name, good(late), order=late)
    for _ in range(LATE_ROUNDS):
        fleet.answer(lambda order: None)
    lines = fleet.lines()
    assert (fleet.now().state, lines[1]) == ("in_progress", "  succeeded 1, failed 0")


def test_an_operator_takes_a_bundle_back_also_after_a_restart(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SMALL, NAMES[:20])
    fleet.cloud.come_back()
    assert len(fleet.answer(good)) == 2
    assert len(fleet.answer(good)) == 10
    assert fleet.cloud.store.roll_back(RUN, "why")[1]
    fleet.answer(good)  # was open
    assert fleet.answer(good) == set()
    assert not fleet.cloud.store.roll_back(RUN, "why")[1]


def test_only_devices_that_match_get_the_bundle(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, CONFIGURED, NAMES[:8])
    lab = set(NAMES[:4])
    cloud.store.tag(lab, {"site": "lab"})
    plan = RolloutPlan((1.0,), where="site=lab")
    row = start_rollout(cloud.store, RUN, new_version(tmp_path), plan)
    cloud.hello()
    given = {name for name in NAMES[:8] if cloud.order(name).bundle.sha256 == row.bundle}
    assert given == lab


@on_both
def test_a_store_from_before_rollouts_keeps_its_orders(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, CONFIGURED)
    cloud.hello()
    orders = cloud.store.orders(RUN, 1)
    before = OBJECTS["orders"].replace("bundle BLOB NOT NULL, ", "")
    columns = ", ".join(OrderRow.__struct_fields__[:-1])
    statements = (
        f"CREATE TABLE saved AS SELECT {columns} FROM orders", "DROP TABLE orders", before,
        "INSERT INTO orders SELECT * FROM saved", "DROP TABLE saved", "DROP TABLE rollouts",
        "ALTER TABLE devices DROP COLUMN enrolled", "DROP TABLE certificates",
    )  # fmt: skip
    with cloud.store.transaction():
        cloud.store._db.define(";".join(statements), 7)
    cloud.restart()
    assert orders and cloud.store.orders(RUN, 1) == orders
    cloud.store._db.check(TABLES)


def test_a_bundle_that_is_no_version_of_the_runs_is_refused(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, CONFIGURED)
    other = make_bundle(tmp_path / "other", LAYOUT)
    with pytest.raises(ConfigError, match="the layout of the run's bundle"):
        start_rollout(cloud.store, RUN, other, PLAN)
    new = new_version(tmp_path)
    with pytest.raises(ConfigError, match="enrolled device matches"):
        start_rollout(cloud.store, RUN, new, RolloutPlan((1.0,), where="memory_mb>9"))
    start_rollout(cloud.store, RUN, new, PLAN)
    with pytest.raises(ConfigError, match="no rollout in progress: end rollout 1 first"):
        start_rollout(cloud.store, RUN, new, PLAN)
    stop_run(cloud.store, RUN)
    with pytest.raises(ConfigError, match="running run"):
        start_rollout(cloud.store, RUN, new, PLAN)


def test_a_bundle_that_the_devices_have_is_refused(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, CONFIGURED, NAMES[:4])
    cloud.store.tag(NAMES[:2], {"site": "lab"})
    new = new_version(tmp_path)
    lab = RolloutPlan((1.0,), where="site=lab")
    with pytest.raises(ConfigError, match="do not have yet"):
        start_rollout(cloud.store, RUN, tmp_path / "of-the-run", lab)
    row = start_rollout(cloud.store, RUN, new, lab)
    assert cloud.store.save_rollout(msgspec.structs.replace(row, state="succeeded"))
    with pytest.raises(ConfigError, match="do not have yet"):
        start_rollout(cloud.store, RUN, new, lab)
    assert start_rollout(cloud.store, RUN, new, PLAN).number == 2, "the others have not"
