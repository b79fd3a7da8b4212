"""What a core asks its shell to do. The shell does it in the given order, and reports nothing back."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Send:
    """Publish one frame. QoS 1 for control frames, 0 for chunks (``Have`` and ``Get`` repair)."""

    topic: str
    payload: bytes
    qos: int


@dataclass(frozen=True)
class Subscribe:
    """Listen to a blob topic, at QoS 0: an offline device must not fill the broker's queue."""

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
