"""Many devices at once, any model, through torch.func."""

import pytest
import torch
from tests.emulate import trainings
from tests.emulate.trainings import PLAIN, PULLED, problem

from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.wire.messages import LastBatch, Training

CPU = torch.device("cpu")


def opened(of: Problem, width: int = 2) -> VectorisedTrainer:
    return VectorisedTrainer(of, "fp32", CPU, width)


@pytest.mark.parametrize("model", ["mlp", "cnn", "groupnorm", "batchnorm"])
@pytest.mark.parametrize("training", [PLAIN, PULLED], ids=["plain", "pulled"])
def test_the_numbers_are_torchs(model: str, training: Training) -> None:
    of = problem(model)
    trainings.check_like_torch(opened(of), of, training, 2e-4)


@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize("last_batch", ["fill", "drop"])
def test_the_last_batch(model: str, last_batch: LastBatch) -> None:
    of = problem(model)
    training = Training(learning_rate=0.05, last_batch=last_batch)
    trainings.check_like_torch(opened(of), of, training, 2e-4)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_evaluation_bits_and_divergence(model: str) -> None:
    of = problem(model)
    trainer = opened(of)
    trainings.check_evaluation(trainer, of)
    trainings.check_repeats(trainer, opened(of), of)
    trainings.check_divergence(trainer, of)


def test_bf16_is_near() -> None:
    of = problem("mlp")
    trainer = VectorisedTrainer(of, "bf16", CPU, 2)
    trainings.check_like_torch(trainer, of, PLAIN, 0.3)
    trainings.check_evaluation(trainer, of, 2e-2)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_frozen_anchored_gradient_and_mixed(model: str) -> None:
    of = problem(model)
    trainer = opened(of)
    trainings.check_frozen_and_anchored(trainer, of, 3e-4)
    trainings.check_gradient(trainer, of, 3e-4)
    trainings.check_mixed(trainer, of, 3e-4)


def test_the_width_halves_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    of = problem("mlp")
    trainer = opened(of, 8)
    tasks = trainings.devices(of, PLAIN)
    expected = [end.theta.tobytes() for end in trainings.trained(opened(of, 2), tasks)]
    asked: list[int] = []
    whole = trainer._run

    def small(*arguments):  # type: ignore[no-untyped-def]
        asked.append(trainer.width)
        if trainer.width > 2:
            raise torch.OutOfMemoryError("no memory for that many")
        return whole(*arguments)

    monkeypatch.setattr(trainer, "_run", small)
    assert [end.theta.tobytes() for end in trainings.trained(trainer, tasks)] == expected
    assert asked == [8, 4, 2, 2]

    def never(*arguments):  # type: ignore[no-untyped-def]
        raise torch.OutOfMemoryError("no memory at all")

    monkeypatch.setattr(trainer, "_run", never)
    with pytest.raises(Unsupported, match="one device does not fit: no memory at all"):
        trainer.train(tasks)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["avgcnn", "batchnorm"])
def test_on_a_gpu(model: str) -> None:
    of = problem(model)
    gpu = torch.device("cuda")
    trainer = VectorisedTrainer(of, "fp32", gpu)
    trainings.check_like_torch(trainer, of, PULLED, 1e-3)
    trainings.check_frozen_and_anchored(trainer, of, 1e-3)
    trainings.check_gradient(trainer, of, 1e-3)
    trainings.check_mixed(trainer, of, 1e-3)
    trainings.check_repeats(trainer, VectorisedTrainer(of, "fp32", gpu), of)
