"""Chooses each device's width: the options of every strategy with sub-models.

A device has one width for the whole run. The width depends on the device's hello or is assigned by the run
file, and is stored in the device's ``ClientModel.arrays``. It never changes in evaluation rounds.
"""

import re
import zlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from sedge_cloud.strategy import ClientModel, Context, Strategy
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.arrays import Arrays

# The key in ``ClientModel.arrays`` under which a device's index into ``Context.widths`` is stored, as an
# array (1,).
WIDTH = "width"

_NUMBER = re.compile(r"\d+$")


class WidthPolicy(Strategy, frozen=True):
    """The options that decide a device's width. The default is the widest model that fits in its memory.

    With ``dropped``, hellos are ignored; if a device's id does not end in a number, the id's CRC-32 is used
    instead. With ``memory_mb``, a device gets the widest model for which it has enough memory, the model
    after the last one in the list if it has too little for any of them, and the whole model if its memory
    is unknown. ``step_s`` takes effect in a device's second training round. The device's earlier model
    in the wider form is then dropped; until then, evaluation rounds use the wider form. Raises
    ``ConfigError`` for mutually exclusive options.
    """

    dropped: tuple[Annotated[float, Meta(ge=0, lt=1)], ...] = ()
    """Widths to assign, as shares of channels removed: a device whose id ends in the number d gets
    dropped[d mod length]."""
    memory_mb: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """Megabytes of memory for the whole model, then for each narrower one, in descending order; by default,
    the bundles' values."""
    step_s: tuple[Annotated[float, Meta(gt=0)], ...] = ()
    """Limits on the seconds per training step, in ascending order; the device goes one width narrower for
    each limit that its first round exceeds."""

    def __post_init__(self) -> None:
        if list(self.memory_mb) != _falling(self.memory_mb):
            raise ConfigError("memory_mb", self.memory_mb, "falling numbers")
        if list(self.step_s) != sorted(set(self.step_s)):
            raise ConfigError("step_s", self.step_s, "rising numbers")
        if self.dropped and (self.memory_mb or self.step_s):
            both = (self.memory_mb, self.step_s)
            raise ConfigError("memory_mb, step_s", both, "neither of them with dropped")

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Return a remark if the run has only one width, in which case these options have no effect."""
        text = (
            f"{self.name}: the run has no narrower models, so every device trains the whole model"
        )
        return () if len(layouts) > 1 else (text,)

    @property
    def widths_vary(self) -> bool:
        """Return True, as these options assign widths."""
        return True

    def width_of(self, context: Context, client: ClientModel) -> tuple[int, Arrays]:
        """Return a device's width, and the arrays that record it.

        Raises ``ConfigError`` for an option that does not suit the run's bundles.
        """
        offered = [width.dropped for width in context.widths] or [0.0]
        missing = [share for share in self.dropped if share not in offered]
        if missing:
            raise ConfigError("dropped", missing, f"values from the run's bundles: {offered}")
        for key in ("memory_mb", "step_s"):
            if len(getattr(self, key)) >= len(offered):
                expected = f"fewer than the run's bundles ({len(offered)})"
                raise ConfigError(key, getattr(self, key), expected)
        if context.is_evaluation and client.trained is not None:
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
        if not self.memory_mb:
            return client.widest
        if client.memory_mb <= 0:
            return 0
        return sum(client.memory_mb < needed for needed in self.memory_mb)


def _keep(width: int) -> tuple[int, Arrays]:
    return width, {WIDTH: np.array([width], np.float32)}


def _falling(numbers: tuple[int, ...]) -> list[int]:
    return sorted(set(numbers), reverse=True)


def _number(device: str) -> int:
    match = _NUMBER.search(device)
    return int(match[0]) if match else zlib.crc32(device.encode())
