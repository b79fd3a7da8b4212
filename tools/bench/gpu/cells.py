"""Defines cells, the settings that a stage measures, and rows, their results. Does not import torch.

A stage measures its most valuable cells first.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

Setting = dict[str, str | int]
Figures = dict[str, float]
# The reason given in a row for a figure that cannot be measured on a CPU.
CUDA_ONLY = "on CUDA only"


class Row(msgspec.Struct, frozen=True):
    """The result of measuring one setting. ``why`` says what is missing or wrong, or is ""."""

    setting: Setting
    figures: Figures = {}
    why: str = ""


class Settings(msgspec.Struct, frozen=True):
    """A stage's settings: device ("cpu" or "cuda"), size (a key of ``sizes.SIZES``) and deadline.

    ``end`` is a time on the monotonic clock, which all processes on a machine share.
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
    """Nothing can be measured on this machine. The command prints the message as its last line."""


@dataclass(frozen=True)
class Cell:
    """One setting and the function that measures it.

    The function may raise ``Missing`` or any other exception.
    """

    setting: Setting
    measure: Callable[[], Figures]


def named(setting: Setting) -> str:
    """Format a setting on one line, such as ``avgcnn, 128 devices, fp32``.

    Each number is followed by its key.
    """
    return ", ".join(
        f"{value:,} {key}" if isinstance(value, int) else value for key, value in setting.items()
    )
