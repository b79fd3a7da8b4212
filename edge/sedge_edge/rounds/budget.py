"""A device's own limits on what a coordinator may ask of it.

Each limit is a bucket. Spending fills it, and it drains at a constant rate: its whole capacity in an hour
or a day. A full bucket stays closed until a tenth of it has drained. So at most twice the limit is spent in
any one period, and at most the limit in each later one.

While the agent runs, time is monotonic. The amounts spent are committed with the rest of the state. At a
new start, the buckets drain for the time that has passed since the last commit according to the device's
clock, but for at most a day. Nothing drains if a clock without a battery starts in the past. A coordinator
therefore gains nothing by making a device restart.
"""

import msgspec

from sedge_edge.rounds.waiting import OPEN, Closed, Gate
from sedge_protocol.errors import SedgeError
from sedge_protocol.wire.settings import LimitsConfig

HOUR_S, DAY_S = 3600.0, 86400.0
# The maximum number of orders in a burst, and the seconds after which another such burst is allowed. The
# maximum is twice the number of runs that a device keeps. A round of a tiny model takes about 20 ms.
MOMENT, MOMENT_S = 32, 0.32
# How many restarts of a coordinator are accepted per hour. They are limited because each costs a commit.
STARTS = 60
# Spending this many bytes or seconds triggers a commit, unless another commit has already recorded them.
COMMIT_BYTES, COMMIT_S = 64e6, 600.0


class TooManyOrders(SedgeError):
    """More orders have arrived than [limits] in edge.toml allows."""


