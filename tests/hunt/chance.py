"""Bad luck that follows from a seed, place by place, so that some of it can be left out.

What happens the n-th time at a place depends on nothing else: a run with fewer faults meets the others
where it comes past the same places.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Collection

STRONGEST = 2.0  # times as often as ``strike`` is told


class Chance:
    """Strikes as ``seed`` has it, or only where ``only`` says; each seed knows some kinds of faults."""

    def __init__(self, seed: int, only: Collection[str] | None = None) -> None:
        self.seed, self.only = seed, only
        self.is_over = False
        self.struck: list[str] = []
        self._times = Counter[str]()
        self._draws: dict[str, random.Random] = {}
        self._known: dict[str, float] = {}

    def share(self, place: str) -> float:
        """A number from 0 to 1 for this place."""
        digest = hashlib.blake2b(f"{self.seed}/{place}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64

    def pick(self, place: str, number: int) -> int:
        """One of so many."""
        return int(self.share(place) * number)

    def strike(self, place: str, **chances: float) -> str:
        """What happens this time at the place, by its name; empty: nothing."""
        if self.is_over:
            return ""
        time = self._times[place]
        self._times[place] = time + 1
        draws = self._draws.get(place)
        if draws is None:
            draws = self._draws[place] = random.Random(f"{self.seed}/{place}")
        drawn, total = draws.random(), 0.0
        if drawn >= STRONGEST * sum(chances.values()):
            return ""
        for kind, chance in chances.items():
            total += chance * self._strength(kind)
            if drawn < total:
                name = f"{place}:{time}:{kind}"
                if self.only is not None and name not in self.only:
                    return ""
                self.struck.append(name)
                return kind
        return ""

    def _strength(self, kind: str) -> float:
        """Swarm testing: some faults hide others, so every seed does without a half of them."""
        if kind not in self._known:
            drawn = self.share(f"strength of {kind}")
            self._known[kind] = 0.0 if drawn < 0.5 else 2 * STRONGEST * (drawn - 0.5)
        return self._known[kind]
