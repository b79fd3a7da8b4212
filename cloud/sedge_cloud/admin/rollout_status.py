"""Reports the state of rollouts, as text and as JSON."""

from collections.abc import Iterator

import msgspec

from sedge_cloud.admin.models import find_run
from sedge_cloud.figures.numbers import natural, quantity, some_of
from sedge_cloud.rounds.rollouts import MAX_NAMED, absent, awaited, members, tallied
from sedge_cloud.rounds.settings_rollouts import said, tally_of
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import FLEET, RolloutRow, RolloutState
from sedge_cloud.store.rows import LATE_ROUNDS
from sedge_protocol.wire.settings import Value, read_settings


class Phase(msgspec.Struct, frozen=True):
    """The current phase of a rollout: how many devices it adds, and how many of them have succeeded.

    ``absent`` counts the devices that are offline, paused or without an order in the last rounds.
    """

    number: int
    adds: int
    succeeded: int
    absent: int


class RolloutReport(msgspec.Struct, frozen=True):
    """The state of one rollout.

    ``given`` names the bundle or settings file. ``phases`` are cumulative fractions of the devices.
    ``failed`` maps devices to reasons. ``waiting`` counts the devices without an outcome, and ``awaited``
    names a few of them. Once the rollout has ended, nothing is awaited and ``phase`` is None. ``run`` is
    empty for a rollout of settings.
    """

    run: str
    number: int
    given: str
    state: RolloutState
    phases: tuple[float, ...]
    reached: int
    where: str
    devices: int
    succeeded: int
    failed: dict[str, str]
    why: str
    waiting: int = 0
    awaited: tuple[str, ...] = ()
    phase: Phase | None = None
    settings: dict[str, Value] = {}

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        phases = ", ".join(f"{100 * share:g} %" for share in self.phases)
        given = "" if self.run else f" of {self.given}"
        yield (
            f"rollout {self.number}{given}: {self.state}, phase {self.reached} of {len(self.phases)} "
            f"({phases}){f', where {self.where}' if self.where else ''}, {quantity(self.devices, 'device')}"
        )
        yield from (f"  {key} = {value}" for key, value in self.settings.items())
        names = some_of(self.awaited, self.waiting)
        waits = f", waiting {self.waiting}: {names}" if names else ""
        yield f"  succeeded {self.succeeded}, failed {len(self.failed)}{waits}"
        if self.phase is not None:
            it, done = self.phase, "trained" if self.run else "taken them"
            yield (
                f"  phase {it.number}: {it.succeeded} of the {it.adds} devices that it adds have {done}, "
                f"{it.absent} offline, paused or not asked"
            )
        yield from (f"  {device} failed: {why}" for device, why in self.failed.items())
        if self.why:
            yield f"  {self.why}"


def rollout_reports(store: Store, name: str, at: float) -> Iterator[RolloutReport]:
    """Report on each rollout of a run, or of settings, newest first, as of ``at`` (wall clock, seconds).

    Raises ``ConfigError`` for an unknown run.
    """
    if name != FLEET:
        find_run(store, name)
    for row in reversed(store.rollouts(name)):
        yield _report(row, store, at)


def _report(row: RolloutRow, store: Store, at: float) -> RolloutReport:
    plan, progress = row.read_plan(), row.read_progress()
    report = RolloutReport(
        run=row.run,
        number=row.number,
        given=plan.bundle,
        state=row.state,
        phases=plan.phases,
        reached=progress.phase + 1,
        where=plan.where,
        devices=progress.sizes[-1],
        succeeded=progress.succeeded,
        failed={device: progress.reasons.get(device, "") for device in progress.failed},
        why=row.why,
        settings=read_settings(plan.settings),
    )
    if row.state != "in_progress":
        return report
    if row.run == FLEET:
        names = said(store, plan.where)
        devices, new = list(names), tally_of(row, store, names, at).new
    else:  # The leader rereads the last LATE_ROUNDS rounds; the open round comes after those.
        devices = store.eligible(plan.where)
        new = tallied(row, store, progress.tallied + LATE_ROUNDS + 1)[1].new
    newest = members(row, progress, devices)
    gone = absent(row, progress, store, newest, new, at) - new.succeeded
    done = newest & new.succeeded
    phase = Phase(progress.phase + 1, len(newest), len(done), len(gone))
    left = sorted(awaited(row, progress, devices, new), key=natural)
    return msgspec.structs.replace(
        report,
        succeeded=len(new.succeeded),
        waiting=len(left),
        awaited=tuple(left[:MAX_NAMED]),
        phase=phase,
    )
