"""Explains which devices an open round, or a run between rounds, is waiting for, since when, and why."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from sedge_cloud.facts.records import Code, DeviceFacts, RoundFacts, Waiting, printable, when
from sedge_cloud.figures.numbers import natural, quantity
from sedge_cloud.runs.terms import Terms
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RoundRow, RunRow
from sedge_cloud.store.schema import FINISHED
from sedge_cloud.store.selector import DeviceQuery, parse

NEVER = (
    "has never been heard from: is its agent running, with the right fleet name, broker and time?"
)
# If a device's message was dropped this shortly before it went offline, that is assumed to be the reason.
RESOLUTION = timedelta(seconds=2)
# Once half of the devices have answered, one is slow if it takes SLOW_S longer than SLOW_TIMES a training
# time: the median of the others or, if that is longer, its own last one.
SLOW_TIMES, SLOW_S = 3.0, 3.0


class _Took(msgspec.Struct, frozen=True):
    """The part of a device's report that says how long its training took."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Waits:
    """Builds the facts of a run's open round as of ``now`` (wall clock).

    ``devices`` returns a dict from id to facts, for at least the given devices. ``unable`` holds the
    devices that cannot do the run's work, with the reasons.
    """

    terms: Terms
    devices: Callable[[Sequence[str]], Mapping[str, DeviceFacts]]
    unable: Mapping[str, str]
    now: float

    def open_round(self, store: Store, run: RunRow, row: RoundRow) -> RoundFacts:
        """Build the facts of an open round, or of the round in which a finished run serves newcomers."""
        orders, came = store.answers(row.run, row.round), store.received(row.run, row.round)
        updates = came.counted
        rejected = {
            u.device: printable(f"{u.rejected}: {u.detail}") for u in came.receipts if u.rejected
        }
        declined = {name: printable(why) for name, why in orders if why}
        here = {update.device for update in updates}
        took = [msgspec.msgpack.decode(update.report, type=_Took).seconds for update in updates]
        answered = here | rejected.keys() | declined.keys()
        usual = statistics.median(took) if 2 * len(answered) >= len(orders) and took else None
        running = not run.has_ended
        owing = [name for name, _ in orders if running and name not in answered]
        owing.sort(key=natural)
        devices = self.devices(owing)
        return RoundFacts(
            run=row.run,
            round=row.round,
            task=row.task,
            state="open" if running else "newcomers" if run.status == FINISHED else "void",
            opened=when(row.opened),
            cohort=len(orders),
            updates=len(updates),
            needed=row.needed,
            least=self.terms.min_updates,
            deadline=when(row.deadline),
            phase=row.phase,
            ends_at=when(row.ends_at),
            extended=row.extended,
            declined={name: why for name, why in declined.items() if name not in here},
            rejected=rejected,
            whole=tuple(moved.device for moved in store.traffic(row.run, row.round) if moved.whole),
            late=tuple(update.device for update in came.late),
            waiting=tuple(
                self._awaited(devices[name], (row.run, row.round), when(row.opened), usual)
                for name in owing
            ),
        )

    def _awaited(
        self,
        device: DeviceFacts,
        order: tuple[str, int],
        since: datetime | None,
        usual: float | None,
    ) -> Waiting:
        code, text, at = self._why(device, order, since, usual)
        return Waiting(device=device.device, code=code, text=text, since=at)

    def _why(
        self,
        device: DeviceFacts,
        order: tuple[str, int],
        opened: datetime | None,
        usual: float | None,
    ) -> tuple[Code, str, datetime | None]:
        match device.state:
            case "unknown":
                return "coordinator_silent", "the coordinator is not running", None
            case "never":
                return "device_never", NEVER, None
            case "offline" if last_message_dropped(device):
                return "device_unheard", f"is ignored: {device.error}", device.error_since
            case "offline" if device.waits:
                return "device_waits", f"waits: {device.waits}; is offline", device.since
            case "offline":
                return "device_lost", "is offline", device.since
            case _:
                pass
        if device.device in self.unable:
            return "device_unable", f"lacks {self.unable[device.device]}", device.since
        if device.waits:
            return "device_waits", f"waits: {device.waits}", device.waits_since
        text, since = _doing(device, order, opened)
        if usual is not None and opened is not None:
            elapsed = (datetime.fromtimestamp(self.now, UTC) - opened).total_seconds()
            own = max(usual, device.seconds or 0.0)
            if elapsed > SLOW_S + SLOW_TIMES * own:
                text = f"is slow: the others trained in {usual:.1f} s; it {text}"
                return "device_slow", text, since
        return "device_working", text, since


def _doing(
    device: DeviceFacts, order: tuple[str, int], opened: datetime | None
) -> tuple[str, datetime | None]:
    """Return what an online device is doing about its order, as part of a sentence, and since when."""
    if device.order != order:
        return "has not been asked yet", opened
    match device.doing.split(" ", 1):
        case ["fetching", what]:
            return f"fetches {what}: {device.done} of {device.total} chunks", device.doing_since
        case ["training"]:
            return "trains", device.doing_since
        case ["sending"]:
            return "sends its update", device.doing_since
        case _:
            return "was asked", device.doing_since


def run_waits(
    terms: Terms, devices: Iterable[DeviceFacts], unable: Mapping[str, str], store: Store
) -> str:
    """Explain why a running run has no open round. Returns "" if its devices are not the reason."""
    devices, which = list(devices), "online"
    online = [device for device in devices if device.state == "online"]
    paused = sum(device.state == "paused" for device in devices)
    if terms.select:
        condition, which = parse(terms.select), f"online with {terms.select}"
        selected = store.online_matching(condition)
        online = [device for device in online if device.device in selected]
        paused = store.count(DeviceQuery("paused", condition=condition))
    able = [device for device in online if device.device not in unable]
    ready = [device for device in able if not device.waits]
    needed = terms.min_available_devices
    if len(ready) >= needed:
        return ""
    text = f"needs {quantity(needed, 'device')} {which}, {len(ready)} {'is' if len(ready) == 1 else 'are'}"
    if waiting := len(able) - len(ready):
        text += f"; {waiting} more {'waits' if waiting == 1 else 'wait'}"
    if lacking := len(online) - len(able):
        text += f"; {lacking} more cannot do its work"
    return f"{text}; {paused} more {'is' if paused == 1 else 'are'} paused" if paused else text


def last_message_dropped(device: DeviceFacts) -> bool:
    """Return True if a device's last message was dropped, so that it may believe it is connected."""
    if device.error_since is None:
        return False
    return device.since is None or device.error_since >= device.since - RESOLUTION
