"""Reads the device's own sensors: power, temperature, load, memory, and whether its link is metered.

Everything but the link is read from the kernel's files below ``root``, an ordinary folder in tests. Whether
the link is metered comes from NetworkManager's property ``Metered``, read with systemd's busctl, which
every Raspberry Pi OS has, rather than a D-Bus library. Readings that a device does not have are None.

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

_METERED = {1: True, 2: False, 3: True, 4: False}  # yes, no, guessed yes, guessed no
_ASK = (
    "busctl", "--system", "--json=short", "get-property", "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered",
)  # fmt: skip
# The time constant of the kernel's load, an exponentially decaying mean.
_LOAD_S = 60.0


class Sensors:
    """The device's own state. ``clock`` is monotonic, ``cpu_clock`` this process's processor seconds."""

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
        """Whether a supply other than a battery is online, or no battery discharges; None without any."""
        batteries = list(self._batteries())
        states = [_text(supply / "status") for supply in batteries]
        if any(_number(s / "online") for s in self._supplies() if s not in batteries):
            return True
        return "Discharging" not in states if states else None

    def battery_percent(self) -> float | None:
        """The charge of the emptiest battery."""
        charges = (_number(supply / "capacity") for supply in self._batteries())
        return min((charge for charge in charges if charge is not None), default=None)

    def temperature_c(self) -> float | None:
        """The hottest thermal zone, in °C."""
        zones = self._root.glob("sys/class/thermal/thermal_zone*/temp")
        heats = (_number(zone) for zone in zones)
        return max((heat / 1000 for heat in heats if heat is not None), default=None)

    def load(self) -> float | None:
        """Processes that run or wait to run, averaged over a minute, without this process's own share."""
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
        """The memory left by other programs: the available memory plus this process's own."""
        available = self._kilobytes("proc/meminfo", "MemAvailable")
        own = self._kilobytes("proc/self/status", "VmRSS")
        return None if available is None else (available + (own or 0.0)) * 1024 / 1e6

    def _supplies(self) -> Iterator[Path]:
        """The device's own supplies, as opposed to, say, a mouse's."""
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
    """Whether the device's link is metered, as NetworkManager knows or guesses; None without it."""
    try:
        asked = subprocess.run(_ASK, capture_output=True, timeout=2.0, check=True)
        return _METERED.get(json.loads(asked.stdout)["data"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # a sensor may be asleep, or gone
        return None


def _number(path: Path) -> float | None:
    try:
        return float(_text(path) or "")
    except ValueError:
        return None
