"""Measures a job's cost for its report: step time, temperature, estimated energy."""

from collections.abc import Callable
from dataclasses import dataclass

# The number of steps between two readings of the thermometer. A reading takes 0.1 ms, and a step may take
# less than 1 ms.
_LOOK_EVERY = 64


@dataclass(frozen=True)
class JobCost:
    """The cost of a job: seconds per training step, the highest temperature in °C, and joules.

    None means unknown.
    """

    step_s: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None


NOTHING_SPENT = JobCost()


class JobMeter:
    """Measures one attempt at a job.

    ``watts`` is the device's power draw while working, or None if unknown.
    """

    def __init__(self, temperature_c: Callable[[], float | None], watts: float | None) -> None:
        self._temperature_c, self._watts = temperature_c, watts
        self._hottest: float | None = None
        self._looks = 0
        self._seconds, self._steps = 0.0, 0

    def look(self) -> None:
        """Read the thermometer occasionally. Call this before every step."""
        if self._looks % _LOOK_EVERY == 0:
            self._read()
        self._looks += 1

    def add(self, seconds: float, steps: int) -> None:
        """Record training steps and the seconds that they took."""
        self._seconds += seconds
        self._steps += steps

    def spent(self, seconds: float) -> JobCost:
        """Return the measurement. The job took ``seconds``, including earlier attempts."""
        self._read()
        step_s = self._seconds / self._steps if self._steps else None
        energy_j = None if self._watts is None else self._watts * seconds
        return JobCost(step_s, self._hottest, energy_j)

    def _read(self) -> None:
        if (found := self._temperature_c()) is not None:
            self._hottest = found if self._hottest is None else max(found, self._hottest)
