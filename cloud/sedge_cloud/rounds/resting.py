"""Invites devices that decline repeatedly for the same reason to fewer and fewer rounds.

    declined once       invited to the next round
    the 2nd, 3rd … time in a row, for the same reason
                        invited again after 2, 4 … rounds, at most ``MAX_ROUNDS``
    another reason, an update that counts, a restart of the agent, other capabilities
                        treated as if it had never declined

After a restart, the coordinator reconstructs this from the stored declines of the last ``MAX_ROUNDS``
rounds. It then no longer knows of older declines, nor of devices that have said hello as restarted or with
other capabilities since they declined.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sedge_cloud.store.rows import OrderRow
from sedge_protocol.wire.reasons import without_numbers

MAX_ROUNDS = 32


@dataclass(frozen=True)
class _Declined:
    """A device's last decline: its round, its reason, and how many declines in a row gave that reason."""

    round: int
    reason: str
    times: int


@dataclass
class Resting:
    """Tracks the devices that declined in a run's last rounds, and when each is invited again."""

    _declined: dict[str, _Declined] = field(default_factory=dict[str, _Declined])

    @staticmethod
    def of(declines: Iterable[tuple[str, int, str]]) -> "Resting":
        """Create an instance from the declines since each device's last update, oldest first.

        ``declines`` are tuples (device, round, reason).
        """
        resting = Resting()
        for decline in declines:
            resting._decline(*decline)
        return resting

    def closed(self, orders: Iterable[OrderRow], trained: Collection[str]) -> None:
        """Record which devices declined in a round that is over, and which trained."""
        for order in orders:
            if order.declined:
                self._decline(order.device, order.round, order.declined)
            elif order.device in trained:
                self.renew(order.device)

    def renew(self, device: str) -> None:
        """Invite a device again, as it may now be able to carry out the orders that it declined."""
        self._declined.pop(device, None)

    def devices(self, number: int) -> set[str]:
        """Return the devices that are not invited to this round."""
        return {
            name
            for name, last in self._declined.items()
            if number < last.round + min(2 ** (last.times - 1), MAX_ROUNDS)
        }

    def _decline(self, device: str, number: int, reason: str) -> None:
        reason, last = without_numbers(reason), self._declined.get(device)
        times = last.times + 1 if last is not None and last.reason == reason else 1
        self._declined[device] = _Declined(number, reason, times)
