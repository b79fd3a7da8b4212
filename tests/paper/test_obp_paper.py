"""FedOBP against a slow twin that reads like the paper's pseudo-code, and against torch.quantile.

The twin is Python loops over float32 scalars (IEEE operations in the paper's order, so it must agree
bit for bit) and exact fractions for everything about quantiles. Table 5 and the sizes of the paper's
networks are facts checked on select itself.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import floor
from typing import Literal

import numpy as np
import pytest
import torch
from tests.cloud.contexts import context_of

from sedge_cloud.strategies.fedobp import IMPORTANCE, FedOBP
from sedge_cloud.strategy import ClientModel
from sedge_protocol.codec import SparseVector
from sedge_protocol.importance import kept, select
from sedge_protocol.layout import Layout, Role, Theta

LAYOUT = Layout.of(
    [
        ("conv1.weight", (4, 1, 3, 3), Role.PARAMETER),
        ("conv1.bias", (4,), Role.PARAMETER),
        ("norm.weight", (4,), Role.PARAMETER),
        ("norm.running_mean", (4,), Role.STATISTIC),
        ("norm.num_batches_tracked", (), Role.STATISTIC),
        ("fc1.weight", (5, 8), Role.PARAMETER),
        ("classifier.weight", (3, 5), Role.PARAMETER),
        ("classifier.bias", (3,), Role.PARAMETER),
    ]
)
CLASSIFIER = ("classifier.weight", "classifier.bias")

Scores = dict[int, np.float32]  # place in theta -> score


# The twin -----------------------------------------------------------------------------------------


def twin_importance(own: Theta, shared: Theta, options: FedOBP) -> Scores:
    """Eq. 8: I_k = (th_i,k - th_g,k)^2, or the released logs' |(th_i,k - th_g,k) th_i,k|."""
    scores: Scores = {}
    for tensor in LAYOUT.tensors:
        if tensor.role is Role.STATISTIC:
            continue
        if options.classifier_only and tensor.name not in CLASSIFIER:
            continue
        for k in range(tensor.offset, tensor.offset + tensor.size):
            change = own[k] - shared[k]
            scores[k] = change * change if options.score == "squared" else abs(change * own[k])
    return scores


def twin_smooth(scores: Scores, past: Scores | None, a: float) -> Scores:
    """E <- (1 - a) I + a E, starting from I."""
    if past is None or a == 0:
        return scores
    return {k: np.float32(1 - a) * scores[k] + np.float32(a) * past[k] for k in scores}


def twin_layer_norm(scores: Scores) -> Scores:
    """(I - min) / (max - min) inside each tensor, 0 where max = min."""
    normed: Scores = {}
    for tensor in LAYOUT.tensors:
        inside = {
            k: scores[k] for k in range(tensor.offset, tensor.offset + tensor.size) if k in scores
        }
        for k, score in inside.items():
            low, high = min(inside.values()), max(inside.values())
            normed[k] = (score - low) / (high - low) if high > low else np.float32(0)
    return normed


def twin_global_norm(scores: Scores) -> dict[int, Fraction]:
    """The same min-max over all scores at once, without rounding."""
    exact = {k: Fraction(float(score)) for k, score in scores.items()}
    low, high = min(exact.values()), max(exact.values())
    return {k: (x - low) / (high - low) if high > low else Fraction(0) for k, x in exact.items()}


def twin_personal(scores: Mapping[int, Fraction], q: Fraction) -> set[int]:
    """{k : I_k > tau}, tau = the q-quantile of the scores by linear interpolation."""
    ordered = sorted(scores.values())
    rank = q * (len(ordered) - 1)
    below, share = floor(rank), rank - floor(rank)
    tau = ordered[below]
    if share > 0:
        tau += share * (ordered[below + 1] - ordered[below])
    return {k for k, score in scores.items() if score > tau}


def twin_plan(
    own: Theta, shared: Theta, past: Scores | None, options: FedOBP, q: Fraction
) -> tuple[dict[int, np.float32], Scores]:
    """The personal parameters {place: value} and the device's E."""
    smoothed = twin_smooth(twin_importance(own, shared, options), past, options.ema)
    scores = twin_layer_norm(smoothed) if options.norm == "layer" else smoothed
    exact = {k: Fraction(float(score)) for k, score in scores.items()}
    if options.norm == "global":
        exact = twin_global_norm(scores)
    return {k: own[k] for k in twin_personal(exact, q)}, smoothed


# The strategy against it --------------------------------------------------------------------------

SCORES: tuple[Literal["squared", "product"], ...] = ("squared", "product")
NORMS: tuple[Literal["none", "global", "layer"], ...] = ("none", "global", "layer")
MODELS = ("continuous", "ties", "few", "one tensor equal", "equal")


def model(kind: str, rng: np.random.Generator, shared: Theta) -> Theta:
    """A device's trained model (n,) with a chosen pattern of changes and ties."""
    n = shared.size
    change = {
        "continuous": rng.normal(size=n),
        "ties": rng.integers(-2, 3, n) / 4,
        "few": (rng.random(n) < 0.05) * rng.normal(size=n),
        "one tensor equal": rng.normal(size=n) * ~LAYOUT.mask(["fc1.weight"]),
        "equal": np.zeros(n),
    }[kind]
    return (shared + change).astype(np.float32)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("quantile", ["0.0", "0.9", "0.97", "1.0"])
def test_plans_like_the_paper(kind: str, quantile: str) -> None:
    rng = np.random.default_rng(MODELS.index(kind))
    for score, norm, head, ema in product(SCORES, NORMS, (False, True), (0.0, 0.3)):
        options = FedOBP(float(quantile), score, norm, head, ema, cold_start="init")
        shared = (rng.integers(-8, 9, LAYOUT.size) / 4).astype(np.float32)
        context, known, past = context_of(LAYOUT, shared), ClientModel(), None
        for number in range(3):
            own = context.initial if known.trained is None else known.trained
            planned = options.plan(context, known)
            expected, past = twin_plan(own, context.theta, past, options, Fraction(quantile))
            assert patch_of(planned.patch) == expected
            if ema:
                assert planned.arrays[IMPORTANCE].tolist() == [float(past[k]) for k in sorted(past)]
            else:
                assert planned.arrays == {}
                past = None
            context = replace(context, theta=model("ties", rng, context.theta), round=number + 1)
            known = ClientModel(model(kind, rng, context.theta), number + 1, planned.arrays)


def patch_of(patch: SparseVector | None) -> dict[int, np.float32]:
    if patch is None:
        return {}
    assert patch.indices is not None
    return dict(zip(patch.indices.tolist(), patch.values, strict=True))


# The paper's numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "quantile", "personal"),
    [
        (582_026, 0.99993, 41),  # Table 5, Fashion-MNIST, Dir(.1)
        (582_026, 0.9999, 59),  # Table 5, Fashion-MNIST, Dir(.5)
        (582_026, 0.999705, 172),  # the ablation's logs
        (608_702, 0.995, 3_044),  # EMNIST
        (5_130, 0.9908, 48),  # the classifier of 512 x 10 + 10 alone
    ],
)
def test_counts_of_the_paper_and_of_torch(size: int, quantile: float, personal: int) -> None:
    assert kept(size, quantile) == personal
    scores = np.random.default_rng(size).permutation(size).astype(np.float32)
    chosen = select(scores, quantile)
    assert chosen.size == personal
    assert set(scores[chosen]) == set(range(size - personal, size))
    tensor = torch.from_numpy(scores)
    above = torch.nonzero(tensor > torch.quantile(tensor, quantile)).flatten()
    assert chosen.tolist() == above.tolist()
