"""Gates decide whether a device may work now. All are off unless edge.toml configures them.

While any gate is closed, nothing is fetched and no training starts. Training in progress stops, and
continues once all gates are open. Finished updates are still sent, unless a gate that limits the use of the
link (``unmetered``) is closed.

No gate counts the agent's own use of CPU and memory, so training cannot close its own gate. Only the
temperature gate has hysteresis, because training does raise the temperature.

A gate is open if the device cannot read its value: a Raspberry Pi without a battery is on mains power.
``sedge-edge doctor`` reports a gate that can never close.
"""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from sedge_edge.rounds.waiting import CHECK_S, OPEN, Closed
from sedge_edge.sensors import Sensors, link_is_metered
from sedge_protocol.wire.settings import GatesConfig, minutes

# A device that was too hot must be this much cooler than the limit before it continues.
COOLER_C = 5.0


class GateState(NamedTuple):
    """The state of a configured gate: its reading as text, and why it is closed.

    ``value`` is None if the reading is unknown, and ``closed`` is empty if the gate is open. ``link`` says
    whether the gate also holds back finished updates.
    """

    key: str
    value: str | None
    closed: str = ""
    link: bool = False


class Gates:
    """The gates of a device, which are checked every ``CHECK_S`` seconds. Thread-safe.

    ``metered`` says whether the link is metered, and ``local`` returns the local time of day.
    """

    def __init__(
        self,
        config: GatesConfig,
        sensors: Sensors,
        metered: Callable[[], bool | None] = link_is_metered,
        local: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._sensors = config, sensors
        self._metered, self._local, self._clock = metered, local, clock
        self._lock = threading.Lock()
        self._next = clock()
        self._closed, self._hot = OPEN, False

    def follow(self, config: GatesConfig) -> None:
        """Switch to a different configuration."""
        with self._lock:
            self._config, self._next = config, self._clock()

    def closed(self) -> Closed:
        """Return which gates are closed now."""
        with self._lock:
            now = self._clock()
            if now >= self._next:
                closed = [gate for gate in self.states() if gate.closed]
                why = "; ".join(gate.closed for gate in closed)
                self._closed = Closed(why, any(gate.link for gate in closed))
                self._next = now + CHECK_S
            return self._closed

    def states(self) -> list[GateState]:
        """Return the current state of every configured gate."""
        return [*self._power(), *self._machine(), *self._outside()]

    def _power(self) -> Iterator[GateState]:
        config, mains = self._config, self._sensors.on_mains()
        source = None if mains is None else "on mains" if mains else "on battery"
        if config.mains:
            yield GateState("mains", source, "on battery" if mains is False else "")
        if (least := config.min_battery_percent) is not None:
            charge = self._sensors.battery_percent()
            low = charge is not None and mains is False and charge < least
            text = None if charge is None else f"{charge:g} %, {source}"
            closed = f"battery at {charge:g} %, below {least:g}" if low else ""
            yield GateState("min_battery_percent", text, closed)

    def _machine(self) -> Iterator[GateState]:
        config, sensors = self._config, self._sensors
        if (most := config.max_temperature_c) is not None:
            heat = sensors.temperature_c()
            self._hot = heat is not None and heat > most - (COOLER_C if self._hot else 0.0)
            yield _limited("max_temperature_c", "temperature", heat, " °C", most, self._hot)
        if (most := config.max_load) is not None:
            load = sensors.load()
            over = load is not None and load > most
            yield _limited("max_load", "load", load, "", most, over)
        if (least := config.min_free_memory_mb) is not None:
            free = sensors.memory_mb()
            short = free is not None and free < least
            yield _limited("min_free_memory_mb", "memory", free, " MB", least, short)

    def _outside(self) -> Iterator[GateState]:
        if self._config.unmetered:
            metered = self._metered()
            text = None if metered is None else "metered" if metered else "not metered"
            yield GateState("unmetered", text, "the link is metered" if metered else "", link=True)
        if hours := minutes(self._config.quiet_hours):
            now, (begin, end) = self._local(), hours
            since = (now.hour * 60 + now.minute - begin) % (24 * 60)
            quiet = since < (end - begin) % (24 * 60)
            closed = f"quiet hours, {self._config.quiet_hours}" if quiet else ""
            yield GateState("quiet_hours", f"it is {now:%H:%M}", closed)


def _limited(
    key: str, name: str, value: float | None, unit: str, limit: float, closed: bool
) -> GateState:
    """Return the state of a gate with a limit. The reason names the value and the limit."""
    if value is None:
        return GateState(key, None)
    text = f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}{unit}"
    return GateState(key, text, f"{name} {text}, limit {limit:g}" if closed else "")
