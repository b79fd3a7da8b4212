"""Reads the newest rollout of a run or of settings, and which bundle or settings a device has."""

from sedge_cloud.facts.records import RolloutFacts, RunFacts, printable, when
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import FLEET, RolloutRow
from sedge_protocol.wire.settings import listed, name_of, read_settings


def rollout_of(store: Store, run: str) -> RolloutFacts | None:
    """Return the newest rollout of a run or of settings, if any. Raises ``StorageError``."""
    rows = store.rollouts(run)
    return facts_of(rows[-1]) if rows else None


def facts_of(row: RolloutRow) -> RolloutFacts:
    """Return the facts that a rollout's row holds. Raises ``StorageError``."""
    plan, progress = row.read_plan(), row.read_progress()
    devices, failed = progress.sizes[-1], len(progress.failed)
    return RolloutFacts(
        run=row.run,
        number=row.number,
        bundle=plan.bundle,
        sha256=(row.bundle or name_of(plan.settings)).hex(),
        state=row.state,
        created=when(row.created),
        ended=when(progress.ended),
        phase=progress.phase + 1,
        phases=len(plan.phases),
        share=plan.phases[progress.phase],
        shares=plan.phases,
        devices=devices,
        succeeded=progress.succeeded,
        failed=failed,
        waiting=max(0, devices - progress.succeeded - failed),
        awaited=progress.awaited if row.state == "in_progress" else (),
        where=plan.where,
        failures={name: printable(progress.reasons.get(name, "")) for name in progress.failed},
        why=row.why,
        settings=read_settings(plan.settings),
    )


def version_of(store: Store, run: RunFacts, device: str) -> str:
    """Describe the bundle that a device had in its last closed round, or return "" if unknown.

    It is unknown if the run has had no rollout.
    """
    last = store.last_bundle(run.run, device) if run.rollout else None
    if run.rollout is None or last is None:
        return ""
    if last.hex() == run.rollout.sha256:
        return f"{run.rollout.bundle} ({last.hex()[:8]}), from rollout {run.rollout.number}"
    return f"{last.hex()[:8]}, from an earlier rollout" if last else "the run's own"


def settings_of(store: Store, device: str) -> str:
    """Describe the settings that a device last reported. Returns an empty string if it has none."""
    row = store.device(device)
    hello = None if row is None else row.read_hello()
    if hello is None or not hello.settings:
        return ""
    for it in reversed(store.rollouts(FLEET)):
        coded = it.read_plan().settings
        if name_of(coded) == hello.settings:
            return f"{listed(coded)}, from rollout {it.number}"
    return f"{hello.settings.hex()}, not from a rollout of this coordinator"
