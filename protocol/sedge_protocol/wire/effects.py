"""Requests from a core to its shell, which fulfils them in the given order and reports nothing back."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Send:
    """Publish one frame at QoS 0: important frames are repeated until they are answered."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Subscribe:
    """Listen to a blob topic."""

    topic: str


@dataclass(frozen=True)
class Unsubscribe:
    """Stop listening to a blob topic."""

    topic: str


@dataclass(frozen=True)
class Note:
    """One line for the log; ``level`` as in ``logging``."""

    level: int
    text: str


Effect: TypeAlias = Send | Subscribe | Unsubscribe | Note
