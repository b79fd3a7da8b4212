"""FedAMP against HeurFedAMP as Huang et al. (2021) write it, in plain loops over lists."""

import math

import numpy as np
import pytest
from tests.paper.toy_clusters import DEVICES, EXAMPLES, LAYOUT, Fleet, trained

from sedge_cloud.strategies.fedamp import FedAMP

LOCAL = LAYOUT.mask(LAYOUT.statistics)
SHARED = [k for k in range(LAYOUT.size) if not LOCAL[k]]


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(a[k] * b[k] for k in SHARED)
    return dot / math.sqrt(sum(a[k] ** 2 for k in SHARED) * sum(b[k] ** 2 for k in SHARED))


def cloud_model(i: str, w: dict[str, list[float]], own: float, sigma: float) -> list[float]:
    """u_i: the self-weight, and the rest by e^(sigma cos) among all others."""
    others = [j for j in w if j != i]
    attention = {j: math.exp(sigma * cosine(w[i], w[j])) for j in others}
    xi = {j: (1 - own) * attention[j] / sum(attention.values()) for j in others}
    xi[i] = own if others else 1.0
    return [sum(xi[j] * w[j][k] for j in xi) for k in range(LAYOUT.size)]


@pytest.mark.parametrize(
    ("own", "sigma", "cohort"), [(0.5, 5.0, 6), (0.1, 20.0, 3), (1.0, 1.0, 4), (0.0, 0.0, 2)]
)
def test_start_vectors_are_the_papers_cloud_models(own: float, sigma: float, cohort: int) -> None:
    rng = np.random.default_rng(3)
    fleet, known = Fleet.of(FedAMP(own, sigma, pull=0.3), 0), dict[str, list[float]]()
    for _ in range(5):
        devices = sorted(rng.choice(DEVICES, cohort, replace=False).tolist())
        fleet.plan(devices)
        before = [float(v) for v in fleet.context.theta]
        models = {
            device: trained(start, device, rng) for device, (_, start) in fleet.starts.items()
        }
        for device, (given, start) in fleet.starts.items():
            expected = cloud_model(device, known, own, sigma) if device in known else before
            np.testing.assert_allclose(
                start[SHARED], np.array(expected)[SHARED], rtol=1e-5, atol=1e-6
            )
            assert given.work.training is not None and given.work.training.prox == 0.3
        fleet.close(models, dict.fromkeys(devices))
        known |= {device: [float(v) for v in model] for device, model in models.items()}
        count = sum(EXAMPLES[device] for device in devices)
        mean = [sum(EXAMPLES[d] * known[d][k] for d in devices) / count for k in SHARED]
        np.testing.assert_allclose(fleet.context.theta[SHARED], mean, rtol=1e-4, atol=1e-5)


def test_an_untrusted_device_starts_from_the_mean() -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet.of(FedAMP(), 0)
    fleet.plan(DEVICES)
    models = {d: trained(start, d, rng) for d, (_, start) in fleet.starts.items()}
    fleet.close(models, dict.fromkeys(DEVICES))
    client = fleet.known["a"]
    assert fleet.strategy.plan(fleet.context, client).start is not None
    distrusted = type(client)(client.trained, client.round, device="a", counted=0.0)
    assert fleet.strategy.plan(fleet.context, distrusted).start is None
