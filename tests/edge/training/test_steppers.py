"""Descents over a step program in numpy, against the definitions written out in float64."""

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from sedge_edge.training.steppers import Arrays, MixtureStepper, PlainStepper
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import Training

LAYOUT = Layout.of(
    [
        ("weight", (3,), Role.PARAMETER),
        ("bias", (), Role.PARAMETER),
        ("mean", (3,), Role.STATISTIC),
        ("scale", (1,), Role.PARAMETER),
    ]
)
N = LAYOUT.size
WEIGHT, BIAS, MEAN, SCALE = (t.slice for t in LAYOUT.tensors)
STEPS = 5
Vector = NDArray[np.float64]


def gradient_of(theta: Vector, x: Vector, y: Vector) -> tuple[Vector, float]:
    """Of the mean of (scale (x weight) + bias - y)^2 / 2."""
    product = x @ theta[WEIGHT]
    error = theta[SCALE] * product + theta[BIAS] - y
    gradient = np.zeros(N)
    gradient[WEIGHT] = theta[SCALE] * (error @ x) / len(y)
    gradient[BIAS] = error.mean()
    gradient[SCALE] = (error * product).mean()
    return gradient, float((error**2).mean() / 2)


def moved(theta: Vector, x: Vector) -> Vector:
    """The statistic after a step."""
    return np.asarray(0.5 * theta[MEAN] + 0.5 * x.mean(axis=0))


