"""Reads the newest rollout of a run or of settings, and which bundle or settings a device has."""

from sedge_cloud.facts.records import RolloutFacts, RunFacts, printable, when
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import FLEET
from sedge_protocol.wire.settings import listed, name_of


def rollout_of(store: Store, run: str) -> RolloutFacts | None:
    """Return the newest rollout of a run or of settings, if any. Raises ``StorageError``."""
    rows = store.rollouts(run)
    if not rows:
        return None
    row, plan, progress = rows[-1], rows[-1].read_plan(), rows[-1].read_progress()
    devices, failed = progress.sizes[-1], len(progress.failed)
    failures = {name: printable(progress.reasons.get(name, "")) for name in progress.failed}
    return RolloutFacts(
        number=row.number,
        bundle=plan.bundle,
        sha256=(row.bundle or name_of(plan.settings)).hex(),
        state=row.state,
        created=when(row.created),
        ended=when(progress.ended),
        phase=progress.phase + 1,
        phases=len(plan.phases),
        share=plan.phases[progress.phase],
        devices=devices,
        succeeded=progress.succeeded,
        failed=failed,
        waiting=max(0, devices - progress.succeeded - failed),
        awaited=progress.awaited,
        where=plan.where,
        failures=failures,
        why=row.why,
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
    return f"{hello.settings.hex()}, from no rollout of this coordinator"
