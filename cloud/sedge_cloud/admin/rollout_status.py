"""Reports the state of rollouts, as text and as JSON."""

from collections.abc import Iterator

import msgspec

from sedge_cloud.admin.models import find_run
from sedge_cloud.facts.records import PhaseFacts, RolloutFacts
from sedge_cloud.facts.rollouts import facts_of
from sedge_cloud.figures.numbers import natural, quantity, some_of
from sedge_cloud.rounds.rollouts import MAX_NAMED, absent, awaited, members, tallied
from sedge_cloud.rounds.settings_rollouts import said, tally_of
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import FLEET, RolloutRow
from sedge_cloud.store.rows import LATE_ROUNDS


def rollout_lines(it: RolloutFacts) -> Iterator[str]:
    """Yield a rollout's state as lines of text."""
    phases = ", ".join(f"{100 * share:g} %" for share in it.shares)
    given = "" if it.run else f" of {it.bundle}"
    yield (
        f"rollout {it.number}{given}: {it.state}, phase {it.phase} of {it.phases} "
        f"({phases}){f', where {it.where}' if it.where else ''}, {quantity(it.devices, 'device')}"
    )
    yield from (f"  {key} = {value}" for key, value in it.settings.items())
    waits = f", waiting {it.waiting}: {some_of(it.awaited, it.waiting)}" if it.awaited else ""
    yield f"  succeeded {it.succeeded}, failed {it.failed}{waits}"
    if it.added is not None:
        done = "trained" if it.run else "taken them"
        yield (
            f"  phase {it.phase}: {it.added.succeeded} of the {it.added.adds} devices that it adds have "
            f"{done}, {it.added.absent} offline, paused or not asked"
        )
    yield from (f"  {device} failed: {why}" for device, why in it.failures.items())
    if it.why:
        yield f"  {it.why}"


def rollout_reports(store: Store, name: str, at: float) -> Iterator[RolloutFacts]:
    """Report on each rollout of a run, or of settings, newest first, as of ``at`` (wall clock, seconds).

    Raises ``ConfigError`` for an unknown run.
    """
    if name != FLEET:
        find_run(store, name)
    for row in reversed(store.rollouts(name)):
        yield _afresh(row, store, at) if row.state == "in_progress" else facts_of(row)


def _afresh(row: RolloutRow, store: Store, at: float) -> RolloutFacts:
    """Return the facts with the devices' answers since the leader last saved its progress."""
    plan, progress = row.read_plan(), row.read_progress()
    if row.run == FLEET:
        names = said(store, plan.where)
        devices, new = list(names), tally_of(row, store, names, at).new
    else:  # The leader rereads the last LATE_ROUNDS rounds; the open round comes after those.
        devices = store.eligible(plan.where)
        new = tallied(row, store, progress.tallied + LATE_ROUNDS + 1)[1].new
    newest = members(row, progress, devices)
    gone = absent(row, progress, store, newest, new, at) - new.succeeded
    left = sorted(awaited(row, progress, devices, new), key=natural)
    return msgspec.structs.replace(
        facts_of(row),
        succeeded=len(new.succeeded),
        waiting=len(left),
        awaited=tuple(left[:MAX_NAMED]),
        added=PhaseFacts(adds=len(newest), succeeded=len(newest & new.succeeded), absent=len(gone)),
    )
