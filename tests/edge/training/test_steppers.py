"""Steps over a backend in numpy, against the definitions written out in float64."""

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from sedge_edge.backends.bundle_trainer import Arrays
from sedge_edge.training.steppers.apfl import Mixture
from sedge_edge.training.steppers.model import Differentiated, ModelInTraining
from sedge_edge.training.steppers.single import Single
from sedge_edge.training.steppers.stepper import stepper_of
from sedge_edge.training.trainer import Moments, SecondModel, TrainingState, TrainRequest
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.training import Training

LAYOUT = Layout.of(
    [
        ("weight", (3,), Role.PARAMETER),
        ("bias", (), Role.PARAMETER),
        ("mean", (3,), Role.STATISTIC),
        ("scale", (1,), Role.PARAMETER),
        ("mean.2", (3,), Role.STATISTIC),
    ]
)
N = LAYOUT.size
WEIGHT, BIAS, _, SCALE, _ = (t.slice for t in LAYOUT.tensors)
MEANS = LAYOUT.mask(LAYOUT.statistics)
STEPS = 5
RATE = 0.1
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
    """The statistics after a step."""
    return np.asarray(0.5 * theta[MEANS] + 0.5 * np.tile(x.mean(axis=0), 2))


class Program:
    """A backend that differentiates as an exported program does; keeps what it was asked."""

    def __init__(self) -> None:
        self.lasts: list[bool] = []

    def __call__(self, theta: Theta, batch: Arrays, last: bool) -> Differentiated:
        self.lasts.append(last)
        x, y = exact(batch["x"]), exact(batch["y"])
        gradient, loss = gradient_of(exact(theta), x, y)
        statistics = moved(exact(theta), x).astype(np.float32)
        return Differentiated(gradient.astype(np.float32), loss, statistics)


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
    Training(),
    Training(momentum=0.8),
    Training(prox=0.4),
    Training(momentum=0.8, prox=0.4),
    Training(momentum=0.8, prox=0.4, clip_norm=0.5, weight_decay=0.1),
]
FREEZES: list[tuple[str, ...]] = [(), ("weight",), ("mean", "bias"), tuple(LAYOUT.by_name)]


def mixture(program: Program, sent: Theta, second: SecondModel, training: Training) -> Mixture:
    return Mixture(program, LAYOUT, TrainRequest(sent, training, 0, second=second), second)


def run(plain: Single | Mixture) -> list[list[float]]:
    found = batches()
    return [plain.step(batch, RATE, batch is found[-1]) for batch in found]


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
    program = Program()
    plain = Single(program, LAYOUT, TrainRequest(start, training, 0, anchor, True, correction))
    losses = run(plain)
    assert program.lasts == [False] * (STEPS - 1) + [True]
    wanted = plain.trained(0.0, STEPS).gradient
    theta, velocity, gradient = exact(start), np.zeros(N), np.zeros(N)
    steady = np.zeros(N) if correction is None else exact(correction)
    towards, still = exact(start if anchor is None else anchor), LAYOUT.mask(freeze)
    for batch, (loss,) in zip(batches(), losses, strict=True):
        gradient, expected = gradient_of(theta, exact(batch["x"]), exact(batch["y"]))
        assert loss == pytest.approx(expected, rel=1e-5)
        statistic = moved(theta, exact(batch["x"]))
        whole = gradient + steady + training.prox * (theta - towards)
        whole[still | MEANS] = 0
        if limit := training.clip_norm:
            whole *= limit / max(limit, float(np.linalg.norm(whole)))
        velocity = training.momentum * velocity + whole + training.weight_decay * theta
        theta = theta - RATE * velocity
        theta[MEANS] = statistic
        theta = np.where(still, start, theta)
    np.testing.assert_allclose(plain.model.theta, theta, rtol=0, atol=3e-6)
    assert plain.model.theta[still].tobytes() == start[still].tobytes()
    assert wanted is not None
    np.testing.assert_allclose(wanted, np.where(still, 0, gradient), rtol=0, atol=3e-6)
    assert not wanted[still].any()
    assert not wanted[MEANS].any()
    np.testing.assert_array_equal(start, before)


