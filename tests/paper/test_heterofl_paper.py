"""HeteroFL and FedRolex against slow twins that read like the papers: loops over channels, one by one."""

import itertools
from math import ceil

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.contexts import follow
from tests.cloud.forms import context_of

from sedge_cloud.algorithms.submodels import form_of
from sedge_cloud.strategies.fedrolex import FedRolex
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import ClientModel, Context, State, Update
from sedge_protocol.axes import Axes
from sedge_protocol.layout import Layout, Role

F, P = -1, 4  # a fixed dimension; positions behind the flattened image
WIDTHS = (5, 3, 4)
AXES = Axes(WIDTHS, ((0, F), (0,), (1, 0), (2, 1), (2,), (F, 2)))
LAYOUT = Layout.of(
    [
        ("conv1.weight", (5, 2), Role.PARAMETER),
        ("conv1.bias", (5,), Role.PARAMETER),
        ("conv2.weight", (3, 5), Role.PARAMETER),
        ("fc.weight", (4, 3 * P), Role.PARAMETER),
        ("fc.bias", (4,), Role.PARAMETER),
        ("classifier.weight", (2, 4), Role.PARAMETER),
    ]
)
DROPPED = (0.0, 0.25, 0.5, 0.8)

Values = NDArray[np.float32]
Element = tuple[str, tuple[int, ...]]


# The twins ----------------------------------------------------------------------------------------


def twin_channels(method: str, width: int, dropped: float, round: int) -> list[int]:
    """HeteroFL: the first (1 - dropped) K channels; FedRolex: as many from j mod K on, round the end.

    The whole model is not rolled: in another order it would be the same.
    """
    count = ceil((1 - dropped) * width)
    if method == "heterofl" or dropped == 0:
        return list(range(count))
    return [(round % width + k) % width for k in range(count)]


def twin_elements(method: str, dropped: float, round: int) -> list[Element]:
    """The sub-model's elements in its own order, by their places in the whole model."""
    first, second, third = (twin_channels(method, width, dropped, round) for width in WIDTHS)
    flat = [channel * P + position for channel in second for position in range(P)]
    rows = {
        "conv1.weight": (first, range(2)),
        "conv1.bias": (first,),
        "conv2.weight": (second, first),
        "fc.weight": (third, flat),
        "fc.bias": (third,),
        "classifier.weight": (range(2), third),
    }
    return [(name, place) for name, dims in rows.items() for place in itertools.product(*dims)]


def twin_aggregate(
    views: dict[str, Values], sent: list[tuple[dict[Element, float], float]]
) -> dict[Element, float]:
    """theta_k = the mean, by weights, over the devices that have k; who nobody has stays."""
    after: dict[Element, float] = {}
    for name, values in views.items():
        for place in itertools.product(*map(range, values.shape)):
            total = weights = 0.0
            for model, weight in sent:
                if (name, place) in model:
                    total += weight * model[name, place]
                    weights += weight
            after[name, place] = total / weights if weights else float(values[place])
    return after


# The strategies against them ----------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
@pytest.mark.parametrize("dropped", [DROPPED, (0.5,)])
def test_trains_like_the_paper(method: str, weighting: str, dropped: tuple[float, ...]) -> None:
    kind = HeteroFL if method == "heterofl" else FedRolex
    uniform = weighting == "uniform"
    strategy = kind(dropped=dropped, weighting="uniform" if uniform else "examples")
    assert strategy.name == method
    rng = np.random.default_rng(len(dropped))
    theta = rng.normal(size=LAYOUT.size).astype(np.float32)
    context = context_of(LAYOUT, AXES, theta, DROPPED[1:])
    for _ in range(7):
        context = follow(context, one_round(strategy, method, context, rng, uniform))


def one_round(
    strategy: HeteroFL, method: str, context: Context, rng: np.random.Generator, uniform: bool
) -> State:
    """A round of five devices, compared with the twin's."""
    views = LAYOUT.views(context.theta)
    updates: list[Update] = []
    sent: list[tuple[dict[Element, float], float]] = []
    for device in range(5):
        plan = strategy.plan(context, ClientModel(device=f"d{device}"))
        dropped = context.widths[plan.width].dropped
        assert dropped == strategy.dropped[device % len(strategy.dropped)]
        elements = twin_elements(method, dropped, context.round)
        start = context.theta if plan.start is None else plan.start
        assert start.tolist() == [views[name][place] for name, place in elements]
        assert start.size == form_of(context, plan.width).layout.size
        trained = start + rng.normal(size=start.size).astype(np.float32)
        examples = int(rng.integers(1, 100))
        updates.append(Update(f"d{device}", examples, trained, width=plan.width))
        model = dict(zip(elements, map(float, trained), strict=True))
        sent.append((model, 1.0 if uniform else examples))
    after = strategy.apply(context, updates)
    expected = twin_aggregate(views, sent)
    for name, values in LAYOUT.views(after.theta).items():
        for place in itertools.product(*map(range, values.shape)):
            assert values[place] == pytest.approx(expected[name, place], rel=1e-5, abs=1e-6)
    return after
