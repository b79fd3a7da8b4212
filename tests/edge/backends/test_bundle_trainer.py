"""BundleTrainer in each backend, on the same hand-made model, against a numpy twin."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from tests.edge.backends.softmax import (
    PROGRAMS,
    B,
    C,
    F,
    N,
    bundle,
    examples,
    never,
    start,
    twin,
    twin_losses,
)

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.training.batches import batches
from sedge_edge.training.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import (
    SecondModel,
    Trained,
    Trainer,
    TrainingDiverged,
    TrainingState,
    TrainingStopped,
    TrainRequest,
)
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import EXECUTORCH, TORCH
from sedge_protocol.wire.training import LastBatch, OptimizerName, Training

CODE = UserCode(Path(__file__).parent, "softmax_module:build")


@pytest.fixture(scope="module", params=(*PROGRAMS, pytest.param(TORCH, marks=pytest.mark.host)))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == EXECUTORCH:
        request.getfixturevalue("executorch_libraries")
    return name


def opened(backend: str, uses_batch_statistics: bool = False) -> Trainer:
    programs = PROGRAMS.get(backend, {})
    return open_trainer(bundle(programs, backend, uses_batch_statistics), backend, 1, CODE)


@pytest.fixture(scope="module")
def trainer(backend: str) -> Trainer:
    return opened(backend)


@pytest.mark.parametrize("last_batch", ["pad", "fill", "drop"])
@pytest.mark.parametrize("count", [2, 11])
def test_training_agrees_with_the_twin(trainer: Trainer, last_batch: LastBatch, count: int) -> None:
    training = Training(3, 0.1, 0.9, 0.5, last_batch)
    theta, data = start(), examples(count)
    before = theta.copy()
    trained = trainer.train(TrainRequest(theta, training, 7), data, never)
    expected, loss, steps = twin(theta, data, training, 7, safe=True)
    np.testing.assert_array_equal(theta, before)
    np.testing.assert_allclose(trained.theta, expected, atol=2e-6)
    assert trained.loss == pytest.approx(loss, abs=2e-6)
    assert trained.steps == steps
    assert trained.theta.dtype == np.float32


def test_batch_statistics_turn_padding_into_filling(backend: str) -> None:
    trainer = opened(backend, uses_batch_statistics=True)
    theta, data, training = start(), examples(6), Training(2, 0.1)
    expected = twin(theta, data, training, 7, safe=False)[0]
    trained = trainer.train(TrainRequest(theta, training, 7), data, never)
    np.testing.assert_allclose(trained.theta, expected, atol=2e-6)
    assert not np.allclose(expected, twin(theta, data, training, 7, safe=True)[0], atol=1e-4)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_evaluation_and_prediction(trainer: Trainer, count: int) -> None:
    theta, data = start(), examples(count)
    rows, _ = twin_losses(theta.astype(np.float64), data.inputs.astype(np.float64), data.targets)
    logits = data.inputs @ theta[: F * C].reshape(F, C) + theta[F * C :]
    metrics = trainer.evaluate(theta, data)
    assert metrics.loss == pytest.approx(rows.mean(), abs=1e-5)
    assert metrics.metric == pytest.approx((logits.argmax(axis=1) == data.targets).mean())
    assert metrics.num_examples == count
    found = trainer.predictor(theta)(data.inputs)
    assert found.shape == (count, C)
    np.testing.assert_allclose(found, logits, atol=1e-5)


def test_frozen_tensors_and_an_anchor(trainer: Trainer) -> None:
    data, anchor = examples(11), start(2)
    training = Training(3, 0.1, 0.5, 0.3)
    free = trainer.train(TrainRequest(start(), training, 7, anchor=anchor), data, never).theta
    around = trainer.train(TrainRequest(start(), training, 7), data, never).theta
    assert np.linalg.norm(free - anchor) < np.linalg.norm(around - anchor)
    for name, place in (("W", slice(0, F * C)), ("b", slice(F * C, N))):
        frozen = structs.replace(training, freeze=(name,))
        found = trainer.train(TrainRequest(start(), frozen, 7, anchor=anchor), data, never).theta
        assert found[place].tobytes() == start()[place].tobytes()
        assert (np.delete(found, place) != np.delete(start(), place)).all()
    with pytest.raises(CodecError, match="no tensor named 'c'"):
        trainer.train(TrainRequest(start(), Training(freeze=("W", "c")), 7), data, never)
    with pytest.raises(CodecError, match="theta"):
        trainer.train(TrainRequest(start(), training, 7, anchor=anchor[:-1]), data, never)


@pytest.mark.parametrize(("momentum", "prox"), [(0.0, 0.0), (0.5, 0.1)])
def test_the_last_batchs_gradient(trainer: Trainer, momentum: float, prox: float) -> None:
    data = examples(8)  # two whole batches
    training = Training(1, 0.1, momentum, prox)
    trained = trainer.train(TrainRequest(start(), training, 7, gradient=True), data, never)
    silent = trainer.train(TrainRequest(start(), training, 7), data, never)
    assert trained.theta.tobytes() == silent.theta.tobytes()
    assert silent.gradient is None
    first, last = batches(8, B, 1, "pad", 7, True)
    one = Examples(data.inputs[first.indices], data.targets[first.indices])
    before = trainer.train(TrainRequest(start(), training, 0), one, never).theta
    y = data.targets[last.indices].astype(int)
    x = data.inputs[last.indices].astype(np.float64)
    error = (twin_losses(before.astype(np.float64), x, y)[1] - np.eye(C)[y]) / B
    wanted = np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)])
    assert trained.gradient is not None
    np.testing.assert_allclose(trained.gradient, wanted, rtol=0, atol=1e-6)


def test_the_mean_of_the_last_models(trainer: Trainer) -> None:
    """Of the last three of five epochs of one step each, and of as many trainings that end there."""
    data, training = examples(B), Training(5, 0.3, average=0.6)
    trained = trainer.train(TrainRequest(start(), training, 7), data, never)
    plain = [structs.replace(training, local_epochs=n, average=0) for n in (3, 4, 5)]
    ends = [trainer.train(TrainRequest(start(), one, 7), data, never).theta for one in plain]
    assert trained.theta.tobytes() == ends[-1].tobytes()
    np.testing.assert_allclose(trained.model, np.mean(ends, axis=0), atol=1e-6)
    assert np.abs(trained.model - trained.theta).max() > 1e-3


def test_two_models_side_by_side(trainer: Trainer) -> None:
    """The sent one ends as alone; the own one, with mix 1, as if it were the only one."""
    data, training = examples(11), Training(2, 0.1, 0.5)
    sent, own = start(1), start(2)
    whole = SecondModel(own, 1.0, False)
    mixed = trainer.train(TrainRequest(sent, training, 7, second=whole), data, never)
    alone = trainer.train(TrainRequest(sent, training, 7), data, never)
    assert mixed.theta.tobytes() == alone.theta.tobytes()
    assert (mixed.loss, mixed.steps) == (alone.loss, alone.steps)
    expected, _, _ = twin(own, data, training, 7, safe=True)
    assert mixed.second is not None
    np.testing.assert_allclose(mixed.second.theta, expected, atol=2e-6)
    assert mixed.second.mix == 1.0
    np.testing.assert_array_equal(own, start(2))
    pulled = structs.replace(training, prox=0.3)
    again = trainer.train(TrainRequest(sent, pulled, 7, second=whole), data, never)
    assert again.second is not None  # prox is sent's alone
    np.testing.assert_allclose(again.second.theta, expected, atol=2e-6)
    assert (again.theta != alone.theta).any()
    half = SecondModel(own, 0.5, True)
    adapted = trainer.train(TrainRequest(sent, training, 7, second=half), data, never)
    assert adapted.second is not None
    assert 0 <= adapted.second.mix <= 1 and adapted.second.mix != 0.5


def test_stopping_at_each_step(trainer: Trainer) -> None:
    data, training = examples(11), Training(2, 0.1)  # 3 steps an epoch
    for allowed in range(6):
        asked: list[None] = []

        def stopped(asked: list[None] = asked, allowed: int = allowed) -> bool:
            asked.append(None)
            return len(asked) > allowed

        epoch = allowed // 3 + 1
        with pytest.raises(TrainingStopped, match=f"epoch {epoch} of 2, step {allowed + 1}"):
            trainer.train(TrainRequest(start(), training, 0), data, stopped)
        assert len(asked) == allowed + 1


RECIPES = {
    "sgd": Training(3, 0.1, momentum=0.9, nesterov=True, prox=0.1, weight_decay=0.01),
    "adam": Training(3, 0.05, optimizer="adam", clip_norm=1.0, warmup_steps=4, end_factor=0.1),
    "adamw": Training(3, 0.05, optimizer="adamw", weight_decay=0.1),
    "mean": Training(3, 0.1, momentum=0.9, average=0.7),
}


def after(steps: int) -> Callable[[], bool]:
    """Says to stop once it has been asked so many times."""
    asked = iter(range(steps))
    return lambda: next(asked, None) is None


def resumed(
    train: Callable[[Callable[[], bool], TrainingState | None], Trained], each: int
) -> Trained:
    """A training that is stopped after every ``each`` steps, and goes on from what a checkpoint keeps."""
    state: TrainingState | None = None
    while True:
        try:
            return train(after(each), state)
        except TrainingStopped as exc:
            assert exc.state is not None
            kept = encode_checkpoint(Checkpoint(b"job", state=exc.state))
            state = decode_checkpoint(kept, b"job").state


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("each", [1, 4])
def test_a_training_that_was_stopped_ends_with_the_same_bits(
    trainer: Trainer, recipe: Training, each: int
) -> None:
    data, extra = examples(11), start(8)  # 3 steps an epoch

    def plain(stopped: Callable[[], bool], resume: TrainingState | None) -> Trained:
        request = TrainRequest(start(), recipe, 7, start(2), True, extra)
        return trainer.train(request, data, stopped, resume)

    def mixed(stopped: Callable[[], bool], resume: TrainingState | None) -> Trained:
        request = TrainRequest(start(), recipe, 7, second=SecondModel(start(3), 0.4, True))
        return trainer.train(request, data, stopped, resume)

    whole, parts = plain(never, None), resumed(plain, each)
    assert whole.gradient is not None and parts.gradient is not None
    assert (parts.loss, parts.steps) == (whole.loss, whole.steps) == (whole.loss, 9)
    assert parts.theta.tobytes() == whole.theta.tobytes()
    assert parts.model.tobytes() == whole.model.tobytes()
    assert parts.gradient.tobytes() == whole.gradient.tobytes()
    both, pieces = mixed(never, None), resumed(mixed, each)
    assert pieces.second is not None and both.second is not None
    assert (pieces.second.mix, pieces.loss) == (both.second.mix, both.loss)
    assert pieces.second.theta.tobytes() == both.second.theta.tobytes()
    assert pieces.theta.tobytes() == both.theta.tobytes()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_an_optimizer_goes_on_where_the_last_round_ended(
    trainer: Trainer, optimizer: OptimizerName
) -> None:
    """Two rounds of one batch are two epochs of it; and without the state they are not."""
    two = Training(2, 0.05, 0.9, optimizer=optimizer, optimizer_state="keep", weight_decay=0.01)
    one, data = structs.replace(two, local_epochs=1), examples(B)
    whole = trainer.train(TrainRequest(start(), two, 0), data, never)
    first = trainer.train(TrainRequest(start(), one, 0), data, never)
    assert whole.moments is not None and first.moments is not None
    assert (first.moments.optimizer, first.moments.steps) == (optimizer, 1)
    before = [vector.copy() for vector in first.moments.vectors]
    going_on = TrainRequest(first.theta, one, 0, moments=first.moments)
    second = trainer.train(going_on, data, never)
    np.testing.assert_allclose(second.theta, whole.theta, atol=1e-6)
    assert second.moments is not None and second.moments.steps == whole.moments.steps == 2
    for vector, held in zip(first.moments.vectors, before, strict=True):
        np.testing.assert_array_equal(vector, held)  # it can be tried again
    anew = trainer.train(TrainRequest(first.theta, one, 0), data, never).theta
    assert np.abs(anew - whole.theta).max() > 1e-4
    reset = structs.replace(one, optimizer_state="reset")
    assert trainer.train(TrainRequest(start(), reset, 0), data, never).moments is None
    # Stopped between the epochs of a second round, it goes on with the same bits.
    longer = replace(going_on, training=two)
    again = trainer.train(longer, data, never)
    calls = iter((False, True))
    with pytest.raises(TrainingStopped) as stopped:
        trainer.train(longer, data, lambda: next(calls))
    ended = trainer.train(longer, data, never, stopped.value.state)
    np.testing.assert_array_equal(ended.theta, again.theta)
    assert ended.moments is not None and ended.moments.steps == 3


def test_divergence_names_epoch_and_step(trainer: Trainer) -> None:
    with pytest.raises(TrainingDiverged, match=r"epoch 1 of 2, step 2: the loss is"):
        trainer.train(TrainRequest(start(), Training(2, 1000.0), 0), examples(11), never)
    with pytest.raises(TrainingDiverged, match="evaluation: the mean loss is"):
        trainer.evaluate(start() * np.float32(1e30), examples(4))


def test_parameters_beyond_float32_after_the_last_step(trainer: Trainer) -> None:
    """The loss of the step is still finite; only theta shows it."""
    data = examples(4)
    huge = Examples(data.inputs * np.float32(1e37), data.targets)
    with pytest.raises(
        TrainingDiverged, match=r"epoch 1 of 1, step 1: \d+ parameters are not finite"
    ):
        trainer.train(TrainRequest(np.zeros(N, np.float32), Training(1, 1000.0), 0), huge, never)


def test_threads_share_one_trainer(backend: str) -> None:
    shared = opened(backend)
    barrier = threading.Barrier(4)

    def work(seed: int) -> tuple[Theta, float]:
        barrier.wait()  # all threads open the sessions at once
        data = examples(30, seed)
        request = TrainRequest(start(seed), Training(5, 0.1, 0.5, 0.1), seed)
        theta = shared.train(request, data, never).theta
        return theta, shared.evaluate(theta, data).loss

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))
    barrier = threading.Barrier(1)
    for seed, (theta, loss) in enumerate(together):
        alone = work(seed)
        np.testing.assert_array_equal(theta, alone[0])
        assert loss == alone[1]


def test_wrong_arrays_are_refused(trainer: Trainer) -> None:
    with pytest.raises(CodecError, match="theta"):
        trainer.train(TrainRequest(start()[:-1], Training(), 0), examples(4), never)
    narrow = Examples(examples(4).inputs[:, :3], examples(4).targets)
    with pytest.raises(CodecError, match="program 'gradient' failed"):
        trainer.train(TrainRequest(start(), Training(), 0), narrow, never)


@pytest.mark.parametrize("backend", PROGRAMS)
@pytest.mark.usefixtures("executorch_libraries")
def test_a_program_that_the_bundle_lacks(backend: str) -> None:
    without = open_trainer(bundle({"gradient": PROGRAMS[backend]["gradient"]}, backend), backend, 1)
    with pytest.raises(CodecError, match=f"^bundle 'softmax': no program 'predict' for {backend}$"):
        without.predictor(start())
