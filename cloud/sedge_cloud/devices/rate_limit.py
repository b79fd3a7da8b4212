"""How much one sender may say: no device crowds out the others, or fills the log.

A token bucket, far above what an honest device needs: a round takes it some five messages, so that a
hundred rounds a second pass. A message above it is as good as lost on its way: who meant it says it again.
"""

RATE = 500.0  # messages a second, for as long as one likes
BURST = 2000.0  # so many at once
WARN_EVERY_S = 60.0


class Allowance:
    """What is left of one sender's bucket."""

    def __init__(self) -> None:
        self._left = BURST
        self._at = self._warn_at = 0.0

    def spend(self, now: float) -> bool:
        """Whether one more message may be looked at."""
        self._left = min(BURST, self._left + RATE * max(0.0, now - self._at))
        self._at = max(self._at, now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def warns(self, now: float) -> bool:
        """Whether it is time to say that messages are being dropped: once a minute."""
        if now < self._warn_at:
            return False
        self._warn_at = now + WARN_EVERY_S
        return True
