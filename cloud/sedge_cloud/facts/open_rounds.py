"""What an open round waits for, and what a run without one does: who, why, and since when."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.facts.history import Took
from sedge_cloud.facts.live import MIN_S
from sedge_cloud.facts.records import Code, DeviceFacts, RoundFacts, Waiting, when
from sedge_cloud.ingest.sessions import plain
from sedge_cloud.rounds.lifecycle import FINISHED, RUNNING, needed_updates
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RunRow

NEVER = "has never been heard: is its agent running, with this fleet's name, this broker and a right clock?"
# ``since`` is when the recorder noticed (live.py).
RESOLUTION = timedelta(seconds=2 * MIN_S)
# A device is slow once half of the round has answered and it has taken so much longer than they trained.
SLOW_TIMES, SLOW_S = 3.0, 3.0
_STATES: Mapping[str, Literal["open", "newcomers"]] = {RUNNING: "open", FINISHED: "newcomers"}


@dataclass(frozen=True)
class Waits:
    """How a run's open round stands now, by the wall clock; ``unable`` are devices without work in it."""

    config: RunConfig
    devices: Mapping[str, DeviceFacts]
    unable: Mapping[str, str]
    now: float

    def open_round(
        self, store: Store, row: RunRow, number: int, opened: float, started: float
    ) -> RoundFacts:
        """The round that is open in the store; a finished run serves newcomers, one that failed is void.

        It opened at ``opened`` (0: unknown); a service ``started`` since then gave it its whole time again.
        """
        orders, updates = store.orders(row.run, number), store.updates(row.run, number)
        rejected = {
            u.device: plain(f"{u.rejected}: {u.detail}") for u in store.rejected(row.run, number)
        }
        declined = {o.device: plain(o.declined) for o in orders if o.declined}
        here = {update.device for update in updates}
        took = [msgspec.msgpack.decode(update.report, type=Took).seconds for update in updates]
        since, base = when(opened), max(opened, started)
        passed = max(0, int((self.now - base) / self.config.deadline_s)) if base else 0
        stored = store.round(row.run, number)
        answered = here | rejected.keys() | declined.keys()
        running = row.status == RUNNING
        waits = [o for o in orders if o.device not in answered and self.devices[o.device].waits]
        usual = statistics.median(took) if 2 * len(answered) >= len(orders) and took else None
        return RoundFacts(
            run=row.run,
            round=number,
            task=stored.task if stored else "",
            state=_STATES.get(row.status, "void"),
            opened=since,
            cohort=len(orders),
            updates=len(updates),
            needed=needed_updates(self.config, len(orders) - len(waits)),
            least=self.config.min_updates,
            deadline=when(base + (passed + 1) * self.config.deadline_s) if base else None,
            extended=passed,
            declined={name: why for name, why in declined.items() if name not in here},
            rejected=rejected,
            whole=tuple(moved.device for moved in store.traffic(row.run, number) if moved.whole),
            late=tuple(u.device for u in store.late_updates(row.run, number, number)),
            waiting=tuple(
                self._awaited(order, since, usual)
                for order in orders
                if running and order.device not in answered
            ),
        )

    def _awaited(self, order: OrderRow, since: datetime | None, usual: float | None) -> Waiting:
        device = self.devices[order.device]
        code, text, at = self._why(device, since, usual)
        return Waiting(device=device.device, code=code, text=text, since=at)

    def _why(
        self, device: DeviceFacts, opened: datetime | None, usual: float | None
    ) -> tuple[Code, str, datetime | None]:
        match device.state:
            case "unknown":
                return "coordinator_silent", "the coordinator is not running", None
            case "never":
                return "device_never", NEVER, None
            case "offline" if unheard(device):
                return "device_unheard", f"is not heard: {device.error}", device.error_since
            case "offline" if device.waits:
                return "device_waits", f"waits: {device.waits}; is offline", device.since
            case "offline":
                return "device_lost", "is offline", device.since
            case _:
                pass
        if device.device in self.unable:
            return "device_unable", f"lacks {self.unable[device.device]}", device.since
        if device.waits:
            return "device_waits", f"waits: {device.waits}", None
        if usual is not None and opened is not None:
            elapsed = (datetime.fromtimestamp(self.now, UTC) - opened).total_seconds()
            own = max(usual, device.seconds or 0.0)
            if elapsed > SLOW_S + SLOW_TIMES * own:
                return "device_slow", f"is slow: the others trained in {usual:.1f} s", opened
        return "device_working", "works on it", opened


def run_waits(
    config: RunConfig, devices: Mapping[str, DeviceFacts], unable: Mapping[str, str]
) -> str:
    """Why a running run has no open round, as far as its devices are the reason."""
    online = {name: device for name, device in devices.items() if device.state == "online"}
    able = [device for name, device in online.items() if name not in unable]
    ready = [device for device in able if not device.waits]
    needed = config.min_available_devices
    if len(ready) >= needed:
        return ""
    text = f"needs {needed} devices online, {len(ready)} {'is' if len(ready) == 1 else 'are'}"
    if waiting := len(able) - len(ready):
        text += f"; {waiting} more {'waits' if waiting == 1 else 'wait'}"
    lacking = len(online) - len(able)
    return f"{text}; {lacking} more cannot do its work" if lacking else text


def unheard(device: DeviceFacts) -> bool:
    """Whether the last that came of a device was dropped: it may believe that it is connected."""
    if device.error_since is None:
        return False
    return device.since is None or device.error_since >= device.since - RESOLUTION