def test_models_side_by_side_are_those_alone() -> None:
    """Leading axes are models: bit for bit what each would be by itself."""
    clipped = Training(momentum=0.5, prox=0.2, clip_norm=0.5)
    both = np.stack([theta_of(1), theta_of(2)])
    together = ModelInTraining(LAYOUT, TrainRequest(both, clipped, 0))
    alone = [ModelInTraining(LAYOUT, TrainRequest(theta, clipped, 0)) for theta in both]
    for batch in batches():
        found = [Program()(model.theta, batch, False) for model in alone]
        statistics = [one.statistics for one in found if one.statistics is not None]
        gradients = np.stack([one.gradient for one in found])
        together.advance(Differentiated(gradients, None, np.stack(statistics)), RATE)
        for model, one in zip(alone, found, strict=True):
            model.advance(one, RATE)
    for row, model in zip(together.theta, alone, strict=True):
        assert row.tobytes() == model.theta.tobytes()


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_mixture_is_that_of_its_paper(adaptive: bool) -> None:
    """Algorithm 1 of Deng et al. (2020), its mix adapted at the first step only."""
    training, frozen = Training(momentum=0.8, prox=0.4, freeze=("scale",)), LAYOUT.mask(["scale"])
    start, mix = theta_of(1), 0.6
    own, velocity = exact(theta_of(2)), np.zeros(N)
    program = Program()
    both = mixture(program, start, SecondModel(theta_of(2), mix, adaptive), training)
    alone = Single(Program(), LAYOUT, TrainRequest(start, training, 0))
    for step, batch in enumerate(batches()):
        sent, x = exact(alone.model.theta), exact(batch["x"])
        mixed = mix * own + (1 - mix) * sent
        gradient, loss = gradient_of(mixed, x, exact(batch["y"]))
        gradient = np.where(frozen, 0, gradient)
        velocity = 0.8 * velocity + mix * gradient
        if adaptive and step == 0:
            mix -= RATE * float((own - sent) @ gradient)
        own -= RATE * velocity
        own[MEANS] = moved(mixed, x)
        last = step == STEPS - 1
        losses = both.step(batch, RATE, last)
        assert losses == [*alone.step(batch, RATE, last), pytest.approx(loss, rel=1e-5)]
    assert program.lasts == [False] * (2 * STEPS - 1) + [True]
    assert alone.trained(0.0, STEPS).gradient is None
    assert both.mix == pytest.approx(mix, rel=1e-5) and (mix != 0.6) is adaptive
    np.testing.assert_allclose(both.own.theta, own, rtol=0, atol=3e-6)
    assert both.sent.theta.tobytes() == alone.model.theta.tobytes()


def test_the_mix_stays_between_0_and_1() -> None:
    """It goes to the better of two models, though one step would lead far beyond."""
    good, bad = theta_of(1), 100 * theta_of(2)
    for sent, own, wanted in ((good, bad, 0.0), (bad, good, 1.0)):
        both = mixture(Program(), sent, SecondModel(own, 0.5, True), Training())
        both.step(batches()[0], 10.0, True)
        assert both.mix == wanted


ADAM = Training(optimizer="adam")
SECOND = SecondModel(theta_of(2), 0.6, True)
MOMENTS = Moments("adam", 7, (theta_of(4), theta_of(5) ** 2))


@pytest.mark.parametrize(
    ("training", "second", "moments"),
    [
        (Training(momentum=0.8), None, None),
        (structs.replace(ADAM, optimizer_state="keep"), None, MOMENTS),
        (Training(momentum=0.8), SECOND, None),
        (ADAM, None, None),
        (ADAM, SECOND, None),
    ],
)
@pytest.mark.parametrize("made", [0, 2])
def test_steps_go_on_where_they_stopped(
    training: Training, second: SecondModel | None, moments: Moments | None, made: int
) -> None:
    request = TrainRequest(theta_of(1), training, 0, moments=moments, second=second)
    whole, first, rest = (stepper_of(request, LAYOUT, Program()) for _ in range(3))
    for step, batch in enumerate(batches()):
        whole.step(batch, RATE, False)
        if step == made:
            rest.resume(TrainingState(made, (), tuple(first.vectors()), first.mix))
        (first if step < made else rest).step(batch, RATE, False)
    for one, other in zip(rest.vectors(), whole.vectors(), strict=True):
        np.testing.assert_array_equal(one, other)
    ended = rest.trained(0.5, STEPS)
    models, mix = [ended.theta], 0.0
    if ended.second is not None:
        models, mix = [*models, ended.second.theta], ended.second.mix
    np.testing.assert_array_equal(models, whole.models())
    assert (mix, rest.mix, len(models)) == (whole.mix, whole.mix, 2 if second else 1)
    assert (ended.loss, ended.steps) == (0.5, STEPS)
    if moments is None:
        assert ended.moments is None
    else:
        assert ended.moments is not None and ended.moments.optimizer == "adam"
        assert ended.moments.steps == moments.steps + STEPS
        np.testing.assert_array_equal(ended.moments.vectors, whole.vectors()[1:])
