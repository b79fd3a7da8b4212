"""Starts rollouts and reports their progress, also while the service runs."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sedge_cloud.admin.models import find_run
from sedge_cloud.rounds.rollouts import BundleVersions, away, members, next_phase, tallied
from sedge_cloud.runs.run import Run
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import Progress, RolloutPlan, RolloutRow
from sedge_cloud.store.rows import LATE_ROUNDS
from sedge_cloud.store.selector import parse
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.policy import unsealed

# The fields that a new version of a bundle may not change: models, updates and examples must stay valid,
# and metrics comparable.
SAME = (
    "layout", "axes", "dropped", "input", "parts", "target", "num_classes", "metric", "frozen",
    "uses_batch_statistics",
)  # fmt: skip


def start_rollout(store: Store, name: str, folder: Path, plan: RolloutPlan) -> RolloutRow:
    """Begin to give a running run's devices the bundle in ``folder``, a new version of the run's.

    Raises ``ConfigError`` for a run that has ended or has several bundles, for a bundle that is no version
    of the run's or that its policy does not cover, for a bundle that the run's devices already have, and
    while another rollout is in progress; ``CodecError`` for a program that devices refuse.
    """
    row = find_run(store, name)
    if row.has_ended:
        raise ConfigError("run", f"{name} ({row.status})", "the name of a running run")
    if plan.where:
        store.require_known(parse(plan.where, "--where"), "--where")
    with as_caller():
        bundle, _ = bundles.load(folder)
    bundle.check_programs()
    run = Run(row, store)
    packed = bundles.pack(bundle)
    _require_version(run, bundle.manifest, folder)
    _require_policy(run, bundles.unpack(packed).manifest_hash, folder)
    earlier = store.rollouts(name)
    made = RolloutRow(
        run=name,
        number=len(earlier) + 1,
        bundle=b"",
        state="in_progress",
        plan=msgspec.msgpack.encode(msgspec.structs.replace(plan, bundle=bundle.manifest.name)),
        progress=b"",
        created=time.time(),
    )
    devices = store.eligible(plan.where)
    if not devices:
        raise ConfigError("--where", plan.where, "a condition that an enrolled device matches")
    _require_new(run, store, hashlib.sha256(packed).digest(), devices, folder)
    begun = Progress(made.created, run.state.round + 1)
    begun = next_phase(made, plan, begun, devices, made.created)
    with store.blobs_held():  # no row names the blob until the end
        made = msgspec.structs.replace(
            made, bundle=store.blobs.write(packed), progress=msgspec.msgpack.encode(begun)
        )
        store.add_rollout(made)
    return made


def _require_version(run: Run, bundle: BundleManifest, folder: Path) -> None:
    """Raise ``ConfigError`` unless the bundle can replace the run's."""
    if len(run.manifests) > 1:
        found = f"{len(run.manifests)} bundles"
        raise ConfigError(f"run {run.name}", found, "a run with one bundle, without narrower forms")
    for name in SAME:
        if getattr(bundle, name) != getattr(run.manifest, name):
            raise ConfigError("bundle", str(folder), f"the {name} of the run's bundle")
    missing = {p.backend for p in run.manifest.programs} - {p.backend for p in bundle.programs}
    if missing:
        expected = f"programs for {', '.join(sorted(missing))} as well, as the run's bundle has"
        raise ConfigError("bundle", str(folder), expected)


def _require_new(run: Run, store: Store, blob: bytes, devices: Sequence[str], folder: Path) -> None:
    """Raise ``ConfigError`` for the run's own bundle, and for one that all of ``devices`` have."""
    given = BundleVersions(run.name, store)
    if blob == run.bundles[0].sha256 or all(given.bundle(device) == blob for device in devices):
        expected = (
            "a bundle that the run's devices do not have yet "
            f"(`rollout rollback {run.name}` takes a rollout's back)"
        )
        raise ConfigError("bundle", str(folder), expected)


def _require_policy(run: Run, manifest_hash: bytes, folder: Path) -> None:
    """Raise ``ConfigError`` for a bundle that the run's signed policy does not allow."""
    if not run.state.policy:
        return
    policy = unsealed(run.state.policy).policy()
    if manifest_hash not in policy.bundles:
        expected = (
            "a bundle that the run's policy covers: `run sign --version --also`, `run stop`, then "
            "`run resume --policy`"
        )
        raise ConfigError("bundle", str(folder), expected)


def rollout_lines(store: Store, name: str, at: float) -> Iterator[str]:
    """Describe each rollout of a run for people, newest first, as of ``at`` (wall clock)."""
    find_run(store, name)
    for row in reversed(store.rollouts(name)):
        plan, progress = row.read_plan(), row.read_progress()
        phases = ", ".join(f"{100 * share:g} %" for share in plan.phases)
        yield (
            f"rollout {row.number}: {row.state}, phase {progress.phase + 1} of {len(plan.phases)} "
            f"({phases}){f', where {plan.where}' if plan.where else ''}, {progress.sizes[-1]} devices"
        )
        # Up to and including the open round, which follows the rounds that the leader may reread.
        new = tallied(row, store, progress.tallied + LATE_ROUNDS + 1)[1].new
        yield f"  succeeded {len(new.succeeded)}, failed {len(progress.failed)}"
        if row.state == "in_progress":
            newest = members(row, progress, store.eligible(plan.where))
            absent = away(store, newest, at - plan.hold_s) - new.succeeded
            yield (
                f"  phase {progress.phase + 1}: {len(newest & new.succeeded)} of the {len(newest)} "
                f"devices that it adds have trained, {len(absent)} offline or paused"
            )
        for device in progress.failed:
            yield f"  {device} failed: {new.failed.get(device, 'in an earlier round')}"
        if row.why:
            yield f"  {row.why}"
