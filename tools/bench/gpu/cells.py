"""The cells that a stage measures, most valuable first, and their rows. Does not import torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

Setting = dict[str, str | int]
Figures = dict[str, float]
# Why a figure is missing on a CPU.
CUDA_ONLY = "on CUDA only"


class Row(msgspec.Struct, frozen=True):
    """The measurement of one setting. ``why`` says what is missing or was wrong."""

    setting: Setting
    figures: Figures = {}
    why: str = ""


class Settings(msgspec.Struct, frozen=True):
    """A stage's settings: its device ("cpu" or "cuda"), its sizes (``sizes.SIZES``), and its end.

    ``end`` is on the monotonic clock, which all processes of a machine share.
    """

    device: str
    size: str
    end: float

    def left(self) -> float:
        """Return the seconds until ``end``."""
        return self.end - time.monotonic()


class Missing(Exception):
    """A cell was not measured, or only in part. The message says why."""

    def __init__(self, why: str, figures: Figures | None = None) -> None:
        super().__init__(why)
        self.figures = figures or {}


class Unusable(Exception):
    """Nothing can be measured on this machine. The message becomes the command's last line."""


@dataclass(frozen=True)
class Cell:
    """One setting, and the function that measures it. It may raise ``Missing`` or any other exception."""

    setting: Setting
    measure: Callable[[], Figures]


def named(setting: Setting) -> str:
    """Format a setting in one line, such as ``avgcnn, 128 devices, fp32``.

    A number is followed by its key.
    """
    return ", ".join(
        f"{value:,} {key}" if isinstance(value, int) else value for key, value in setting.items()
    )