class Spent(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of each of the device's limits has been spent and has not drained yet."""

    orders: float = 0.0
    """The number of orders accepted."""
    bytes: float = 0.0
    """The number of bytes received."""
    seconds: float = 0.0
    """The number of seconds spent training."""
    at: int = 0
    """When these amounts were recorded, in Unix seconds of the device's clock, or 0 if they never were."""


class Bucket:
    """One limit: how much may be spent per period, and the amount ``spent`` that has not drained yet."""

    def __init__(self, limit: float, period_s: float, spent: float = 0.0) -> None:
        self.limit, self.spent = limit, spent
        self._period_s = period_s
        self._full = False

    @property
    def _rate(self) -> float:
        return self.limit / self._period_s

    def drain(self, seconds: float) -> None:
        """Let the bucket drain for this many seconds."""
        self.spent = max(0.0, self.spent - self._rate * seconds)

    def take(self) -> bool:
        """Spend 1 if there is room for it. Returns False if there is none."""
        if self.spent + 1 > self.limit:
            return False
        self.spent += 1
        return True

    def closed_s(self) -> float:
        """Return the seconds until a full bucket opens, or 0 if it is open.

        A full bucket opens when a tenth of it has drained.
        """
        open_at = 0.9 * self.limit
        self._full = self.spent >= self.limit or (self._full and self.spent > open_at)
        return (self.spent - open_at) / self._rate if self._full else 0.0


class Budget:
    """Tracks how much of a device's limits is left. Without ``limits``, everything is allowed.

    ``spent`` contains the amounts in the last commit, and ``clock_s`` is the Unix time of this start. The
    clock need not be right.
    """

    def __init__(self, limits: LimitsConfig | None, spent: Spent, clock_s: int) -> None:
        self._limited = limits is not None
        limits = limits or LimitsConfig()
        self._orders = Bucket(limits.orders_per_hour, HOUR_S, spent.orders)
        self._moment = Bucket(MOMENT, MOMENT_S)
        self._starts = Bucket(STARTS, HOUR_S)
        self._bytes = Bucket(limits.megabytes_per_day * 1e6, DAY_S, spent.bytes)
        self._training = Bucket(limits.training_hours_per_day * HOUR_S, DAY_S, spent.seconds)
        self._theirs = frozenset[str]()  # the limits that the coordinator has tightened
        self._buckets = (self._orders, self._moment, self._starts, self._bytes, self._training)
        self._clock_s = float(clock_s)
        self._now: float | None = None
        self._working = False
        self._new_bytes = self._new_s = 0.0
        self._tell_at = 0.0
        away_s = clock_s - spent.at if spent.at else 0
        self._drain(float(min(DAY_S, max(0, away_s))))

    def tighten(self, limits: LimitsConfig, own: LimitsConfig) -> None:
        """Replace the limits with these, which are stricter than the device's ``own`` or equal to them."""
        self._orders.limit = limits.orders_per_hour
        self._bytes.limit = limits.megabytes_per_day * 1e6
        self._training.limit = limits.training_hours_per_day * HOUR_S
        names = LimitsConfig.__struct_fields__
        self._theirs = frozenset(n for n in names if getattr(limits, n) != getattr(own, n))

    def _named(self, name: str) -> str:
        whose = "the coordinator's settings" if name in self._theirs else "edge.toml"
        return f"limits.{name} of {whose}"

    def _drain(self, seconds: float) -> None:
        for bucket in self._buckets:
            bucket.drain(seconds)

    def passed(self, now: float) -> None:
        """Advance to ``now``, in monotonic seconds."""
        seconds = 0.0 if self._now is None else max(0.0, now - self._now)
        self._now, self._clock_s = now, self._clock_s + seconds
        if self._working:
            self._training.spent += seconds
            self._new_s += seconds
        self._drain(seconds)

    def received(self, size: int) -> None:
        """Count downloaded bytes."""
        self._bytes.spent += size
        self._new_bytes += size

    def works(self, working: bool) -> None:
        """Record that a job has begun or ended."""
        self._working = working

    def start(self) -> bool:
        """Return True if the frames of a restarted coordinator may be accepted. Counts the restart."""
        return not self._limited or self._starts.take()

    def order(self) -> str | None:
        """Return None to accept an order, "" to drop it silently, or the reason to decline it."""
        if not self._limited:
            return None
        if not self._moment.take():
            return ""
        if self._orders.take():
            return None
        return (
            f"{self._named('orders_per_hour')}: more than {self._orders.limit:g} orders in an hour, "
            "expected fewer, or a higher limit"
        )

    def closed(self) -> str:
        """Return why nothing may be fetched or begun now, or "" if it may."""
        if not self._limited:
            return ""
        found: list[str] = []
        for name, what, bucket in (
            ("megabytes_per_day", "downloads", self._bytes),
            ("training_hours_per_day", "training", self._training),
        ):
            if wait_s := bucket.closed_s():
                hours = f"for another {max(0.1, wait_s / HOUR_S):.1f} hours"
                found.append(f"{self._named(name)}: no more {what} {hours}")
        return "; ".join(found)

    def gate(self, other: Gate | None) -> Gate | None:
        """Return a gate that is closed if ``other`` is closed or a limit is reached.

        Returns None if there is neither another gate nor a limit.
        """
        if not self._limited:
            return other

        def closed() -> Closed:
            theirs = OPEN if other is None else other()
            why = "; ".join(one for one in (theirs.why, self.closed()) if one)
            return Closed(why, theirs.link)

        return closed

    def must_stop(self, now: float) -> bool:
        """Return True if the running job has used up the day's training time. Any thread may call it."""
        since = 0.0 if self._now is None else now - self._now
        training = self._training
        spent = training.spent + since * (1 - training.limit / DAY_S)
        return self._limited and spent >= training.limit

    def tells(self) -> bool:
        """Return True if a refused order should be logged now, which is the case once an hour."""
        now = self._now or 0.0
        if now < self._tell_at:
            return False
        self._tell_at = now + HOUR_S
        return True

    @property
    def clock_s(self) -> float:
        """The device's Unix time: its clock at this start, plus the time that has passed since."""
        return self._clock_s

    @property
    def owes(self) -> bool:
        """Whether enough has been spent since the last commit to justify another one."""
        return self._limited and (self._new_bytes >= COMMIT_BYTES or self._new_s >= COMMIT_S)

    def commit(self) -> Spent:
        """Return the amounts spent, which the caller must commit."""
        if not self._limited:
            return Spent()
        self._new_bytes = self._new_s = 0.0
        orders, size, seconds = self._orders.spent, self._bytes.spent, self._training.spent
        return Spent(orders, size, seconds, int(self._clock_s))
