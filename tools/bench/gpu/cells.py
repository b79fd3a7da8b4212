"""What a stage measures: cells, most valuable first, and their rows. Loads no torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

Setting = dict[str, str | int]
Figures = dict[str, float]
# Why there is no figure for a CPU.
CUDA_ONLY = "on CUDA only"


class Row(msgspec.Struct, frozen=True):
    """The measurement of one setting; ``why`` says why something is missing, or what was wrong."""

    setting: Setting
    figures: Figures = {}
    why: str = ""


class Settings(msgspec.Struct, frozen=True):
    """A stage's settings: where it trains ("cpu" or "cuda"), how much (``sizes.SIZES``), and until when.

    ``end`` is on the monotonic clock, which all processes of a machine share.
    """

    device: str
    size: str
    end: float

    def left(self) -> float:
        """The seconds until ``end``."""
        return self.end - time.monotonic()


class Missing(Exception):
    """A cell was not measured, or not completely; the message says why."""

    def __init__(self, why: str, figures: Figures | None = None) -> None:
        super().__init__(why)
        self.figures = figures or {}


class Unusable(Exception):
    """Nothing can be measured here; the message is the command's last line."""


@dataclass(frozen=True)
class Cell:
    """One setting, and the function that measures it. Raises ``Missing``, or anything else."""

    setting: Setting
    measure: Callable[[], Figures]


def named(setting: Setting) -> str:
    """``avgcnn, 128 devices, fp32``: the setting in one line; a number is followed by its key."""
    return ", ".join(
        f"{value:,} {key}" if isinstance(value, int) else value for key, value in setting.items()
    )
