"""FedCAC against a slow twin that reads like the paper: loops, float32 only where ranks depend on it.

Sensitivities are float32 products, as on a device or in the strategy, so that masks agree element by
element; overlaps and thresholds are exact fractions, averages Python floats.
"""

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

from sedge_cloud.strategies.fedcac import FedCAC, critical_places
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Layout, Role, Theta

SHARED = [
    k
    for t in LAYOUT.tensors
    if t.role is Role.PARAMETER
    for k in range(t.offset, t.offset + t.size)
]
LOCAL = [k for k in range(LAYOUT.size) if k not in SHARED]


# The twin -----------------------------------------------------------------------------------------


def twin_mask(layout: Layout, change: Theta, theta: Theta, tau: float) -> list[int]:
    """v = |dtheta theta|, of each layer the largest tau; the authors' rule for tiny thresholds."""
    mask: list[int] = []
    for tensor in layout.tensors:
        if tensor.role is Role.STATISTIC:
            continue
        sensitivity: dict[int, np.float32] = {}
        for k in range(tensor.offset, tensor.offset + tensor.size):
            sensitivity[k] = abs(change[k] * theta[k])
        count = int(tau * tensor.size)
        bar = sorted(sensitivity.values(), reverse=True)[count - 1] if count else np.float32(np.inf)
        if bar <= 1e-10:
            alive = [v for v in sensitivity.values() if v > 1e-20]
            bar = min(alive) if alive else np.float32(np.inf)
        mask += [k for k, v in sensitivity.items() if v >= bar]
    return mask


@dataclass
class Twin:
    tau: float
    beta: int
    g: list[float]
    t: int = 0
    theta: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    masks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def start(self, i: str) -> list[float]:
        """u_i on the critical elements, the global model elsewhere."""
        theta = list(self.g)
        members = [] if self.t > self.beta else self.groups.get(i, [])
        for k in self.masks.get(i, []):
            values = [self.theta[j][k] for j in [i, *members]]
            theta[k] = sum(values) / len(values)
        return theta

    def close(self, changes: dict[str, Theta], models: dict[str, Theta]) -> None:
        """Masks, overlaps, groups of those who took part, and the global model."""
        self.t += 1
        for i in sorted(models):
            self.masks[i] = twin_mask(LAYOUT, changes[i], models[i], self.tau)
            self.theta[i] = [float(v) for v in models[i]]
        masks = {i: self.masks[i] for i in sorted(models)}
        self.groups |= twin_groups(masks, self.t, self.beta)
        examples = sum(EXAMPLES[i] for i in models)
        for k in SHARED:
            self.g[k] = sum(EXAMPLES[i] * self.theta[i][k] for i in sorted(models)) / examples


# The strategy against it --------------------------------------------------------------------------


def play(strategy: FedCAC, seed: int, rounds: int, cohort: int, other: float = 0.05) -> Fleet:
    """Rounds of the strategy and of the twin, side by side; the fleet at the end."""
    rng = np.random.default_rng(seed)
    fleet = Fleet.of(strategy, seed)
    twin = Twin(strategy.fraction, strategy.beta, [float(v) for v in fleet.context.theta])
    for _ in range(rounds):
        devices = sorted(rng.choice(DEVICES, cohort, replace=False).tolist())
        own = dict(fleet.own)
        fleet.plan(devices)
        models: dict[str, Theta] = {}
        for device, (given, start) in fleet.starts.items():
            expected = np.array(twin.start(device), np.float32)
            np.testing.assert_allclose(start[SHARED], expected[SHARED], rtol=1e-5, atol=1e-6)
            assert places_of(given.patch) == twin.masks.get(device, [])
            if device in own:  # statistics never leave the device
                np.testing.assert_array_equal(start[LOCAL], own[device][LOCAL])
            models[device] = trained(start, device, rng, other)
        changes = {device: models[device] - start for device, (_, start) in fleet.starts.items()}
        seen: dict[str, Theta] = {}
        for device, change in changes.items():  # the model as the coordinator decodes it
            seen[device] = np.add(fleet.starts[device][1], change, dtype=np.float32)
        fleet.close(models, dict.fromkeys(devices))
        twin.close(changes, seen)
        np.testing.assert_allclose(
            fleet.context.theta[SHARED], np.array(twin.g, np.float32)[SHARED], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(fleet.context.theta[LOCAL], fleet.context.initial[LOCAL])
        require_groups(fleet.context, twin.groups, strategy.beta)
    return fleet


def places_of(patch: SparseVector | None) -> list[int]:
    if patch is None or patch.indices is None:
        return []
    return [int(k) for k in patch.indices]


@pytest.mark.parametrize("seed", range(2))
def test_six_devices_like_the_paper(seed: int) -> None:
    play(FedCAC(0.5, beta=4), seed, rounds=7, cohort=6)


@pytest.mark.parametrize("cohort", [1, 2, 4])
@pytest.mark.parametrize("fraction", [0.2, 0.7, 1.0])
def test_some_of_six_devices(cohort: int, fraction: float) -> None:
    for seed in range(2):
        play(FedCAC(fraction, beta=8), seed, rounds=12, cohort=cohort)


@pytest.mark.parametrize("other", [1e-6, 0.0])
def test_training_that_changes_half_of_the_elements(other: float) -> None:
    for seed in range(2):
        play(FedCAC(0.7, beta=6), seed, rounds=5, cohort=6, other=other)


def test_the_planted_clusters_are_found() -> None:
    require_clusters(play(FedCAC(0.5, beta=100), seed=1, rounds=3, cohort=6).context)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-9, 1e-15, 0.0])
@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_critical_elements_of_random_changes(scale: float, tau: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(10):
        theta = rng.normal(size=LAYOUT.size).astype(np.float32)
        sizes = scale * rng.choice([0, 1e-6, 1], LAYOUT.size)
        change = (sizes * rng.integers(-3, 4, LAYOUT.size)).astype(np.float32)  # with ties
        found = critical_places(LAYOUT, SparseVector(LAYOUT.size, None, change), theta, tau)
        assert found.tolist() == twin_mask(LAYOUT, change, theta, tau)
