"""FedPURIN against a slow twin that reads like Algorithm 1, with devices that come and go.

The twin is loops over Python floats, exact fractions for overlaps and thresholds, and knows no arrays.
What it averages is what the devices sent, in the strategy's order, so its numbers are the strategy's to
the bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.paper.toy_clusters import (
    DEVICES,
    EXAMPLES,
    LAYOUT,
    Fleet,
    require_clusters,
    require_groups,
    trained,
    twin_groups,
)

from sedge_cloud.strategies.fedpurin import Average, FedPURIN
from sedge_protocol.layout import Theta

SCORED = [
    k
    for t in LAYOUT.tensors
    if not t.name.startswith("norm.")
    for k in range(t.offset, t.offset + t.size)
]
NORM = [k for k in range(LAYOUT.size) if k not in SCORED]

Sent = dict[int, float]  # place -> value: th_i * m_i without the zeros


# The twin -----------------------------------------------------------------------------------------


def twin_mask(gradient: Theta, theta: Theta, strategy: FedPURIN) -> set[int]:
    """The device's part: the largest tau of |g th| of each tensor, ties included, all above the cutoff."""
    mask: set[int] = set()
    for tensor in LAYOUT.tensors:
        if tensor.name.startswith("norm."):
            continue
        scores: dict[int, float] = {}
        for k in range(tensor.offset, tensor.offset + tensor.size):
            change = float(gradient[k]) * float(theta[k])
            scores[k] = abs(-change + change**2 / 2 if strategy.hessian else change)
        count = int(strategy.fraction * tensor.size)
        if count:
            bar = sorted(scores.values(), reverse=True)[count - 1]
            mask |= {k for k, c in scores.items() if c >= bar and c > strategy.cutoff}
    return mask


def twin_average(parts: list[tuple[float, Sent]], k: int, how: Average, last: float) -> float:
    """An element's mean over (weight, th_j m_j): of zeros where it was not sent, or not counted there."""
    total = weights = 0.0
    for weight, sent in parts:
        if k in sent:
            total += weight * sent[k]
        if k in sent or how == "shrunk":
            weights += weight
    return total / weights if weights else last


@dataclass
class Twin:
    strategy: FedPURIN
    g: list[float]
    t: int = 0
    sent: dict[str, Sent] = field(default_factory=dict[str, Sent])
    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def start(self, i: str) -> list[float]:
        """d_i on m_i, G elsewhere."""
        theta = list(self.g)
        members = [] if self.t > self.strategy.beta else self.groups.get(i, [])
        for k in self.sent.get(i, {}):
            parts = [(1.0, self.sent[j]) for j in [i, *members]]
            theta[k] = twin_average(parts, k, self.strategy.average, theta[k])
        return theta

    def close(self, sent: Mapping[str, Sent]) -> None:
        """Lines 11 to 19: overlaps and groups of those who took part, and G."""
        self.t += 1
        masks = {i: set(sent[i]) for i in sorted(sent)}
        self.groups |= twin_groups(masks, self.t, self.strategy.beta)
        self.sent |= sent
        parts = [(float(EXAMPLES[i]), sent[i]) for i in sorted(sent)]
        for k in SCORED:
            mean = twin_average(parts, k, self.strategy.average, self.g[k])
            self.g[k] = float(np.float32(mean))


# The strategy against it --------------------------------------------------------------------------


def play(strategy: FedPURIN, seed: int, rounds: int, cohort: int) -> Fleet:
    """Rounds of the strategy and of the twin, side by side; the fleet at the end."""
    rng = np.random.default_rng(seed)
    fleet = Fleet.of(strategy, seed)
    twin = Twin(strategy, [float(v) for v in fleet.context.theta])
    own: dict[str, Theta] = {}
    for _ in range(rounds):
        devices = sorted(rng.choice(DEVICES, cohort, replace=False).tolist())
        fleet.plan(devices)
        models: dict[str, Theta] = {}
        masks: dict[str, list[int]] = {}
        sent: dict[str, Sent] = {}
        for device in devices:
            _, start = fleet.starts[device]
            expected = np.array(twin.start(device), np.float32)
            np.testing.assert_array_equal(start[SCORED], expected[SCORED])
            if device in own:  # BatchNorm's tensors never leave the device
                np.testing.assert_array_equal(start[NORM], own[device][NORM])
            model = own[device] = models[device] = trained(start, device, rng)
            gradient = rng.normal(size=LAYOUT.size) * (model - start)
            chosen = twin_mask(gradient.astype(np.float32), model, strategy)
            masks[device] = sorted(chosen)
            sent[device] = {k: float(start[k] + (model[k] - start[k])) for k in chosen}
        fleet.close(models, masks)
        twin.close(sent)
        np.testing.assert_array_equal(
            fleet.context.theta[SCORED], np.array(twin.g, np.float32)[SCORED]
        )
        np.testing.assert_array_equal(fleet.context.theta[NORM], fleet.context.initial[NORM])
        require_groups(fleet.context, twin.groups, strategy.beta)
    return fleet


@pytest.mark.parametrize("average", ["shrunk", "counted"])
@pytest.mark.parametrize("seed", range(2))
def test_six_devices_like_algorithm_1(average: Average, seed: int) -> None:
    play(FedPURIN(0.5, beta=4, average=average), seed, rounds=7, cohort=6)


@pytest.mark.parametrize("average", ["shrunk", "counted"])
@pytest.mark.parametrize("cohort", [1, 2, 4])
def test_some_of_six_devices(average: Average, cohort: int) -> None:
    for seed in range(2):
        play(FedPURIN(0.4, beta=8, average=average), seed, rounds=12, cohort=cohort)


@pytest.mark.parametrize("cutoff", [0.0, 0.05, 1.0])
def test_masks_of_any_size(cutoff: float) -> None:
    for seed in range(2):
        play(FedPURIN(0.5, beta=3, cutoff=cutoff), seed, rounds=5, cohort=6)


def test_the_planted_clusters_are_found() -> None:
    require_clusters(play(FedPURIN(0.5, beta=100), seed=2, rounds=3, cohort=6).context)


def test_filled_is_the_mean_of_whole_models() -> None:
    # A device counts with what it began from where it sent nothing; here in plain loops.
    strategy = FedPURIN(0.5, beta=9, average="filled")
    fleet, rng = Fleet.of(strategy, 4), np.random.default_rng(4)
    groups: dict[str, list[str]] = {}
    seen: dict[str, list[float]] = {}
    masks: dict[str, list[int]] = {}
    for number in range(1, 5):
        fleet.plan(DEVICES)
        models = {i: trained(fleet.starts[i][1], i, rng) for i in DEVICES}
        for i in DEVICES:
            start = fleet.starts[i][1]
            for k in masks.get(i, []):
                members = [seen[j][k] for j in [i, *groups[i]]]
                assert start[k] == np.float32(sum(members) / len(members))
        masks = {i: sorted(twin_mask(models[i], models[i], strategy)) for i in DEVICES}
        for i in DEVICES:
            start = fleet.starts[i][1]
            seen[i] = [float(v) for v in start]
            for k in masks[i]:
                seen[i][k] = float(start[k] + (models[i][k] - start[k]))
        groups = twin_groups({i: set(masks[i]) for i in DEVICES}, number, 9)
        fleet.close(models, masks)
        for k in SCORED:
            mean = sum(EXAMPLES[i] * seen[i][k] for i in DEVICES) / sum(EXAMPLES.values())
            assert fleet.context.theta[k] == pytest.approx(mean, rel=1e-5, abs=1e-6)
