"""SubFLOT as a coordinator sees it: first rounds, options, invariants. The paper is in tests/paper."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.cloud.forms import RESIDUAL, context_of, random_theta, residual
from tests.fleet import always

from sedge_cloud.algorithms import optimal_transport as transport
from sedge_cloud.algorithms.submodels import form_of, places_of, prefix
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategies.subflot import SubFLOT
from sedge_cloud.strategy import ClientModel, Update
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import MAX_PROX, Training

RNG = np.random.default_rng(0)
LAYOUT = residual().layout
THETA = random_theta(LAYOUT, RNG)
DROPPED = (0.0, 0.25, 0.5, 0.75)
TRAINING = Training(local_epochs=5, learning_rate=0.01, prox=0.5)
CONTEXT = replace(context_of(LAYOUT, RESIDUAL, THETA, DROPPED[1:]), training=TRAINING)
FORMS = [form_of(CONTEXT, width) for width in range(4)]


def a_past(width: int, seed: int = 1) -> ClientModel:
    own = random_theta(FORMS[width].layout, np.random.default_rng(seed))
    return ClientModel(own, 3, device=f"d{width}", width=width)


def start_of(strategy: SubFLOT, client: ClientModel) -> Theta:
    start = strategy.plan(CONTEXT, client).start
    assert start is not None
    return start


def first_channels(width: int) -> Theta:
    return THETA[places_of(FORMS[0], FORMS[width], prefix(FORMS[width]))]


def test_a_past_of_another_width_is_none() -> None:
    client = replace(a_past(1), device="d3")
    np.testing.assert_array_equal(start_of(SubFLOT(dropped=DROPPED), client), first_channels(3))


def test_a_past_that_is_not_trusted_is_none() -> None:
    client = replace(a_past(2), counted=0.0)
    np.testing.assert_array_equal(start_of(SubFLOT(dropped=DROPPED), client), first_channels(2))
    assert SubFLOT().plan(CONTEXT, replace(a_past(0), counted=0.0)).start is None


@pytest.mark.parametrize(
    ("steps", "training"),
    [
        (59, Training(learning_rate=0.001)),
        (117, Training(learning_rate=0.01, momentum=0.7)),
        (3, Training(learning_rate=0.5)),
        (200, Training(learning_rate=0.1, warmup_steps=50, end_factor=0.1)),
        (40, Training(learning_rate=0.1, warmup_steps=50, end_factor=3)),
    ],
)
def test_a_pull_means_the_same_whatever_the_steps_and_rates(steps: int, training: Training) -> None:
    """A model pulled by nothing else, which begins at distance 1 from its start."""
    context = replace(CONTEXT, training=training)
    for width, dropped in enumerate(DROPPED):
        client = replace(a_past(width), steps=steps)
        pulled = SubFLOT(dropped=DROPPED, pull=0.3).plan(context, client).work.training
        if not width:
            assert pulled is None
            continue
        assert pulled is not None
        assert msgspec.structs.replace(pulled, prox=0.0) == training
        distance, velocity = 1.0, 0.0
        for step in range(steps):
            velocity = training.momentum * velocity + pulled.prox * distance
            distance -= training.rate(step, steps) * velocity
        assert distance == pytest.approx(0.7**dropped, rel=0.01)


@pytest.mark.parametrize(
    ("steps", "prox"),
    [
        (1, MAX_PROX),  # whose rate is 1e-8
        (2**40, pytest.approx(0.5 * 0.1165 / (2**40 * 0.001), rel=0.01)),  # takes no longer
    ],
)
def test_no_number_of_steps_that_a_device_reports_stops_a_run(steps: int, prox: float) -> None:
    training = Training(learning_rate=0.001, warmup_steps=100_000)
    client = replace(a_past(2), steps=steps)
    context = replace(CONTEXT, training=training)
    pulled = SubFLOT(dropped=DROPPED).plan(context, client).work.training
    assert pulled is not None and pulled.prox == prox


def test_the_pull_is_added_to_the_runs_prox_and_needs_a_past() -> None:
    client = replace(a_past(2), steps=100)
    strategy = SubFLOT(dropped=DROPPED)
    pulled = strategy.plan(CONTEXT, client).work.training
    assert pulled is not None and pulled.prox > CONTEXT.training.prox
    assert strategy.plan(CONTEXT, a_past(2)).work.training is None  # of unknown steps
    assert SubFLOT(dropped=DROPPED, sar=False).plan(CONTEXT, client).work.training is None


def test_without_transport_it_is_heterofl_with_a_pull() -> None:
    bare = SubFLOT(dropped=DROPPED, otp=False, ota=False, sar=False)
    plain = HeteroFL(dropped=DROPPED, weighting="examples")
    updates: list[Update] = []
    for width in range(4):
        planned = bare.plan(CONTEXT, a_past(width))
        expected = plain.plan(CONTEXT, a_past(width))
        assert (planned.start is None) == (expected.start is None)
        if planned.start is not None and expected.start is not None:
            np.testing.assert_array_equal(planned.start, expected.start)
        own = random_theta(FORMS[width].layout, np.random.default_rng(width))
        updates.append(Update(f"d{width}", 3 + width, own, width=width))
    after = bare.apply(CONTEXT, updates).theta
    np.testing.assert_array_equal(after, plain.apply(CONTEXT, updates).theta)
    assert not np.array_equal(after, SubFLOT().apply(CONTEXT, updates).theta)


def test_a_run_does_not_begin_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "find_spec", always(None))
    with pytest.raises(ConfigError, match="SciPy"):
        SubFLOT().init(CONTEXT)
    SubFLOT(solver="sinkhorn").init(CONTEXT)
    SubFLOT(otp=False, ota=False).init(CONTEXT)
