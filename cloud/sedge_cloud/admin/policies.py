"""Signed policies, derived from what a run asks of devices and checked before it starts (policy.md)."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from sedge_cloud.admin.models import find_run
from sedge_cloud.admin.runs import first_order, start_run
from sedge_cloud.config import RunConfig, ScheduleConfig
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.opening import open_folder
from sedge_protocol.errors import ConfigError, PolicyError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.signing import TrustConfig, verifiers
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.extensions import needed_by_order
from sedge_protocol.wire.policy import MAX_CHAIN, Policy, largest_rate, trainings_of, unsealed

DAY_S = 86400
MAX_DAYS = 36_500


def write_policy(path: Path, sealed: bytes) -> None:
    """Write a sealed policy, which is not secret. Raises ``StorageError``."""
    with translated("write a policy to", path):
        path.write_bytes(sealed)


class Extent(NamedTuple):
    """What a policy allows beyond what the run's first rounds need; the defaults add nothing.

    ``allow`` lists protocol extensions that later rounds need, and ``also`` the folders of bundles that
    rollouts may deliver. ``chain`` holds the statements that lead to the signing key.
    """

    version: int = 1
    days: float = 0.0
    last_round: int = 0
    allow: Sequence[str] = ()
    also: Sequence[Path] = ()
    chain: tuple[bytes, ...] = ()


ORDINARY = Extent()


def make_policy(
    name: str, folders: Sequence[Path], config: RunConfig, extent: Extent = ORDINARY
) -> Policy:
    """Derive the policy for a run of these bundles, widest first. It allows no more than the run needs.

    The run is started briefly in a temporary store, to find out what it needs. Raises the errors of
    ``start_run``, and ``ConfigError`` for an invalid ``extent``.
    """
    _check_extent(extent)
    unscheduled = msgspec.structs.replace(config, schedule=ScheduleConfig(), privacy=None)
    with TemporaryDirectory() as folder, closing(open_folder(Path(folder), durable=False)) as store:
        start_run(store, name, folders[0], unscheduled, folders[1:])
        run = Run(find_run(store, name), store)
        order = first_order(run, RunStore(store))
    words = {*needed_by_order(order), *run.strategy.later_words, *extent.allow}
    trainings, rounding = trainings_of(order), 1.0
    if config.schedule != unscheduled.schedule:
        rounding += 1e-12  # allows for rounding in the schedule's float shares
        words |= {"schedule"} if config.schedule.steps else set()
    return Policy(
        run=name,
        version=extent.version,
        bundles=(*run.manifest_hashes, *map(_manifest_hash, extent.also)),
        # One more round, after the last, serves newcomers.
        last_round=extent.last_round or config.total_rounds + 1,
        tasks=("train", "evaluate"),
        local_epochs=sum(training.local_epochs for training in trainings),
        learning_rate=max(map(largest_rate, trainings)) * rounding,
        momentum=max(training.momentum for training in trainings),
        prox=max(training.prox for training in trainings),
        words=tuple(sorted(words)),
        expires=int(time.time() + extent.days * DAY_S) if extent.days else 0,
        chain=extent.chain[-MAX_CHAIN:],
    )


def _check_extent(it: Extent) -> None:
    bounds = (
        ("--version", it.version, 1, 2**40),
        ("--days", it.days, 0, MAX_DAYS),
        ("--last-round", it.last_round, 0, 2**31),
    )
    for key, value, least, most in bounds:
        if not least <= value <= most:  # nor NaN
            raise ConfigError(key, value, f"{least} to {most}")


def _manifest_hash(folder: Path) -> bytes:
    bundle, _ = bundles.load(folder)
    return bundles.unpack(bundles.pack(bundle)).manifest_hash


def described(policy: Policy) -> str:
    """Describe a policy in words, for the person who signs it."""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(policy.expires))
    return (
        f"run {policy.run}, version {policy.version}: rounds to {policy.last_round}, "
        f"{policy.local_epochs} epochs, learning rate {policy.learning_rate:g}, momentum "
        f"{policy.momentum:g}, prox {policy.prox:g}; extensions: {', '.join(policy.words) or 'none'}; "
        f"{len(policy.bundles)} bundle(s); {f'until {until}' if policy.expires else 'no end'}"
    )


def read_policy(path: Path | None, trust: TrustConfig, name: str) -> bytes:
    """Read a sealed policy. Returns b"" if ``path`` is None. Raises ``ConfigError``.

    If ``trust`` pins keys, the policy is required, and must be signed with one of them or with its
    successor.
    """
    keys = verifiers(trust.keys)
    if path is None:
        if keys.keys:
            expected = f"a file from `sedge-cloud run sign {name}`, because [trust] in cloud.toml pins keys"
            raise ConfigError("--policy", None, expected)
        return b""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError("--policy", str(path), f"a readable file ({exc.strerror})") from exc
    try:
        unsealed(data).policy()
        if keys.keys:
            keys.verified(data, {})
    except PolicyError as exc:
        raise ConfigError("--policy", str(path), f"a valid file from `run sign` ({exc})") from exc
    return data
