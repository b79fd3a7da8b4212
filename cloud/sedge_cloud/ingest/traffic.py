"""Counts every device's bytes in each round, in both directions, as they pass the coordinator.

These are statistics: counted in memory, stored in the transaction that closes their round, and lost with
the process. A frame counts without the few bytes that MQTT adds, once for every device that fetches its
blob; on the coordinator's own link it counts once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sedge_cloud.runs.asked import AskedRound
from sedge_cloud.store.rows import TrafficRow
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import HEADER


class Link(NamedTuple):
    """Bytes on the coordinator's own link, ``up`` from it and ``down`` to it."""

    up: int
    down: int


class Traffic:
    """Every device's bytes since the coordinator's start, and of each run's open round."""

    def __init__(self) -> None:
        self._up: Counter[str] = Counter()
        self._down: Counter[str] = Counter()
        self._link = Link(0, 0)
        self._missing: dict[bytes, dict[str, set[int]]] = defaultdict(
            dict
        )  # by transfer and device
        self._opened: dict[str, tuple[Link, dict[str, tuple[int, int]]]] = {}  # by run; device
        self._whole: dict[str, set[str]] = defaultdict(set)  # by run

    def received(self, device: str, payload: bytes) -> None:
        """Count a frame that a device has sent."""
        self._up[device] += len(payload)
        self._link = Link(self._link.up, self._link.down + len(payload))

    def sent(self, send: Send) -> None:
        """Count a frame sent to a device, or to all that fetch its blob."""
        self._link = Link(self._link.up + len(send.payload), self._link.down)
        *_, name, last = send.topic.split("/")
        if last == "down":
            self._down[name] += len(send.payload)
            return
        if name != "blob":  # a hint to a whole shard
            return
        index = HEADER.unpack_from(send.payload)[8]
        self.delivered(bytes.fromhex(last), index, len(send.payload))

    def delivered(self, transfer: bytes, index: int, size: int) -> None:
        """Count a chunk for every device that fetches it, in a frame of this size from any process."""
        fetching = self._missing.get(transfer, {})
        for device, missing in list(fetching.items()):
            self._down[device] += size
            missing.discard(index)
            if not missing:
                del fetching[device]

    def asked(self, device: str, transfer: bytes, chunks: Iterable[int]) -> None:
        """Note that a device fetches these chunks of a blob."""
        self._missing[transfer].setdefault(device, set()).update(chunks)

    def fell_back(self, run: str, device: str) -> bool:
        """Note that a device that had a model fetches the whole one.

        Returns whether that is new this round.
        """
        is_new = device not in self._whole[run]
        self._whole[run].add(device)
        return is_new

    def disconnected(self) -> None:
        """The link is down: no device is being served any more."""
        self._missing.clear()

    def opened(self, run: str, cohort: Iterable[str]) -> None:
        """Start counting for a round that opens."""
        before = {device: (self._up[device], self._down[device]) for device in cohort}
        self._opened[run] = self._link, before
        self._whole[run].clear()

    def of_round(
        self, run: str, number: int, cohort: Iterable[str]
    ) -> tuple[tuple[TrafficRow, ...], Link]:
        """The bytes of an open round's devices so far, and those on the coordinator's link meanwhile.

        If the coordinator started after the round opened, they count from its start, and ``cohort`` names
        the round's devices.
        """
        link, before = self._opened.get(run, (Link(0, 0), dict.fromkeys(cohort, (0, 0))))
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
        return rows, Link(self._link.up - link.up, self._link.down - link.down)

    def follow(self, before: Mapping[str, int], opened: Iterable[AskedRound]) -> None:
        """Follow a leader in another process, from the rounds ``before``, by run, to those now open."""
        rounds = {current.row.run: current for current in opened}
        for run, number in before.items():
            if run not in rounds or rounds[run].row.round != number:
                self.closed(run)
        for run, current in rounds.items():
            if before.get(run) != current.row.round:
                self.opened(run, current.orders)

    def closed(self, run: str) -> None:
        """A round has closed: no device is being served, and further counts belong to the next round."""
        self._missing.clear()
        self._opened.pop(run, None)
        self._whole.pop(run, None)
