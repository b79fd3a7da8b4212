"""How wide a model each device gets: the options that every strategy with sub-models has.

A device has one width for the whole run. It is found from what the device said of itself or is dealt out
by the run file, and kept in the device's ``ClientModel.arrays``. A round that only measures moves nobody.
"""

import re
import zlib
from typing import Annotated

import numpy as np
from msgspec import Meta

from sedge_cloud.strategy import Arrays, ClientModel, Context, Strategy
from sedge_protocol.errors import ConfigError

# A device's number among ``Context.widths``, (1,), in ``ClientModel.arrays``.
WIDTH = "width"

_NUMBER = re.compile(r"\d+$")


class Sized(Strategy, frozen=True):
    """The options that decide a device's width; without any of them every device gets the whole model.

    Raises ``ConfigError`` for options that exclude each other.
    """

    dropped: tuple[Annotated[float, Meta(ge=0, lt=1)], ...] = ()
    """The shares of channels that the run's bundles lack, dealt out: a device whose id ends in number d
    gets dropped[d mod length].

    Where an id ends in no number, d is its CRC-32. What devices say of themselves is not looked at then.
    """
    memory_mb: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """MiB that a device needs for the whole model, for the next narrower one and so on, falling.

    It gets the widest whose need it meets, the one after the last if it meets none; the whole one if it
    did not say what it has.
    """
    step_s: tuple[Annotated[float, Meta(gt=0)], ...] = ()
    """Seconds of a training step, rising: for each that its first round's steps took longer than, a device
    gets one width narrower from its second round of training on. Its past in the wider form is then left
    behind; until then it is measured in that one."""

    def __post_init__(self) -> None:
        if list(self.memory_mb) != _falling(self.memory_mb):
            raise ConfigError("memory_mb", self.memory_mb, "falling numbers")
        if list(self.step_s) != sorted(set(self.step_s)):
            raise ConfigError("step_s", self.step_s, "rising numbers")
        if self.dropped and (self.memory_mb or self.step_s):
            found = (self.memory_mb, self.step_s)
            raise ConfigError("memory_mb, step_s", found, "neither of them beside dropped")

    def width_of(self, context: Context, client: ClientModel) -> tuple[int, Arrays]:
        """The number of a device's width, and the arrays in which it is kept.

        Raises ``ConfigError`` when the run's bundles do not have what the options name.
        """
        offered = [width.dropped for width in context.widths] or [0.0]
        missing = [share for share in self.dropped if share not in offered]
        if missing:
            raise ConfigError("dropped", missing, f"those of the run's bundles, {offered}")
        for key in ("memory_mb", "step_s"):
            if len(getattr(self, key)) >= len(offered):
                expected = f"fewer than the run's bundles, {len(offered)}"
                raise ConfigError(key, getattr(self, key), expected)
        if context.measures and client.trained is not None:
            return client.width, client.arrays
        kept = client.arrays.get(WIDTH)
        if kept is not None:
            return int(kept[0]), client.arrays
        if self.dropped:
            return _keep(offered.index(self.dropped[_number(client.device) % len(self.dropped)]))
        if not self.step_s:
            return _keep(self._by_memory(client))
        if client.trained is None or client.step_s <= 0:
            return self._by_memory(client), {}
        slower = sum(client.step_s > limit for limit in self.step_s)
        return _keep(min(client.width + slower, len(offered) - 1))

    def _by_memory(self, client: ClientModel) -> int:
        if client.memory_mb <= 0:
            return 0
        return sum(client.memory_mb < needed for needed in self.memory_mb)


def _keep(width: int) -> tuple[int, Arrays]:
    return width, {WIDTH: np.array([width], np.float32)}


def _falling(numbers: tuple[int, ...]) -> list[int]:
    return sorted(set(numbers), reverse=True)


def _number(device: str) -> int:
    found = _NUMBER.search(device)
    return int(found[0]) if found else zlib.crc32(device.encode())
