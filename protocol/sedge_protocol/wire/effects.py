"""Effects: the actions that a core, which does no I/O itself, requests from the code that runs it.

They are carried out in the given order, and nothing is reported back to the core.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Send:
    """Publish one frame at QoS 0. Important frames are repeated until they are answered."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Subscribe:
    """Subscribe to a blob topic."""

    topic: str


@dataclass(frozen=True)
class Unsubscribe:
    """Unsubscribe from a blob topic."""

    topic: str


@dataclass(frozen=True)
class Note:
    """Write one line to the log, at a ``level`` of ``logging``."""

    level: int
    text: str


Effect: TypeAlias = Send | Subscribe | Unsubscribe | Note
