"""Detects problems that have just begun, for the log and for notices."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from sedge_cloud.facts.records import Code, Problem

# The code and subject of a problem, which identify it.
Key: TypeAlias = tuple[Code, str]


class Onsets:
    """Detects the onset of problems: a problem has begun when two readings in a row contain it.

    The same problem begins at most once in ``quiet_s`` seconds.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._last: Collection[Key] = ()
        self._begun: dict[Key, float] = {}

    def new(self, seen: Mapping[Key, Problem], now: float) -> list[Problem]:
        """Return the problems that begin with the reading ``seen``; ``now`` is in seconds."""
        self._begun = {key: at for key, at in self._begun.items() if now < at + self._quiet_s}
        keys = [key for key in seen if key in self._last and key not in self._begun]
        self._last = seen.keys()
        self._begun.update(dict.fromkeys(keys, now))
        return [seen[key] for key in keys]
