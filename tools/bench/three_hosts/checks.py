"""Checks what must hold after a fault, in the store's rows and the devices' logs.

lost    an update that has a receipt but no row, or that its closed round did not count
twice   an update that counted twice, in one round or in two
differ  the first round whose bytes differ from those of the undisturbed process
"""

import re
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
from tools.bench.three_hosts.fleet import RUNS
from tools.bench.three_hosts.watch import Update

from sedge_cloud.config import CloudConfig
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_store
from sedge_cloud.store.records import Summary

_SAID = re.compile(r"^([\d.]+) sedge\.edge\.(\S+) (run (\S+), round (\d+): (.*))$", re.MULTILINE)


@dataclass(frozen=True)
class Course:
    """The results of a run: each round's model, the summaries of closed rounds, and the stored updates."""

    models: list[bytes]
    closed: list[Summary]
    rows: set[Update]

    @property
    def rounds(self) -> list[tuple[object, ...]]:
        """The reproducible parts of each closed round, which exclude times and temperatures."""
        return [
            (s.task, s.train_loss, s.personal, s.distrusted, s.late,
             [(d.device, d.num_examples, d.before, d.after, d.counted) for d in s.devices])
            for s in self.closed
        ]  # fmt: skip


def receipts(log: Path) -> Counter[Update]:
    """Count the receipts for each update in the devices' logs, where a repeated receipt appears once."""
    return Counter(
        (run, int(number), device)
        for _, device, _, run, number, words in _SAID.findall(log.read_text())
        if words.startswith("update stored")
    )


def refusals(log: Path) -> list[str]:
    """Return a line for each rejected update that the devices have logged."""
    found = _SAID.findall(log.read_text())
    return [f"{device}: {text}" for _, device, text, _, _, words in found if "rejected" in words]


def longest_silence(log: Path, since: float, until: float) -> float:
    """Return the longest time in seconds in which a device received neither an order nor a receipt.

    Only the time from ``since`` to ``until``, on the wall clock, counts.
    """
    heard: defaultdict[str, list[float]] = defaultdict(lambda: [since])
    for at, device, *_ in _SAID.findall(log.read_text()):
        if since <= float(at) <= until:
            heard[device].append(float(at))
    return max(b - a for times in heard.values() for a, b in pairwise([*times, until]))


def courses(config: CloudConfig) -> dict[str, Course]:
    """Return the results of both runs by name."""
    with closing(open_store(config)) as store:
        return {name: _course(store, name) for name in RUNS}


def _course(store: Store, name: str) -> Course:
    rows = store.rounds(name)
    summaries = [msgspec.msgpack.decode(row.summary, type=Summary) for row in rows if row.summary]
    updates = {
        (name, row.round, u.device) for row in rows for u in store.received(name, row.round).counted
    }
    return Course([row.model_hash for row in rows], summaries, updates)


def lost(received: Counter[Update], run: str, course: Course) -> list[Update]:
    """Return the updates with a receipt that have no row, or that their closed round did not count."""
    counted = {s.round: {d.device for d in s.devices} for s in course.closed}
    mine = [update for update in received if update[0] == run]
    return [
        (run, number, device)
        for run, number, device in mine
        if (run, number, device) not in course.rows or device not in counted.get(number, {device})
    ]


def twice(course: Course) -> list[str]:
    """Describe the updates that counted more than once."""
    counted = Counter((s.round, d.device) for s in course.closed for d in s.devices)
    again = [f"round {number}: {device}" for (number, device), n in counted.items() if n > 1]
    return again + [f"round {s.round}: {device} late" for s in course.closed for device in s.late]


def differs(course: Course, undisturbed: Course) -> str:
    """Describe the first round that differs from the undisturbed run, or return "" if none does."""
    for what in ("models", "rounds"):
        mine, others = getattr(course, what), getattr(undisturbed, what)
        if len(mine) > len(others):
            return f"{len(mine)} rounds, but only {len(others)} undisturbed ones: increase --rounds"
        pairs = zip(mine, others, strict=False)
        number = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)
        if number is not None:
            return f"{what}, number {number}"
    return ""
