"""Six toy devices in two planted clusters, and what a coordinator and a device do around a strategy.

Local training is a random step, large on the elements that matter to the device's cluster. ``Fleet``
hands a strategy the same contexts, client models and updates as the coordinator would, over a wire that
rounds nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from tests.cloud.contexts import context_of, follow

from sedge_cloud.strategy import Assignment, ClientModel, Context, Strategy, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Layout, Role, Theta

LAYOUT = Layout.of(
    [
        ("conv.weight", (6, 4), Role.PARAMETER),
        ("norm.weight", (4,), Role.PARAMETER),
        ("norm.bias", (4,), Role.PARAMETER),
        ("norm.running_mean", (4,), Role.STATISTIC),
        ("norm.num_batches_tracked", (), Role.STATISTIC),
        ("scale", (), Role.PARAMETER),
        ("fc.weight", (5, 4), Role.PARAMETER),
        ("fc.bias", (5,), Role.PARAMETER),
    ]
)
DEVICES = ("a", "b", "c", "d", "e", "f")
CLUSTERS = (("a", "c", "e"), ("b", "d", "f"))
EXAMPLES = {"a": 10, "b": 20, "c": 30, "d": 5, "e": 1, "f": 70}


def trained(start: Theta, device: str, rng: np.random.Generator, other: float = 0.05) -> Theta:
    """A device's model (n,) after training; ``other`` is the size of steps off its cluster's elements."""
    mine = np.arange(LAYOUT.size) % 2 == (device in CLUSTERS[1])
    return (start + rng.normal(0, np.where(mine, 1.0, other), LAYOUT.size)).astype(np.float32)


def twin_overlap(mine: Collection[int], others: Collection[int]) -> Fraction:
    """O_ij = 1 - |m_i - m_j| / (2 |m_i|)."""
    differing = 0
    for k in range(LAYOUT.size):
        differing += (k in mine) != (k in others)
    return 1 - Fraction(differing, 2 * len(mine))


def twin_groups(masks: Mapping[str, Collection[int]], t: int, beta: int) -> dict[str, list[str]]:
    """C_i = {j : O_ij >= O_avg + t/beta (O_max - O_avg)}; after beta nobody."""
    groups: dict[str, list[str]] = {i: [] for i in masks}
    able = [i for i in masks if masks[i]]
    if t > beta or len(able) < 2:
        return groups
    overlap = {(i, j): twin_overlap(masks[i], masks[j]) for i in able for j in able if i != j}
    mean = sum(overlap.values()) / len(overlap)
    bar = mean + Fraction(t, beta) * (max(overlap.values()) - mean)
    for (i, j), value in overlap.items():
        if value >= bar:
            groups[i].append(j)
    return groups


def require_groups(context: Context, expected: Mapping[str, Sequence[str]], beta: int) -> None:
    """The context's groups are these, and nobody has one after beta."""
    groups = {} if context.round > beta else {i: tuple(c) for i, c in expected.items() if c}
    assert context.groups == groups


def require_clusters(context: Context) -> None:
    """Everybody's group is the rest of their cluster."""
    for cluster in CLUSTERS:
        for device in cluster:
            assert context.groups[device] == tuple(d for d in cluster if d != device)


@dataclass
class Fleet:
    """A strategy with its context, and of each device what the cloud knows and the device's own model."""

    strategy: Strategy
    context: Context
    known: dict[str, ClientModel] = field(default_factory=dict[str, ClientModel])
    own: dict[str, Theta] = field(default_factory=dict[str, Theta])
    starts: dict[str, tuple[Assignment, Theta]] = field(
        default_factory=dict[str, tuple[Assignment, Theta]]
    )

    @classmethod
    def of(cls, strategy: Strategy, seed: int) -> "Fleet":
        theta = np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)
        return cls(strategy, context_of(LAYOUT, theta))

    def plan(self, devices: Sequence[str]) -> None:
        """Open a round: where each of these devices starts."""
        self.starts.clear()
        for device in devices:
            given = self.strategy.plan(self.context, self._client(device))
            start = (self.context.theta if given.start is None else given.start).copy()
            if given.patch is not None:
                given.patch.scatter_into(start)
            if device in self.own:
                kept = LAYOUT.mask((*LAYOUT.statistics, *given.work.keep))
                start[kept] = self.own[device][kept]
            self.starts[device] = given, start

    def close(self, models: Mapping[str, Theta], sent: Mapping[str, Sequence[int] | None]) -> None:
        """Close the round: each device trained this model (n,) and sends these elements, None for all."""
        state = self.strategy.apply(self.context, list(self._updates(models, sent)))
        self.context = follow(self.context, state)

    def _client(self, device: str) -> ClientModel:
        known = self.known.get(device, ClientModel(device=device))
        group = tuple(self.known[member] for member in self.context.groups.get(device, ()))
        return ClientModel(known.trained, known.round, device=device, sent=known.sent, group=group)

    def _updates(
        self, models: Mapping[str, Theta], sent: Mapping[str, Sequence[int] | None]
    ) -> Iterator[Update]:
        number = self.context.round + 1
        for device in sorted(models):
            given, start = self.starts[device]
            delta = models[device] - start
            delta[LAYOUT.mask((*LAYOUT.statistics, *given.work.keep))] = 0
            chosen = sent[device]
            if chosen is None:
                vector = SparseVector(LAYOUT.size, None, delta)
            else:
                indices = np.array(sorted(chosen), np.uint32)
                vector = SparseVector(LAYOUT.size, indices, delta[indices])
            base = self.context.theta if given.start is None else given.start
            update = Update(device, EXAMPLES[device], base, given.patch, vector)
            self.own[device] = models[device]
            self.known[device] = ClientModel(update.trained, number, device=device, sent=vector)
            yield update
