"""Starts rollouts of bundles and settings, even while the service is running."""

import hashlib
import time
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from sedge_cloud.admin.models import find_run
from sedge_cloud.rounds.rollouts import Evidence, Tally, next_phase
from sedge_cloud.rounds.settings_rollouts import said
from sedge_cloud.runs.rollout_versions import Versions
from sedge_cloud.runs.run import Run
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import FLEET, RolloutPlan, RolloutProgress, RolloutRow
from sedge_cloud.store.selector import parse
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.host.toml import load_text, named_text
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.policy import unsealed
from sedge_protocol.wire.settings import Settings, minutes, name_of

# The manifest fields that a new version of a bundle may not change: models, updates and examples must stay
# valid, and metrics comparable.
SAME = (
    "layout", "axes", "dropped", "input", "parts", "target", "num_classes", "metric", "frozen",
    "uses_batch_statistics",
)  # fmt: skip


def start_rollout(store: Store, name: str, folder: Path, plan: RolloutPlan) -> RolloutRow:
    """Start rolling out the bundle in ``folder``, a new version of the run's bundle, to the run's devices.

    Raises ``ConfigError`` if the run has ended or has several bundles, if the bundle cannot replace the
    run's, if the run's policy does not allow it, if all devices already have it, and while another rollout
    is in progress. Raises ``CodecError`` for a program that devices would refuse.
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
    plan = msgspec.structs.replace(plan, bundle=bundle.manifest.name)
    _require_version(run, bundle.manifest, folder)
    _require_policy(run, bundles.unpack(packed).manifest_hash, folder)
    devices = store.eligible(plan.where)
    if not devices:
        raise ConfigError("--where", plan.where, "a condition that an enrolled device matches")
    _require_new(run, store, hashlib.sha256(packed).digest(), devices, folder)
    with store.blobs_held():  # prevents deletion of the blob before a row names it
        made = _first_phase(store, name, plan, devices, run.state.round + 1)
        made = msgspec.structs.replace(made, bundle=store.blobs.write(packed))
        store.add_rollout(made)
    return made


def _first_phase(
    store: Store, run: str, plan: RolloutPlan, devices: Collection[str], number: int = 0
) -> RolloutRow:
    """Return the row of a new rollout to these devices. Its first phase starts now, in round ``number``."""
    at, earlier = time.time(), store.rollouts(run)
    coded = msgspec.msgpack.encode(plan)
    made = RolloutRow(run, len(earlier) + 1, b"", "in_progress", coded, b"", at)
    begun = next_phase(
        made, plan, RolloutProgress(at, number), Evidence(devices, Tally(), number), at
    )
    return msgspec.structs.replace(made, progress=msgspec.msgpack.encode(begun))


def start_settings(store: Store, file: Path, plan: RolloutPlan) -> RolloutRow:
    """Start rolling out a TOML file's settings to the fleet's devices, replacing their current settings.

    Raises ``ConfigError`` for invalid settings, for settings that all of these devices already have, if no
    device that can take settings matches the condition, and while another rollout is in progress.
    """
    if plan.where:
        store.require_known(parse(plan.where, "--where"), "--where")
    with as_caller():
        text = named_text(file, "settings")
    given = load_text(text, Settings, str(file))
    try:
        minutes(given.gates.quiet_hours)
    except ConfigError as exc:
        raise ConfigError(exc.key, exc.found, exc.expected, str(file)) from exc
    flat = {
        f"{key}.{name}" if isinstance(value, dict) else key: one
        for key, value in tomllib.loads(text).items()
        for name, one in (value.items() if isinstance(value, dict) else [("", value)])
    }
    coded = msgspec.json.encode(flat) if flat else b""
    plan = msgspec.structs.replace(plan, bundle=file.name, settings=coded)
    devices = said(store, plan.where)
    if not devices:
        expected = "a condition that matches a device that supports settings"
        raise ConfigError("--where", plan.where, expected)
    if all(name == name_of(coded) for name in devices.values()):
        raise ConfigError("settings", str(file), "settings that the devices do not have yet")
    made = _first_phase(store, FLEET, plan, devices)
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
        expected = f"programs for {', '.join(sorted(missing))} as well, like the run's bundle"
        raise ConfigError("bundle", str(folder), expected)


def _require_new(run: Run, store: Store, blob: bytes, devices: Sequence[str], folder: Path) -> None:
    """Raise ``ConfigError`` if the bundle is the run's current one, or if all of ``devices`` have it."""
    given = Versions(run.name, store)
    if blob == run.bundles[0].sha256 or all(given.bundle(device) == blob for device in devices):
        expected = (
            "a bundle that the run's devices do not have yet "
            f"(`rollout rollback {run.name}` undoes a rollout)"
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
