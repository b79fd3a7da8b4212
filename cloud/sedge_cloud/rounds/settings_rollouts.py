"""Carries out rollouts of settings: tracks which devices have them, and decides whether to continue.

These rollouts belong to the fleet, not to a run. A device has succeeded while it is online and its hello
names the settings. It has failed if it is online but has not applied the settings, if it applied them and
has gone offline, or if it has declined an order since. The failure rate is compared with the rate among
devices with other settings.
"""

from collections.abc import Iterator

import msgspec

from sedge_cloud.clocks import Wall
from sedge_cloud.rounds.rollouts import EARLIER_ROUNDS, Evidence, Tally, in_progress, proceed
from sedge_cloud.runs.rollout_versions import rank
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rollouts import FLEET, RolloutRow
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.settings import name_of

# How often the leader checks, and how long a device may take to apply settings or to reconnect.
EVERY_S, PATIENCE_S = 30.0, 300.0
NOT_TAKEN, GONE = "not taken", "gone"


class _Said(msgspec.Struct):
    """A hello, reduced to the settings that it names."""

    settings: bytes | None = None


def said(store: Rows, where: str) -> dict[str, bytes]:
    """Return the name of each matching device's settings, for the devices that support settings."""
    found = dict[str, bytes]()
    for name, row in store.devices_named(store.eligible(where)).items():
        if row.hello is None:
            continue
        settings = msgspec.msgpack.decode(row.hello, type=_Said).settings
        if settings is not None:
            found[name] = settings
    return found


def tally_of(row: RolloutRow, store: Rows, names: dict[str, bytes], at: float) -> Tally:
    """Tally the outcomes of the devices in ``names``, those not yet reached included."""
    tally, progress = Tally(), row.read_progress()
    wanted = name_of(row.read_plan().settings)
    declined = _declined(store, progress.since)
    for seen in store.sessions_named(names):
        device = seen.device
        has = rank(row, device) <= progress.bounds[-1] and device not in progress.failed
        group = tally.new if has else tally.others
        is_late = at > max(progress.since, seen.since) + PATIENCE_S
        if device in declined:
            group.fail(device, declined[device])
        elif has and names[device] != wanted:
            if seen.online and is_late:
                group.fail(device, NOT_TAKEN)
        elif seen.online:
            group.succeeded.add(device)
        elif seen.since > row.created and is_late:
            group.fail(device, GONE)
    if not tally.others.succeeded and not tally.others.failed:
        # Devices also go offline for other reasons. With no device left for comparison, such reasons cannot
        # be told apart from a fault in the settings, so going offline does not count.
        tally.new.failed = {name: why for name, why in tally.new.failed.items() if why != GONE}
    return tally


def _declined(store: Rows, since: float) -> dict[str, str]:
    """Return each device's reason for its last decline in recent rounds opened after ``since``."""
    found = dict[str, str]()
    for run in store.runs():
        rounds = [it for it in store.last_rounds(run.run, 0, EARLIER_ROUNDS) if it.opened > since]
        if rounds:
            for device, _, why in store.declines(run.run, rounds[0].round, rounds[-1].round):
                found[device] = why
    return {device: why for device, why in found.items() if why != "revoked"}


class SettingsRollouts:
    """Checks the rollout in progress, if there is one, at regular intervals."""

    def __init__(self, store: Rows, wall: Wall) -> None:
        self._store, self._wall = store, wall
        self._due: float | None = None

    def load(self, now: float) -> None:
        """Find out whether a rollout is in progress. Raises ``StorageError``."""
        row = in_progress(self._store, FLEET)
        self._due = None if row is None else now if self._due is None else self._due

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        return self._due

    def poll(self, now: float) -> Iterator[Note]:
        """Start the next phase, or end the rollout, if that is due. Raises ``StorageError``."""
        if self._due is None or now < self._due:
            return
        self._due = now + EVERY_S  # also if the store fails
        row, at = in_progress(self._store, FLEET), self._wall(now)
        if row is None:
            self._due = None
        else:
            names = said(self._store, row.read_plan().where)
            tally = tally_of(row, self._store, names, at)
            kept = {device for device, why in tally.new.failed.items() if why == GONE}
            yield from proceed(
                row, row.read_progress(), Evidence(names, tally, 0, kept=kept), self._store, at
            )
