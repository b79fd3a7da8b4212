"""Reads the device's own sensors: power, temperature, load, memory, and whether its link is metered.

Everything except the link is read from the kernel's files below ``root``; tests point it at an ordinary
folder. Whether the link is metered is NetworkManager's property ``Metered``. It is read with systemd's
busctl, which every Raspberry Pi OS includes, so no D-Bus library is needed. A reading is None if the device
has no such sensor.

Sources: Linux's Documentation/ABI/testing/sysfs-class-power and sysfs-class-thermal, proc(5),
NetworkManager's NMMetered.
"""

import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

# NetworkManager's codes for yes, no, guessed yes and guessed no.
_METERED = {1: True, 2: False, 3: True, 4: False}
_ASK = (
    "busctl", "--system", "--json=short", "get-property", "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered",
)  # fmt: skip
# The time constant of the kernel's load average, which decays exponentially.
_LOAD_S = 60.0


class Sensors:
    """The device's sensors. ``clock`` is monotonic, and ``cpu_clock`` returns this process's CPU time."""

    def __init__(
        self,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._root = root
        self._clock, self._cpu_clock = clock, cpu_clock
        self._at, self._cpu_at, self._own_load = clock(), cpu_clock(), 0.0

    def on_mains(self) -> bool | None:
        """Return whether the device is on mains power, or None if it has no known supply.

        It is on mains power if a supply other than a battery is online, or if it has batteries and none is
        discharging.
        """
        batteries = list(self._batteries())
        states = [_text(supply / "status") for supply in batteries]
        if any(_number(s / "online") for s in self._supplies() if s not in batteries):
            return True
        return "Discharging" not in states if states else None

    def battery_percent(self) -> float | None:
        """Return the charge of the emptiest battery."""
        charges = (_number(supply / "capacity") for supply in self._batteries())
        return min((charge for charge in charges if charge is not None), default=None)

    def temperature_c(self) -> float | None:
        """Return the temperature of the hottest thermal zone, in °C."""
        zones = self._root.glob("sys/class/thermal/thermal_zone*/temp")
        heats = (_number(zone) for zone in zones)
        return max((heat / 1000 for heat in heats if heat is not None), default=None)

    def load(self) -> float | None:
        """Return the number of processes that are running or waiting to run, averaged over a minute.

        This process's own share is subtracted.
        """
        now, cpu = self._clock(), self._cpu_clock()
        passed = now - self._at
        if passed > 0:
            weight = math.exp(-passed / _LOAD_S)
            self._own_load = self._own_load * weight + (cpu - self._cpu_at) / passed * (1 - weight)
            self._at, self._cpu_at = now, cpu
        fields = (_text(self._root / "proc/loadavg") or "").split()
        with suppress(ValueError, IndexError):
            return max(0.0, float(fields[0]) - self._own_load)
        return None

    def memory_mb(self) -> float | None:
        """Return the memory not used by other programs, in MB: available memory plus this process's own."""
        available = self._kilobytes("proc/meminfo", "MemAvailable")
        own = self._kilobytes("proc/self/status", "VmRSS")
        return None if available is None else (available + (own or 0.0)) * 1024 / 1e6

    def _supplies(self) -> Iterator[Path]:
        """Yield the device's own power supplies, as opposed to, say, a mouse's battery."""
        for supply in sorted(self._root.glob("sys/class/power_supply/*")):
            if _text(supply / "scope") != "Device":
                yield supply

    def _batteries(self) -> Iterator[Path]:
        return (s for s in self._supplies() if _text(s / "type") in ("Battery", "UPS"))

    def _kilobytes(self, file: str, field: str) -> float | None:
        for line in (_text(self._root / file) or "").splitlines():
            name, _, rest = line.partition(":")
            if name == field:
                with suppress(ValueError, IndexError):
                    return float(rest.split()[0])
        return None


def link_is_metered() -> bool | None:
    """Return whether NetworkManager knows or guesses that the link is metered.

    Returns None if NetworkManager cannot tell or is not running.
    """
    try:
        asked = subprocess.run(_ASK, capture_output=True, timeout=2.0, check=True)
        return _METERED.get(json.loads(asked.stdout)["data"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # the sensor may be asleep or unplugged
        return None


def _number(path: Path) -> float | None:
    try:
        return float(_text(path) or "")
    except ValueError:
        return None
