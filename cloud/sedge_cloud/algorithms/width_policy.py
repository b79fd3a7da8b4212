"""How wide a model each device gets: the options that every strategy with sub-models has.

A device has one width for the whole run. It is found from what the device said of itself or is dealt out
by the run file, and kept in the device's ``Memory.arrays``. A round that only measures moves nobody.
"""

import re
import zlib
from dataclasses import dataclass

import numpy as np

from sedge_cloud.strategy import Arrays, Memory, State
from sedge_protocol.errors import ConfigError

# A device's number among ``State.widths``, (1,), in ``Memory.arrays``.
WIDTH = "width"

_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True)
class Sized:
    """The options that decide a device's width; without any of them every device gets the whole model.

    Raises ``ConfigError`` for a value out of range.
    """

    rates: tuple[float, ...] = ()
    """Rates of the run's bundles, dealt out: a device whose id ends in number d gets rates[d mod length].

    Where an id ends in no number, d is its CRC-32. What devices say of themselves is not looked at then.
    """
    memory_mb: tuple[int, ...] = ()
    """MiB that a device needs for the whole model, for the next narrower one and so on, falling.

    It gets the widest whose need it meets, the one after the last if it meets none; the whole one if it
    did not say what it has.
    """
    step_s: tuple[float, ...] = ()
    """Seconds of a training step, rising: for each that its first round's steps took longer than, a device
    gets one width narrower from its second round of training on. Its past in the wider form is then left
    behind; until then it is measured in that one."""

    def __post_init__(self) -> None:
        if not all(0 <= rate < 1 for rate in self.rates):
            raise ConfigError("rates", self.rates, "numbers from 0 to below 1")
        if any(mb < 1 for mb in self.memory_mb) or list(self.memory_mb) != _falling(self.memory_mb):
            raise ConfigError("memory_mb", self.memory_mb, "falling numbers of 1 or more")
        if not all(s > 0 for s in self.step_s) or list(self.step_s) != sorted(set(self.step_s)):
            raise ConfigError("step_s", self.step_s, "rising numbers above 0")
        if self.rates and (self.memory_mb or self.step_s):
            found = (self.memory_mb, self.step_s)
            raise ConfigError("memory_mb, step_s", found, "neither of them beside rates")

    def width_of(self, state: State, memory: Memory) -> tuple[int, Arrays]:
        """The number of a device's width, and the arrays in which it is kept.

        Raises ``ConfigError`` when the run's bundles do not have what the options name.
        """
        rates = [width.rate for width in state.widths] or [0.0]
        missing = [rate for rate in self.rates if rate not in rates]
        if missing:
            raise ConfigError("rates", missing, f"rates among the run's bundles, {rates}")
        for key in ("memory_mb", "step_s"):
            if len(getattr(self, key)) >= len(rates):
                expected = f"fewer than the run's bundles, {len(rates)}"
                raise ConfigError(key, getattr(self, key), expected)
        if state.measures and memory.trained is not None:
            return memory.width, memory.arrays
        kept = memory.arrays.get(WIDTH)
        if kept is not None:
            return int(kept[0]), memory.arrays
        if self.rates:
            return _keep(rates.index(self.rates[_number(memory.device) % len(self.rates)]))
        if not self.step_s:
            return _keep(self._by_memory(memory))
        if memory.trained is None or memory.step_s <= 0:
            return self._by_memory(memory), {}
        slower = sum(memory.step_s > limit for limit in self.step_s)
        return _keep(min(memory.width + slower, len(rates) - 1))

    def _by_memory(self, memory: Memory) -> int:
        if memory.memory_mb <= 0:
            return 0
        return sum(memory.memory_mb < needed for needed in self.memory_mb)


def _keep(width: int) -> tuple[int, Arrays]:
    return width, {WIDTH: np.array([width], np.float32)}


def _falling(numbers: tuple[int, ...]) -> list[int]:
    return sorted(set(numbers), reverse=True)


def _number(device: str) -> int:
    found = _NUMBER.search(device)
    return int(found[0]) if found else zlib.crc32(device.encode())
