"""Counts every device's bytes in each round, in both directions, as they pass the coordinator.

These are statistics: they are counted in memory, stored in the transaction that closes their round, and
lost if the process ends before that. A frame is counted without the few bytes that MQTT adds. A broadcast
frame is counted once for every device that fetches its blob, but only once on the coordinator's own link.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sedge_cloud.runs.asked import AskedRound, RoundKey, round_key
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import HEADER


class LinkBytes(NamedTuple):
    """Bytes on the coordinator's own link: ``up`` counts those that it sent, ``down`` those it received."""

    up: int
    down: int


class Traffic:
    """Counts every device's bytes since the coordinator started, and since each open round began."""

    def __init__(self) -> None:
        self._up: Counter[str] = Counter()
        self._down: Counter[str] = Counter()
        self._link = LinkBytes(0, 0)
        # By transfer, then by device: the chunks still being fetched.
        self._missing: dict[bytes, dict[str, set[int]]] = defaultdict(dict)
        # By run, then by device: the byte counts when the round opened.
        self._opened: dict[str, tuple[LinkBytes, dict[str, tuple[int, int]]]] = {}
        self._whole: dict[str, set[str]] = defaultdict(set)  # by run

    def received(self, device: str, payload: bytes) -> None:
        """Count a frame that a device has sent."""
        self._up[device] += len(payload)
        self._link = LinkBytes(self._link.up, self._link.down + len(payload))

    def sent(self, send: Send) -> None:
        """Count a frame sent to one device, or to all devices that are fetching its blob."""
        self._link = LinkBytes(self._link.up + len(send.payload), self._link.down)
        *_, name, last = send.topic.split("/")
        if last == "down":
            self._down[name] += len(send.payload)
            return
        if name != "blob":  # a message to a whole shard
            return
        index = HEADER.unpack_from(send.payload)[8]
        self.delivered(bytes.fromhex(last), index, len(send.payload))

    def delivered(self, transfer: bytes, index: int, size: int) -> None:
        """Count a chunk for every device that is fetching it.

        Any process may have sent it, in a frame of ``size`` bytes.
        """
        fetching = self._missing.get(transfer, {})
        for device, missing in list(fetching.items()):
            self._down[device] += size
            missing.discard(index)
            if not missing:
                del fetching[device]

    def asked(self, device: str, transfer: bytes, chunks: Iterable[int]) -> None:
        """Record that a device is fetching these chunks of a blob."""
        self._missing[transfer].setdefault(device, set()).update(chunks)

    def fell_back(self, run: str, device: str) -> bool:
        """Record that a device is fetching the whole model although it had one.

        Returns True the first time in a round.
        """
        is_new = device not in self._whole[run]
        self._whole[run].add(device)
        return is_new

    def disconnected(self) -> None:
        """Handle the loss of the connection: no device is fetching anything now."""
        self._missing.clear()

    def opened(self, run: str, cohort: Iterable[str]) -> None:
        """Start counting for a round that is opening."""
        before = {device: (self._up[device], self._down[device]) for device in cohort}
        self._opened[run] = self._link, before

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], LinkBytes]:
        """Return byte counts since an open round began: one per device, and the link's.

        If the coordinator started after the round opened, counts begin when it started, and ``cohort``
        names the devices in the round.
        """
        link, before = self._opened.get(run, (LinkBytes(0, 0), dict.fromkeys(cohort, (0, 0))))
        whole = self._whole.get(run, set[str]())
        rows = tuple(
            TrafficRow(
                run,
                number,
                device,
                self._up[device] - up,
                self._down[device] - down,
                device in whole,
            )
            for device, (up, down) in before.items()
        )
        return rows, LinkBytes(self._link.up - link.up, self._link.down - link.down)

    def follow(self, before: Mapping[str, RoundKey], opened: Iterable[AskedRound]) -> None:
        """Start and stop counting as a leader in another process opens and closes rounds.

        ``before`` maps runs to the rounds that were open before; ``opened`` holds the open rounds.
        """
        rounds = {current.row.run: current for current in opened}
        for run, key in before.items():
            if run not in rounds or round_key(rounds[run].row) != key:
                self.closed(run)
        for run, current in rounds.items():
            if before.get(run) != round_key(current.row):
                self.opened(run, current.orders)

    def closed(self, run: str) -> None:
        """Stop counting for a closed round, and forget which devices were fetching."""
        self._missing.clear()
        self._opened.pop(run, None)
        self._whole.pop(run, None)
