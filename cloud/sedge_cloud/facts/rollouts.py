"""A run's newest rollout as facts, from its row alone; and which bundle a device has."""

from sedge_cloud.facts.records import RolloutFacts, RunFacts, when
from sedge_cloud.store.database import Store


def rollout_of(store: Store, run: str) -> RolloutFacts | None:
    """The newest rollout of a run, if it has had one. Raises ``StorageError``."""
    rows = store.rollouts(run)
    if not rows:
        return None
    row, plan, progress = rows[-1], rows[-1].read_plan(), rows[-1].read_progress()
    devices, failed = progress.sizes[-1], len(progress.failed)
    return RolloutFacts(
        number=row.number,
        bundle=plan.bundle,
        sha256=row.bundle.hex(),
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
        why=row.why,
    )


def version_of(store: Store, run: RunFacts, device: str) -> str:
    """The bundle of a device's last closed round, in a few words; empty without one or a rollout."""
    last = store.last_bundle(run.run, device) if run.rollout else None
    if run.rollout is None or last is None:
        return ""
    if last.hex() == run.rollout.sha256:
        return f"{run.rollout.bundle} ({last.hex()[:8]}), from rollout {run.rollout.number}"
    return f"{last.hex()[:8]}, from an earlier rollout" if last else "the run's own"