class Program:
    """A step program as an exported one is; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def __call__(self, name: str, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        self.asked.append((name, last))
        theta, velocity = feeds["theta"].astype(np.float32), feeds["velocity"].astype(np.float32)
        x, y = feeds["x"].astype(np.float64), feeds["y"].astype(np.float64)
        exact, loss = gradient_of(theta.astype(np.float64), x, y)
        gradient = exact.astype(np.float32)
        if name == "train_prox":
            pull = (feeds["prox"] * (theta - feeds["anchor"])).astype(np.float32)
            pull[MEAN] = 0
            gradient = gradient + pull
        velocity = (feeds["momentum"] * velocity + gradient).astype(np.float32)
        end = (theta - feeds["learning_rate"] * velocity).astype(np.float32)
        end[MEAN] = moved(theta.astype(np.float64), x)
        return [end, velocity, np.array(loss, np.float32)]


def batches(seed: int = 0) -> list[Arrays]:
    rng = np.random.default_rng(seed)
    return [
        {
            "x": rng.normal(size=(4, 3)).astype(np.float32),
            "y": rng.integers(0, 3, 4),
            "w": np.ones(4, np.float32),
        }
        for _ in range(STEPS)
    ]


def theta_of(seed: int) -> Theta:
    return np.random.default_rng(seed).normal(size=N).astype(np.float32)


def exact(array: NDArray[np.float32 | np.int64]) -> Vector:
    return array.astype(np.float64)


TRAININGS = [
    Training(learning_rate=0.1),
    Training(learning_rate=0.1, momentum=0.8),
    Training(learning_rate=0.1, prox=0.4),
    Training(learning_rate=0.1, momentum=0.8, prox=0.4),
]
FREEZES: list[tuple[str, ...]] = [(), ("weight",), ("mean", "bias"), tuple(LAYOUT.by_name)]


def run(plain: PlainStepper | MixtureStepper) -> list[list[float]]:
    found = batches()
    return [plain.step(batch, batch is found[-1]) for batch in found]


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("freeze", FREEZES)
@pytest.mark.parametrize("added", [False, True])
def test_a_plain_descent(training: Training, freeze: tuple[str, ...], added: bool) -> None:
    """theta, the losses and the last gradient are the definition's; frozen tensors keep every bit.

    With an anchor and a correction, or neither; the gradient is without both.
    """
    training = structs.replace(training, freeze=freeze)
    start, anchor = theta_of(1), theta_of(2) if added else None
    correction = theta_of(3) if added else None
    before = start.copy()
    plain = PlainStepper(Program(), LAYOUT, start, training, anchor, True, correction)
    losses = run(plain)
    theta, velocity, gradient = exact(start), np.zeros(N), np.zeros(N)
    steady = np.zeros(N) if correction is None else exact(correction)
    towards, still = exact(start if anchor is None else anchor), LAYOUT.mask(freeze)
    for batch, (loss,) in zip(batches(), losses, strict=True):
        gradient, expected = gradient_of(theta, exact(batch["x"]), exact(batch["y"]))
        assert loss == pytest.approx(expected, rel=1e-5)
        statistic = moved(theta, exact(batch["x"]))
        velocity = training.momentum * velocity + gradient + steady
        velocity += training.prox * (theta - towards)
        theta = theta - training.learning_rate * velocity
        theta[MEAN] = statistic
        theta = np.where(still, start, theta)
    np.testing.assert_allclose(plain.theta, theta, rtol=0, atol=3e-6)
    assert plain.theta[still].tobytes() == start[still].tobytes()
    assert plain.gradient is not None
    np.testing.assert_allclose(plain.gradient, np.where(still, 0, gradient), rtol=0, atol=3e-6)
    assert not plain.gradient[still].any()
    assert not plain.gradient[MEAN].any()
    np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("training", TRAININGS)
def test_asking_for_the_gradient_changes_nothing(training: Training) -> None:
    silent, asking = Program(), Program()
    without = PlainStepper(silent, LAYOUT, theta_of(1), training)
    plain = PlainStepper(asking, LAYOUT, theta_of(1), training, wants_gradient=True)
    assert run(without) == run(plain)
    assert without.theta.tobytes() == plain.theta.tobytes()
    assert without.gradient is None
    hidden = training.momentum > 0 or training.prox > 0
    assert len(silent.asked) == STEPS
    assert len(asking.asked) == STEPS + hidden, "one more run where the outputs do not show it"
    name = "train_prox" if training.prox else "train"
    assert {asked for asked, _ in asking.asked} == {name}, "no program is loaded for it"
    assert [last for _, last in asking.asked] == [False] * (STEPS - 1 + hidden) + [True]


def test_the_gradient_is_exact_at_any_learning_rate() -> None:
    """Where a difference of thetas would have nothing left of it."""
    tiny = Training(learning_rate=1e-9, momentum=0.99, prox=10.0)
    plain = PlainStepper(Program(), LAYOUT, theta_of(1), tiny, theta_of(2), wants_gradient=True)
    run(plain)
    last = batches()[-1]
    wanted, _ = gradient_of(exact(theta_of(1)), exact(last["x"]), exact(last["y"]))
    assert plain.gradient is not None
    np.testing.assert_allclose(plain.gradient, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("freeze", FREEZES)
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_mixture_is_algorithm_1(
    training: Training, freeze: tuple[str, ...], adaptive: bool
) -> None:
    """Written out step by step; all of a step's gradients are where the step before ended."""
    training = structs.replace(training, freeze=freeze)
    start, first_own, still = theta_of(1), theta_of(2), LAYOUT.mask(freeze)
    program = Program()
    both = MixtureStepper(program, LAYOUT, start, first_own, 0.4, adaptive, training)
    losses = run(both)
    alone = PlainStepper(Program(), LAYOUT, start, training)
    own, own_velocity, alpha = exact(first_own), np.zeros(N), 0.4
    for step, (batch, found) in enumerate(zip(batches(), losses, strict=True)):
        sent = exact(alone.theta)
        x, y = exact(batch["x"]), exact(batch["y"])
        mixture = alpha * own + (1 - alpha) * sent
        slope, loss = gradient_of(mixture, x, y)
        slope[still] = 0
        assert found[1] == pytest.approx(loss, rel=1e-5)
        before = own
        own_velocity = training.momentum * own_velocity + alpha * slope
        own = own - training.learning_rate * own_velocity
        own[MEAN] = moved(mixture, x)
        own = np.where(still, first_own, own)
        if adaptive and step == 0:
            alpha -= training.learning_rate * float((before - sent) @ slope)
            alpha = min(1.0, max(0.0, alpha))
        assert alone.step(batch, step == STEPS - 1) == found[:1]
    assert both.sent.theta.tobytes() == alone.theta.tobytes()
    np.testing.assert_allclose(both.own, own, rtol=0, atol=3e-6)
    assert both.own[still].tobytes() == first_own[still].tobytes()
    assert both.mix == pytest.approx(alpha, abs=1e-6)
    assert len(program.asked) == 2 * STEPS
    assert [last for _, last in program.asked] == [False] * (2 * STEPS - 1) + [True]
    np.testing.assert_array_equal(first_own, theta_of(2))


def test_the_mix_stays_between_0_and_1() -> None:
    """It goes to the better of two models, though one step would lead far beyond."""
    good, bad = theta_of(1), 100 * theta_of(2)
    fast = Training(learning_rate=10.0)
    for sent, own, wanted in ((good, bad, 0.0), (bad, good, 1.0)):
        both = MixtureStepper(Program(), LAYOUT, sent, own, 0.5, True, fast)
        both.step(batches()[0], True)
        assert both.mix == wanted
