"""The sections [codec], [broadcast] and [patch] of a run file: how a run's vectors are encoded."""

from typing import Annotated

import msgspec
from msgspec import Meta

from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.work import Codec

# A device sends at least this many elements by default, so a small model is sent in full. They take about
# 20 kB, as much as a large model's update.
FEWEST_ELEMENTS = 10_000
# The default fraction of a change's elements that a broadcast sends.
_BROADCAST = 0.05


class CodecConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[codec]: how each device encodes its update.

    docs/strategies.md lists what each strategy needs. With ``error_feedback`` and a ``fraction`` below 1,
    bf16 values are rounded to a grid (codec/grid.py). A device that does not support ``values`` sends int8.
    """

    values: ValueCoding | None = None
    """Precision of the elements that a device sends; by default whatever the strategy needs, bf16 or
    int8."""
    fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of its change's elements that a device sends, largest first; by default 4 %, but at least
    10,000 elements, or whatever the strategy needs."""
    threshold: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Smallest magnitude to send; 0 sends every element that ``fraction`` selects."""
    compression: Compression = Compression.ZSTD
    """Compression of updates; devices without zstd fall back to zlib."""
    error_feedback: bool = True
    """Add what was not sent to the next round's change, so that nothing is lost for good."""

    def completed(self, suited: Codec, size: int) -> Codec:
        """Return this configuration, with values and fraction from ``suited`` where the file sets none.

        ``size`` is the number of elements of the device's model.
        """
        return Codec(
            self.values or suited.values,
            self.fraction or at_least(suited.fraction, size),
            self.threshold,
            self.compression,
            self.error_feedback,
        )


# The codec for a device that sends every element of its change, exactly.
EXACT = CodecConfig(values=ValueCoding.FP32, fraction=1.0)


def at_least(fraction: float, size: int) -> float:
    """Return ``fraction``, or ``FEWEST_ELEMENTS`` as a fraction of ``size`` if that is larger."""
    return max(fraction, min(1.0, FEWEST_ELEMENTS / max(size, 1)))


class BroadcastConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[broadcast]: how the next global model is sent to the devices.

    Each round sends part of the change; later rounds send the remainder. The cloud adopts the decoded
    values, so it and the devices hold the same model. A device that is new, or has missed too many of these
    changes, gets the exact whole model.

    With bf16 and a ``fraction`` below 1, the model's values stay on a grid (versions.py), so that the whole
    model takes 5 to 7 bits per element. The first model is rounded to the grid, unless it comes from
    another run (``start --from``): then it stays exact and off the grid. Off the grid, and with other
    ``values``, the whole model takes about 25 bits per element, so a newcomer downloads five times as much.
    With fp32 and a ``fraction`` of 1, every round sends the exact whole model.

    After a round in which a strategy replaces the model (fedcac, fedpurin, subflot), applying part of the
    change would not give a valid model, so every element is sent: in 5 to 6 bits per element on the grid,
    or as the exact whole model with fp32.
    """

    values: ValueCoding = ValueCoding.BF16
    """Precision of the elements sent each round; devices that do not support it take no part in the
    run."""
    fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of the change's elements to send each round, largest first; by default 5 %, but at least
    10,000 elements."""
    compression: Compression = Compression.ZLIB
    """Compression of changes and whole models; devices that do not support it take no part in the run."""

    @property
    def sends_all(self) -> bool:
        """Return True if every round sends all elements."""
        return self.fraction == 1.0

    @property
    def whole(self) -> bool:
        """Return True if every round sends the exact whole model."""
        return self.values is ValueCoding.FP32 and self.sends_all

    @property
    def on_grid(self) -> bool:
        """Return True if every version of the model is on a grid."""
        return self.values is ValueCoding.BF16 and not self.sends_all

    def count(self, size: int) -> int:
        """Return how many of ``size`` elements a round sends."""
        return max(1, round((self.fraction or at_least(_BROADCAST, size)) * size))


# The broadcast that sends the exact whole model in every round.
WHOLE = BroadcastConfig(values=ValueCoding.FP32, fraction=1.0)


class PatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[patch]: how per-device data (patches, start vectors) is encoded.

    The cloud uses the same decoded values as the devices. A vector with a value that ``values`` cannot
    hold, such as 1e6 in fp16, travels in fp32, which every device supports.
    """

    values: ValueCoding | None = None
    """Precision of per-device data; by default int8 for strategies that send much of a model (fedcac,
    fedpurin, subflot), otherwise fp32."""
    compression: Compression = Compression.ZLIB
    """Compression of per-device data; devices that do not support it take no part in the run."""
